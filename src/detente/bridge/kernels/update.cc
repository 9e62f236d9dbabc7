// An optimizer's update of one parameter in one pass over memory, by a function that was made for it.
//
// XLA's CPU compiler fuses into one result only: AdamW is three loops there, which read the gradient and both moments
// twice. Here every array is read once and written once. What the function computes was traced, written in C and
// compiled apart (bridge/optim/one_pass.py, passes.py); a program knows it by its key.

#include <map>
#include <mutex>
#include <vector>

#include "shared.h"

namespace detente::update {
namespace {

// Arithmetic of numbers, once for a call: reads them, keeps what the loop needs and writes those that are results.
using Numbers = void (*)(const void* const* in, void* const* out, double* kept);
// Elements `from` to `to` of the arrays.
using Loop = void (*)(const void* const* in, void* const* out, const double* kept, int64_t from, int64_t to);

struct Pass {
  Numbers numbers;
  Loop loop;
  int64_t kept;
};

std::map<int64_t, Pass> passes;
std::mutex guard;

// Of 64 KB in each array: a piece is worth its handing over, and both threads end together.
constexpr int64_t kPiece = int64_t{1} << 14;

// Where one layer's operands and results lie, and its numbers.
struct Layer {
  std::vector<const void*> in;
  std::vector<void*> out;
  std::vector<double> kept;
};

struct Update {
  Loop loop;
  std::vector<Layer> layers;
  int64_t size, pieces;  // of one layer

  void operator()(int64_t p) const {
    const Layer& layer = layers[p / pieces];
    const int64_t from = p % pieces * kPiece;
    loop(layer.in.data(), layer.out.data(), layer.kept.data(), from, std::min(size, from + kPiece));
  }
};

// Of the operands `given` are the function's, `arrays` of them arrays of one size in front and the last one the group's
// row; what comes behind is only waited for. Of the results `results` are arrays, in front too. A stack has `layers` of
// each along the first axis, and `rows` if it has a row for each.
std::string update(const Call& call) {
  const int64_t key = call.of("key"), given = call.of("given"), arrays = call.of("arrays");
  const int64_t results = call.of("results"), layers = call.of("layers");
  const bool rows = call.of<bool>("rows");
  Pass pass;
  {
    std::lock_guard<std::mutex> lock(guard);
    const auto found = passes.find(key);
    if (found == passes.end()) return "this update was not given to detente";
    pass = found->second;
  }
  if (layers < 1 || call.operands() < given) return unlike("an update");
  Update made{pass.loop, std::vector<Layer>(layers), -1, 0};
  int64_t whole = -1;
  const auto fits = [&](const Buffer& buffer) {
    if (whole < 0) whole = buffer.count;
    return is_f32(buffer) && buffer.count == whole && whole % layers == 0;
  };
  for (int64_t i = 0; i < given; ++i) {
    const Buffer buffer = call.operand(i);
    if (i < arrays && !fits(buffer)) return unlike("an update");
    const int64_t step = i == given - 1 && !rows ? 0 : buffer.bytes() / layers;
    for (int64_t k = 0; k < layers; ++k) made.layers[k].in.push_back(buffer.as<const char>() + k * step);
  }
  for (int64_t i = 0; i < call.results(); ++i) {
    const Buffer buffer = call.result(i);
    if (i < results && !fits(buffer)) return unlike("an update");
    const int64_t step = buffer.bytes() / layers;
    for (int64_t k = 0; k < layers; ++k) made.layers[k].out.push_back(buffer.as<char>() + k * step);
  }
  // Before any element: a result may lie where its number lay.
  for (Layer& layer : made.layers) {
    layer.kept.resize(pass.kept);
    pass.numbers(layer.in.data(), layer.out.data(), layer.kept.data());
  }
  made.size = whole / layers;
  made.pieces = (made.size + kPiece - 1) / kPiece;
  const int64_t pieces = made.pieces * layers;
  const Pool pool = call.pool();
  share(pool, workers(pool), pieces, std::move(made));
  return "";
}

}  // namespace
}  // namespace detente::update

extern "C" void detente_pass(int64_t key, void* numbers, void* loop, int64_t kept) {
  std::lock_guard<std::mutex> lock(detente::update::guard);
  using namespace detente::update;
  passes[key] = {reinterpret_cast<Numbers>(numbers), reinterpret_cast<Loop>(loop), kept};
}

DETENTE_HANDLER(detente_update, detente::update::update)

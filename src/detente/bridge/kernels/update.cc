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
ffi::Error update(ffi::ThreadPool pool, ffi::RemainingArgs args, ffi::RemainingRets rets, int64_t key, int64_t given,
                  int64_t arrays, int64_t results, int64_t layers, bool rows) {
  Pass pass;
  {
    std::lock_guard<std::mutex> lock(guard);
    const auto found = passes.find(key);
    if (found == passes.end()) {
      return ffi::Error(ffi::ErrorCode::kFailedPrecondition, "this update was not given to detente");
    }
    pass = found->second;
  }
  if (layers < 1 || static_cast<int64_t>(args.size()) < given) return unlike("an update");
  Update made{pass.loop, std::vector<Layer>(layers), -1, 0};
  int64_t whole = -1;
  const auto fits = [&](const ffi::AnyBuffer& buffer) {
    if (whole < 0) whole = buffer.element_count();
    return is_f32(buffer) && static_cast<int64_t>(buffer.element_count()) == whole && whole % layers == 0;
  };
  for (int64_t i = 0; i < given; ++i) {
    auto buffer = args.get<ffi::AnyBuffer>(i);
    if (!buffer || (i < arrays && !fits(*buffer))) return unlike("an update");
    const auto* bytes = static_cast<const char*>(buffer->untyped_data());
    const int64_t step = i == given - 1 && !rows ? 0 : buffer->size_bytes() / layers;
    for (int64_t k = 0; k < layers; ++k) made.layers[k].in.push_back(bytes + k * step);
  }
  for (size_t i = 0; i < rets.size(); ++i) {
    auto buffer = rets.get<ffi::AnyBuffer>(i);
    if (!buffer || (static_cast<int64_t>(i) < results && !fits(**buffer))) return unlike("an update");
    auto* bytes = static_cast<char*>((*buffer)->untyped_data());
    for (int64_t k = 0; k < layers; ++k) made.layers[k].out.push_back(bytes + k * ((*buffer)->size_bytes() / layers));
  }
  // Before any element: a result may lie where its number lay.
  for (Layer& layer : made.layers) {
    layer.kept.resize(pass.kept);
    pass.numbers(layer.in.data(), layer.out.data(), layer.kept.data());
  }
  made.size = whole / layers;
  made.pieces = (made.size + kPiece - 1) / kPiece;
  const int64_t pieces = made.pieces * layers;
  share(pool, workers(pool), pieces, std::move(made));
  return ffi::Error::Success();
}

}  // namespace
}  // namespace detente::update

extern "C" void detente_pass(int64_t key, void* numbers, void* loop, int64_t kept) {
  std::lock_guard<std::mutex> lock(detente::update::guard);
  using namespace detente::update;
  passes[key] = {reinterpret_cast<Numbers>(numbers), reinterpret_cast<Loop>(loop), kept};
}

XLA_FFI_DEFINE_HANDLER_SYMBOL(detente_update, detente::update::update,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::ThreadPool>()
                                  .RemainingArgs()
                                  .RemainingRets()
                                  .Attr<int64_t>("key")
                                  .Attr<int64_t>("given")
                                  .Attr<int64_t>("arrays")
                                  .Attr<int64_t>("results")
                                  .Attr<int64_t>("layers")
                                  .Attr<bool>("rows"));

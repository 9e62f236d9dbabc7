// An optimizer's update of one parameter in one pass over memory, by a function that was made for it.
//
// XLA's CPU compiler fuses into one result only: AdamW is three loops there, which read the gradient and both moments
// twice. Here every array is read once and written once. What the function computes was traced, written in C and
// compiled apart (bridge/optim/one_pass.py, passes.py); a program knows it by its key.

#include <map>
#include <mutex>
#include <vector>

#include "shared.h"

namespace detente {
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

struct Update {
  Loop loop;
  std::vector<const void*> in;
  std::vector<void*> out;
  std::vector<double> kept;
  int64_t size;

  void operator()(int64_t p) const {
    loop(in.data(), out.data(), kept.data(), p * kPiece, std::min(size, (p + 1) * kPiece));
  }
};

// Of the operands `given` are the function's, `arrays` of them arrays of one size in front; what comes behind is only
// waited for. Of the results `results` are arrays, in front too.
ffi::Error update(ffi::ThreadPool pool, ffi::RemainingArgs args, ffi::RemainingRets rets, int64_t key, int64_t given,
                  int64_t arrays, int64_t results) {
  Pass pass;
  {
    std::lock_guard<std::mutex> lock(guard);
    const auto found = passes.find(key);
    if (found == passes.end()) {
      return ffi::Error(ffi::ErrorCode::kFailedPrecondition, "this update was not given to detente");
    }
    pass = found->second;
  }
  Update made{pass.loop, {}, {}, std::vector<double>(pass.kept), -1};
  const auto fits = [&](const ffi::AnyBuffer& buffer) {
    if (made.size < 0) made.size = buffer.element_count();
    return is_f32(buffer) && static_cast<int64_t>(buffer.element_count()) == made.size;
  };
  if (static_cast<int64_t>(args.size()) < given) return unlike("an update");
  for (int64_t i = 0; i < given; ++i) {
    auto buffer = args.get<ffi::AnyBuffer>(i);
    if (!buffer || (i < arrays && !fits(*buffer))) return unlike("an update");
    made.in.push_back(buffer->untyped_data());
  }
  for (size_t i = 0; i < rets.size(); ++i) {
    auto buffer = rets.get<ffi::AnyBuffer>(i);
    if (!buffer || (static_cast<int64_t>(i) < results && !fits(**buffer))) return unlike("an update");
    made.out.push_back((*buffer)->untyped_data());
  }
  // Before any element: a result may lie where its number lay.
  pass.numbers(made.in.data(), made.out.data(), made.kept.data());
  const int64_t pieces = (made.size + kPiece - 1) / kPiece;
  share(pool, workers(pool), pieces, std::move(made));
  return ffi::Error::Success();
}

}  // namespace
}  // namespace detente

extern "C" void detente_pass(int64_t key, void* numbers, void* loop, int64_t kept) {
  std::lock_guard<std::mutex> lock(detente::guard);
  detente::passes[key] = {reinterpret_cast<detente::Numbers>(numbers), reinterpret_cast<detente::Loop>(loop), kept};
}

XLA_FFI_DEFINE_HANDLER_SYMBOL(detente_update, detente::update,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::ThreadPool>()
                                  .RemainingArgs()
                                  .RemainingRets()
                                  .Attr<int64_t>("key")
                                  .Attr<int64_t>("given")
                                  .Attr<int64_t>("arrays")
                                  .Attr<int64_t>("results"));

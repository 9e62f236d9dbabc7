// A convolution of one or two dimensions by torch's own operator, whose kernels are oneDNN's: float32, pictures channels
// last, (N, H, W, C), kernels as torch stores them, (O, inner, kh, kw). Of one dimension: H and kh are 1.
//
// torch is called through the C functions that compiled models call (AOTInductor's shims). It computes with as many of
// OpenMP's threads as the thread that calls says: one, here, and the channels are cut among the threads of XLA's pool.
// What is cut is never what is summed over: nothing is added up behind the pieces.
//
// XLA runs a program in the thread that calls it, where it sees fit, and torch's operators look at what a thread of
// Python's has switched on: autocast, a mode that watches every operator or puts others in their places. So such a thread
// computes nothing here, and waits for those of the pool, which Python has never seen.

#include <cstring>
#include <limits>
#include <mutex>
#include <string>

#include "shared.h"

namespace detente::convolution {
namespace {

using Handle = void*;
using OfMemory = int (*)(void*, int64_t, const int64_t*, const int64_t*, int64_t, int32_t, int32_t, int32_t, Handle*);
using Convolve = int (*)(Handle, Handle, Handle*, const int64_t*, int64_t, const int64_t*, int64_t, const int64_t*,
                         int64_t, int32_t, const int64_t*, int64_t, int64_t, Handle*);
using Differentiate = int (*)(Handle, Handle, Handle, const int64_t**, int64_t, const int64_t*, int64_t, const int64_t*,
                              int64_t, const int64_t*, int64_t, int32_t, const int64_t*, int64_t, int64_t,
                              const int32_t*, int64_t, Handle*, Handle*, Handle*);

// In the order in which detente_convolve_by is given them.
struct Torch {
  OfMemory of_memory;
  Convolve convolve;
  Differentiate differentiate;
  int (*forget)(Handle);
  int (*data)(Handle, void**);
  int (*strides)(Handle, int64_t**);
  int32_t (*float32)();
  int32_t (*cpu)();
  void (*set_threads)(int);
  int (*threads)();
  void* (*python)();       // what Python keeps of this thread; null where it does not know it
  const char* (*words)();  // of what this thread was refused last; null of a torch that writes them to stderr
};

Torch torch;
bool given = false;

// A tensor of torch's: one of our memory, or a result.
struct Tensor {
  Handle handle = nullptr;

  Tensor() = default;
  Tensor(const float* memory, const int64_t (&sizes)[4], const int64_t (&steps)[4]) {
    if (torch.of_memory(const_cast<float*>(memory), 4, sizes, steps, 0, torch.float32(), torch.cpu(), 0, &handle)) {
      handle = nullptr;
    }
  }
  Tensor(const Tensor&) = delete;
  Tensor& operator=(const Tensor&) = delete;
  ~Tensor() {
    if (handle != nullptr) torch.forget(handle);
  }

  // Copies what is here (sizes as torch has them) to where `steps` has it. Walks along what lies together here: of a
  // kernel's gradient the channels, which are not the innermost of ours.
  bool copy(const int64_t (&sizes)[4], const int64_t (&steps)[4], float* to) const {
    void* memory = nullptr;
    int64_t* lies = nullptr;
    if (torch.data(handle, &memory) || torch.strides(handle, &lies)) return false;
    const auto* from = static_cast<const float*>(memory);
    int order[4] = {0, 1, 2, 3};  // the outermost first; a stride of a size of 1 says nothing
    const auto far = [&](int d) { return sizes[d] == 1 ? std::numeric_limits<int64_t>::max() : lies[d]; };
    std::stable_sort(order, order + 4, [&](int a, int b) { return far(a) > far(b); });
    int64_t size[4], step[4], lie[4];
    for (int d = 0; d < 4; ++d) size[d] = sizes[order[d]], step[d] = steps[order[d]], lie[d] = lies[order[d]];
    const bool together = (step[3] == 1 && lie[3] == 1) || size[3] == 1;
    for (int64_t i = 0; i < size[0]; ++i) {
      for (int64_t j = 0; j < size[1]; ++j) {
        for (int64_t k = 0; k < size[2]; ++k) {
          const float* at = from + i * lie[0] + j * lie[1] + k * lie[2];
          float* out = to + i * step[0] + j * step[1] + k * step[2];
          if (together) {
            std::memcpy(out, at, size[3] * sizeof(float));
          } else {
            for (int64_t l = 0; l < size[3]; ++l) out[l * step[3]] = at[l * lie[3]];
          }
        }
      }
    }
    return true;
  }
};

// What this thread's OpenMP computes with, as long as it lives.
struct Alone {
  const int before = torch.threads();
  Alone() { torch.set_threads(1); }
  ~Alone() { torch.set_threads(before); }
};

// What torch refused first: a piece may be refused in any thread, and the words of another's are not its.
class Refused {
 public:
  void tell(const char* what) {
    const std::lock_guard<std::mutex> lock(guard_);
    if (!said_.empty()) return;
    const char* words = torch.words == nullptr ? nullptr : torch.words();
    said_ = std::string("torch's convolution failed: ") + what + ": " +
            (words == nullptr || *words == 0 ? "its own words are on stderr" : words);
  }
  const std::string& said() const { return said_; }

 private:
  std::mutex guard_;
  std::string said_;
};

enum class Of { kResult, kInput, kKernel };

struct Sizes {
  int64_t n, h, w, inner, out_h, out_w, o, kh, kw, step_h, step_w, low_h, low_w, reach_h, reach_w, groups;

  explicit Sizes(const Call& said)
      : n(said.of("n")),
        h(said.of("h")),
        w(said.of("w")),
        inner(said.of("inner")),
        out_h(said.of("out_h")),
        out_w(said.of("out_w")),
        o(said.of("o")),
        kh(said.of("kh")),
        kw(said.of("kw")),
        step_h(said.of("step_h")),
        step_w(said.of("step_w")),
        low_h(said.of("low_h")),
        low_w(said.of("low_w")),
        reach_h(said.of("reach_h")),
        reach_w(said.of("reach_w")),
        groups(said.of("groups")) {}

  // Channels of the input; `inner` are one group's.
  int64_t c() const { return inner * groups; }

  bool hold(const Buffer& x, const Buffer& kernel, const Buffer& y) const {
    const auto of = [](const Buffer& buffer, int64_t count) {
      return is_f32(buffer) && count > 0 && buffer.count == count;
    };
    return groups > 0 && o % groups == 0 && of(x, n * h * w * c()) && of(kernel, o * inner * kh * kw) &&
           of(y, n * out_h * out_w * o);
  }
};

struct Convolution : Sizes {
  Of of;
  const float *x, *kernel, *gradient;
  float* result;
  int64_t each;  // channels (of one group alone) or groups of a piece
  Refused* refused;

  // The channels that are cut: those of the input where its gradient is asked for, else those of the result.
  int64_t channels() const { return of == Of::kInput ? c() : o; }
  int64_t cut() const { return groups == 1 ? channels() : groups; }
  int64_t pieces() const { return (cut() + each - 1) / each; }

  void operator()(int64_t p) const {
    const Alone alone;
    const char* what = computed(p * each, std::min(cut(), (p + 1) * each));
    if (what != nullptr) refused->tell(what);
  }

  // Null, or what torch refused.
  const char* computed(int64_t from, int64_t to) const {
    const int64_t wide = c(), own = o / groups, taps = kh * kw;
    // Of one group a piece has all channels on the other side; of several, its groups' on both.
    const bool cuts_c = groups > 1 || of == Of::kInput, cuts_o = groups > 1 || of != Of::kInput;
    const int64_t here = groups == 1 ? 1 : to - from;
    const int64_t c0 = cuts_c ? (groups == 1 ? from : from * inner) : 0;
    const int64_t o0 = cuts_o ? (groups == 1 ? from : from * own) : 0;
    const int64_t cs = cuts_c ? (groups == 1 ? to - from : here * inner) : wide;
    const int64_t os = cuts_o ? (groups == 1 ? to - from : here * own) : o;
    const int64_t k0 = groups == 1 ? c0 : 0;  // where a kernel's own channels begin
    const int64_t of_x[4] = {n, cs, h, w}, x_steps[4] = {h * w * wide, 1, w * wide, wide};
    const int64_t of_y[4] = {n, os, out_h, out_w}, y_steps[4] = {out_h * out_w * o, 1, out_w * o, o};
    const int64_t of_k[4] = {os, cs / here, kh, kw}, k_steps[4] = {inner * taps, taps, kw, 1};
    const int64_t step[2] = {step_h, step_w}, low[2] = {low_h, low_w}, reach[2] = {reach_h, reach_w}, none[2] = {0, 0};
    const int64_t at_kernel = o0 * inner * taps + k0 * taps;
    // torch looks at the sizes alone of what a gradient is of: memory that it need not turn is handed over for it.
    const int64_t any_x[4] = {h * w * cs, 1, w * cs, cs}, any_k[4] = {cs / here * taps, 1, kw * cs / here, cs / here};
    const Tensor input(of == Of::kInput ? result : x + c0, of_x, of == Of::kInput ? any_x : x_steps);
    const Tensor weight(of == Of::kKernel ? result : kernel + at_kernel, of_k, of == Of::kKernel ? any_k : k_steps);
    if (input.handle == nullptr || weight.handle == nullptr) return "a tensor of our memory";
    Tensor found[3];
    if (of == Of::kResult) {
      if (torch.convolve(input.handle, weight.handle, nullptr, step, 2, low, 2, reach, 2, 0, none, 2, here,
                         &found[0].handle)) {
        return "the product";
      }
      return copied(found[0], of_y, y_steps, result + o0);
    }
    const Tensor came(gradient + o0, of_y, y_steps);
    if (came.handle == nullptr) return "a tensor of our memory";
    const int32_t wanted[3] = {of == Of::kInput, of == Of::kKernel, 0};
    if (torch.differentiate(came.handle, input.handle, weight.handle, nullptr, 0, step, 2, low, 2, reach, 2, 0, none, 2,
                            here, wanted, 3, &found[0].handle, &found[1].handle, &found[2].handle)) {
      return "a gradient";
    }
    return of == Of::kInput ? copied(found[0], of_x, x_steps, result + c0)
                            : copied(found[1], of_k, k_steps, result + at_kernel);
  }

  static const char* copied(const Tensor& found, const int64_t (&sizes)[4], const int64_t (&steps)[4], float* to) {
    return found.copy(sizes, steps, to) ? nullptr : "where its result lies";
  }
};

// A piece's channels: whole vectors of them.
constexpr int64_t kVector = 16;

std::string run(const Call& call, Convolution s) {
  if (!given) return "no convolution was given to detente";
  const Pool pool = call.pool();
  const int64_t helpers = workers(pool), least = s.groups == 1 ? kVector : 1;
  s.each = ((s.cut() + helpers - 1) / helpers + least - 1) / least * least;
  Refused refused;
  s.refused = &refused;
  share(pool, helpers, s.pieces(), s, torch.python() == nullptr);
  return refused.said();
}

std::string forward(const Call& call) {
  const Sizes s(call);
  const Buffer x = call.operand(0), kernel = call.operand(1), y = call.result(0);
  if (!s.hold(x, kernel, y)) return unlike("torch's convolution");
  return run(call, {s, Of::kResult, x.as(), kernel.as(), nullptr, y.as(), 0, nullptr});
}

std::string of_input(const Call& call) {
  const Sizes s(call);
  const Buffer kernel = call.operand(0), gradient = call.operand(1), to = call.result(0);
  if (!s.hold(to, kernel, gradient)) return unlike("the input's gradient of torch's convolution");
  return run(call, {s, Of::kInput, nullptr, kernel.as(), gradient.as(), to.as(), 0, nullptr});
}

std::string of_kernel(const Call& call) {
  const Sizes s(call);
  const Buffer x = call.operand(0), gradient = call.operand(1), to = call.result(0);
  if (!s.hold(x, to, gradient)) return unlike("the kernel's gradient of torch's convolution");
  return run(call, {s, Of::kKernel, x.as(), nullptr, gradient.as(), to.as(), 0, nullptr});
}

}  // namespace
}  // namespace detente::convolution

// Where torch's functions lie, in the order of `Torch`.
extern "C" void detente_convolve_by(void* const* functions) {
  std::memcpy(&detente::convolution::torch, functions, sizeof(detente::convolution::torch));
  detente::convolution::given = true;
}

DETENTE_HANDLER(detente_convolution, detente::convolution::forward)
DETENTE_HANDLER(detente_convolution_of_input, detente::convolution::of_input)
DETENTE_HANDLER(detente_convolution_of_kernel, detente::convolution::of_kernel)

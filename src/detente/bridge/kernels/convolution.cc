// A convolution as products with the BLAS that torch brings: float32, channels last. x (N, H, W, C), kernel
// (kh, kw, C, O), y (N, OH, OW, O). Of one dimension: H and kh are 1.
//
// What a block of places meets is written out in rows (im2col) that stay in the cache, and each block is one product.

#include <cstring>
#include <vector>

#include "shared.h"

namespace detente {
namespace {

// Floats of a block's rows, and places of a block at least: the kernel is read once for each block.
constexpr int64_t kHeld = 1 << 17, kPlaces = 192;

struct Shape {
  int64_t n, h, w, c, out_h, out_w, o, kh, kw, low_h, low_w, stride_h, stride_w, step_h, step_w;

  int64_t places() const { return n * out_h * out_w; }
  int64_t terms() const { return kh * kw * c; }
  int64_t block(int64_t terms) const { return std::min(places(), std::max(kPlaces, kHeld / terms)); }
};

// rows[place][term] for the terms `from` to `to` (element of the kernel, channel) of the places `first` to `behind`.
void write_out(const Shape& s, const float* x, int64_t first, int64_t behind, int64_t from, int64_t to, float* rows) {
  const int64_t wide = to - from;
  for (int64_t place = first; place < behind; ++place, rows += wide) {
    const int64_t picture = place / (s.out_h * s.out_w), at = place % (s.out_h * s.out_w);
    const int64_t row = at / s.out_w * s.stride_h - s.low_h, column = at % s.out_w * s.stride_w - s.low_w;
    float* to_here = rows;
    for (int64_t term = from; term < to;) {
      const int64_t element = term / s.c, channel = term % s.c, count = std::min(to - term, s.c - channel);
      const int64_t y = row + element / s.kw * s.step_h, z = column + element % s.kw * s.step_w;
      if (y >= 0 && y < s.h && z >= 0 && z < s.w) {
        std::memcpy(to_here, x + ((picture * s.h + y) * s.w + z) * s.c + channel, count * sizeof(float));
      } else {
        std::memset(to_here, 0, count * sizeof(float));
      }
      to_here += count, term += count;
    }
  }
}

float* room(int64_t size) {
  thread_local std::vector<float> held;
  if (static_cast<int64_t>(held.size()) < size) held.resize(size);
  return held.data();
}

struct Forward {
  Shape s;
  const float *x, *kernel;
  float* y;
  int64_t columns;  // parts of the output channels: where there are fewer blocks than threads

  void operator()(int64_t p) const {
    const int64_t size = s.block(s.terms()), part = p % columns;
    const int64_t first = p / columns * size, behind = std::min(s.places(), first + size);
    const int64_t from = s.o * part / columns, to = s.o * (part + 1) / columns;
    float* rows = room(size * s.terms());
    write_out(s, x, first, behind, 0, s.terms(), rows);
    multiply(false, false, behind - first, to - from, s.terms(), 1.0f, rows, s.terms(), kernel + from, s.o, 0.0f,
             y + first * s.o + from, s.o);
  }
};

struct OfKernel {
  Shape s;
  const float *x, *gradient;
  float* kernel;
  int64_t parts;

  void operator()(int64_t p) const {
    // Borders at multiples of 16 terms: a cache line is written by one thread.
    const int64_t units = (s.terms() + 15) / 16;
    const int64_t from = std::min(s.terms(), units * p / parts * 16);
    const int64_t to = std::min(s.terms(), units * (p + 1) / parts * 16);
    if (from >= to) return;
    const int64_t size = s.block(to - from);
    float* rows = room(size * (to - from));
    for (int64_t first = 0; first < s.places(); first += size) {
      const int64_t behind = std::min(s.places(), first + size);
      write_out(s, x, first, behind, from, to, rows);
      multiply(true, false, to - from, s.o, behind - first, 1.0f, rows, to - from, gradient + first * s.o, s.o,
               first == 0 ? 0.0f : 1.0f, kernel + from * s.o, s.o);
    }
  }
};

bool fits(const Shape& s, const ffi::AnyBuffer& x, const ffi::AnyBuffer& kernel, const ffi::AnyBuffer& y) {
  const auto of = [](const ffi::AnyBuffer& buffer, int64_t size) {
    return is_f32(buffer) && static_cast<int64_t>(buffer.element_count()) == size;
  };
  return gemm != nullptr && of(x, s.n * s.h * s.w * s.c) && of(kernel, s.terms() * s.o) && of(y, s.places() * s.o) &&
         s.stride_h > 0 && s.stride_w > 0 && s.step_h > 0 && s.step_w > 0 && s.places() > 0 && s.terms() > 0;
}

// Of what takes less than some 10 microseconds no part is given away.
int64_t helpers(ffi::ThreadPool& pool, const Shape& s) {
  return s.places() * s.terms() * s.o <= (int64_t{1} << 20) ? 1 : workers(pool);
}

#define DETENTE_SHAPE                                                                                               \
  int64_t n, int64_t h, int64_t w, int64_t c, int64_t out_h, int64_t out_w, int64_t o, int64_t kh, int64_t kw,      \
      int64_t low_h, int64_t low_w, int64_t stride_h, int64_t stride_w, int64_t step_h, int64_t step_w
#define DETENTE_GIVEN n, h, w, c, out_h, out_w, o, kh, kw, low_h, low_w, stride_h, stride_w, step_h, step_w

ffi::Error forward(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::AnyBuffer kernel, ffi::Result<ffi::AnyBuffer> y,
                   DETENTE_SHAPE) {
  const Shape s{DETENTE_GIVEN};
  if (!fits(s, x, kernel, *y)) return unlike("detente's convolution");
  const int64_t blocks = (s.places() + s.block(s.terms()) - 1) / s.block(s.terms()), count = helpers(pool, s);
  const int64_t columns = blocks >= count ? 1 : std::min(s.o, (count + blocks - 1) / blocks);
  share(pool, count, blocks * columns,
        Forward{s, x.reinterpret_data<float>(), kernel.reinterpret_data<float>(), y->reinterpret_data<float>(),
                columns});
  return ffi::Error::Success();
}

ffi::Error of_kernel(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::AnyBuffer gradient,
                     ffi::Result<ffi::AnyBuffer> kernel, DETENTE_SHAPE) {
  const Shape s{DETENTE_GIVEN};
  if (!fits(s, x, *kernel, gradient)) return unlike("the gradient of detente's convolution");
  const int64_t parts = helpers(pool, s);
  share(pool, parts, parts,
        OfKernel{s, x.reinterpret_data<float>(), gradient.reinterpret_data<float>(), kernel->reinterpret_data<float>(),
                 parts});
  return ffi::Error::Success();
}

auto bound() {
  return xla::ffi::Ffi::Bind()
      .Ctx<xla::ffi::ThreadPool>()
      .Arg<xla::ffi::AnyBuffer>()
      .Arg<xla::ffi::AnyBuffer>()
      .Ret<xla::ffi::AnyBuffer>()
      .Attr<int64_t>("n")
      .Attr<int64_t>("h")
      .Attr<int64_t>("w")
      .Attr<int64_t>("c")
      .Attr<int64_t>("out_h")
      .Attr<int64_t>("out_w")
      .Attr<int64_t>("o")
      .Attr<int64_t>("kh")
      .Attr<int64_t>("kw")
      .Attr<int64_t>("low_h")
      .Attr<int64_t>("low_w")
      .Attr<int64_t>("stride_h")
      .Attr<int64_t>("stride_w")
      .Attr<int64_t>("step_h")
      .Attr<int64_t>("step_w");
}

}  // namespace
}  // namespace detente

XLA_FFI_DEFINE_HANDLER_SYMBOL(detente_convolution, detente::forward, detente::bound());
XLA_FFI_DEFINE_HANDLER_SYMBOL(detente_convolution_of_kernel, detente::of_kernel, detente::bound());

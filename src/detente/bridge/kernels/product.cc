// A product of float32 matrices, or of bfloat16 ones summed in float32, by the BLAS that torch brings.

#include "shared.h"

namespace detente {

Gemm gemm = nullptr;
GemmOfHalves gemm_of_halves = nullptr;
Threads threads = nullptr;
std::atomic<int64_t> calls{0};

namespace {

template <typename Number>
struct Product {
  const Number* a;
  const Number* b;
  float* c;
  // c[batch][m][n] = a[batch][m][k] b[batch][k][n], row by row; ta: a is stored [k][m], tb: b is stored [n][k].
  int64_t batch, m, n, k;
  bool ta, tb;
  // Cut into `pieces` along the batch ('b'), the rows ('m') or the columns ('n').
  char along;
  int64_t pieces;

  void one(int64_t i, int64_t row, int64_t rows, int64_t column, int64_t columns) const {
    const int64_t lda = ta ? m : k, ldb = tb ? k : n;
    const Number* x = a + i * m * k + (ta ? row : row * lda);
    const Number* y = b + i * k * n + (tb ? column * ldb : column);
    multiply(ta, tb, rows, columns, k, 1.0f, x, lda, y, ldb, 0.0f, c + i * m * n + row * n + column, n);
  }

  void operator()(int64_t p) const {
    const int64_t size = along == 'b' ? batch : along == 'm' ? m : n;
    // Borders at multiples of 16 floats, where there are so many: a cache line is written by one thread.
    const int64_t grain = along != 'b' && size >= 16 * pieces ? 16 : 1;
    const int64_t units = (size + grain - 1) / grain;
    const int64_t from = std::min(size, units * p / pieces * grain);
    const int64_t to = std::min(size, units * (p + 1) / pieces * grain);
    if (from >= to) return;
    if (along == 'b') {
      for (int64_t i = from; i < to; ++i) one(i, 0, m, 0, n);
    } else {
      for (int64_t i = 0; i < batch; ++i) {
        if (along == 'm') one(i, from, to - from, 0, n);
        if (along == 'n') one(i, 0, m, from, to - from);
      }
    }
  }
};

// Of a product that takes less than some 10 microseconds no part is given away.
constexpr int64_t kAlone = int64_t{1} << 20;

bool is_bf16(const ffi::AnyBuffer& buffer) { return buffer.element_type() == ffi::DataType::BF16; }

ffi::Error product(ffi::ThreadPool pool, ffi::AnyBuffer a, ffi::AnyBuffer b, ffi::Result<ffi::AnyBuffer> c,
                   int64_t batch, int64_t m, int64_t n, int64_t k, bool ta, bool tb) {
  const bool halves = is_bf16(a) && is_bf16(b);
  if (halves ? gemm_of_halves == nullptr : gemm == nullptr) {
    return ffi::Error(ffi::ErrorCode::kFailedPrecondition, "no product was given to detente");
  }
  if (!(halves || (is_f32(a) && is_f32(b))) || !is_f32(*c) ||
      static_cast<int64_t>(a.element_count()) != batch * m * k ||
      static_cast<int64_t>(b.element_count()) != batch * k * n ||
      static_cast<int64_t>(c->element_count()) != batch * m * n) {
    return unlike("detente's product");
  }
  const int64_t count = batch * m * n * k <= kAlone ? 1 : workers(pool);
  const char along = batch >= count ? 'b' : n >= m ? 'n' : 'm';
  auto* out = c->reinterpret_data<float>();
  if (halves) {
    share(pool, count, count,
          Product<Half>{static_cast<const Half*>(a.untyped_data()), static_cast<const Half*>(b.untyped_data()), out,
                        batch, m, n, k, ta, tb, along, count});
  } else {
    share(pool, count, count,
          Product<float>{a.reinterpret_data<float>(), b.reinterpret_data<float>(), out, batch, m, n, k, ta, tb, along,
                         count});
  }
  return ffi::Error::Success();
}

}  // namespace
}  // namespace detente

extern "C" void detente_matmul_by(void* blas, void* of_halves, void* set_threads) {
  detente::gemm = reinterpret_cast<detente::Gemm>(blas);
  detente::gemm_of_halves = reinterpret_cast<detente::GemmOfHalves>(of_halves);
  detente::threads = reinterpret_cast<detente::Threads>(set_threads);
}

extern "C" int64_t detente_calls() { return detente::calls.load(); }

XLA_FFI_DEFINE_HANDLER_SYMBOL(detente_matmul, detente::product,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::ThreadPool>()
                                  .Arg<xla::ffi::AnyBuffer>()
                                  .Arg<xla::ffi::AnyBuffer>()
                                  .Ret<xla::ffi::AnyBuffer>()
                                  .Attr<int64_t>("batch")
                                  .Attr<int64_t>("m")
                                  .Attr<int64_t>("n")
                                  .Attr<int64_t>("k")
                                  .Attr<bool>("ta")
                                  .Attr<bool>("tb"));

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

std::string product(const Call& call) {
  const Buffer a = call.operand(0), b = call.operand(1), c = call.result(0);
  const int64_t batch = call.of("batch"), m = call.of("m"), n = call.of("n"), k = call.of("k");
  const bool ta = call.of<bool>("ta"), tb = call.of<bool>("tb");
  const bool halves = a.dtype == XLA_FFI_DataType_BF16 && b.dtype == XLA_FFI_DataType_BF16;
  if (halves ? gemm_of_halves == nullptr : gemm == nullptr) return "no product was given to detente";
  if (!(halves || (is_f32(a) && is_f32(b))) || !is_f32(c) || a.count != batch * m * k || b.count != batch * k * n ||
      c.count != batch * m * n) {
    return unlike("detente's product");
  }
  const Pool pool = call.pool();
  const int64_t count = batch * m * n * k <= kAlone ? 1 : workers(pool);
  const char along = batch >= count ? 'b' : n >= m ? 'n' : 'm';
  if (halves) {
    share(pool, count, count,
          Product<Half>{a.as<const Half>(), b.as<const Half>(), c.as(), batch, m, n, k, ta, tb, along, count});
  } else {
    share(pool, count, count, Product<float>{a.as(), b.as(), c.as(), batch, m, n, k, ta, tb, along, count});
  }
  return "";
}

}  // namespace
}  // namespace detente

extern "C" void detente_matmul_by(void* blas, void* of_halves, void* set_threads) {
  detente::gemm = reinterpret_cast<detente::Gemm>(blas);
  detente::gemm_of_halves = reinterpret_cast<detente::GemmOfHalves>(of_halves);
  detente::threads = reinterpret_cast<detente::Threads>(set_threads);
}

extern "C" int64_t detente_calls() { return detente::calls.load(); }

DETENTE_HANDLER(detente_matmul, detente::product)

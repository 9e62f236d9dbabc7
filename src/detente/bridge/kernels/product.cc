// A product of float32 matrices by the BLAS that torch brings, on the threads that XLA computes with.
//
// XLA hands a thunk its own pool; MKL would start another one (OpenMP's, whose threads spin behind every product and
// take the cores from XLA). So MKL computes with one thread in each, and a product is cut into pieces here. Whoever
// calls takes pieces as the helpers do, and waits for pieces that somebody has begun, never for a helper to come: all
// threads of the pool may be inside of a product at once.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>

#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace {

using Gemm = void (*)(const char*, const char*, const int*, const int*, const int*, const float*, const float*,
                      const int*, const float*, const int*, const float*, float*, const int*);
using Threads = int (*)(int);

Gemm gemm = nullptr;
Threads threads = nullptr;
std::atomic<int64_t> calls{0};

struct Product {
  const float* a;
  const float* b;
  float* c;
  // c[batch][m][n] = a[batch][m][k] b[batch][k][n], row by row; ta: a is stored [k][m], tb: b is stored [n][k].
  int64_t batch, m, n, k;
  bool ta, tb;
  // Cut into `pieces` along the batch ('b'), the rows ('m') or the columns ('n').
  char along;
  int64_t pieces;
  std::atomic<int64_t> next{0}, done{0};

  void one(int64_t i, int64_t row, int64_t rows, int64_t column, int64_t columns) const {
    // Fortran's columns are our rows: the transposed product of the swapped operands.
    const int64_t lda = ta ? m : k, ldb = tb ? k : n;
    const float* x = a + i * m * k + (ta ? row : row * lda);
    const float* y = b + i * k * n + (tb ? column * ldb : column);
    float* z = c + i * m * n + row * n + column;
    const int rows_ = rows, columns_ = columns, k_ = k, lda_ = lda, ldb_ = ldb, ldc_ = n;
    const float unit = 1.0f, zero = 0.0f;
    gemm(tb ? "T" : "N", ta ? "T" : "N", &columns_, &rows_, &k_, &unit, y, &ldb_, x, &lda_, &zero, z, &ldc_);
  }

  void piece(int64_t p) const {
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

  void take() {
    const int before = threads ? threads(1) : 0;
    for (int64_t p; (p = next.fetch_add(1)) < pieces;) {
      piece(p);
      if (done.fetch_add(1) + 1 == pieces) done.notify_all();
    }
    if (threads) threads(before);
  }
};

// Of a product that takes less than some 10 microseconds no part is given away.
constexpr int64_t kAlone = int64_t{1} << 20;

ffi::Error product(ffi::ThreadPool pool, ffi::AnyBuffer a, ffi::AnyBuffer b, ffi::Result<ffi::AnyBuffer> c,
                   int64_t batch, int64_t m, int64_t n, int64_t k, bool ta, bool tb) {
  if (gemm == nullptr) return ffi::Error(ffi::ErrorCode::kFailedPrecondition, "no product was given to detente");
  if (a.element_type() != ffi::DataType::F32 || b.element_type() != ffi::DataType::F32 ||
      c->element_type() != ffi::DataType::F32 || static_cast<int64_t>(a.element_count()) != batch * m * k ||
      static_cast<int64_t>(b.element_count()) != batch * k * n ||
      static_cast<int64_t>(c->element_count()) != batch * m * n) {
    return ffi::Error(ffi::ErrorCode::kInvalidArgument, "detente's product was called with other shapes than it says");
  }
  calls.fetch_add(1, std::memory_order_relaxed);
  auto work = std::make_shared<Product>();
  work->a = a.reinterpret_data<float>();
  work->b = b.reinterpret_data<float>();
  work->c = c->reinterpret_data<float>();
  work->batch = batch, work->m = m, work->n = n, work->k = k, work->ta = ta, work->tb = tb;
  const int64_t workers = batch * m * n * k <= kAlone ? 1 : std::max<int64_t>(1, pool.num_threads());
  work->along = batch >= workers ? 'b' : n >= m ? 'n' : 'm';
  work->pieces = workers;
  for (int64_t helper = 1; helper < workers; ++helper) pool.Schedule([work] { work->take(); });
  work->take();
  for (int64_t seen; (seen = work->done.load()) < work->pieces;) work->done.wait(seen);
  return ffi::Error::Success();
}

}  // namespace

extern "C" void detente_matmul_by(void* blas, void* set_threads) {
  gemm = reinterpret_cast<Gemm>(blas);
  threads = reinterpret_cast<Threads>(set_threads);
}

extern "C" int64_t detente_matmul_calls() { return calls.load(); }

XLA_FFI_DEFINE_HANDLER_SYMBOL(detente_matmul, product,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Attr<int64_t>("batch")
                                  .Attr<int64_t>("m")
                                  .Attr<int64_t>("n")
                                  .Attr<int64_t>("k")
                                  .Attr<bool>("ta")
                                  .Attr<bool>("tb"));

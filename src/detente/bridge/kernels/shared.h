// Work that is shared among the threads that XLA computes with, and the product that every kernel is made of.
//
// XLA hands a thunk its own pool; MKL would start another one (OpenMP's, whose threads spin behind every product and
// take the cores from XLA). So MKL computes with one thread in each, and work is cut into pieces here. Whoever calls
// takes pieces as the helpers do, and waits for pieces that somebody has begun, never for a helper to come: all
// threads of the pool may be inside of a call at once.

#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <type_traits>
#include <utility>

#include "call.h"

namespace detente {

using Gemm = void (*)(const char*, const char*, const int*, const int*, const int*, const float*, const float*,
                      const int*, const float*, const int*, const float*, float*, const int*);
// Of the upper halves of float32 numbers, summed in float32.
using Half = uint16_t;
using GemmOfHalves = void (*)(const char*, const char*, const int*, const int*, const int*, const float*, const Half*,
                              const int*, const Half*, const int*, const float*, float*, const int*);
using Threads = int (*)(int);

extern Gemm gemm;
extern GemmOfHalves gemm_of_halves;
extern Threads threads;
extern std::atomic<int64_t> calls;

template <typename Number>
auto product_of() {
  if constexpr (std::is_same_v<Number, Half>) {
    return gemm_of_halves;
  } else {
    return gemm;
  }
}

// c[m][n] = scale * a[m][k] b[k][n] + keep * c, row by row; ta: a is stored [k][m], tb: b is stored [n][k].
template <typename Number>
void multiply(bool ta, bool tb, int64_t m, int64_t n, int64_t k, float scale, const Number* a, int64_t lda,
              const Number* b, int64_t ldb, float keep, float* c, int64_t ldc) {
  // Fortran's columns are our rows: the transposed product of the swapped operands.
  const int m_ = m, n_ = n, k_ = k, lda_ = lda, ldb_ = ldb, ldc_ = ldc;
  product_of<Number>()(tb ? "T" : "N", ta ? "T" : "N", &n_, &m_, &k_, &scale, b, &ldb_, a, &lda_, &keep, c, &ldc_);
}

// Some 20 microseconds: pieces of one size end together, and who sleeps is woken as late.
constexpr int kLooks = 2000;

template <typename Piece>
struct Work {
  Piece piece;
  int64_t pieces;
  std::atomic<int64_t> next{0}, done{0};
  std::mutex guard;
  std::condition_variable ended;

  Work(Piece given, int64_t count) : piece(std::move(given)), pieces(count) {}

  void take() {
    const int before = threads ? threads(1) : 0;
    for (int64_t p; (p = next.fetch_add(1)) < pieces;) {
      piece(p);
      if (done.fetch_add(1) + 1 < pieces) continue;
      std::lock_guard<std::mutex> lock(guard);
      ended.notify_all();
    }
    if (threads) threads(before);
  }

  void wait() {
    for (int look = 0; look < kLooks; ++look) {
      if (done.load() == pieces) return;
#if defined(__x86_64__)
      __builtin_ia32_pause();
#endif
    }
    std::unique_lock<std::mutex> lock(guard);
    ended.wait(lock, [this] { return done.load() == pieces; });
  }
};

// piece(0) to piece(pieces - 1), by at most `workers` threads at a time. `here`: whoever calls takes pieces as well. Who
// does not waits for the pool, and must be no thread of it.
template <typename Piece>
void share(const Pool& pool, int64_t workers, int64_t pieces, Piece piece, bool here = true) {
  calls.fetch_add(1, std::memory_order_relaxed);
  auto work = std::make_shared<Work<Piece>>(std::move(piece), pieces);
  for (int64_t helper = here; helper < std::min(workers, pieces); ++helper) pool.schedule([work] { work->take(); });
  if (here) work->take();
  work->wait();
}

inline int64_t workers(const Pool& pool) { return std::max<int64_t>(1, pool.threads()); }

// All pieces of what knows how many it has, by as many threads as there are.
template <typename Piece>
void shared(const Pool& pool, const Piece& piece) {
  const int64_t pieces = piece.pieces();
  share(pool, pieces > 1 ? workers(pool) : 1, pieces, piece);
}

inline std::string unlike(const char* what) {
  return std::string(what) + " was called with other shapes than it says";
}

inline bool is_f32(const Buffer& buffer) { return buffer.dtype == XLA_FFI_DataType_F32; }

inline bool fits(const Buffer& buffer, int64_t count) { return is_f32(buffer) && buffer.count == count; }

}  // namespace detente

// Threefry 2x32 of twenty rounds (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011): a call's key
// from the step's, and where dropout keeps an element, by a hash of the element's number (jax.random's partitionable
// form) against a limit.
//
// The same bits as XLA's, which writes the rounds into every fusion that asks for them, once more in the backward pass:
// half of what BERT's step took to compile.

#include <cmath>

#include "shared.h"

namespace detente::threefry {
namespace {

constexpr uint32_t kParity = 0x1BD11BDA;
// Two groups of rounds, in turns.
constexpr int kRotations[2][4] = {{13, 15, 26, 6}, {17, 29, 16, 24}};
constexpr int kGroups = 5;
// Some 20 microseconds.
constexpr int64_t kPiece = int64_t{1} << 14;

struct Key {
  uint32_t words[3];

  explicit Key(const uint32_t* given) : words{given[0], given[1], given[0] ^ given[1] ^ kParity} {}

  inline void hash(uint32_t* high, uint32_t* low) const {
    uint32_t x = *high + words[0], y = *low + words[1];
#pragma GCC unroll 5
    for (int group = 0; group < kGroups; ++group) {
#pragma GCC unroll 4
      for (int round = 0; round < 4; ++round) {
        const int by = kRotations[group % 2][round];
        x += y;
        y = (y << by | y >> (32 - by)) ^ x;
      }
      x += words[(group + 1) % 3];
      y += words[(group + 2) % 3] + group + 1;
    }
    *high = x, *low = y;
  }
};

struct Kept {
  Key key;
  uint32_t limit;  // of the 23 bits that a number has
  int64_t count;
  bool* kept;

  void operator()(int64_t p) const {
    const int64_t begin = p * kPiece, end = std::min(count, begin + kPiece);
    // A piece lies on one side of 2**32, which is a multiple of its size.
    const uint32_t high = static_cast<uint64_t>(begin) >> 32, low = static_cast<uint32_t>(begin);
    bool* out = kept + begin;
    const uint32_t many = end - begin;
    for (uint32_t i = 0; i < many; ++i) {
      uint32_t x = high, y = low + i;
      key.hash(&x, &y);
      out[i] = (x ^ y) >> 9 < limit;
    }
  }
};

bool words(const Buffer& buffer, int64_t count) {
  return buffer.dtype == XLA_FFI_DataType_U32 && buffer.count == count;
}

// jax.random.fold_in: the hash of (0, number).
std::string folded(const Call& call) {
  const Buffer key = call.operand(0), number = call.operand(1), out = call.result(0);
  if (!words(key, 2) || !words(number, 1) || !words(out, 2)) return unlike("detente's key of a call");
  uint32_t high = 0, low = *number.as<const uint32_t>();
  Key(key.as<const uint32_t>()).hash(&high, &low);
  out.as<uint32_t>()[0] = high, out.as<uint32_t>()[1] = low;
  calls.fetch_add(1, std::memory_order_relaxed);
  return "";
}

std::string kept(const Call& call) {
  const Buffer key = call.operand(0), out = call.result(0);
  if (!words(key, 2) || out.dtype != XLA_FFI_DataType_PRED) return unlike("detente's mask of dropout");
  // A number is k / 2**23 for a whole k, so that it is below the share where k is below this.
  const double limit = std::ceil(static_cast<double>(call.of<float>("share")) * (1 << 23));
  const auto below = static_cast<uint32_t>(std::clamp(limit, 0.0, static_cast<double>(1 << 23)));
  const Pool pool = call.pool();
  const int64_t pieces = (out.count + kPiece - 1) / kPiece;
  share(pool, pieces > 1 ? workers(pool) : 1, pieces,
        Kept{Key(key.as<const uint32_t>()), below, out.count, out.as<bool>()});
  return "";
}

}  // namespace
}  // namespace detente::threefry

DETENTE_HANDLER(detente_threefry2x32_folded, detente::threefry::folded)
DETENTE_HANDLER(detente_threefry2x32_kept, detente::threefry::kept)

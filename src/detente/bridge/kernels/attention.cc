// Attention in blocks of rows: its scores are never in memory as a whole, and its gradient makes them again.
//
// float32; query (B, L, H, D), key (B, S, H, D), value (B, S, H, E), result (B, L, H, E): a head's rows lie H * D apart,
// as a linear layer leaves them. `keep` (B, H, L, S), if there is one: which weights dropout keeps. Where `causal`, row
// i sees the columns up to i.
//
// Each product of a block is the BLAS's, and softmax is done on the block while it lies in the cache.

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "shared.h"

namespace detente::attention {
namespace {

// Rows of a block: 64 rows of 1500 scores are 384 KB.
constexpr int64_t kRows = 64;

// e^x to 1e-7 of it, for x <= 0: x = k log 2 + r, |r| <= log(2) / 2, and e^r by its series. Not a number stays one; below
// -87 it is 0.
inline float exponential(float x) {
  const float low = x < -87.0f ? -87.0f : x;
  const float k = std::rint(low * 1.44269504f);
  const float r = (low - k * 0.693145752f) - k * 1.42860677e-6f;
  float e = 1.0f / 5040.0f;
  e = e * r + 1.0f / 720.0f;
  e = e * r + 1.0f / 120.0f;
  e = e * r + 1.0f / 24.0f;
  e = e * r + 1.0f / 6.0f;
  e = e * r + 0.5f;
  e = e * r + 1.0f;
  e = e * r + 1.0f;
  const int32_t whole = k > -127.0f ? static_cast<int32_t>(k) : -127;  // false where k is not a number
  float two;
  const int32_t bits = (whole + 127) << 23;
  std::memcpy(&two, &bits, 4);
  const float found = e * two;
  return x < -87.0f ? 0.0f : found;
}

struct Sizes {
  int64_t b, l, s, h, d, e;
  bool causal;
  float scale, dropout;

  explicit Sizes(const Call& said)
      : b(said.of("b")),
        l(said.of("l")),
        s(said.of("s")),
        h(said.of("h")),
        d(said.of("d")),
        e(said.of("e")),
        causal(said.of<bool>("causal")),
        scale(said.of<float>("scale")),
        dropout(said.of<float>("dropout")) {}

  // Columns that the rows up to `behind` see.
  int64_t seen(int64_t behind) const { return causal ? std::min(s, behind) : s; }
};

// scores[rows][seen] of the rows from `first` on.
void score(const Sizes& z, const float* query, const float* key, int64_t first, int64_t rows, int64_t seen,
           float* scores) {
  multiply(false, true, rows, seen, z.d, z.scale, query + first * z.h * z.d, z.h * z.d, key, z.h * z.d, 0.0f, scores,
           seen);
  if (!z.causal) return;
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = first + i + 1; j < seen; ++j) scores[i * seen + j] = -std::numeric_limits<float>::infinity();
  }
}

// scores become e^(scores - less[row]).
void raise(int64_t rows, int64_t seen, const float* less, float* scores) {
  for (int64_t i = 0; i < rows; ++i) {
    float* row = scores + i * seen;
    const float off = less[i];
    for (int64_t j = 0; j < seen; ++j) row[j] = exponential(row[j] - off);
  }
}

// What dropout leaves of weights, with their new scale.
void drop(const Sizes& z, const bool* keep, int64_t first, int64_t rows, int64_t seen, const float* from, float* to) {
  const float grown = 1.0f / (1.0f - z.dropout);
  for (int64_t i = 0; i < rows; ++i) {
    const bool* kept = keep + (first + i) * z.s;
    for (int64_t j = 0; j < seen; ++j) to[i * seen + j] = kept[j] ? from[i * seen + j] * grown : 0.0f;
  }
}

// Reductions in lanes: in one sum after the other no compiler makes vectors.
constexpr int64_t kLanes = 16;

template <typename Both>
inline float reduced(int64_t size, float start, const float* row, Both both) {
  float lanes[kLanes];
  std::fill(lanes, lanes + kLanes, start);
  int64_t j = 0;
  for (; j + kLanes <= size; j += kLanes) {
    for (int64_t k = 0; k < kLanes; ++k) lanes[k] = both(lanes[k], row[j + k]);
  }
  for (; j < size; ++j) lanes[0] = both(lanes[0], row[j]);
  for (int64_t k = 1; k < kLanes; ++k) lanes[0] = both(lanes[0], lanes[k]);
  return lanes[0];
}

float* room(int number, int64_t size) {
  thread_local std::vector<float> held[3];
  if (static_cast<int64_t>(held[number].size()) < size) held[number].resize(size);
  return held[number].data();
}

struct Forward {
  Sizes z;
  const float *query, *key, *value;
  const bool* keep;
  float *result, *logs;  // logs (B, H, L): the logarithm of what each row's weights were divided by, with its maximum

  void operator()(int64_t p) const {
    const int64_t blocks = (z.l + kRows - 1) / kRows, head = p / blocks % z.h, batch = p / blocks / z.h;
    const int64_t first = p % blocks * kRows, rows = std::min(kRows, z.l - first), seen = z.seen(first + rows);
    const float* k = key + (batch * z.s * z.h + head) * z.d;
    const float* v = value + (batch * z.s * z.h + head) * z.e;
    float* out = result + ((batch * z.l + first) * z.h + head) * z.e;
    float* log = logs + (batch * z.h + head) * z.l + first;
    float* weights = room(0, kRows * z.s);
    score(z, query + (batch * z.l * z.h + head) * z.d, k, first, rows, seen, weights);
    float most[kRows], total[kRows];
    constexpr float kNothing = -std::numeric_limits<float>::infinity();
    for (int64_t i = 0; i < rows; ++i) {
      most[i] = reduced(seen, kNothing, weights + i * seen, [](float a, float b) { return b > a ? b : a; });
      if (most[i] == kNothing) most[i] = 0.0f;  // nothing is seen, or what is not a number
    }
    raise(rows, seen, most, weights);
    for (int64_t i = 0; i < rows; ++i) {
      total[i] = reduced(seen, 0.0f, weights + i * seen, [](float a, float b) { return a + b; });
      log[i] = total[i] == 0.0f ? 0.0f : most[i] + std::log(total[i]);
      if (total[i] == 0.0f) total[i] = 1.0f;  // a row that sees nothing is zero, as torch's is
    }
    if (keep != nullptr) drop(z, keep + (batch * z.h + head) * z.l * z.s, first, rows, seen, weights, weights);
    multiply(false, false, rows, z.e, seen, 1.0f, weights, seen, v, z.h * z.e, 0.0f, out, z.h * z.e);
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < z.e; ++j) out[i * z.h * z.e + j] /= total[i];
    }
  }
};

struct Backward {
  Sizes z;
  const float *query, *key, *value, *result, *logs, *gradient;
  const bool* keep;
  float *of_query, *of_key, *of_value;

  // A head: its keys and values take something from every block of rows.
  void operator()(int64_t p) const {
    const int64_t head = p % z.h, batch = p / z.h, wide = z.h * z.d, high = z.h * z.e;
    const float* q = query + (batch * z.l * z.h + head) * z.d;
    const float* k = key + (batch * z.s * z.h + head) * z.d;
    const float* v = value + (batch * z.s * z.h + head) * z.e;
    const float* o = result + (batch * z.l * z.h + head) * z.e;
    const float* g = gradient + (batch * z.l * z.h + head) * z.e;
    const bool* kept = keep == nullptr ? nullptr : keep + (batch * z.h + head) * z.l * z.s;
    float* dq = of_query + (batch * z.l * z.h + head) * z.d;
    float* dk = of_key + (batch * z.s * z.h + head) * z.d;
    float* dv = of_value + (batch * z.s * z.h + head) * z.e;
    float* weights = room(0, kRows * z.s);
    float* of_weights = room(1, kRows * z.s);
    float* dropped = kept == nullptr ? weights : room(2, kRows * z.s);
    // The last block sees every column that any block sees, and is the first to write.
    int64_t written = 0;
    for (int64_t block = (z.l + kRows - 1) / kRows; block-- > 0;) {
      const int64_t first = block * kRows, rows = std::min(kRows, z.l - first), seen = z.seen(first + rows);
      score(z, q, k, first, rows, seen, weights);
      raise(rows, seen, logs + (batch * z.h + head) * z.l + first, weights);
      multiply(false, true, rows, seen, z.e, 1.0f, g + first * high, high, v, high, 0.0f, of_weights, seen);
      if (kept != nullptr) {
        drop(z, kept, first, rows, seen, weights, dropped);
        drop(z, kept, first, rows, seen, of_weights, of_weights);
      }
      const float more = written == 0 ? 0.0f : 1.0f;
      multiply(true, false, seen, z.e, rows, 1.0f, dropped, seen, g + first * high, high, more, dv, high);
      for (int64_t i = 0; i < rows; ++i) {
        float products[kLanes] = {};
        const float *mine = o + (first + i) * high, *its = g + (first + i) * high;
        for (int64_t j = 0; j < z.e; ++j) products[j % kLanes] += mine[j] * its[j];
        const float met = reduced(kLanes, 0.0f, products, [](float a, float b) { return a + b; });
        float* to = of_weights + i * seen;
        const float* by = weights + i * seen;
        for (int64_t j = 0; j < seen; ++j) to[j] = by[j] * (to[j] - met);
      }
      multiply(false, false, rows, z.d, seen, z.scale, of_weights, seen, k, wide, 0.0f, dq + first * wide, wide);
      multiply(true, false, seen, z.d, rows, z.scale, of_weights, seen, q + first * wide, wide, more, dk, wide);
      written = std::max(written, seen);
    }
    for (int64_t j = written; j < z.s; ++j) {  // columns that no row sees
      std::fill(dk + j * wide, dk + j * wide + z.d, 0.0f);
      std::fill(dv + j * high, dv + j * high + z.e, 0.0f);
    }
  }
};

bool holds(const Buffer& buffer, int64_t a, int64_t b, int64_t c, int64_t d = 1) {
  return is_f32(buffer) && buffer.count == a * b * c * d;
}

bool fits(const Sizes& z, const Buffer& query, const Buffer& key, const Buffer& value,
          const Buffer& keep) {
  return gemm != nullptr && z.l > 0 && z.s > 0 && holds(query, z.b, z.l, z.h, z.d) && holds(key, z.b, z.s, z.h, z.d) &&
         holds(value, z.b, z.s, z.h, z.e) && keep.dtype == XLA_FFI_DataType_PRED &&
         (keep.count == 1 || keep.count == z.b * z.h * z.l * z.s);
}

const bool* mask(const Sizes& z, const Buffer& keep) {
  return z.dropout > 0 ? keep.as<const bool>() : nullptr;
}

// Of what takes less than some 10 microseconds no part is given away.
int64_t helpers(const Pool& pool, const Sizes& z) {
  return z.b * z.h * z.l * z.s * (z.d + z.e) <= (int64_t{1} << 20) ? 1 : workers(pool);
}

std::string forward(const Call& call) {
  const Sizes z(call);
  const Buffer query = call.operand(0), key = call.operand(1), value = call.operand(2), keep = call.operand(3);
  const Buffer result = call.result(0), logs = call.result(1);
  if (!fits(z, query, key, value, keep) || !holds(result, z.b, z.l, z.h, z.e) || !holds(logs, z.b, z.h, z.l)) {
    return unlike("detente's attention");
  }
  const Pool pool = call.pool();
  share(pool, helpers(pool, z), z.b * z.h * ((z.l + kRows - 1) / kRows),
        Forward{z, query.as(), key.as(), value.as(), mask(z, keep), result.as(), logs.as()});
  return "";
}

std::string backward(const Call& call) {
  const Sizes z(call);
  const Buffer query = call.operand(0), key = call.operand(1), value = call.operand(2), keep = call.operand(3);
  const Buffer result = call.operand(4), logs = call.operand(5), gradient = call.operand(6);
  const Buffer of_query = call.result(0), of_key = call.result(1), of_value = call.result(2);
  if (!fits(z, query, key, value, keep) || !holds(result, z.b, z.l, z.h, z.e) || !holds(logs, z.b, z.h, z.l) ||
      !holds(gradient, z.b, z.l, z.h, z.e) || !fits(z, of_query, of_key, of_value, keep)) {
    return unlike("the gradient of detente's attention");
  }
  const Pool pool = call.pool();
  share(pool, helpers(pool, z), z.b * z.h,
        Backward{z, query.as(), key.as(), value.as(), result.as(), logs.as(), gradient.as(), mask(z, keep),
                 of_query.as(), of_key.as(), of_value.as()});
  return "";
}

}  // namespace
}  // namespace detente::attention

DETENTE_HANDLER(detente_attention, detente::attention::forward)
DETENTE_HANDLER(detente_attention_backward, detente::attention::backward)

// Batch normalisation in training: float32, channels last, (rows, channels), and its gradients; with what a residual
// network adds to it and with the ReLU behind, where there are such.
//
// Two passes over memory each: one that sums, one that writes. XLA's fusions pass five times, and write a kernel of
// their own for every shape and every neighbour; its ReLU passes twice more, and what is in front of it is kept for its
// derivative beside what is behind it, which is all that the derivative has to know. Sums are of a block that lies in
// the first cache, about the block's own mean, in float32; blocks are put together in float64 (Chan, Golub, LeVeque,
// "Updating formulae and a pairwise algorithm for computing sample variances", 1979), so that a mean that is far from
// zero costs no digits.

#include <cmath>
#include <initializer_list>
#include <vector>

#include "shared.h"

namespace detente::batch_norm {
namespace {

// Channels that are summed at once; what is left of them is summed in fewer, at last one by one.
constexpr int64_t kWide = 64, kNarrow = 16;
// Numbers of a block: half of the first cache. And rows, which float32 sums one after the other.
constexpr int64_t kBlock = int64_t{1} << 12, kRows = 256;
// Numbers of a piece: some 20 microseconds.
constexpr int64_t kPiece = int64_t{1} << 16;

struct Rows {
  int64_t rows, channels;

  int64_t block() const { return std::clamp<int64_t>(kBlock / channels, 8, kRows); }
  // Rows of a piece, whole blocks of them.
  int64_t each() const {
    const int64_t blocks = kPiece / (block() * channels);
    return block() * std::max<int64_t>(1, blocks);
  }
  int64_t pieces() const { return (rows + each() - 1) / each(); }

  // what(channel, width) for all channels, the width known to the compiler.
  template <typename What>
  void over_channels(const What& what) const {
    int64_t c = 0;
    for (; c + kWide <= channels; c += kWide) what(c, std::integral_constant<int64_t, kWide>());
    for (; c + kNarrow <= channels; c += kNarrow) what(c, std::integral_constant<int64_t, kNarrow>());
    for (; c < channels; ++c) what(c, std::integral_constant<int64_t, 1>());
  }
};

// Of every piece a mean and the sum of squares about it, of each channel.
struct Spread : Rows {
  const float* x;
  double* means;
  double* squares;

  void operator()(int64_t p) const {
    double* mean = means + p * channels;
    double* square = squares + p * channels;
    std::fill(mean, mean + channels, 0.0);
    std::fill(square, square + channels, 0.0);
    const int64_t first = p * each(), end = std::min(rows, first + each());
    for (int64_t from = first; from < end; from += block()) {
      const int64_t many = std::min(block(), end - from), before = from - first;
      // What the block's mean counts for, and what the square of the distance between the means does.
      const double part = static_cast<double>(many) / (before + many), apart = part * before;
      over_channels([&](int64_t c, auto width) {
        constexpr int64_t w = width();
        float sum[w] = {}, total[w] = {}, rest[w] = {}, middle[w];
        const float* at = x + from * channels + c;
        for (int64_t r = 0; r < many; ++r) {
          for (int64_t k = 0; k < w; ++k) sum[k] += at[r * channels + k];
        }
        for (int64_t k = 0; k < w; ++k) middle[k] = sum[k] / many;
        for (int64_t r = 0; r < many; ++r) {
          for (int64_t k = 0; k < w; ++k) {
            const float away = at[r * channels + k] - middle[k];
            total[k] += away * away;
            rest[k] += away;
          }
        }
        for (int64_t k = 0; k < w; ++k) {
          // The mean was summed in float32 and rounded: what it lacks is the mean of what is left over.
          const double lacks = static_cast<double>(rest[k]) / many;
          const double away = middle[k] + lacks - mean[c + k];
          mean[c + k] += away * part;
          square[c + k] += std::max(0.0, total[k] - lacks * rest[k]) + away * away * apart;
        }
      });
    }
  }
};

// y = (x - mean) * scale + shift, plus what is beside it if anything is; not below 0 if `clamped` (NaN stays).
struct Written : Rows {
  const float* x;
  const float* beside;
  const float* mean;
  const float* scale;
  const float* shift;
  float* y;
  bool clamped;

  template <bool kBeside, bool kClamped>
  void write(int64_t from, int64_t end) const {
    for (int64_t r = from; r < end; ++r) {
      const float* in = x + r * channels;
      const float* more = kBeside ? beside + r * channels : nullptr;
      float* out = y + r * channels;
      for (int64_t c = 0; c < channels; ++c) {
        float found = (in[c] - mean[c]) * scale[c] + shift[c];
        if (kBeside) found += more[c];
        out[c] = kClamped && found <= 0 ? 0 : found;
      }
    }
  }

  void operator()(int64_t p) const {
    const int64_t from = p * each(), end = std::min(rows, from + each());
    if (beside != nullptr) {
      clamped ? write<true, true>(from, end) : write<true, false>(from, end);
    } else {
      clamped ? write<false, true>(from, end) : write<false, false>(from, end);
    }
  }
};

// What comes back to one number in front of the ReLU, if there is one.
template <bool kClamped>
inline float through(const float* gradient, const float* y, int64_t at) {
  return kClamped && y[at] <= 0 ? 0 : gradient[at];
}

// Of every piece the sums of the gradient, and of the gradient times the distance from the mean. `y`: the result, of
// which a ReLU was the last part, or null. `passed`: where what came through it is written, or null.
struct Sums : Rows {
  const float* gradient;
  const float* y;
  const float* x;
  const float* mean;
  double* plain;
  double* times;
  float* passed;

  void operator()(int64_t p) const {
    if (passed != nullptr) {
      y != nullptr ? sum<true, true>(p) : sum<false, true>(p);
    } else {
      y != nullptr ? sum<true, false>(p) : sum<false, false>(p);
    }
  }

  template <bool kClamped, bool kPassed>
  void sum(int64_t p) const {
    double* one = plain + p * channels;
    double* other = times + p * channels;
    std::fill(one, one + channels, 0.0);
    std::fill(other, other + channels, 0.0);
    const int64_t end = std::min(rows, (p + 1) * each());
    for (int64_t from = p * each(); from < end; from += block()) {
      const int64_t many = std::min(block(), end - from);
      over_channels([&](int64_t c, auto width) {
        constexpr int64_t w = width();
        float sum[w] = {}, product[w] = {};
        const int64_t start = from * channels + c;
        const float* at = x + start;
        const float* result = kClamped ? y + start : nullptr;
        for (int64_t r = 0; r < many; ++r) {
          for (int64_t k = 0; k < w; ++k) {
            const float g = through<kClamped>(gradient + start, result, r * channels + k);
            if (kPassed) passed[start + r * channels + k] = g;
            sum[k] += g;
            product[k] += g * (at[r * channels + k] - mean[c + k]);
          }
        }
        for (int64_t k = 0; k < w; ++k) one[c + k] += sum[k], other[c + k] += product[k];
      });
    }
  }
};

// (gradient - its mean - (x - mean) * slope) * scale.
struct OfInput : Rows {
  const float* gradient;
  const float* y;
  const float* x;
  const float* mean;
  const float* scale;
  const float* level;
  const float* slope;
  float* result;

  void operator()(int64_t p) const { y != nullptr ? write<true>(p) : write<false>(p); }

  template <bool kClamped>
  void write(int64_t p) const {
    const int64_t end = std::min(rows, (p + 1) * each());
    for (int64_t r = p * each(); r < end; ++r) {
      const float* g = gradient + r * channels;
      const float* behind = kClamped ? y + r * channels : nullptr;
      const float* in = x + r * channels;
      float* out = result + r * channels;
      for (int64_t c = 0; c < channels; ++c) {
        out[c] = (through<kClamped>(g, behind, c) - level[c] - (in[c] - mean[c]) * slope[c]) * scale[c];
      }
    }
  }
};

const char* const kName = "detente's batch normalisation";

bool fit(std::initializer_list<Buffer> buffers, int64_t count) {
  return std::all_of(buffers.begin(), buffers.end(), [&](const Buffer& each) { return fits(each, count); });
}

// x -> the mean, 1 / sqrt(variance + eps), the variance, and what the mean lost when it was rounded.
std::string spread(const Call& call) {
  const Rows rows{call.of("rows"), call.of("channels")};
  const int64_t channels = rows.channels;
  const Buffer x = call.operand(0), mean = call.result(0), inverse = call.result(1), variance = call.result(2);
  const Buffer lost = call.result(3);
  if (rows.rows < 1 || channels < 1 || !fits(x, rows.rows * channels) ||
      !fit({mean, inverse, variance, lost}, channels)) {
    return unlike(kName);
  }
  const int64_t pieces = rows.pieces(), each = rows.each();
  std::vector<double> means(pieces * channels), squares(pieces * channels);
  shared(call.pool(), Spread{rows, x.as<const float>(), means.data(), squares.data()});
  const double eps = call.of<float>("eps");
  for (int64_t c = 0; c < channels; ++c) {
    double middle = 0, total = 0;
    for (int64_t p = 0; p < pieces; ++p) {
      const double before = p * each, many = std::min(rows.rows - p * each, each);
      const double away = means[p * channels + c] - middle, part = many / (before + many);
      middle += away * part;
      total += squares[p * channels + c] + away * away * part * before;
    }
    const double found = total / rows.rows;
    mean.as()[c] = middle, variance.as()[c] = found, inverse.as()[c] = 1 / std::sqrt(found + eps);
    lost.as()[c] = middle - mean.as()[c];
  }
  return "";
}

// x, weight, bias, what spread() found of x but the variance, what is beside if anything is -> y.
std::string written(const Call& call) {
  const Rows rows{call.of("rows"), call.of("channels")};
  const int64_t channels = rows.channels, all = rows.rows * channels;
  const bool more = call.of<bool>("beside");
  const Buffer x = call.operand(0), weight = call.operand(1), bias = call.operand(2), mean = call.operand(3);
  const Buffer inverse = call.operand(4), lost = call.operand(5), y = call.result(0);
  const Buffer beside = more ? call.operand(6) : Buffer();
  if (rows.rows < 1 || channels < 1 || !fit({x, y}, all) || (more && !fits(beside, all)) ||
      !fit({weight, bias, mean, inverse, lost}, channels)) {
    return unlike(kName);
  }
  std::vector<float> scale(channels), shift(channels);
  for (int64_t c = 0; c < channels; ++c) {
    scale[c] = inverse.as()[c] * weight.as()[c];
    shift[c] = bias.as()[c] - lost.as()[c] * scale[c];
  }
  shared(call.pool(), Written{rows, x.as<const float>(), more ? beside.as<const float>() : nullptr,
                              mean.as<const float>(), scale.data(), shift.data(), y.as(), call.of<bool>("clamped")});
  return "";
}

// x, weight, the mean, 1 / sqrt(variance + eps), the result's gradient, the result if it was clamped -> the gradients of
// x, weight and bias, and of what is beside.
std::string backward(const Call& call) {
  const Rows rows{call.of("rows"), call.of("channels")};
  const int64_t channels = rows.channels, all = rows.rows * channels;
  const bool more = call.of<bool>("beside"), clamped = call.of<bool>("clamped");
  const Buffer x = call.operand(0), weight = call.operand(1), mean = call.operand(2), inverse = call.operand(3);
  const Buffer gradient = call.operand(4), y = clamped ? call.operand(5) : Buffer();
  const Buffer of_x = call.result(0), of_weight = call.result(1), of_bias = call.result(2);
  const Buffer of_beside = more ? call.result(3) : Buffer();
  if (rows.rows < 1 || channels < 1 || !fit({x, gradient, of_x}, all) || (clamped && !fits(y, all)) ||
      (more && !fits(of_beside, all)) || !fit({weight, mean, inverse, of_weight, of_bias}, channels)) {
    return unlike("the gradient of detente's batch normalisation");
  }
  const Pool pool = call.pool();
  const int64_t pieces = rows.pieces();
  std::vector<double> plain(pieces * channels), times(pieces * channels);
  const auto *in = x.as<const float>(), *middle = mean.as<const float>(), *g = gradient.as<const float>();
  const float* behind = clamped ? y.as<const float>() : nullptr;
  float* passed = more ? of_beside.as() : nullptr;
  shared(pool, Sums{rows, g, behind, in, middle, plain.data(), times.data(), passed});
  std::vector<float> scale(channels), level(channels), slope(channels);
  for (int64_t c = 0; c < channels; ++c) {
    double sum = 0, product = 0;
    for (int64_t p = 0; p < pieces; ++p) sum += plain[p * channels + c], product += times[p * channels + c];
    const double of = inverse.as()[c];
    level[c] = sum / rows.rows, slope[c] = product * of * of / rows.rows, scale[c] = of * weight.as()[c];
    of_bias.as()[c] = sum, of_weight.as()[c] = product * of;
  }
  // What came through the ReLU lies there already where it was written for what is beside.
  const bool there = passed != nullptr;
  shared(pool, OfInput{rows, there ? passed : g, there ? nullptr : behind, in, middle, scale.data(), level.data(),
                       slope.data(), of_x.as()});
  return "";
}

}  // namespace
}  // namespace detente::batch_norm

DETENTE_HANDLER(detente_batch_norm_spread, detente::batch_norm::spread)
DETENTE_HANDLER(detente_batch_norm, detente::batch_norm::written)
DETENTE_HANDLER(detente_batch_norm_backward, detente::batch_norm::backward)

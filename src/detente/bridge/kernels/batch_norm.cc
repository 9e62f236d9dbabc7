// Batch normalisation in training: float32, channels last, (rows, channels), and its gradients.
//
// Two passes over memory each: one that sums, one that writes. XLA's fusions pass five times, and write a kernel of
// their own for every shape and every neighbour. Sums are of a block that lies in the first cache, about the block's own
// mean, in float32; blocks are put together in float64 (Chan, Golub, LeVeque, "Updating formulae and a pairwise
// algorithm for computing sample variances", 1979), so that a mean that is far from zero costs no digits.

#include <cmath>
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

// y = (x - mean) * scale + shift.
struct Written : Rows {
  const float* x;
  const float* mean;
  const float* scale;
  const float* shift;
  float* y;

  void operator()(int64_t p) const {
    const int64_t end = std::min(rows, (p + 1) * each());
    for (int64_t r = p * each(); r < end; ++r) {
      const float* in = x + r * channels;
      float* out = y + r * channels;
      for (int64_t c = 0; c < channels; ++c) out[c] = (in[c] - mean[c]) * scale[c] + shift[c];
    }
  }
};

// Of every piece the sums of the gradient, and of the gradient times the distance from the mean.
struct Sums : Rows {
  const float* gradient;
  const float* x;
  const float* mean;
  double* plain;
  double* times;

  void operator()(int64_t p) const {
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
        const float* g = gradient + from * channels + c;
        const float* at = x + from * channels + c;
        for (int64_t r = 0; r < many; ++r) {
          for (int64_t k = 0; k < w; ++k) {
            sum[k] += g[r * channels + k];
            product[k] += g[r * channels + k] * (at[r * channels + k] - mean[c + k]);
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
  const float* x;
  const float* mean;
  const float* scale;
  const float* level;
  const float* slope;
  float* result;

  void operator()(int64_t p) const {
    const int64_t end = std::min(rows, (p + 1) * each());
    for (int64_t r = p * each(); r < end; ++r) {
      const float* g = gradient + r * channels;
      const float* in = x + r * channels;
      float* out = result + r * channels;
      for (int64_t c = 0; c < channels; ++c) out[c] = (g[c] - level[c] - (in[c] - mean[c]) * slope[c]) * scale[c];
    }
  }
};

template <typename Piece>
void shared(const Pool& pool, const Piece& piece) {
  const int64_t pieces = piece.pieces();
  share(pool, pieces > 1 ? workers(pool) : 1, pieces, piece);
}

bool fits(const Buffer& buffer, int64_t count) { return is_f32(buffer) && buffer.count == count; }

// x, weight, bias -> y, mean, 1 / sqrt(variance + eps), variance.
std::string forward(const Call& call) {
  const Rows rows{call.of("rows"), call.of("channels")};
  const int64_t channels = rows.channels, all = rows.rows * channels;
  const Buffer x = call.operand(0), weight = call.operand(1), bias = call.operand(2), y = call.result(0);
  const Buffer mean = call.result(1), inverse = call.result(2), variance = call.result(3);
  if (rows.rows < 1 || channels < 1 || !fits(x, all) || !fits(y, all)) return unlike("detente's batch normalisation");
  for (const Buffer& each : {weight, bias, mean, inverse, variance}) {
    if (!fits(each, channels)) return unlike("detente's batch normalisation");
  }
  const Pool pool = call.pool();
  const int64_t pieces = rows.pieces(), each = rows.each();
  std::vector<double> means(pieces * channels), squares(pieces * channels);
  shared(pool, Spread{rows, x.as<const float>(), means.data(), squares.data()});
  std::vector<float> scale(channels), shift(channels);
  const double eps = call.of<float>("eps");
  for (int64_t c = 0; c < channels; ++c) {
    double middle = 0, total = 0;
    for (int64_t p = 0; p < pieces; ++p) {
      const double before = p * each, many = std::min(rows.rows - p * each, each);
      const double away = means[p * channels + c] - middle, part = many / (before + many);
      middle += away * part;
      total += squares[p * channels + c] + away * away * part * before;
    }
    const double spread = total / rows.rows, of = 1 / std::sqrt(spread + eps);
    mean.as()[c] = middle, variance.as()[c] = spread, inverse.as()[c] = of;
    scale[c] = of * weight.as()[c];
    // With what the mean lost when it was rounded.
    shift[c] = bias.as()[c] - (middle - mean.as()[c]) * scale[c];
  }
  shared(pool, Written{rows, x.as<const float>(), mean.as<const float>(), scale.data(), shift.data(), y.as()});
  return "";
}

// x, weight, mean, 1 / sqrt(variance + eps), the result's gradient -> those of x, weight and bias.
std::string backward(const Call& call) {
  const Rows rows{call.of("rows"), call.of("channels")};
  const int64_t channels = rows.channels, all = rows.rows * channels;
  const Buffer x = call.operand(0), weight = call.operand(1), mean = call.operand(2), inverse = call.operand(3);
  const Buffer gradient = call.operand(4);
  const Buffer of_x = call.result(0), of_weight = call.result(1), of_bias = call.result(2);
  if (rows.rows < 1 || channels < 1) return unlike("the gradient of detente's batch normalisation");
  for (const Buffer& each : {x, gradient, of_x}) {
    if (!fits(each, all)) return unlike("the gradient of detente's batch normalisation");
  }
  for (const Buffer& each : {weight, mean, inverse, of_weight, of_bias}) {
    if (!fits(each, channels)) return unlike("the gradient of detente's batch normalisation");
  }
  const Pool pool = call.pool();
  const int64_t pieces = rows.pieces();
  std::vector<double> plain(pieces * channels), times(pieces * channels);
  const auto *in = x.as<const float>(), *middle = mean.as<const float>(), *g = gradient.as<const float>();
  shared(pool, Sums{rows, g, in, middle, plain.data(), times.data()});
  std::vector<float> scale(channels), level(channels), slope(channels);
  for (int64_t c = 0; c < channels; ++c) {
    double sum = 0, product = 0;
    for (int64_t p = 0; p < pieces; ++p) sum += plain[p * channels + c], product += times[p * channels + c];
    const double of = inverse.as()[c];
    level[c] = sum / rows.rows, slope[c] = product * of * of / rows.rows, scale[c] = of * weight.as()[c];
    of_bias.as()[c] = sum, of_weight.as()[c] = product * of;
  }
  shared(pool, OfInput{rows, g, in, middle, scale.data(), level.data(), slope.data(), of_x.as()});
  return "";
}

}  // namespace
}  // namespace detente::batch_norm

DETENTE_HANDLER(detente_batch_norm, detente::batch_norm::forward)
DETENTE_HANDLER(detente_batch_norm_backward, detente::batch_norm::backward)

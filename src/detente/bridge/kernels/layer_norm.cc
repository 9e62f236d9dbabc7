// Layer normalisation: float32, (rows, columns), each row about its own mean, and its gradients.
//
// A row lies in the first cache, so that a pass over memory is enough each way. XLA's fusions are fifteen for every norm
// of a model, each compiled for itself, and keep what is left of a row without its mean, and that normalised, beside the
// row and the result. Sums are of lanes in float32, about a mean that is corrected by what was left over.

#include <cmath>
#include <vector>

#include "shared.h"

namespace detente::layer_norm {
namespace {

// Sums that run side by side. Rows whose part in the weight's gradient is summed in float32 before it goes to float64.
constexpr int64_t kLanes = 64, kRows = 32;
// Wider rows than the first have sums for all of them, of the second at a time: below it the sums of a piece of kPiece
// numbers are a quarter of them.
constexpr int64_t kWide = 2048, kColumns = 512;
// Numbers of a piece: some 20 microseconds.
constexpr int64_t kPiece = int64_t{1} << 16;

struct Rows {
  int64_t rows, columns;

  int64_t each() const { return std::clamp<int64_t>(kPiece / columns, 1, rows); }
  int64_t pieces() const { return (rows + each() - 1) / each(); }
  int64_t end(int64_t p) const { return std::min(rows, (p + 1) * each()); }

  // what(column, lane) for all columns, the lanes side by side.
  template <typename What>
  void over_columns(const What& what) const {
    int64_t c = 0;
    for (; c + kLanes <= columns; c += kLanes) {
      for (int64_t k = 0; k < kLanes; ++k) what(c + k, k);
    }
    for (int64_t k = 0; c + k < columns; ++k) what(c + k, k);
  }
};

double total(const float (&lanes)[kLanes]) {
  double found = 0;
  for (const float lane : lanes) found += lane;
  return found;
}

struct Written : Rows {
  const float* x;
  const float* weight;
  const float* bias;
  float* y;
  float* mean;
  float* inverse;
  double eps;

  void operator()(int64_t p) const {
    for (int64_t r = p * each(); r < end(p); ++r) {
      const float* in = x + r * columns;
      float sum[kLanes] = {}, square[kLanes] = {}, rest[kLanes] = {};
      over_columns([&](int64_t c, int64_t k) { sum[k] += in[c]; });
      const float about = total(sum) / columns;
      over_columns([&](int64_t c, int64_t k) {
        const float away = in[c] - about;
        square[k] += away * away;
        rest[k] += away;
      });
      // The mean was summed in float32 and rounded: what it lacks is the mean of what is left over.
      const double left = total(rest), lacks = left / columns, middle = about + lacks;
      const double squares = total(square) - lacks * left;
      const double variance = (squares < 0 ? 0.0 : squares) / columns;  // what is no number stays none
      const float of = 1 / std::sqrt(variance + eps), own = middle, lost = middle - own;
      mean[r] = own, inverse[r] = of;
      float* out = y + r * columns;
      for (int64_t c = 0; c < columns; ++c) out[c] = (in[c] - own - lost) * of * weight[c] + bias[c];
    }
  }
};

// What both parts of the gradient read.
struct Given : Rows {
  const float* x;
  const float* weight;
  const float* mean;
  const float* inverse;
  const float* gradient;
  float* result;
};

// The input's gradient, and of every piece the sums that are the weight's and the bias's.
struct Back : Given {
  double* of_weight;
  double* of_bias;
  float* some;  // three rows for each piece

  void operator()(int64_t p) const {
    double* weights = of_weight + p * columns;
    double* biases = of_bias + p * columns;
    std::fill(weights, weights + columns, 0.0);
    std::fill(biases, biases + columns, 0.0);
    float *times = some + 3 * p * columns, *plain = times + columns, *weighed = plain + columns;
    const int64_t last = end(p);
    for (int64_t from = p * each(); from < last; from += kRows) {
      std::fill(times, weighed, 0.0f);
      for (int64_t r = from; r < std::min(last, from + kRows); ++r) row(r, times, plain, weighed);
      for (int64_t c = 0; c < columns; ++c) weights[c] += times[c], biases[c] += plain[c];
    }
  }

  // `weighed`: the gradient times the weight, rounded: of a row of one number nothing is left, and not what a fused
  // multiplication has more, which Adam would make a whole step of.
  void row(int64_t r, float* times, float* plain, float* weighed) const {
    const float* in = x + r * columns;
    const float* g = gradient + r * columns;
    float* out = result + r * columns;
    const float middle = mean[r], of = inverse[r];
    float level[kLanes] = {}, slope[kLanes] = {};
    over_columns([&](int64_t c, int64_t k) {
      const float normal = (in[c] - middle) * of;
      weighed[c] = g[c] * weight[c];
      level[k] += weighed[c];
      slope[k] += weighed[c] * normal;
      times[c] += g[c] * normal;
      plain[c] += g[c];
    });
    const float all = total(level) / columns, along = total(slope) / columns;
    for (int64_t c = 0; c < columns; ++c) {
      out[c] = (weighed[c] - all - (in[c] - middle) * of * along) * of;
    }
  }
};

// The same of rows that are so wide that sums of their own for each piece would be as large as what is summed: the
// input's gradient first, and then the others, cut by columns.
struct OfInput : Given {
  void operator()(int64_t p) const {
    for (int64_t r = p * each(); r < end(p); ++r) {
      const float* in = x + r * columns;
      const float* g = gradient + r * columns;
      float* out = result + r * columns;
      const float middle = mean[r], of = inverse[r];
      float level[kLanes] = {}, slope[kLanes] = {};
      over_columns([&](int64_t c, int64_t k) {
        const float weighed = g[c] * weight[c];
        level[k] += weighed;
        slope[k] += weighed * ((in[c] - middle) * of);
      });
      const float all = total(level) / columns, along = total(slope) / columns;
      for (int64_t c = 0; c < columns; ++c) {
        out[c] = (g[c] * weight[c] - all - (in[c] - middle) * of * along) * of;
      }
    }
  }
};

struct OfWeight : Given {
  float* of_weight;
  float* of_bias;

  int64_t pieces() const { return (columns + kColumns - 1) / kColumns; }

  void operator()(int64_t p) const {
    const int64_t first = p * kColumns, count = std::min(columns - first, kColumns);
    double weights[kColumns] = {}, biases[kColumns] = {};
    for (int64_t from = 0; from < rows; from += kRows) {
      float times[kColumns] = {}, plain[kColumns] = {};
      for (int64_t r = from; r < std::min(rows, from + kRows); ++r) {
        const float* in = x + r * columns + first;
        const float* g = gradient + r * columns + first;
        const float middle = mean[r], of = inverse[r];
        for (int64_t c = 0; c < count; ++c) {
          times[c] += g[c] * ((in[c] - middle) * of);
          plain[c] += g[c];
        }
      }
      for (int64_t c = 0; c < count; ++c) weights[c] += times[c], biases[c] += plain[c];
    }
    for (int64_t c = 0; c < count; ++c) of_weight[first + c] = weights[c], of_bias[first + c] = biases[c];
  }
};

// x, weight, bias -> y, the mean and 1 / sqrt(variance + eps) of each row.
std::string forward(const Call& call) {
  const Rows rows{call.of("rows"), call.of("columns")};
  const int64_t all = rows.rows * rows.columns;
  const Buffer x = call.operand(0), weight = call.operand(1), bias = call.operand(2);
  const Buffer y = call.result(0), mean = call.result(1), inverse = call.result(2);
  if (rows.rows < 1 || rows.columns < 1 || !fits(x, all) || !fits(y, all) || !fits(weight, rows.columns) ||
      !fits(bias, rows.columns) || !fits(mean, rows.rows) || !fits(inverse, rows.rows)) {
    return unlike("detente's layer normalisation");
  }
  shared(call.pool(), Written{rows, x.as<const float>(), weight.as<const float>(), bias.as<const float>(), y.as(),
                              mean.as(), inverse.as(), call.of<float>("eps")});
  return "";
}

// x, weight, the mean, 1 / sqrt(variance + eps), the result's gradient -> those of x, weight and bias.
std::string backward(const Call& call) {
  const Rows rows{call.of("rows"), call.of("columns")};
  const int64_t all = rows.rows * rows.columns, columns = rows.columns;
  const Buffer x = call.operand(0), weight = call.operand(1), mean = call.operand(2), inverse = call.operand(3);
  const Buffer gradient = call.operand(4);
  const Buffer of_x = call.result(0), of_weight = call.result(1), of_bias = call.result(2);
  if (rows.rows < 1 || columns < 1 || !fits(x, all) || !fits(gradient, all) || !fits(of_x, all) ||
      !fits(weight, columns) || !fits(of_weight, columns) || !fits(of_bias, columns) || !fits(mean, rows.rows) ||
      !fits(inverse, rows.rows)) {
    return unlike("the gradient of detente's layer normalisation");
  }
  const Pool pool = call.pool();
  const Given given{rows,
                    x.as<const float>(),
                    weight.as<const float>(),
                    mean.as<const float>(),
                    inverse.as<const float>(),
                    gradient.as<const float>(),
                    of_x.as()};
  if (columns > kWide) {
    shared(pool, OfInput{given});
    shared(pool, OfWeight{given, of_weight.as(), of_bias.as()});
    return "";
  }
  const int64_t pieces = rows.pieces();
  std::vector<double> weights(pieces * columns), biases(pieces * columns);
  std::vector<float> some(3 * pieces * columns);
  shared(pool, Back{given, weights.data(), biases.data(), some.data()});
  for (int64_t c = 0; c < columns; ++c) {
    double one = 0, other = 0;
    for (int64_t p = 0; p < pieces; ++p) one += weights[p * columns + c], other += biases[p * columns + c];
    of_weight.as()[c] = one, of_bias.as()[c] = other;
  }
  return "";
}

}  // namespace
}  // namespace detente::layer_norm

DETENTE_HANDLER(detente_layer_norm, detente::layer_norm::forward)
DETENTE_HANDLER(detente_layer_norm_backward, detente::layer_norm::backward)

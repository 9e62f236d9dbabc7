// A convolution of every channel by itself, without a stride: float32, channels last, (N, H, W, C) with taps
// (kh, kw, C); and what its taps' gradient is. Of one dimension: H and kh are 1.
//
// Written for the compiler to make vectors of: the innermost loops run over channels that lie side by side, of a number
// that is known when it is compiled.

#include "shared.h"

namespace detente::depthwise {
namespace {

// Channels that are summed at once; what is left of them is summed one by one.
constexpr int64_t kWide = 64, kNarrow = 16;

struct Places {
  int64_t n, h, w, c, out_h, out_w, kh, kw, low_h, low_w, step_h, step_w;

  explicit Places(const Call& said)
      : n(said.of("n")),
        h(said.of("h")),
        w(said.of("w")),
        c(said.of("c")),
        out_h(said.of("out_h")),
        out_w(said.of("out_w")),
        kh(said.of("kh")),
        kw(said.of("kw")),
        low_h(said.of("low_h")),
        low_w(said.of("low_w")),
        step_h(said.of("step_h")),
        step_w(said.of("step_w")) {}

  // The elements of a kernel of `size` that meet an input of `length` from the place `from` on.
  static void meet(int64_t from, int64_t step, int64_t size, int64_t length, int64_t* first, int64_t* behind) {
    *first = from >= 0 ? 0 : std::min(size, (-from + step - 1) / step);
    *behind = from >= length ? 0 : std::min(size, (length - 1 - from) / step + 1);
    *behind = std::max(*first, *behind);
  }
};

struct Forward : Places {
  const float* x;
  const float* taps;
  float* y;

  template <int64_t kChannels>
  void sum(const float* row, int64_t from_h, int64_t from_w, int64_t channel, float* out) const {
    int64_t h0, h1, w0, w1;
    meet(from_h, step_h, kh, h, &h0, &h1);
    meet(from_w, step_w, kw, w, &w0, &w1);
    float total[kChannels] = {};
    for (int64_t i = h0; i < h1; ++i) {
      for (int64_t j = w0; j < w1; ++j) {
        const float* at = row + ((from_h + i * step_h) * w + from_w + j * step_w) * c + channel;
        const float* tap = taps + (i * kw + j) * c + channel;
        for (int64_t k = 0; k < kChannels; ++k) total[k] += at[k] * tap[k];
      }
    }
    for (int64_t k = 0; k < kChannels; ++k) out[channel + k] = total[k];
  }

  // One row of one picture.
  void operator()(int64_t p) const {
    const int64_t picture = p / out_h, from_h = p % out_h - low_h;
    const float* here = x + picture * h * w * c;
    float* out = y + p * out_w * c;
    int64_t channel = 0;
    for (; channel + kWide <= c; channel += kWide) {
      for (int64_t j = 0; j < out_w; ++j) sum<kWide>(here, from_h, j - low_w, channel, out + j * c);
    }
    for (; channel + kNarrow <= c; channel += kNarrow) {
      for (int64_t j = 0; j < out_w; ++j) sum<kNarrow>(here, from_h, j - low_w, channel, out + j * c);
    }
    for (; channel < c; ++channel) {
      for (int64_t j = 0; j < out_w; ++j) sum<1>(here, from_h, j - low_w, channel, out + j * c);
    }
  }
};

struct OfTaps : Places {
  const float* x;
  const float* gradient;
  float* taps;

  // One row of the kernel, some channels.
  template <int64_t kChannels>
  void sum(int64_t i, int64_t channel) const {
    for (int64_t j = 0; j < kw; ++j) {
      float total[kChannels] = {};
      const int64_t left = low_w - j * step_w;  // the first place whose input is there, and the one behind the last
      const int64_t from = std::max<int64_t>(0, left), to = std::min(out_w, w + left);
      for (int64_t picture = 0; picture < n; ++picture) {
        for (int64_t row = 0; row < out_h; ++row) {
          const int64_t at_h = row - low_h + i * step_h;
          if (at_h < 0 || at_h >= h) continue;
          const float* at = x + ((picture * h + at_h) * w - left) * c + channel;
          const float* met = gradient + (picture * out_h + row) * out_w * c + channel;
          for (int64_t place = from; place < to; ++place) {
            for (int64_t k = 0; k < kChannels; ++k) total[k] += at[place * c + k] * met[place * c + k];
          }
        }
      }
      for (int64_t k = 0; k < kChannels; ++k) taps[(i * kw + j) * c + channel + k] = total[k];
    }
  }

  void operator()(int64_t p) const {
    const int64_t i = p % kh;
    int64_t channel = p / kh * kWide;
    const int64_t end = std::min(c, channel + kWide);
    if (channel + kWide <= end) return sum<kWide>(i, channel);
    for (; channel + kNarrow <= end; channel += kNarrow) sum<kNarrow>(i, channel);
    for (; channel < end; ++channel) sum<1>(i, channel);
  }
};

// Of what takes less than some 10 microseconds no part is given away.
constexpr int64_t kAlone = int64_t{1} << 18;

bool fits(const Places& s, const Buffer& x, const Buffer& taps, const Buffer& y) {
  const auto of = [](const Buffer& buffer, int64_t a, int64_t b, int64_t d, int64_t e) {
    return is_f32(buffer) && buffer.count == a * b * d * e;
  };
  return of(x, s.n, s.h, s.w, s.c) && of(taps, 1, s.kh, s.kw, s.c) && of(y, s.n, s.out_h, s.out_w, s.c) &&
         s.step_h > 0 && s.step_w > 0;
}

int64_t helpers(const Pool& pool, const Places& s) {
  return s.n * s.out_h * s.out_w * s.c * s.kh * s.kw <= kAlone ? 1 : workers(pool);
}

std::string forward(const Call& call) {
  const Places s(call);
  const Buffer x = call.operand(0), taps = call.operand(1), y = call.result(0);
  if (!fits(s, x, taps, y)) return unlike("detente's depthwise convolution");
  const Pool pool = call.pool();
  share(pool, helpers(pool, s), s.n * s.out_h, Forward{s, x.as(), taps.as(), y.as()});
  return "";
}

std::string of_taps(const Call& call) {
  const Places s(call);
  const Buffer x = call.operand(0), gradient = call.operand(1), taps = call.result(0);
  if (!fits(s, x, taps, gradient)) return unlike("the gradient of detente's depthwise convolution");
  const Pool pool = call.pool();
  share(pool, helpers(pool, s), (s.c + kWide - 1) / kWide * s.kh, OfTaps{s, x.as(), gradient.as(), taps.as()});
  return "";
}

}  // namespace
}  // namespace detente::depthwise

DETENTE_HANDLER(detente_depthwise, detente::depthwise::forward)
DETENTE_HANDLER(detente_depthwise_of_taps, detente::depthwise::of_taps)

// The kernels of every instruction set that this machine has, against plain loops in double arithmetic.
#include "kernels/kernels.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "isa/isa.hpp"
#include "pack/float16.hpp"
#include "tests/check.hpp"
#include "kernels/tables.hpp"

namespace {

using namespace octavo;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
const float kNan = std::nanf("");

std::mt19937 made(7);

float normal() { return std::normal_distribution<float>()(made); }

std::vector<float> normals(std::size_t count, float size = 1.0f) {
  std::vector<float> values(count);
  for (float& value : values) value = normal() * size;
  return values;
}

bool same_bits(float a, float b) { return std::memcmp(&a, &b, sizeof(a)) == 0; }

bool near(double given, double wanted, double tolerance) { return std::fabs(given - wanted) <= tolerance; }

std::uint16_t rounded(float value) { return float_to_bf16(value); }

// Activations of `rows` rows as the program makes them, in memory of exactly their size.
struct Made {
  std::size_t rows, inner;
  std::vector<std::int8_t> bytes;
  std::vector<std::uint16_t> words;
  std::vector<float> scales, sums;
  std::vector<std::int32_t> offsets;

  Made(const Kernels& kernels, Layout layout, const std::vector<float>& x, std::size_t rows_, std::size_t inner_) : rows(rows_), inner(inner_) {
    const std::size_t count = groups(inner);
    if (layout == Layout::kBf16) {
      words.resize(rows * count * kGroup);
      for (std::size_t r = 0; r < rows; ++r) kernels.round_row(&x[r * inner], inner, &words[r * count * kGroup]);
      return;
    }
    bytes.resize(rows * count * kGroup);
    scales.resize(rows * count);
    sums.resize(rows * count);
    offsets.resize(rows * count);
    for (std::size_t r = 0; r < rows; ++r) {
      kernels.quantize_row(&x[r * inner], inner, &bytes[r * count * kGroup], &scales[r * count], &sums[r * count], &offsets[r * count]);
    }
  }

  Activations view() {
    if (!words.empty()) return {words.data(), nullptr, nullptr, nullptr};
    return {bytes.data(), scales.data(), sums.data(), offsets.data()};
  }

  double value(std::size_t row, std::size_t k) const {
    const std::size_t count = groups(inner);
    if (!words.empty()) return static_cast<double>(bf16_to_float(words[row * count * kGroup + k]));
    return static_cast<double>(scales[row * count + k / kGroup]) * bytes[row * count * kGroup + k];
  }
};

void quantize_row(const Kernels& kernels) {
  for (std::size_t inner = 1; inner <= 300; inner += inner < 100 ? 1 : 7) {
    for (int kind = 0; kind < 6; ++kind) {
      std::vector<float> x = normals(inner, kind == 1 ? 1e-30f : kind == 2 ? 1e30f : 1.0f);
      if (kind == 3) x.assign(inner, 0.0f);
      if (kind == 4) x[inner / 2] = kNan;
      if (kind == 5) x[inner - 1] = -kInfinity;
      const Made given(kernels, Layout::kInt8, x, 1, inner);
      for (std::size_t group = 0; group < groups(inner); ++group) {
        float most = 0.0f;
        bool finite = true;
        const std::size_t first = group * kGroup, last = std::min(inner, first + kGroup);
        for (std::size_t i = first; i < last; ++i) {
          finite = finite && std::isfinite(x[i]);
          if (std::fabs(x[i]) > most) most = std::fabs(x[i]);
        }
        CHECK(finite ? same_bits(given.scales[group], most / 127.0f) : std::isnan(given.scales[group]));
        std::int32_t sum = 0;
        const float inverse = most > 0.0f ? 127.0f / most : 0.0f;
        for (std::size_t i = first; i < first + kGroup; ++i) {
          const auto q = finite && i < last ? static_cast<std::int32_t>(std::nearbyint(x[i] * inverse)) : 0;
          CHECK(given.bytes[i] == q);
          sum += given.bytes[i];
        }
        CHECK(given.offsets[group] == -128 * sum);
        CHECK(!finite || same_bits(given.sums[group], given.scales[group] * static_cast<float>(sum)));
        CHECK(finite || std::isnan(given.sums[group]));
      }
    }
  }
  // Halves go to the even neighbour, and the ends stay within a signed byte.
  std::vector<float> ties(kGroup, 127.0f);
  for (int i = 1; i < kGroup; ++i) ties[static_cast<std::size_t>(i)] = static_cast<float>(i - 16) + 0.5f;
  const Made given(kernels, Layout::kInt8, ties, 1, kGroup);
  for (int i = 1; i < kGroup; ++i) CHECK(given.bytes[static_cast<std::size_t>(i)] % 2 == 0);
  // The largest of a group is 127 whatever its size.
  for (int i = 0; i < 20000; ++i) {
    const float size = std::ldexp(1.0f + static_cast<float>(made() >> 9) * 0x1p-23f, static_cast<int>(made() % 247) - 120);
    const Made one(kernels, Layout::kInt8, {size, -size}, 1, 2);
    CHECK(one.bytes[0] == (size > 0x1p-120f ? 127 : 0) && one.bytes[1] == -one.bytes[0]);
  }
  // What has no inverse that is a number is zero.
  const Made tiny(kernels, Layout::kInt8, {std::numeric_limits<float>::denorm_min(), -0x1p-126f, 0x1p-122f}, 1, 3);
  CHECK(tiny.bytes[0] == 0 && tiny.bytes[1] == 0 && tiny.bytes[2] == 0);
}

void round_row(const Kernels& kernels) {
  for (std::size_t inner = 1; inner <= 70; ++inner) {
    std::vector<float> x(inner);
    for (float& value : x) {
      const std::uint32_t bits = static_cast<std::uint32_t>(made());
      std::memcpy(&value, &bits, 4);
    }
    x[0] = inner % 3 == 0 ? kNan : inner % 3 == 1 ? kInfinity : std::numeric_limits<float>::max();
    const Made given(kernels, Layout::kBf16, x, 1, inner);
    for (std::size_t i = 0; i < given.words.size(); ++i) CHECK(given.words[i] == (i < inner ? rounded(x[i]) : 0));
  }
}

// Every float16 as a scale and as a minimum: one row whose only value is 1 brings them back.
void half_to_float(const Kernels& kernels) {
  constexpr std::size_t kAll = 65536;
  for (const Layout layout : {Layout::kInt8, Layout::kInt4}) {
    const std::size_t cell = cell_bytes(layout);
    std::vector<std::uint8_t> data(packed_bytes(layout, kAll, kGroup));
    for (std::size_t half = 0; half < kAll; ++half) {
      std::uint8_t* own = &data[half / kPanel * cell];
      const std::size_t output = half % kPanel;
      const auto bits = static_cast<std::uint16_t>(half);
      own[4 * output] = 1;
      std::memcpy(own + (layout == Layout::kInt8 ? 512 : 256) + 2 * output, &bits, 2);
    }
    std::int8_t x[kGroup] = {1};
    float scale = 1.0f, sum = 0.0f;
    std::int32_t offset = -128;
    std::vector<float> y(kAll);
    kernels.product({layout, kAll, kGroup, data.data(), nullptr}, {x, &scale, &sum, &offset}, 0, 1, 0, panels(kAll), Store::kAssign, y.data(), kAll);
    for (std::size_t half = 0; half < kAll; ++half) {
      const float wanted = octavo::half_to_float(static_cast<std::uint16_t>(half));
      CHECK(y[half] == wanted || (std::isnan(y[half]) && std::isnan(wanted)));
    }
  }
}

// A linear of random cells, its values, and its bias.
struct Weights {
  Layout layout;
  std::size_t outputs, inner;
  std::vector<std::uint8_t> data;
  std::vector<double> values;  // [outputs][inner]
  std::vector<float> bias;

  Weights(Layout layout_, std::size_t outputs_, std::size_t inner_)
      : layout(layout_), outputs(outputs_), inner(inner_), data(packed_bytes(layout, outputs, inner)), values(outputs * inner), bias(normals(outputs)) {
    const std::size_t cell = cell_bytes(layout), count = groups(inner);
    for (std::size_t at = 0; at < panels(outputs) * count; ++at) {
      std::uint8_t* own = &data[at * cell];
      if (layout == Layout::kBf16) {
        for (std::size_t i = 0; i < cell; i += 2) put(own + i, rounded(normal()));
        continue;
      }
      const std::size_t scales = layout == Layout::kInt4 ? 256 : 512;
      for (std::size_t i = 0; i < scales; ++i) own[i] = static_cast<std::uint8_t>(made());
      for (std::size_t i = scales; i < cell; i += 2) put(own + i, float_to_half(normal() * (i < scales + 32 ? 0.1f : 1.0f)));
    }
    for (std::size_t output = 0; output < outputs; ++output) {
      for (std::size_t k = 0; k < inner; ++k) values[output * inner + k] = value(output, k);
    }
  }

  PackedLinear packed(bool biased) const { return {layout, outputs, inner, data.data(), biased ? bias.data() : nullptr}; }

 private:
  static void put(std::uint8_t* target, std::uint16_t word) { std::memcpy(target, &word, 2); }

  static double half_at(const std::uint8_t* source) {
    std::uint16_t bits;
    std::memcpy(&bits, source, 2);
    return static_cast<double>(octavo::half_to_float(bits));
  }

  // By the words of layout.hpp.
  double value(std::size_t output, std::size_t k) const {
    const std::uint8_t* cell = &data[(output / kPanel * groups(inner) + k / kGroup) * cell_bytes(layout)];
    const std::size_t o = output % kPanel, i = k % kGroup;
    if (layout == Layout::kInt4) {
      const std::uint8_t byte = cell[64 * (i % 16 / 4) + 4 * o + i % 4];
      return half_at(cell + 256 + 2 * o) * (i < 16 ? byte & 15 : byte >> 4) + half_at(cell + 288 + 2 * o);
    }
    if (layout == Layout::kInt8) return half_at(cell + 512 + 2 * o) * static_cast<std::int8_t>(cell[64 * (i / 4) + 4 * o + i % 4]);
    std::uint16_t word;
    std::memcpy(&word, cell + 64 * (i / 2) + 4 * o + 2 * (i % 2), 2);
    return static_cast<double>(bf16_to_float(word));
  }
};

void product(const Kernels& kernels) {
  for (const Layout layout : {Layout::kInt4, Layout::kInt8, Layout::kBf16}) {
    for (const auto& [outputs, inner] : std::vector<std::pair<std::size_t, std::size_t>>{{1, 1}, {16, 32}, {17, 31}, {33, 64}, {80, 200}}) {
      const Weights weights(layout, outputs, inner);
      constexpr std::size_t kMost = 27;
      const std::vector<float> x = normals(kMost * inner);
      Made activations(kernels, layout, x, kMost, inner);
      std::vector<float> alone(kMost * outputs);
      for (std::size_t row = 0; row < kMost; ++row) {
        kernels.product(weights.packed(false), activations.view(), row, row + 1, 0, panels(outputs), Store::kAssign, &alone[row * outputs], outputs);
        for (std::size_t output = 0; output < outputs; ++output) {
          double sum = 0.0, size = 0.0;
          for (std::size_t k = 0; k < inner; ++k) {
            const double part = activations.value(row, k) * weights.values[output * inner + k];
            sum += part;
            size += std::fabs(part);
          }
          // A minimum and its scale cancel: their sizes count, and not that of the weight.
          CHECK(near(static_cast<double>(alone[row * outputs + output]), sum, 3e-6 * (size + 30.0)));
        }
      }
      // Any rows and panels together, with a bias, in place or added, are the same bits.
      for (std::size_t rows = 1; rows <= kMost; ++rows) {
        const std::size_t first = made() % (kMost - rows + 1), panel = made() % panels(outputs);
        const std::size_t panel_end = panel + 1 + made() % (panels(outputs) - panel), begin = panel * kPanel;
        const std::size_t end = std::min(outputs, panel_end * kPanel), stride = end - begin + rows % 3;
        const bool add = rows % 2 == 0;
        const std::vector<float> before = normals(rows * stride);
        std::vector<float> y = before;
        kernels.product(weights.packed(true), activations.view(), first, first + rows, panel, panel_end, add ? Store::kAdd : Store::kAssign, y.data(), stride);
        for (std::size_t row = 0; row < rows; ++row) {
          for (std::size_t column = 0; column < stride; ++column) {
            const std::size_t at = row * stride + column, output = begin + column;
            float wanted = before[at];
            if (output < end) {
              wanted = alone[(first + row) * outputs + output] + weights.bias[output];
              if (add) wanted += before[at];
            }
            CHECK(same_bits(y[at], wanted));
          }
        }
      }
    }
  }
}

void rms_norm_row(const Kernels& kernels) {
  for (std::size_t width = 1; width <= 140; ++width) {
    const std::vector<float> x = normals(width, 3.0f), weight = normals(width);
    std::vector<float> y(width);
    kernels.rms_norm_row(x.data(), weight.data(), 1e-5f, width, y.data());
    double squares = 0.0;
    for (const float value : x) squares += static_cast<double>(value) * static_cast<double>(value);
    const double factor = 1.0 / std::sqrt(squares / static_cast<double>(width) + 1e-5);
    for (std::size_t i = 0; i < width; ++i) {
      const double wanted = static_cast<double>(x[i]) * factor * static_cast<double>(weight[i]);
      CHECK(near(static_cast<double>(y[i]), wanted, 1e-6 * std::fabs(wanted)));
    }
  }
}

// gate · sigmoid(gate) · up over the whole range of floats.
void silu_mul(const Kernels& kernels) {
  for (std::size_t count = 1; count <= 40; ++count) {
    std::vector<float> gate = normals(count, 30.0f), up = normals(count), y(count);
    if (count == 7) gate = {kInfinity, -1e30f, 1e30f, 0.0f, -87.0f, -100.0f, 88.0f};
    kernels.silu_mul(gate.data(), up.data(), count, y.data());
    for (std::size_t i = 0; i < count; ++i) {
      const auto g = static_cast<double>(gate[i]);
      const double wanted = g < -700.0 ? 0.0 : g / (1.0 + std::exp(-g)) * static_cast<double>(up[i]);
      CHECK(static_cast<double>(y[i]) == wanted || near(static_cast<double>(y[i]), wanted, 1e-5 * std::fabs(wanted) + 1e-35));
    }
    // In place, as the program calls it.
    std::vector<float> again = gate;
    kernels.silu_mul(again.data(), up.data(), count, again.data());
    CHECK(std::memcmp(again.data(), y.data(), count * sizeof(float)) == 0);
  }
  const float gate[2] = {kNan, -kInfinity}, up[2] = {1.0f, 1.0f};
  float y[2];
  kernels.silu_mul(gate, up, 2, y);
  CHECK(std::isnan(y[0]) && std::isnan(y[1]));
}

// gate / 2 · (1 + tanh(√(2/π) · (gate + 0.044715 · gate³))) · up.
void gelu_mul(const Kernels& kernels) {
  for (std::size_t count = 1; count <= 40; ++count) {
    std::vector<float> gate = normals(count, 4.0f), up = normals(count), y(count);
    if (count == 7) gate = {kInfinity, -1e30f, 1e30f, 0.0f, -5.0f, -11.0f, 20.0f};
    kernels.gelu_mul(gate.data(), up.data(), count, y.data());
    for (std::size_t i = 0; i < count; ++i) {
      const auto g = static_cast<double>(gate[i]);
      const double inner = 2.0 * std::sqrt(2.0 / 3.14159265358979323846) * (g + 0.044715 * g * g * g);
      const double wanted = inner < -700.0 ? 0.0 : g / (1.0 + std::exp(-inner)) * static_cast<double>(up[i]);
      CHECK(static_cast<double>(y[i]) == wanted || near(static_cast<double>(y[i]), wanted, 2e-5 * std::fabs(wanted) + 1e-35));
    }
    std::vector<float> again = gate;
    kernels.gelu_mul(again.data(), up.data(), count, again.data());
    CHECK(std::memcmp(again.data(), y.data(), count * sizeof(float)) == 0);
  }
  const float gate = kNan, up = 1.0f;
  float y;
  kernels.gelu_mul(&gate, &up, 1, &y);
  CHECK(std::isnan(y));
}

// cap · tanh(x / cap), and a value alone as among others.
void softcap(const Kernels& kernels) {
  for (const float cap : {0.5f, 4.0f, 30.0f, 50.0f}) {
    for (std::size_t count = 1; count <= 40; ++count) {
      std::vector<float> x = normals(count, 2.0f * cap);
      if (count == 5) x = {kInfinity, -kInfinity, 0.0f, 1e-6f * cap, kNan};
      std::vector<float> y = x;
      kernels.softcap(y.data(), count, cap);
      for (std::size_t i = 0; i < count; ++i) {
        if (std::isnan(x[i])) {
          CHECK(std::isnan(y[i]));
          continue;
        }
        const double wanted = static_cast<double>(cap) * std::tanh(static_cast<double>(x[i]) / static_cast<double>(cap));
        CHECK(near(static_cast<double>(y[i]), wanted, 5e-7 * static_cast<double>(cap)));
        float alone = x[i];
        kernels.softcap(&alone, 1, cap);
        CHECK(same_bits(alone, y[i]));
      }
    }
  }
}

// 2^x for x of at most 0, which is what merging multiplies a running total by.
void exp2(const Kernels& kernels) {
  const auto power = [&](float x) {
    float maximum = x, total = 1.0f, other_maximum = 0.0f, other_total = 0.0f, none = 0.0f;
    kernels.merge(1, 0, {&maximum, &total, &none}, {&other_maximum, &other_total, &none});
    return total;
  };
  double worst = 0.0;
  for (std::uint32_t bits = 0x80000000u; bits <= 0xc2fc0000u; bits += 1499) {  // from −0 to −126
    float x;
    std::memcpy(&x, &bits, 4);
    const double wanted = std::exp2(static_cast<double>(x));
    worst = std::max(worst, std::fabs(static_cast<double>(power(x)) - wanted) / wanted * 0x1p24);
  }
  std::printf("exp2 of %s: %.2f half units in the last place\n", kernels.name, worst);
  CHECK(worst < 2.0);
  for (int whole = 0; whole >= -126; --whole) CHECK(power(static_cast<float>(whole)) == std::ldexp(1.0f, whole));
  for (const float below : {-126.001f, -127.0f, -1000.0f, -1e30f, -kInfinity}) CHECK(same_bits(power(below), 0.0f));
}

void rope_head(const Kernels& kernels) {
  for (std::size_t half = 1; half <= 64; ++half) {
    const std::vector<float> cosine = normals(half), sine = normals(half), before = normals(2 * half);
    std::vector<float> head = before;
    kernels.rope_head(head.data(), cosine.data(), sine.data(), half);
    for (std::size_t i = 0; i < half; ++i) {
      CHECK(same_bits(head[i], before[i] * cosine[i] - before[half + i] * sine[i]));
      CHECK(same_bits(head[half + i], before[half + i] * cosine[i] + before[i] * sine[i]));
    }
  }
}

}  // namespace

int main() {
  for (const octavo::Isa isa : octavo::available()) {
    const octavo::Kernels& kernels = octavo::kernels_of(isa);
    CHECK(octavo::name(isa) == kernels.name);
    quantize_row(kernels);
    round_row(kernels);
    half_to_float(kernels);
    product(kernels);
    rms_norm_row(kernels);
    silu_mul(kernels);
    gelu_mul(kernels);
    softcap(kernels);
    exp2(kernels);
    rope_head(kernels);
  }
  return octavo::test::report("kernels");
}

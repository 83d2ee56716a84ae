// pack.hpp for every storage, layout and a range of shapes: unpacked rows against a plain decoding of the checkpoint's bytes, and packed
// bytes against the description in layout.hpp, element by element.
#include "pack/pack.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "pack/float16.hpp"
#include "tests/check.hpp"

namespace {

using namespace octavo;

constexpr Storage kStorages[] = {Storage::kF32,  Storage::kF16,  Storage::kBf16, Storage::kQ8_0,
                                 Storage::kQ5_0, Storage::kQ4_0, Storage::kQ4_1, Storage::kIq4Nl,
                                 Storage::kQ4_K};
constexpr Layout kLayouts[] = {Layout::kInt4, Layout::kInt8, Layout::kBf16};

using Bytes = std::vector<std::uint8_t>;
using Sizes = std::initializer_list<std::size_t>;

bool is_block(Storage storage) { return storage >= Storage::kQ8_0; }

bool keeps_everything(Storage storage, Layout layout) {
  if (layout == Layout::kInt4) return storage == Storage::kQ4_0 || storage == Storage::kQ4_1;
  if (layout == Layout::kInt8) {
    return storage == Storage::kQ4_0 || storage == Storage::kQ5_0 || storage == Storage::kQ8_0 || storage == Storage::kIq4Nl;
  }
  return storage == Storage::kBf16;
}

std::size_t block_values(Storage storage) { return storage == Storage::kQ4_K ? 256 : 32; }

// Whether a block begins with two float16 numbers, of which the second belongs to minima.
bool has_minimum(Storage storage) { return storage == Storage::kQ4_1 || storage == Storage::kQ4_K; }

float read_half(const Bytes& bytes, std::size_t at) {
  return half_to_float(static_cast<std::uint16_t>(bytes[at] | bytes[at + 1] << 8));
}

void write_u16(Bytes& bytes, std::size_t at, std::uint16_t value) {
  bytes[at] = static_cast<std::uint8_t>(value & 255);
  bytes[at + 1] = static_cast<std::uint8_t>(value >> 8);
}

// Value k of the row that begins at `at`, by the definition of its format.
float stored_value(Storage storage, const Bytes& bytes, std::size_t at, std::size_t k) {
  const std::size_t block = k / 32;
  const std::size_t i = k % 32;
  const auto nibble = [&](std::size_t first) { return i < 16 ? bytes[first + i] & 15 : bytes[first + i - 16] >> 4; };
  switch (storage) {
    case Storage::kF32: {
      std::uint32_t bits = 0;
      for (std::size_t b = 0; b < 4; ++b) bits |= static_cast<std::uint32_t>(bytes[at + 4 * k + b]) << (8 * b);
      return std::bit_cast<float>(bits);
    }
    case Storage::kF16: return read_half(bytes, at + 2 * k);
    case Storage::kBf16: return bf16_to_float(static_cast<std::uint16_t>(bytes[at + 2 * k] | bytes[at + 2 * k + 1] << 8));
    case Storage::kQ8_0: {
      const auto q = static_cast<std::int8_t>(bytes[at + 34 * block + 2 + i]);
      return read_half(bytes, at + 34 * block) * static_cast<float>(q);
    }
    case Storage::kQ5_0: {
      const std::size_t first = at + 22 * block;
      const int fifth = bytes[first + 2 + i / 8] >> (i % 8) & 1;
      return read_half(bytes, first) * static_cast<float>(nibble(first + 6) + 16 * fifth - 16);
    }
    case Storage::kQ4_0: return read_half(bytes, at + 18 * block) * static_cast<float>(nibble(at + 18 * block + 2) - 8);
    case Storage::kQ4_1: {
      const std::size_t first = at + 20 * block;
      return std::fma(read_half(bytes, first), static_cast<float>(nibble(first + 4)), read_half(bytes, first + 2));
    }
    case Storage::kIq4Nl: {
      constexpr int kTable[] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
      return read_half(bytes, at + 18 * block) * static_cast<float>(kTable[nibble(at + 18 * block + 2)]);
    }
    case Storage::kQ4_K: {
      const std::size_t first = at + 144 * (k / 256);
      const std::size_t part = k % 256 / 32;
      const auto packed = [&](std::size_t b) { return static_cast<int>(bytes[first + 4 + b]); };
      int scale = packed(part) % 64;
      int minimum = packed(part + 4) % 64;
      if (part >= 4) {
        scale = packed(part + 4) % 16 + packed(part - 4) / 64 * 16;
        minimum = packed(part + 4) / 16 + packed(part) / 64 * 16;
      }
      const int pair = bytes[first + 16 + part / 2 * 32 + i];
      const int q = part % 2 ? pair / 16 : pair % 16;
      return std::fma(read_half(bytes, first) * static_cast<float>(scale), static_cast<float>(q),
                      -read_half(bytes, first + 2) * static_cast<float>(minimum));
    }
  }
  return 0.0f;
}

// A checkpoint with random values of sensible size; `data` begins at an odd address and rows lie further apart than they have to.
struct Checkpoint {
  Bytes bytes;
  std::size_t start = 0;
  CheckpointLinear linear{};

  Checkpoint(Storage storage, std::size_t outputs, std::size_t inner, std::mt19937& random) {
    const std::size_t stride = row_bytes(storage, inner) + 7;
    start = 1;
    bytes.resize(start + outputs * stride);
    for (auto& byte : bytes) byte = static_cast<std::uint8_t>(random());
    std::normal_distribution<float> normal(0.0f, 0.05f);
    for (std::size_t row = 0; row < outputs; ++row) {
      const std::size_t at = start + row * stride;
      if (is_block(storage)) {
        const std::size_t block = row_bytes(storage, block_values(storage));
        for (std::size_t b = 0; b < inner / block_values(storage); ++b) {
          write_u16(bytes, at + b * block, float_to_half(normal(random)));
          if (has_minimum(storage)) write_u16(bytes, at + b * block + 2, float_to_half(normal(random)));
        }
        continue;
      }
      for (std::size_t k = 0; k < inner; ++k) {
        const float value = normal(random);
        const auto bits = std::bit_cast<std::uint32_t>(value);
        if (storage == Storage::kF32) std::memcpy(&bytes[at + 4 * k], &bits, 4);
        if (storage == Storage::kF16) write_u16(bytes, at + 2 * k, float_to_half(value));
        if (storage == Storage::kBf16) write_u16(bytes, at + 2 * k, float_to_bf16(value));
      }
    }
    linear = {storage, outputs, inner, bytes.data() + start, stride, nullptr};
  }

  std::vector<float> row(std::size_t r) const {
    const std::size_t source = linear.order ? static_cast<std::size_t>(linear.order[r]) : r;
    std::vector<float> values(linear.inner);
    for (std::size_t k = 0; k < linear.inner; ++k) values[k] = stored_value(linear.storage, bytes, start + source * linear.stride, k);
    return values;
  }
};

// A checkpoint of one F32 row.
Checkpoint one_row(const std::vector<float>& values) {
  std::mt19937 random(1);
  Checkpoint made(Storage::kF32, 1, values.size(), random);
  std::memcpy(made.bytes.data() + made.start, values.data(), 4 * values.size());
  return made;
}

// Packed with 0xa5 all over before, so that a byte that nobody writes shows.
struct Packed {
  Bytes bytes;
  PackedLinear linear{};
  PackStats stats;

  Packed(const Checkpoint& from, Layout layout) : bytes(packed_bytes(layout, from.linear.outputs, from.linear.inner), 0xa5) {
    linear = {layout, from.linear.outputs, from.linear.inner, bytes.data(), nullptr};
    for (std::size_t panel = 0; panel < panels(from.linear.outputs); ++panel) {
      stats += pack_panel(from.linear, layout, panel, bytes.data() + panel_offset(linear, panel));
    }
  }

  std::vector<float> row(std::size_t r) const {
    std::vector<float> values(linear.inner + 1, 77.0f);
    unpack_row(linear, r, values.data());
    CHECK(values.back() == 77.0f);
    values.pop_back();
    return values;
  }
};

// What the description in layout.hpp says about value k of row r: its q (or bfloat16), scale and minimum.
struct Element {
  int q = 0;
  std::uint16_t scale = 0;
  std::uint16_t minimum = 0;

  Element(const Packed& packed, std::size_t r, std::size_t k) {
    const std::size_t o = r % 16;
    const std::size_t i = k % 32;
    const std::size_t all_groups = (packed.linear.inner + 31) / 32;
    const auto u16 = [&](std::size_t at) { return static_cast<std::uint16_t>(packed.bytes[at] | packed.bytes[at + 1] << 8); };
    if (packed.linear.layout == Layout::kInt4) {
      const std::size_t cell = (r / 16 * all_groups + k / 32) * 320;
      const std::uint8_t byte = packed.bytes[cell + 64 * (i % 16 / 4) + 4 * o + i % 4];
      q = i < 16 ? byte & 15 : byte >> 4;
      scale = u16(cell + 256 + 2 * o);
      minimum = u16(cell + 256 + 32 + 2 * o);
    } else if (packed.linear.layout == Layout::kInt8) {
      const std::size_t cell = (r / 16 * all_groups + k / 32) * 544;
      q = static_cast<std::int8_t>(packed.bytes[cell + 64 * (i / 4) + 4 * o + i % 4]);
      scale = u16(cell + 512 + 2 * o);
    } else {
      const std::size_t cell = (r / 16 * all_groups + k / 32) * 1024;
      q = u16(cell + 64 * (i / 2) + 2 * (2 * o + i % 2));
    }
  }

  float value(Layout layout) const {
    if (layout == Layout::kBf16) return bf16_to_float(static_cast<std::uint16_t>(q));
    return std::fma(half_to_float(scale), static_cast<float>(q), half_to_float(minimum));
  }
};

bool same(float a, float b) { return a == b || (std::isnan(a) && std::isnan(b)); }

// How far a value may move: half a step of the layout for its group, and the rounding of a float16 minimum. A value of Q4_K in kInt4 is the
// sum of two numbers that were rounded to float16, together at most three times as large as the largest value.
float tolerance(Storage storage, Layout layout, const std::vector<float>& row, std::size_t k) {
  if (layout == Layout::kBf16) return std::fabs(row[k]) / 256.0f;
  const auto begin = row.begin() + static_cast<std::ptrdiff_t>(k / 32 * 32);
  const auto end = row.begin() + static_cast<std::ptrdiff_t>(std::min(k / 32 * 32 + 32, row.size()));
  const auto [low, high] = std::minmax_element(begin, end);
  const float largest = std::max(std::fabs(*low), std::fabs(*high));
  if (storage == Storage::kQ4_K && layout == Layout::kInt4) return 3.0f * largest / 2048.0f + 0x1p-20f;
  return (layout == Layout::kInt8 ? largest / 254.0f : (*high - *low) / 30.0f) + largest / 1000.0f;
}

void check_packed(const Checkpoint& from, const Packed& packed) {
  const Layout layout = packed.linear.layout;
  const bool exact = keeps_everything(from.linear.storage, layout);
  std::size_t changed = 0;
  for (std::size_t r = 0; r < from.linear.outputs; ++r) {
    const std::vector<float> expected = from.row(r);
    const std::vector<float> values = packed.row(r);
    for (std::size_t k = 0; k < expected.size(); ++k) {
      CHECK(same(values[k], Element(packed, r, k).value(layout)));
      CHECK(exact ? same(values[k], expected[k]) : std::fabs(values[k] - expected[k]) <= tolerance(from.linear.storage, layout, expected, k));
      changed += same(values[k], expected[k]) ? 0 : 1;
    }
  }
  CHECK(packed.stats.values == from.linear.outputs * from.linear.inner);
  CHECK(packed.stats.changed == changed);
  CHECK(!exact || changed == 0);
  CHECK(changed > 0 || from.linear.storage != Storage::kF32 || from.linear.inner < 32);
}

// Rows past the last output are zero bytes; so are the q past the last value.
void check_padding(const Packed& packed) {
  const std::size_t outputs = packed.linear.outputs;
  const std::size_t inner = packed.linear.inner;
  for (std::size_t r = 0; r < panels(outputs) * 16; ++r) {
    for (std::size_t k = r < outputs ? inner : 0; k < groups(inner) * 32; ++k) {
      const Element element(packed, r, k);
      CHECK(element.q == 0);
      CHECK(r < outputs || (element.scale == 0 && element.minimum == 0));
    }
  }
}

void every_storage_layout_and_shape() {
  std::mt19937 random(7);
  for (const Storage storage : kStorages) {
    for (const Layout layout : kLayouts) {
      for (const std::size_t outputs : Sizes{1, 15, 16, 17, 100}) {
        for (const std::size_t inner : Sizes{32, 64, 576, 1, 33, 95, 256, 768}) {
          if (row_bytes(storage, inner) == 0) continue;
          Checkpoint from(storage, outputs, inner, random);
          const Packed packed(from, layout);
          check_packed(from, packed);
          check_padding(packed);
          std::vector<std::int64_t> order(outputs);
          std::iota(order.begin(), order.end(), 0);
          std::shuffle(order.begin(), order.end(), random);
          order[0] = order[outputs - 1];  // a row may come twice
          from.linear.order = order.data();
          check_packed(from, Packed(from, layout));
        }
      }
    }
  }
}

// Every bit pattern of scale and minimum, with every q: as hostile files hold them.
void every_scale() {
  std::mt19937 random(9);
  for (const Storage storage : kStorages) {
    if (!is_block(storage) || block_values(storage) != 32) continue;
    Checkpoint from(storage, 4096, 512, random);
    const std::size_t block = row_bytes(storage, 32);
    std::uint32_t scale = 0;
    for (std::size_t r = 0; r < 4096; ++r) {
      for (std::size_t b = 0; b < 16; ++b, ++scale) {
        const std::size_t at = from.start + r * from.linear.stride + b * block;
        write_u16(from.bytes, at, static_cast<std::uint16_t>(scale));
        if (has_minimum(storage)) write_u16(from.bytes, at + 2, static_cast<std::uint16_t>(random()));
        if (storage == Storage::kQ8_0) from.bytes[at + 2] = 0x80;
      }
    }
    const Layout layout = natural_layout(storage);
    const Packed packed(from, layout);
    std::size_t changed = 0;
    std::size_t large = 0;
    for (std::size_t r = 0; r < 4096; ++r) {
      const std::vector<float> expected = from.row(r);
      const std::vector<float> values = packed.row(r);
      for (std::size_t k = 0; k < 512; ++k) {
        const float d = read_half(from.bytes, from.start + r * from.linear.stride + k / 32 * block);
        const bool too_large = storage == Storage::kQ4_0 && std::fabs(d) > 8188.0f;
        const bool kept = same(expected[k], values[k]);
        CHECK(kept || too_large);
        changed += kept ? 0 : 1;
        large += too_large ? 1 : 0;
      }
    }
    CHECK(packed.stats.changed == changed);
    CHECK((changed > 0) == (storage == Storage::kQ4_0) && changed <= large);
  }
  // Where kInt4 can't hold a Q4_0, kInt8 can.
  Checkpoint from(Storage::kQ4_0, 1, 32, random);
  write_u16(from.bytes, from.start, float_to_half(60000.0f));
  CHECK(Packed(from, Layout::kInt4).stats.changed > 0);
  CHECK(Packed(from, Layout::kInt8).stats.changed == 0);
}

// Q4_K in kInt4 with scales of all sizes, as hostile files hold them: a value moves by no more than the rounding of its scale and minimum to
// float16, and what a float16 can't hold is brought as near as can be.
void scales_of_q4_k() {
  std::mt19937 random(11);
  constexpr std::size_t kRows = 1024;
  Checkpoint from(Storage::kQ4_K, kRows, 2048, random);
  std::uint32_t scale = 0;
  for (std::size_t r = 0; r < kRows; ++r) {
    for (std::size_t b = 0; b < 8; ++b, scale += 8) {
      const std::size_t at = from.start + r * from.linear.stride + b * 144;
      write_u16(from.bytes, at, static_cast<std::uint16_t>(scale + random() % 8));
      write_u16(from.bytes, at + 2, static_cast<std::uint16_t>(random()));
    }
  }
  const Packed packed(from, Layout::kInt4);
  std::size_t changed = 0;
  std::size_t too_large = 0;
  for (std::size_t r = 0; r < kRows; ++r) {
    const std::vector<float> expected = from.row(r);
    const std::vector<float> values = packed.row(r);
    for (std::size_t k = 0; k < 2048; ++k) {
      changed += same(expected[k], values[k]) ? 0 : 1;
      const std::size_t block = from.start + r * from.linear.stride + k / 256 * 144;
      if (!std::isfinite(read_half(from.bytes, block)) || !std::isfinite(read_half(from.bytes, block + 2))) {
        CHECK(std::isnan(values[k]) || !std::isfinite(expected[k]) || same(expected[k], values[k]));
        continue;
      }
      CHECK(std::isfinite(values[k]));
      const Element element(packed, r, k);
      const float size = std::fabs(half_to_float(element.scale)) * static_cast<float>(element.q) + std::fabs(half_to_float(element.minimum));
      const auto begin = expected.begin() + static_cast<std::ptrdiff_t>(k / 32 * 32);
      const auto [low, high] = std::minmax_element(begin, begin + 32);
      const float largest = std::max(std::fabs(*low), std::fabs(*high));
      // What is too large for a float16 shows in the largest value, unless scale and minimum cancel each other.
      if (largest > 65504.0f || size > 65504.0f) {
        ++too_large;
        continue;
      }
      CHECK(std::fabs(values[k] - expected[k]) <= std::max(size / 2000.0f + 0x1p-20f, (*high - *low) / 29.0f));
    }
  }
  CHECK(packed.stats.changed == changed);
  CHECK(too_large > 0 && changed > 0);
}

void rounding_to_bf16() {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const std::vector<float> values = {1.0f, 1.00390625f, 1.01171875f, -0.0f, kNan, kInf, -kInf, 3.39e38f, 0x1p-133f, 0x1.8p-133f};
  const std::vector<float> expected = {1.0f, 1.0f, 1.015625f, -0.0f, kNan, kInf, -kInf, 0x1.fep127f, 0x1p-133f, 0x1p-132f};
  const Packed packed(one_row(values), Layout::kBf16);
  const std::vector<float> rounded = packed.row(0);
  for (std::size_t k = 0; k < values.size(); ++k) {
    CHECK(same(rounded[k], expected[k]));
    CHECK(std::signbit(rounded[k]) == std::signbit(expected[k]));
  }
  CHECK(packed.stats.changed == 4);
  CHECK(std::isinf(Packed(one_row({std::numeric_limits<float>::max()}), Layout::kBf16).row(0)[0]));
}

// Quantizing at the edges: zeros, constants, tiny, huge and not finite.
void quantizing_extremes() {
  for (const Layout layout : {Layout::kInt4, Layout::kInt8}) {
    const auto pack = [&](const std::vector<float>& values) { return Packed(one_row(values), layout); };
    CHECK(pack(std::vector<float>(32, 0.0f)).stats.changed == 0);
    CHECK(pack(std::vector<float>(32, 0.5f)).stats.changed == (layout == Layout::kInt4 ? 0 : 32));
    for (const float scale : {1e-7f, 1e-6f, 3e-6f, 1e-5f, 1e-4f, 1.0f, 60000.0f}) {
      std::vector<float> values(32);
      for (std::size_t k = 0; k < 32; ++k) values[k] = scale * (static_cast<float>(k) / 31.0f);
      const std::vector<float> back = pack(values).row(0);
      // The coarsest step that the span may need, or that of the smallest float16.
      const float step = std::max(scale / (layout == Layout::kInt4 ? 15.0f : 127.0f), 0x1p-24f) + 0x1p-24f;
      for (std::size_t k = 0; k < 32; ++k) CHECK(std::fabs(back[k] - values[k]) <= 0.55f * step);
    }
    // Larger than the layout reaches: the largest that it does, never infinite.
    std::vector<float> huge(32, 0.0f);
    huge[3] = std::numeric_limits<float>::max();
    huge[4] = -std::numeric_limits<float>::max();
    const std::vector<float> clamped = pack(huge).row(0);
    CHECK(clamped[3] == (layout == Layout::kInt4 ? 14.0f : 127.0f) * 65504.0f);
    CHECK(clamped[4] == (layout == Layout::kInt4 ? -1.0f : -127.0f) * 65504.0f);
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
      std::vector<float> values(96, 1.0f);
      values[40] = bad;
      const std::vector<float> back = pack(values).row(0);
      for (std::size_t k = 0; k < 96; ++k) CHECK(std::isnan(back[k]) == (k / 32 == 1));
    }
  }
}

void sizes_and_natural_layouts() {
  CHECK(row_bytes(Storage::kF32, 33) == 132 && row_bytes(Storage::kF16, 33) == 66 && row_bytes(Storage::kBf16, 1) == 2);
  CHECK(row_bytes(Storage::kQ8_0, 64) == 68 && row_bytes(Storage::kQ5_0, 64) == 44);
  CHECK(row_bytes(Storage::kQ4_0, 64) == 36 && row_bytes(Storage::kQ4_1, 64) == 40);
  CHECK(row_bytes(Storage::kIq4Nl, 64) == 36 && row_bytes(Storage::kQ4_K, 512) == 288);
  CHECK(row_bytes(Storage::kQ4_K, 32) == 0 && row_bytes(Storage::kQ4_K, 288) == 0 && row_bytes(Storage::kQ8_0, 33) == 0 && row_bytes(Storage::kQ4_1, 1) == 0);
  for (const Storage storage : kStorages) {
    const Layout layout = natural_layout(storage);
    CHECK(keeps_everything(storage, layout) || (storage == Storage::kQ4_K && layout == Layout::kInt4) || (!is_block(storage) && layout == Layout::kBf16));
  }
}

}  // namespace

int main() {
  sizes_and_natural_layouts();
  every_storage_layout_and_shape();
  every_scale();
  scales_of_q4_k();
  rounding_to_bf16();
  quantizing_extremes();
  return octavo::test::report("pack");
}

// Packing: each group of 32 values of a row becomes one lane of a cell. Where storage and layout agree, its words are only moved; otherwise
// the group is decoded to float32 and encoded again.
#include "pack/pack.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "pack/float16.hpp"

namespace octavo {
namespace {

static_assert(std::endian::native == std::endian::little, "checkpoints and packed layouts are little-endian");

constexpr std::size_t kLanes = kPanel;
constexpr std::size_t kValues = kGroup;
constexpr std::size_t kVector = 64;
constexpr std::size_t kInt4Scales = 4 * kVector;
constexpr std::size_t kInt4Minima = kInt4Scales + 2 * kLanes;
constexpr std::size_t kInt8Scales = 8 * kVector;
constexpr float kLargestHalf = 65504.0f;

using Group = std::array<float, kValues>;

// How many groups of 32 values a block holds; plain storage counts in groups too.
constexpr std::size_t block_groups(Storage storage) { return storage == Storage::kQ4_K ? 8 : 1; }

constexpr std::size_t block_bytes(Storage storage) {
  switch (storage) {
    case Storage::kF32: return 128;
    case Storage::kF16: return 64;
    case Storage::kBf16: return 64;
    case Storage::kQ8_0: return 34;
    case Storage::kQ5_0: return 22;
    case Storage::kQ4_0: return 18;
    case Storage::kQ4_1: return 20;
    case Storage::kIq4Nl: return 18;
    case Storage::kQ4_K: return 144;
  }
  return 0;
}

constexpr std::array<std::int8_t, 16> kIq4NlTable{-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

constexpr bool is_plain(Storage storage) { return storage == Storage::kF32 || storage == Storage::kF16 || storage == Storage::kBf16; }

std::uint16_t load_u16(const std::uint8_t* from) {
  std::uint16_t value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

void store_u16(std::uint16_t value, std::uint8_t* to) { std::memcpy(to, &value, sizeof value); }

float load_half(const std::uint8_t* from) { return half_to_float(load_u16(from)); }

// Moves `vectors` words of 32 bits from a row to lane `lane` of a cell's vectors.
template <std::size_t vectors>
void put_words(const void* words, std::size_t lane, std::uint8_t* cell) {
  const auto* from = static_cast<const std::uint8_t*>(words);
  for (std::size_t j = 0; j < vectors; ++j) std::memcpy(cell + kVector * j + 4 * lane, from + 4 * j, 4);
}

template <std::size_t vectors>
void take_words(const std::uint8_t* cell, std::size_t lane, void* words) {
  auto* to = static_cast<std::uint8_t*>(words);
  for (std::size_t j = 0; j < vectors; ++j) std::memcpy(to + 4 * j, cell + kVector * j + 4 * lane, 4);
}

// True where `b` is another number than `a`; without branches, so that loops over it become vector code.
bool differs(float a, float b) { return (a != b) & ((a == a) | (b == b)); }

std::size_t count_changed(const Group& before, const Group& after) {
  std::uint32_t changed = 0;
  for (std::size_t k = 0; k < kValues; ++k) changed += differs(before[k], after[k]) ? 1u : 0u;
  return changed;
}

// ---- Reading storage

// The q of a Q4_0 or Q5_0 block as signed numbers around zero.
void centered_q4_0(const std::uint8_t* block, std::int8_t* q) {
  for (std::size_t k = 0; k < 16; ++k) {
    q[k] = static_cast<std::int8_t>((block[2 + k] & 15) - 8);
    q[16 + k] = static_cast<std::int8_t>((block[2 + k] >> 4) - 8);
  }
}

void centered_q5_0(const std::uint8_t* block, std::int8_t* q) {
  std::uint32_t high;
  std::memcpy(&high, block + 2, sizeof high);
  for (std::size_t k = 0; k < 16; ++k) {
    const int low_bit = static_cast<int>((high >> k) & 1u) << 4;
    const int high_bit = static_cast<int>((high >> (16 + k)) & 1u) << 4;
    q[k] = static_cast<std::int8_t>(((block[6 + k] & 15) | low_bit) - 16);
    q[16 + k] = static_cast<std::int8_t>(((block[6 + k] >> 4) | high_bit) - 16);
  }
}

void table_iq4_nl(const std::uint8_t* block, std::int8_t* q) {
  for (std::size_t k = 0; k < 16; ++k) {
    q[k] = kIq4NlTable[block[2 + k] & 15];
    q[16 + k] = kIq4NlTable[block[2 + k] >> 4];
  }
}

// A group of a Q4_K block: w = scale · q + minimum, and q as Q4_1 stores it. Scale and minimum are exact.
struct Q4KGroup {
  float scale;
  float minimum;
  std::array<std::uint8_t, 16> nibbles;

  Q4KGroup(const std::uint8_t* block, std::size_t part) {
    const std::uint8_t* packed = block + 4;
    // The first four pairs lie in six bits each; the others in what these leave, two bits each, and in the last bytes.
    const int s = part < 4 ? packed[part] & 63 : (packed[part + 4] & 15) | (packed[part - 4] >> 6 << 4);
    const int t = part < 4 ? packed[part + 4] & 63 : (packed[part + 4] >> 4) | (packed[part] >> 6 << 4);
    scale = load_half(block) * static_cast<float>(s);
    minimum = -load_half(block + 2) * static_cast<float>(t);
    // Two groups share 32 bytes: the even one has the low nibbles.
    const std::uint8_t* from = block + 16 + part / 2 * kValues;
    const unsigned shift = part % 2 * 4;
    for (std::size_t k = 0; k < 16; ++k) nibbles[k] = static_cast<std::uint8_t>((from[k] >> shift & 15) | (from[16 + k] >> shift & 15) << 4);
  }
};

void scale_all(float scale, const std::int8_t* q, Group& values) {
  for (std::size_t k = 0; k < kValues; ++k) values[k] = scale * static_cast<float>(q[k]);
}

// The block that holds a group of a row.
template <Storage storage>
const std::uint8_t* block_of(const std::uint8_t* row, std::size_t group) {
  return row + group / block_groups(storage) * block_bytes(storage);
}

void from_nibbles(float scale, float minimum, const std::uint8_t* nibbles, Group& values) {
  for (std::size_t k = 0; k < 16; ++k) {
    values[k] = scale * static_cast<float>(nibbles[k] & 15) + minimum;
    values[16 + k] = scale * static_cast<float>(nibbles[k] >> 4) + minimum;
  }
}

// A group of a row to float32: `count` values, and those past it are 0. Only plain storage may have fewer than 32.
template <Storage storage>
void decode(const std::uint8_t* row, std::size_t group, std::size_t count, Group& values) {
  const std::uint8_t* block = block_of<storage>(row, group);
  std::array<std::int8_t, kValues> q;
  if constexpr (storage == Storage::kF32) {
    values.fill(0.0f);
    std::memcpy(values.data(), block, 4 * count);
  } else if constexpr (storage == Storage::kF16 || storage == Storage::kBf16) {
    std::array<std::uint16_t, kValues> words{};
    std::memcpy(words.data(), block, 2 * count);
    for (std::size_t k = 0; k < kValues; ++k) values[k] = storage == Storage::kF16 ? half_to_float(words[k]) : bf16_to_float(words[k]);
  } else if constexpr (storage == Storage::kQ8_0) {
    std::memcpy(q.data(), block + 2, kValues);
    scale_all(load_half(block), q.data(), values);
  } else if constexpr (storage == Storage::kQ5_0) {
    centered_q5_0(block, q.data());
    scale_all(load_half(block), q.data(), values);
  } else if constexpr (storage == Storage::kQ4_0) {
    centered_q4_0(block, q.data());
    scale_all(load_half(block), q.data(), values);
  } else if constexpr (storage == Storage::kIq4Nl) {
    table_iq4_nl(block, q.data());
    scale_all(load_half(block), q.data(), values);
  } else if constexpr (storage == Storage::kQ4_K) {
    const Q4KGroup read(block, group % block_groups(storage));
    from_nibbles(read.scale, read.minimum, read.nibbles.data(), values);
  } else {
    static_assert(storage == Storage::kQ4_1);
    from_nibbles(load_half(block), load_half(block + 2), block + 4, values);
  }
}

// ---- Reading layouts

void unpack_group(Layout layout, const std::uint8_t* cell, std::size_t lane, Group& values) {
  if (layout == Layout::kInt4) {
    std::array<std::uint8_t, 16> bytes;
    take_words<4>(cell, lane, bytes.data());
    from_nibbles(load_half(cell + kInt4Scales + 2 * lane), load_half(cell + kInt4Minima + 2 * lane), bytes.data(), values);
  } else if (layout == Layout::kInt8) {
    std::array<std::int8_t, kValues> q;
    take_words<8>(cell, lane, q.data());
    scale_all(load_half(cell + kInt8Scales + 2 * lane), q.data(), values);
  } else {
    std::array<std::uint16_t, kValues> words;
    take_words<16>(cell, lane, words.data());
    for (std::size_t k = 0; k < kValues; ++k) values[k] = bf16_to_float(words[k]);
  }
}

// ---- Writing layouts

// max |w|, or an infinity or NaN where there is one: in whole numbers, whose maximum the compiler may take in any order.
float largest_magnitude(const Group& values) {
  std::int32_t largest = 0;
  for (const float value : values) largest = std::max(largest, std::bit_cast<std::int32_t>(value) & 0x7fffffff);
  return std::bit_cast<float>(largest);
}

// The float16 next to `span / steps`, one up where the nearest would leave the end of the span more than half a step out of reach: only
// subnormal scales are so coarse. Never infinite.
std::uint16_t half_scale(float span, float steps) {
  std::uint16_t scale = float_to_half(std::min(span / steps, kLargestHalf));
  if (scale < 0x7bff && half_to_float(scale) * (steps + 0.5f) < span) ++scale;
  return scale;
}

// (w - minimum) / scale to the nearest whole number in [lowest, highest].
float nearest_q(float value, float minimum, float scale, float lowest, float highest) {
  constexpr float kWhole = 0x1.8p23f;  // adding it leaves no room for a fraction
  return (std::clamp((value - minimum) / scale, lowest, highest) + kWhole) - kWhole;
}

void encode_int8(const Group& values, std::size_t lane, std::uint8_t* cell) {
  std::array<std::int8_t, kValues> q{};
  std::uint16_t scale = float_to_half(std::numeric_limits<float>::quiet_NaN());
  const float largest = largest_magnitude(values);
  if (std::isfinite(largest)) {
    scale = half_scale(largest, 127.0f);
    const float step = half_to_float(scale);
    if (step > 0.0f) {
      for (std::size_t k = 0; k < kValues; ++k) q[k] = static_cast<std::int8_t>(nearest_q(values[k], 0.0f, step, -127.0f, 127.0f));
    }
  }
  put_words<8>(q.data(), lane, cell);
  store_u16(scale, cell + kInt8Scales + 2 * lane);
}

void encode_int4(const Group& values, std::size_t count, std::size_t lane, std::uint8_t* cell) {
  std::array<std::uint8_t, kValues> q{};
  std::uint16_t scale = float_to_half(std::numeric_limits<float>::quiet_NaN());
  std::uint16_t minimum = scale;
  if (std::isfinite(largest_magnitude(values))) {
    float low = values[0];
    float high = values[0];
    for (std::size_t k = 1; k < count; ++k) {
      low = std::min(low, values[k]);
      high = std::max(high, values[k]);
    }
    minimum = float_to_half(std::clamp(low, -kLargestHalf, kLargestHalf));
    const float base = half_to_float(minimum);
    scale = half_scale(std::max(high - base, 0.0f), 15.0f);
    const float step = half_to_float(scale);
    if (step > 0.0f) {
      for (std::size_t k = 0; k < count; ++k) q[k] = static_cast<std::uint8_t>(nearest_q(values[k], base, step, 0.0f, 15.0f));
    }
  }
  std::array<std::uint8_t, 16> bytes;
  for (std::size_t k = 0; k < 16; ++k) bytes[k] = static_cast<std::uint8_t>(q[k] | (q[16 + k] << 4));
  put_words<4>(bytes.data(), lane, cell);
  store_u16(scale, cell + kInt4Scales + 2 * lane);
  store_u16(minimum, cell + kInt4Minima + 2 * lane);
}

// Writes float32 values as lane `lane` of a cell; returns how many of them changed.
template <Layout layout>
std::size_t encode(const Group& values, std::size_t count, std::size_t lane, std::uint8_t* cell) {
  Group after;
  if constexpr (layout == Layout::kBf16) {
    std::array<std::uint16_t, kValues> words;
    for (std::size_t k = 0; k < kValues; ++k) words[k] = float_to_bf16(values[k]);
    for (std::size_t k = 0; k < kValues; ++k) after[k] = bf16_to_float(words[k]);
    put_words<16>(words.data(), lane, cell);
    return count_changed(values, after);
  } else {
    if constexpr (layout == Layout::kInt8) encode_int8(values, lane, cell);
    if constexpr (layout == Layout::kInt4) encode_int4(values, count, lane, cell);
    unpack_group(layout, cell, lane, after);
    std::copy(values.begin() + static_cast<std::ptrdiff_t>(count), values.end(), after.begin() + static_cast<std::ptrdiff_t>(count));
    return count_changed(values, after);
  }
}

void put_int4(const std::uint8_t* nibbles, std::uint16_t scale, std::uint16_t minimum, std::size_t lane, std::uint8_t* cell) {
  put_words<4>(nibbles, lane, cell);
  store_u16(scale, cell + kInt4Scales + 2 * lane);
  store_u16(minimum, cell + kInt4Minima + 2 * lane);
}

// How many values of a group the lane holds otherwise.
template <Storage storage>
std::size_t count_changed(const std::uint8_t* row, std::size_t group, Layout layout, std::size_t lane, const std::uint8_t* cell) {
  Group before;
  Group after;
  decode<storage>(row, group, kValues, before);
  unpack_group(layout, cell, lane, after);
  return count_changed(before, after);
}

// Q4_0 to kInt4: the nibbles stay and the minimum is -8 · d, which is exact unless it is too large for a float16.
std::size_t move_q4_0(const std::uint8_t* row, std::size_t group, std::size_t lane, std::uint8_t* cell) {
  const std::uint8_t* block = block_of<Storage::kQ4_0>(row, group);
  const float scale = load_half(block);
  put_int4(block + 2, load_u16(block), float_to_half(-8.0f * scale), lane, cell);
  return std::fabs(scale) <= kLargestHalf / 8.0f ? 0 : count_changed<Storage::kQ4_0>(row, group, Layout::kInt4, lane, cell);
}

// Q4_K to kInt4: the nibbles stay, scale and minimum are rounded to float16. Where they are too large for it, the values are quantized anew.
std::size_t move_q4_k(const std::uint8_t* row, std::size_t group, std::size_t lane, std::uint8_t* cell) {
  const Q4KGroup read(block_of<Storage::kQ4_K>(row, group), group % block_groups(Storage::kQ4_K));
  if (std::fabs(read.scale) > kLargestHalf || std::fabs(read.minimum) > kLargestHalf) {
    Group values;
    from_nibbles(read.scale, read.minimum, read.nibbles.data(), values);
    return encode<Layout::kInt4>(values, kValues, lane, cell);
  }
  put_int4(read.nibbles.data(), float_to_half(read.scale), float_to_half(read.minimum), lane, cell);
  return count_changed<Storage::kQ4_K>(row, group, Layout::kInt4, lane, cell);
}

// One group of one row to one lane of a cell; returns how many values changed.
template <Storage storage, Layout layout>
std::size_t pack_group(const std::uint8_t* row, std::size_t group, std::size_t count, std::size_t lane, std::uint8_t* cell) {
  [[maybe_unused]] const std::uint8_t* block = block_of<storage>(row, group);
  if constexpr (storage == Storage::kQ4_1 && layout == Layout::kInt4) {
    put_int4(block + 4, load_u16(block), load_u16(block + 2), lane, cell);
    return 0;
  } else if constexpr (storage == Storage::kQ4_0 && layout == Layout::kInt4) {
    return move_q4_0(row, group, lane, cell);
  } else if constexpr (storage == Storage::kQ4_K && layout == Layout::kInt4) {
    return move_q4_k(row, group, lane, cell);
  } else if constexpr (storage == Storage::kQ8_0 && layout == Layout::kInt8) {
    put_words<8>(block + 2, lane, cell);
    store_u16(load_u16(block), cell + kInt8Scales + 2 * lane);
    return 0;
  } else if constexpr ((storage == Storage::kQ4_0 || storage == Storage::kQ5_0 || storage == Storage::kIq4Nl) && layout == Layout::kInt8) {
    std::array<std::int8_t, kValues> q;
    if constexpr (storage == Storage::kQ4_0) centered_q4_0(block, q.data());
    if constexpr (storage == Storage::kQ5_0) centered_q5_0(block, q.data());
    if constexpr (storage == Storage::kIq4Nl) table_iq4_nl(block, q.data());
    put_words<8>(q.data(), lane, cell);
    store_u16(load_u16(block), cell + kInt8Scales + 2 * lane);
    return 0;
  } else if constexpr (storage == Storage::kBf16 && layout == Layout::kBf16) {
    std::array<std::uint16_t, kValues> words{};
    std::memcpy(words.data(), block, 2 * count);
    put_words<16>(words.data(), lane, cell);
    return 0;
  } else {
    Group values;
    decode<storage>(row, group, count, values);
    return encode<layout>(values, count, lane, cell);
  }
}

// ---- Whole panels

template <Storage storage, Layout layout>
std::size_t pack_panel(const CheckpointLinear& linear, std::size_t panel, std::uint8_t* to) {
  const std::size_t first = panel * kLanes;
  const std::size_t lanes = std::min(kLanes, linear.outputs - first);
  const std::size_t cells = groups(linear.inner);
  if (lanes < kLanes) std::memset(to, 0, cells * cell_bytes(layout));
  std::array<const std::uint8_t*, kLanes> rows{};
  for (std::size_t lane = 0; lane < lanes; ++lane) {
    const std::size_t row = first + lane;
    rows[lane] = linear.data + (linear.order ? static_cast<std::size_t>(linear.order[row]) : row) * linear.stride;
  }
  std::size_t changed = 0;
  for (std::size_t group = 0; group < cells; ++group) {
    const std::size_t count = std::min(kValues, linear.inner - group * kValues);
    for (std::size_t lane = 0; lane < lanes; ++lane) {
      changed += pack_group<storage, layout>(rows[lane], group, count, lane, to + group * cell_bytes(layout));
    }
  }
  return changed;
}

using PanelPacker = std::size_t (*)(const CheckpointLinear&, std::size_t, std::uint8_t*);

template <Storage storage>
PanelPacker packer(Layout layout) {
  switch (layout) {
    case Layout::kInt4: return pack_panel<storage, Layout::kInt4>;
    case Layout::kInt8: return pack_panel<storage, Layout::kInt8>;
    case Layout::kBf16: return pack_panel<storage, Layout::kBf16>;
  }
  return nullptr;
}

PanelPacker packer(Storage storage, Layout layout) {
  switch (storage) {
    case Storage::kF32: return packer<Storage::kF32>(layout);
    case Storage::kF16: return packer<Storage::kF16>(layout);
    case Storage::kBf16: return packer<Storage::kBf16>(layout);
    case Storage::kQ8_0: return packer<Storage::kQ8_0>(layout);
    case Storage::kQ5_0: return packer<Storage::kQ5_0>(layout);
    case Storage::kQ4_0: return packer<Storage::kQ4_0>(layout);
    case Storage::kQ4_1: return packer<Storage::kQ4_1>(layout);
    case Storage::kIq4Nl: return packer<Storage::kIq4Nl>(layout);
    case Storage::kQ4_K: return packer<Storage::kQ4_K>(layout);
  }
  return nullptr;
}

}  // namespace

std::size_t row_bytes(Storage storage, std::size_t inner) {
  if (is_plain(storage)) return inner * (block_bytes(storage) / kValues);
  const std::size_t values = kValues * block_groups(storage);
  return inner % values ? 0 : inner / values * block_bytes(storage);
}

Layout natural_layout(Storage storage) {
  if (is_plain(storage)) return Layout::kBf16;
  return storage == Storage::kQ4_0 || storage == Storage::kQ4_1 || storage == Storage::kQ4_K ? Layout::kInt4 : Layout::kInt8;
}

PackStats pack_panel(const CheckpointLinear& linear, Layout layout, std::size_t panel, std::uint8_t* packed) {
  const std::size_t lanes = std::min(kLanes, linear.outputs - panel * kLanes);
  return {.values = lanes * linear.inner, .changed = packer(linear.storage, layout)(linear, panel, packed)};
}

void unpack_row(const PackedLinear& linear, std::size_t row, float* out) {
  const std::size_t cells = groups(linear.inner);
  const std::uint8_t* panel = linear.data + panel_offset(linear, row / kLanes);
  Group values;
  for (std::size_t group = 0; group < cells; ++group) {
    unpack_group(linear.layout, panel + group * cell_bytes(linear.layout), row % kLanes, values);
    std::copy_n(values.begin(), std::min(kValues, linear.inner - group * kValues), out + group * kValues);
  }
}

}  // namespace octavo

// Packed weights: what lies where. Every layout cuts the outputs of a linear into panels of 16, padded with zeros, and the inner dimension
// into groups of 32, so that a vector of 16 lanes holds one number of each output of a panel. One panel is contiguous, group after group,
// so that a product with one row is one pass over memory.
#pragma once

#include <cstddef>
#include <cstdint>

namespace octavo {

constexpr int kPanel = 16;   // outputs in a panel
constexpr int kGroup = 32;   // inner values that share a scale

enum class Layout : int {
  kInt4 = 0,  // unsigned nibbles with a float16 scale and minimum for each output and group: w = scale · q + minimum
  kInt8 = 1,  // signed bytes with a float16 scale for each output and group: w = scale · q
  kBf16 = 2,  // bfloat16, without scales
};

// One (panel, group) cell of each layout.
//
// kInt4, 320 bytes: 4 vectors of 64 bytes; in vector j, byte 4·o + i holds inner value 4·j + i of output o in its low nibble and inner value
//   16 + 4·j + i in its high nibble; then 16 float16 scales, then 16 float16 minima.
// kInt8, 544 bytes: 8 vectors of 64 bytes; in vector j, byte 4·o + i is inner value 4·j + i of output o; then 16 float16 scales.
// kBf16, 1024 bytes: 16 vectors of 64 bytes; in vector j, the 16-bit words 2·o and 2·o + 1 are inner values 2·j and 2·j + 1 of output o.
constexpr std::size_t cell_bytes(Layout layout) {
  return layout == Layout::kInt4 ? 320 : layout == Layout::kInt8 ? 544 : 1024;
}

constexpr std::size_t panels(std::size_t outputs) { return (outputs + kPanel - 1) / kPanel; }
constexpr std::size_t groups(std::size_t inner) { return (inner + kGroup - 1) / kGroup; }

constexpr std::size_t packed_bytes(Layout layout, std::size_t outputs, std::size_t inner) {
  return panels(outputs) * groups(inner) * cell_bytes(layout);
}

// A packed linear, or a run of whole panels of one, 64-byte aligned. `bias` has `outputs` floats or is null. Pairs of panels lie
// `pair_stride` bytes apart, so that what is read in turns with them can lie between; 0 is one panel after another.
struct PackedLinear {
  Layout layout;
  std::size_t outputs;
  std::size_t inner;
  const std::uint8_t* data;
  const float* bias;
  std::size_t pair_stride = 0;
};

constexpr std::size_t panel_bytes(Layout layout, std::size_t inner) { return groups(inner) * cell_bytes(layout); }

// Where a panel begins, counted from panel 0.
constexpr std::size_t panel_offset(const PackedLinear& linear, std::size_t panel) {
  const std::size_t bytes = panel_bytes(linear.layout, linear.inner);
  return linear.pair_stride == 0 ? panel * bytes : panel / 2 * linear.pair_stride + panel % 2 * bytes;
}

// Activations of a product, `rows` rows of `groups(inner)` groups, in the form that the weights' layout multiplies.
//
// For kInt4 and kInt8: `values` int8 [rows][groups · 32], quantized per row and group by scale = max|x| / 127; `scales` float [rows][groups]
//   is that scale, `sums` float [rows][groups] is scale · Σ q, which multiplies a minimum, and `offsets` int32 [rows][groups] is −128 · Σ q,
//   which takes back what moving signed weights into unsigned bytes adds.
// For kBf16: `values` bfloat16 [rows][groups · 32]; nothing else.
struct Activations {
  void* values;
  float* scales;
  float* sums;
  std::int32_t* offsets;
};

}  // namespace octavo

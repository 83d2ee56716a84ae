// From the bytes of a checkpoint to the packed layouts that the products read, and back, one row at a time.
//
// Some pairs of storage and layout keep every value: Q4_1 and Q4_0 in kInt4 (Q4_0 as long as -8 · scale is a float16, that is up to a
// scale of 8188), Q8_0, Q5_0, Q4_0 and IQ4_NL in kInt8, and BF16 in kBf16. Q4_K in kInt4 keeps its q, and rounds the scale and minimum of
// each group, which are products of a float16 and six bits, to float16. All other pairs go through float32 and are rounded to what the
// layout can hold; PackStats counts the values that came out different, so that a caller can say so.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/layout.hpp"

namespace octavo {

// How a checkpoint stores a row. The Q types are blocks as in ggml-quants.h of llama.cpp, of 32 values but for Q4_K.
enum class Storage : int {
  kF32 = 0,
  kF16 = 1,
  kBf16 = 2,
  kQ8_0 = 3,  // float16 d, 32 signed bytes: w = d · q. A file may hold q = -128, which stays as it is.
  kQ5_0 = 4,  // float16 d, 32 high bits, 16 bytes of nibbles: w = d · (q - 16)
  kQ4_0 = 5,  // float16 d, 16 bytes of nibbles: w = d · (q - 8)
  kQ4_1 = 6,  // float16 d, float16 m, 16 bytes of nibbles: w = d · q + m
  kIq4Nl = 7,  // float16 d, 16 bytes of nibbles: w = d · table[q], where the table has signed bytes
  kQ4_K = 8,  // 256 values: float16 d, float16 m, 12 bytes of 8 scales s and minima t of 6 bits, 128 bytes of nibbles: w = d · s · q - m · t
};

constexpr Storage kLastStorage = Storage::kQ4_K;

// Bytes of a row of `inner` values, or 0 where such a row would end inside a block.
std::size_t row_bytes(Storage storage, std::size_t inner);

// The smallest layout that holds `storage` without loss, or for F32 and F16 with the least: kBf16.
Layout natural_layout(Storage storage);

// What became of the values that were packed.
struct PackStats {
  std::size_t values = 0;   // values packed, padding left out
  std::size_t changed = 0;  // of these, how many unpack to another number (zeros of either sign are equal, and so are NaNs)

  PackStats& operator+=(const PackStats& other) {
    values += other.values;
    changed += other.changed;
    return *this;
  }
};

// A linear as a checkpoint holds it: `outputs` rows of `inner` values. Row r is at `data + order[r] · stride`, or `data + r · stride` where
// `order` is null; `data` and `stride` may have any alignment. The caller sees to it that row_bytes(storage, inner) is not 0 and that every
// row lies inside the checkpoint.
struct CheckpointLinear {
  Storage storage;
  std::size_t outputs;
  std::size_t inner;
  const std::uint8_t* data;
  std::size_t stride;
  const std::int64_t* order;
};

// Packs one panel of `linear` to `packed`, which has panel_bytes(layout, inner) bytes. Panels are independent: threads may pack different
// ones at the same time. Never throws.
//
// Rows past `outputs` are zeros: scale, minimum and q. So are values past `inner`, but for kInt4 their q only: they unpack to the group's
// minimum, which meets activations that are zero. Where values have to be quantized: kInt8 takes scale = max|w| / 127, kInt4 takes
// minimum = min w and scale = (max w - minimum) / 15, both rounded to float16 first, and q is rounded to nearest even. A group with an
// infinity or a NaN becomes NaN as a whole.
PackStats pack_panel(const CheckpointLinear& linear, Layout layout, std::size_t panel, std::uint8_t* packed);

// Row `row` of a packed linear as `inner` floats. scale · q has at most 19 significant bits and is exact, so w = scale · q + minimum is
// rounded once, and a fused and a separate multiplication and addition give the same bits.
void unpack_row(const PackedLinear& linear, std::size_t row, float* out);

}  // namespace octavo

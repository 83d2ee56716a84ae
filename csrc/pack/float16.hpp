// Conversions between float32 and the two 16-bit floats that checkpoints hold: float16 (IEEE 754 binary16) and bfloat16 (the upper half
// of a float32). Plain C++ on every machine, with the bits that the instructions of F16C give: round to nearest even, subnormals kept, NaN
// made quiet. No arithmetic here depends on subnormal float32 numbers, so that flush-to-zero modes change nothing.
//
// The functions are static, and call nothing that isn't, so that files which are compiled for different instruction sets can share them.
#pragma once

#include <cstdint>

namespace octavo {

static inline float half_to_float(std::uint16_t half) {
  const std::uint32_t bits = half;
  const std::uint32_t sign = (bits & 0x8000u) << 16;
  const std::uint32_t magnitude = bits & 0x7fffu;
  // Masks rather than branches: loops over this become vector code.
  const std::uint32_t is_subnormal = 0u - static_cast<std::uint32_t>(magnitude < 0x0400u);
  const std::uint32_t is_special = 0u - static_cast<std::uint32_t>(magnitude >= 0x7c00u);
  const std::uint32_t is_nan = 0u - static_cast<std::uint32_t>(magnitude > 0x7c00u);
  // The exponent's bias grows from 15 to 127, and the exponent of infinity and NaN from 31 to 255.
  const std::uint32_t normal = ((magnitude << 13) + 0x38000000u + (is_special & 0x38000000u)) | (is_nan & 0x00400000u);
  // m · 2^-24 = 2^-14 · (1 + m / 1024) - 2^-14, where both terms are normal and the difference is exact.
  const float shifted = __builtin_bit_cast(float, (magnitude << 13) + 0x38800000u) - 0x1p-14f;
  const std::uint32_t subnormal = __builtin_bit_cast(std::uint32_t, shifted);
  const std::uint32_t value = (is_subnormal & subnormal) | (~is_subnormal & normal);
  return __builtin_bit_cast(float, sign | value);
}

static inline std::uint16_t float_to_half(float value) {
  const std::uint32_t bits = __builtin_bit_cast(std::uint32_t, value);
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  std::uint32_t half;
  if (magnitude > 0x7f800000u) {
    half = 0x7e00u | ((magnitude >> 13) & 0x03ffu);
  } else if (magnitude >= 0x477ff000u) {  // 65520, halfway between the largest half and the next power of two, and all above
    half = 0x7c00u;
  } else if (magnitude >= 0x38800000u) {  // 2^-14, the smallest normal half
    half = (magnitude - 0x38000000u + 0x0fffu + ((magnitude >> 13) & 1u)) >> 13;
  } else {
    // Halves below are multiples of 2^-24, which is the spacing of floats in [0.5, 1): the addition rounds.
    half = __builtin_bit_cast(std::uint32_t, __builtin_bit_cast(float, magnitude) + 0.5f) - 0x3f000000u;
  }
  return static_cast<std::uint16_t>(sign | half);
}

static inline float bf16_to_float(std::uint16_t bf16) { return __builtin_bit_cast(float, std::uint32_t{bf16} << 16); }

static inline std::uint16_t float_to_bf16(float value) {
  const std::uint32_t bits = __builtin_bit_cast(std::uint32_t, value);
  const std::uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const std::uint32_t quiet = (bits >> 16) | 0x0040u;
  return static_cast<std::uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}

}  // namespace octavo

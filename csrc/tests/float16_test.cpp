// float16.hpp against definitions in double arithmetic, and against F16C where this file is compiled for it.
#include "pack/float16.hpp"

#include <bit>
#include <cmath>
#include <cstdint>
#include <random>

#ifdef __F16C__
#include <immintrin.h>
#endif

#include "tests/check.hpp"

namespace {

using octavo::bf16_to_float;
using octavo::float_to_bf16;
using octavo::float_to_half;
using octavo::half_to_float;

// A small IEEE format by its definition: sign, `exponent_bits`, `fraction_bits`.
double value_of(std::uint32_t bits, int exponent_bits, int fraction_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = static_cast<int>(bits >> fraction_bits) & ((1 << exponent_bits) - 1);
  const double fraction = std::ldexp(static_cast<double>(bits & ((1u << fraction_bits) - 1u)), -fraction_bits);
  const double sign = (bits >> (exponent_bits + fraction_bits)) & 1u ? -1.0 : 1.0;
  if (exponent == (1 << exponent_bits) - 1) return fraction == 0.0 ? sign * HUGE_VAL : std::nan("");
  if (exponent == 0) return sign * std::ldexp(fraction, 1 - bias);
  return sign * std::ldexp(1.0 + fraction, exponent - bias);
}

bool is_nan(std::uint32_t bits, int exponent_bits, int fraction_bits) { return std::isnan(value_of(bits, exponent_bits, fraction_bits)); }

// True where `bits` is the number of the format nearest to `value`, the even one of two equally near. Infinity stands for the power of two
// that would follow the largest number.
bool is_nearest(double value, std::uint32_t bits, int exponent_bits, int fraction_bits) {
  const std::uint32_t sign_bit = 1u << (exponent_bits + fraction_bits);
  const std::uint32_t infinity = ((1u << exponent_bits) - 1u) << fraction_bits;
  const double beyond = std::ldexp(1.0, 1 << (exponent_bits - 1));
  const auto at = [&](std::uint32_t size) { return size == infinity ? beyond : value_of(size, exponent_bits, fraction_bits); };
  if (std::signbit(value) != ((bits & sign_bit) != 0)) return false;
  const std::uint32_t magnitude = bits & ~sign_bit;
  if (magnitude > infinity) return false;
  const double size = std::fabs(value);
  if (magnitude == infinity && size >= beyond) return true;
  const double distance = std::fabs(size - at(magnitude));
  const bool even = (magnitude & 1u) == 0;
  if (magnitude < infinity) {
    const double above = std::fabs(at(magnitude + 1) - size);
    if (above < distance || (above == distance && !even)) return false;
  }
  if (magnitude > 0) {
    const double below = std::fabs(size - at(magnitude - 1));
    if (below < distance || (below == distance && !even)) return false;
  }
  return true;
}

void every_half_and_bf16_to_float() {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const auto narrow = static_cast<std::uint16_t>(bits);
    const float half = half_to_float(narrow);
    const float bf16 = bf16_to_float(narrow);
    if (is_nan(bits, 5, 10)) {
      const std::uint32_t expected = (bits & 0x8000u) << 16 | 0x7fc00000u | (bits & 0x03ffu) << 13;
      CHECK(std::bit_cast<std::uint32_t>(half) == expected);
      CHECK(float_to_half(half) == (bits | 0x0200u));
    } else {
      CHECK(static_cast<double>(half) == value_of(bits, 5, 10) && std::signbit(half) == (bits >> 15 != 0));
      CHECK(float_to_half(half) == bits);
    }
    if (is_nan(bits, 8, 7)) {
      CHECK(std::isnan(bf16) && float_to_bf16(bf16) == (bits | 0x0040u));
    } else {
      CHECK(static_cast<double>(bf16) == value_of(bits, 8, 7) && std::signbit(bf16) == (bits >> 15 != 0));
      CHECK(float_to_bf16(bf16) == bits);
    }
#ifdef __F16C__
    CHECK(std::bit_cast<std::uint32_t>(half) == std::bit_cast<std::uint32_t>(_cvtsh_ss(narrow)));
#endif
  }
}

void check_float(std::uint32_t bits) {
  const float value = std::bit_cast<float>(bits);
  const std::uint16_t half = float_to_half(value);
  const std::uint16_t bf16 = float_to_bf16(value);
  if (std::isnan(value)) {
    CHECK(half == ((bits >> 16 & 0x8000u) | 0x7e00u | (bits >> 13 & 0x03ffu)));
    CHECK(bf16 == (bits >> 16 | 0x0040u));
  } else {
    CHECK(is_nearest(static_cast<double>(value), half, 5, 10));
    CHECK(is_nearest(static_cast<double>(value), bf16, 8, 7));
  }
#ifdef __F16C__
  CHECK(half == _cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT));
#endif
}

// Every number halfway between two neighbours of either format, and the floats around it.
void floats_around_every_tie() {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    for (const std::uint32_t low : {0x0000u, 0x0001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) check_float(bits << 16 | low);
    const std::uint32_t magnitude = bits & 0x7fffu;
    if (magnitude > 0x7c00u) continue;
    const double above = magnitude == 0x7bffu ? 65536.0 : value_of(magnitude + 1, 5, 10);
    const double tie = magnitude == 0x7c00u ? 1e9 : (value_of(magnitude, 5, 10) + above) / 2.0;
    const std::uint32_t middle = std::bit_cast<std::uint32_t>(static_cast<float>(tie)) | (bits & 0x8000u) << 16;
    for (const std::uint32_t near : {middle - 1, middle, middle + 1}) check_float(near);
  }
}

void random_floats() {
  std::mt19937 random(16);
  for (int i = 0; i < 300000; ++i) check_float(static_cast<std::uint32_t>(random()));
}

}  // namespace

int main() {
  every_half_and_bf16_to_float();
  floats_around_every_tie();
  random_floats();
  return octavo::test::report("float16");
}

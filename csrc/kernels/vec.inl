// Vectors as wide as the instruction set's registers. Included inside a namespace of the instruction set, so that nothing compiled for one
// can be linked into another. Generic vectors of GCC and Clang: wider ones than the machine has would be torn through memory.

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX2__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif
constexpr int kParts = kPanel / kLanes;  // vectors that hold one number of each output of a panel

using Floats = float __attribute__((vector_size(4 * kLanes)));
using Ints = std::int32_t __attribute__((vector_size(4 * kLanes)));
using Words = std::uint32_t __attribute__((vector_size(4 * kLanes)));
using Halves = std::uint16_t __attribute__((vector_size(2 * kLanes)));

#define OCTAVO_MEMBER inline __attribute__((always_inline))
#define OCTAVO_INLINE static OCTAVO_MEMBER

OCTAVO_INLINE Floats splat(float x) { return Floats{} + x; }
OCTAVO_INLINE Ints splat_int(std::int32_t x) { return Ints{} + x; }

template <typename Vector>
OCTAVO_INLINE Vector load(const void* source) {
  Vector result;
  __builtin_memcpy(&result, source, sizeof(Vector));
  return result;
}

template <typename Vector>
OCTAVO_INLINE void store(void* target, const Vector& value) {
  __builtin_memcpy(target, &value, sizeof(Vector));
}

// a · b + c: fused where the machine fuses, and then for every lane alike.
OCTAVO_INLINE Floats fma(Floats a, Floats b, Floats c) {
#if defined(__AVX512F__)
  return (Floats)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX2__)
  return (Floats)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__aarch64__)
  return (Floats)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
  return a * b + c;
#endif
}

OCTAVO_INLINE Floats to_float(Ints x) { return __builtin_convertvector(x, Floats); }

// The larger of each lane; a NaN on either side gives the right side, `b`.
OCTAVO_INLINE Floats max(Floats a, Floats b) { return a > b ? a : b; }

OCTAVO_INLINE Floats absolute(Floats x) { return (Floats)((Words)x & 0x7fffffffu); }

// Sum over lanes in one fixed tree.
OCTAVO_INLINE float sum_lanes(Floats x) {
  float lanes[kLanes];
  store(lanes, x);
#pragma GCC unroll 4
  for (int width = kLanes / 2; width >= 1; width /= 2) {
#pragma GCC unroll 8
    for (int lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
  }
  return lanes[0];
}

OCTAVO_INLINE float max_lanes(Floats x) {
  float lanes[kLanes];
  store(lanes, x);
#pragma GCC unroll 4
  for (int width = kLanes / 2; width >= 1; width /= 2) {
#pragma GCC unroll 8
    for (int lane = 0; lane < width; ++lane) lanes[lane] = lanes[lane] > lanes[lane + width] ? lanes[lane] : lanes[lane + width];
  }
  return lanes[0];
}

OCTAVO_INLINE Floats half_to_float(const std::uint8_t* source) {
#if defined(__AVX512F__)
  return (Floats)_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(source)));
#elif defined(__AVX2__)
  return (Floats)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(source)));
#else
  // As pack/float16.hpp does it for one.
  const Ints bits = (Ints)__builtin_convertvector(load<Halves>(source), Words);
  const Ints magnitude = bits & 0x7fff;
  const Ints special = magnitude >= 0x7c00;
  const Ints normal = (magnitude << 13) + 0x38000000 + (special & 0x38000000);
  const Ints subnormal = (Ints)((Floats)((magnitude << 13) + 0x38800000) - 0x1p-14f);
  return (Floats)((Words)(bits & 0x8000) << 16 | (Words)(magnitude < 0x0400 ? subnormal : normal));
#endif
}

// Rounded to nearest even; NaN stays NaN.
OCTAVO_INLINE Halves float_to_bf16(Floats x) {
  const Words bits = (Words)x;
  const Words rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const Words quiet = (bits >> 16) | 0x40u;
  const Words chosen = x != x ? quiet : rounded;
#if defined(__AVX512F__)
  return __builtin_convertvector(chosen, Halves);
#elif defined(__AVX2__)
  const __m256i packed = _mm256_packus_epi32((__m256i)chosen, (__m256i)chosen);
  return (Halves)_mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08));
#else
  return __builtin_convertvector(chosen, Halves);
#endif
}

OCTAVO_INLINE std::uint16_t float_to_bf16(float x) {
  std::uint32_t bits;
  __builtin_memcpy(&bits, &x, 4);
  if (x != x) return static_cast<std::uint16_t>((bits >> 16) | 0x40u);
  return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// 2^x to about one unit in the last place; 0 below 2^-126, so that a masked score of −infinity weighs exactly nothing. NaN stays NaN.
OCTAVO_INLINE Floats exp2(Floats x) {
  const Floats low = splat(-126.0f), high = splat(127.0f);
  Floats bounded = x < low ? low : x;
  bounded = bounded > high ? high : bounded;
  const Floats magic = splat(12582912.0f);  // 1.5 · 2^23: adding it rounds to a whole number, in the low bits
  const Floats shifted = bounded + magic;
  const Floats whole = shifted - magic;
  const Floats part = bounded - whole;
  Floats y = splat(1.5403530393381610e-4f);
  y = fma(y, part, splat(1.3333558146428443e-3f));
  y = fma(y, part, splat(9.6181291076284772e-3f));
  y = fma(y, part, splat(5.5504108664821580e-2f));
  y = fma(y, part, splat(2.4022650695910071e-1f));
  y = fma(y, part, splat(6.9314718055994531e-1f));
  y = fma(y, part, splat(1.0f));
  const Floats power = (Floats)(((Ints)shifted - (Ints)magic + 127) << 23);
  const Floats result = y * power;
  return x < low ? Floats{} : result;
}

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

// Each lane as a byte; they must fit.
OCTAVO_INLINE void store_bytes(std::int8_t* target, Ints x) {
#if defined(__AVX512F__)
  _mm_storeu_si128(reinterpret_cast<__m128i*>(target), _mm512_cvtepi32_epi8((__m512i)x));
#elif defined(__AVX2__)
  const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32((__m256i)x, (__m256i)x), 0x08);
  const __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_castsi256_si128(words));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(target), bytes);
#else
  for (int lane = 0; lane < kLanes; ++lane) target[lane] = static_cast<std::int8_t>(x[lane]);
#endif
}

OCTAVO_INLINE Floats to_float(Ints x) { return __builtin_convertvector(x, Floats); }

// The larger of each lane; a NaN on either side gives the right side, `b`.
OCTAVO_INLINE Floats max(Floats a, Floats b) {
#if defined(__AVX512F__)
  return (Floats)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
  return (Floats)_mm256_max_ps((__m256)a, (__m256)b);
#elif defined(__SSE2__)
  return (Floats)_mm_max_ps((__m128)a, (__m128)b);
#else
  return a > b ? a : b;
#endif
}

// The smaller, likewise.
OCTAVO_INLINE Floats min(Floats a, Floats b) {
#if defined(__AVX512F__)
  return (Floats)_mm512_min_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
  return (Floats)_mm256_min_ps((__m256)a, (__m256)b);
#elif defined(__SSE2__)
  return (Floats)_mm_min_ps((__m128)a, (__m128)b);
#else
  return a < b ? a : b;
#endif
}

OCTAVO_INLINE Floats absolute(Floats x) { return (Floats)((Words)x & 0x7fffffffu); }

// Folds lanes in one fixed tree: the upper half onto the lower, down to one.
#if defined(__AVX2__)
template <typename Fold>
OCTAVO_INLINE float fold_lanes(Floats x, Fold&& fold) {
#if defined(__AVX512F__)
  const __m256 eight = fold(_mm512_castps512_ps256((__m512)x), _mm512_extractf32x8_ps((__m512)x, 1));
#else
  const __m256 eight = (__m256)x;
#endif
  const __m256 four = fold(eight, _mm256_permute2f128_ps(eight, eight, 1));
  const __m256 two = fold(four, _mm256_permute_ps(four, 0x4e));
  return _mm256_cvtss_f32(fold(two, _mm256_permute_ps(two, 0xb1)));
}
#endif

// Sum over lanes.
OCTAVO_INLINE float sum_lanes(Floats x) {
#if defined(__AVX2__)
  return fold_lanes(x, [](__m256 a, __m256 b) { return _mm256_add_ps(a, b); });
#else
  float lanes[kLanes];
  store(lanes, x);
#pragma GCC unroll 4
  for (int width = kLanes / 2; width >= 1; width /= 2) {
#pragma GCC unroll 8
    for (int lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
  }
  return lanes[0];
#endif
}

// The largest lane; no NaN.
OCTAVO_INLINE float max_lanes(Floats x) {
#if defined(__AVX2__)
  return fold_lanes(x, [](__m256 a, __m256 b) { return _mm256_max_ps(a, b); });
#else
  float lanes[kLanes];
  store(lanes, x);
#pragma GCC unroll 4
  for (int width = kLanes / 2; width >= 1; width /= 2) {
#pragma GCC unroll 8
    for (int lane = 0; lane < width; ++lane) lanes[lane] = lanes[lane] > lanes[lane + width] ? lanes[lane] : lanes[lane + width];
  }
  return lanes[0];
#endif
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

// The lower half of each lane; the upper must be zero.
OCTAVO_INLINE Halves narrow(Words x) {
#if defined(__AVX2__) && !defined(__AVX512F__)
  const __m256i packed = _mm256_packus_epi32((__m256i)x, (__m256i)x);
  return (Halves)_mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08));
#else
  return __builtin_convertvector(x, Halves);
#endif
}

// Rounded to nearest even; NaN stays NaN.
OCTAVO_INLINE Halves float_to_bf16(Floats x) {
  const Words bits = (Words)x;
  const Words rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const Words quiet = (bits >> 16) | 0x40u;
  return narrow(x != x ? quiet : rounded);
}

OCTAVO_INLINE std::uint16_t float_to_bf16(float x) {
  std::uint32_t bits;
  __builtin_memcpy(&bits, &x, 4);
  if (x != x) return static_cast<std::uint16_t>((bits >> 16) | 0x40u);
  return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// 2^x to less than a unit in the last place, exact at whole numbers; 0 below 2^-126, so that a masked score of −infinity weighs exactly
// nothing, and infinity from 2^128 on at the latest. NaN stays NaN.
OCTAVO_INLINE Floats exp2(Floats x) {
  const Floats low = splat(-126.0f), high = splat(128.0f);  // the exponent of infinity
#if defined(__AVX512F__)
  const Floats bounded = min(high, x);
  const Floats whole = (Floats)_mm512_roundscale_ps((__m512)bounded, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
  const Floats bounded = min(high, max(low, x));
  const Floats magic = splat(12582912.0f);  // 1.5 · 2^23: adding it rounds to a whole number, in the low bits
  const Floats shifted = bounded + magic;
  const Floats whole = shifted - magic;
#endif
  const Floats part = bounded - whole;
  // Interpolates (2^x − 1) / x at Chebyshev's points of [−1/2, 1/2], to a part in 10^8.
  Floats y = splat(1.5453162945592661e-4f);
  y = fma(y, part, splat(1.3390863364648796e-3f));
  y = fma(y, part, splat(9.6180825572762165e-3f));
  y = fma(y, part, splat(5.5503571142191177e-2f));
  y = fma(y, part, splat(2.4022650760568137e-1f));
  y = fma(y, part, splat(6.9314718802622877e-1f));
  y = fma(y, part, splat(1.0f));
#if defined(__AVX512F__)
  const __mmask16 kept = _mm512_cmp_ps_mask((__m512)x, (__m512)low, _CMP_NLT_UQ);
  return (Floats)_mm512_maskz_scalef_ps(kept, (__m512)y, (__m512)whole);
#else
  const Floats power = (Floats)(((Ints)shifted - (Ints)magic + 127) << 23);
  return x < low ? Floats{} : y * power;
#endif
}

// Sixteen lanes on every instruction set. Included inside a namespace of the instruction set, so that nothing compiled for one can be
// linked into another.

using f32x16 = float __attribute__((vector_size(64)));
using i32x16 = std::int32_t __attribute__((vector_size(64)));
using u32x16 = std::uint32_t __attribute__((vector_size(64)));
using u16x16 = std::uint16_t __attribute__((vector_size(32)));

#define OCTAVO_INLINE static inline __attribute__((always_inline))

OCTAVO_INLINE f32x16 splat(float x) { return f32x16{} + x; }
OCTAVO_INLINE i32x16 splat_int(std::int32_t x) { return i32x16{} + x; }

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
OCTAVO_INLINE f32x16 fma(f32x16 a, f32x16 b, f32x16 c) {
#if defined(__AVX512F__)
  return (f32x16)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
  f32x16 result;
  for (int half = 0; half < 2; ++half) {
    __m256 x, y, z;
    __builtin_memcpy(&x, reinterpret_cast<const char*>(&a) + 32 * half, 32);
    __builtin_memcpy(&y, reinterpret_cast<const char*>(&b) + 32 * half, 32);
    __builtin_memcpy(&z, reinterpret_cast<const char*>(&c) + 32 * half, 32);
    z = _mm256_fmadd_ps(x, y, z);
    __builtin_memcpy(reinterpret_cast<char*>(&result) + 32 * half, &z, 32);
  }
  return result;
#else
  return a * b + c;
#endif
}

OCTAVO_INLINE f32x16 to_float(i32x16 x) { return __builtin_convertvector(x, f32x16); }

// The larger of each lane; a NaN on either side gives the right side, `b`.
OCTAVO_INLINE f32x16 max(f32x16 a, f32x16 b) { return a > b ? a : b; }

OCTAVO_INLINE f32x16 absolute(f32x16 x) { return (f32x16)((u32x16)x & 0x7fffffffu); }

// Sum over lanes in one fixed tree.
OCTAVO_INLINE float sum_lanes(f32x16 x) {
  float lanes[16];
  store(lanes, x);
  for (int width = 8; width >= 1; width /= 2) {
    for (int lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
  }
  return lanes[0];
}

OCTAVO_INLINE float max_lanes(f32x16 x) {
  float lanes[16];
  store(lanes, x);
  float best = lanes[0];
  for (int lane = 1; lane < 16; ++lane) best = lanes[lane] > best ? lanes[lane] : best;
  return best;
}

OCTAVO_INLINE f32x16 half_to_float(const std::uint8_t* source) {
#if defined(__AVX512F__)
  return (f32x16)_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(source)));
#elif defined(__F16C__)
  f32x16 result;
  for (int half = 0; half < 2; ++half) {
    const __m256 part = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(source + 16 * half)));
    __builtin_memcpy(reinterpret_cast<char*>(&result) + 32 * half, &part, 32);
  }
  return result;
#else
  const u32x16 bits = __builtin_convertvector(load<u16x16>(source), u32x16);
  const u32x16 sign = (bits & 0x8000u) << 16;
  const u32x16 magnitude = bits & 0x7fffu;
  // Moving the exponent by multiplication gets subnormals right; infinities and NaN need their exponent put back.
  const u32x16 scaled = (u32x16)((f32x16)(magnitude << 13) * 0x1p112f);
  const u32x16 special = (magnitude << 13) | 0x7f800000u;
  return (f32x16)(sign | (magnitude >= 0x7c00u ? special : scaled));
#endif
}

// Lane by lane, the float32 of a bfloat16.
OCTAVO_INLINE f32x16 bf16_to_float(u16x16 x) { return (f32x16)(__builtin_convertvector(x, u32x16) << 16); }

// Rounded to nearest even; NaN stays NaN.
OCTAVO_INLINE u16x16 float_to_bf16(f32x16 x) {
  const u32x16 bits = (u32x16)x;
  const u32x16 rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const u32x16 quiet = (bits >> 16) | 0x40u;
  return __builtin_convertvector((u32x16)(x != x) ? quiet : rounded, u16x16);
}

OCTAVO_INLINE std::uint16_t float_to_bf16(float x) {
  std::uint32_t bits;
  __builtin_memcpy(&bits, &x, 4);
  if (x != x) return static_cast<std::uint16_t>((bits >> 16) | 0x40u);
  return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// 2^x to about one unit in the last place; 0 below 2^-126, so that a masked score of −infinity weighs exactly nothing. NaN stays NaN.
OCTAVO_INLINE f32x16 exp2(f32x16 x) {
  const f32x16 low = splat(-126.0f), high = splat(127.0f);
  f32x16 bounded = x < low ? low : x;
  bounded = bounded > high ? high : bounded;
  const f32x16 magic = splat(12582912.0f);  // 1.5 · 2^23: adding it rounds to a whole number, in the low bits
  const f32x16 shifted = bounded + magic;
  const f32x16 whole = shifted - magic;
  const f32x16 part = bounded - whole;
  f32x16 y = splat(1.5403530393381610e-4f);
  y = fma(y, part, splat(1.3333558146428443e-3f));
  y = fma(y, part, splat(9.6181291076284772e-3f));
  y = fma(y, part, splat(5.5504108664821580e-2f));
  y = fma(y, part, splat(2.4022650695910071e-1f));
  y = fma(y, part, splat(6.9314718055994531e-1f));
  y = fma(y, part, splat(1.0f));
  const f32x16 power = (f32x16)(((i32x16)shifted - (i32x16)magic + 127) << 23);
  const f32x16 result = y * power;
  return x < low ? f32x16{} : result;
}

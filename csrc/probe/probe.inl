// The probes of one instruction set: a file that defines OCTAVO_ISA (a namespace) and OCTAVO_TABLE (its table) is compiled with the flags of
// that level. As with the kernels, nothing here may have a symbol that the linker could share with another level.
#include <cstddef>
#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "probe/probe.hpp"

#pragma GCC diagnostic ignored "-Wpsabi"
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // GCC 12 on its own AVX-512 headers (bug 105593)
#endif

namespace octavo {
namespace OCTAVO_ISA {

#define OCTAVO_INLINE static inline __attribute__((always_inline))

using Words = std::uint32_t __attribute__((vector_size(64)));

// Enough chains of dependent additions to hide their latency, few enough to stay in registers; variables, as GCC keeps an array in memory.
constexpr std::size_t kChains = 12;
#define OCTAVO_CHAINS(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)
#define OCTAVO_DECLARE(i) Vector s##i{};
#define OCTAVO_STEP(i)             \
  OCTAVO_OPAQUE(a);                \
  s##i = multiply_add(s##i, a, b); \
  OCTAVO_OPAQUE(s##i);

// The compiler must neither drop a value nor know it.
#if defined(__AVX512F__)
#define OCTAVO_OPAQUE(x) asm volatile("" : "+v"(x))
#elif defined(__x86_64__)
#define OCTAVO_OPAQUE(x) asm volatile("" : "+x"(x))
#elif defined(__aarch64__)
#define OCTAVO_OPAQUE(x) asm volatile("" : "+w"(x))
#else
#define OCTAVO_OPAQUE(x) asm volatile("" : "+m"(x))
#endif

#if defined(__AVX512VNNI__)
using Integers = __m512i;
constexpr std::size_t kIntegerOps = 128;  // 64 pairs of bytes
OCTAVO_INLINE Integers multiply_add(Integers sum, Integers a, Integers b) { return _mm512_dpbusd_epi32(sum, a, b); }
#elif defined(__AVX2__)
using Integers = __m256i;
constexpr std::size_t kIntegerOps = 64;  // 32 pairs of bytes
OCTAVO_INLINE Integers multiply_add(Integers sum, Integers a, Integers b) {
  return _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(a, b), _mm256_set1_epi16(1)));
}
#else
using Integers = std::int16_t __attribute__((vector_size(16)));
constexpr std::size_t kIntegerOps = 16;
OCTAVO_INLINE Integers multiply_add(Integers sum, Integers a, Integers b) { return sum + a * b; }
#endif

static std::size_t int8_loop(std::size_t iterations) {
  using Vector = Integers;
  Vector a{}, b{};
  OCTAVO_OPAQUE(b);
  OCTAVO_CHAINS(OCTAVO_DECLARE)
  for (std::size_t i = 0; i < iterations; ++i) {
    OCTAVO_CHAINS(OCTAVO_STEP)
  }
  return kChains * kIntegerOps;
}

#if defined(__AVX512BF16__)
using Floats = __m512;
constexpr std::size_t kFloatOps = 64;  // 32 pairs
OCTAVO_INLINE Floats multiply_add(Floats sum, Floats a, Floats b) { return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b); }
#elif defined(__AVX512F__)
using Floats = __m512;
constexpr std::size_t kFloatOps = 32;
OCTAVO_INLINE Floats multiply_add(Floats sum, Floats a, Floats b) { return _mm512_fmadd_ps(a, b, sum); }
#elif defined(__FMA__)
using Floats = __m256;
constexpr std::size_t kFloatOps = 16;
OCTAVO_INLINE Floats multiply_add(Floats sum, Floats a, Floats b) { return _mm256_fmadd_ps(a, b, sum); }
#else
using Floats = float __attribute__((vector_size(16)));
constexpr std::size_t kFloatOps = 8;
OCTAVO_INLINE Floats multiply_add(Floats sum, Floats a, Floats b) { return sum + a * b; }
#endif

static std::size_t bf16_loop(std::size_t iterations) {
  using Vector = Floats;
  Vector a{}, b{};
  OCTAVO_OPAQUE(b);
  OCTAVO_CHAINS(OCTAVO_DECLARE)
  for (std::size_t i = 0; i < iterations; ++i) {
    OCTAVO_CHAINS(OCTAVO_STEP)
  }
  return kChains * kFloatOps;
}

static std::uint32_t read_loop(const std::uint8_t* bytes, std::size_t size) {
  Words seen[8] = {};
  for (std::size_t at = 0; at + 512 <= size; at += 512) {
#pragma GCC unroll 8
    for (std::size_t i = 0; i < 8; ++i) {
      // The machine's own prefetching stops at every page.
      __builtin_prefetch(bytes + at + 64 * i + 4096);
      Words words;
      __builtin_memcpy(&words, bytes + at + 64 * i, sizeof(words));
      seen[i] ^= words;
    }
  }
  std::uint32_t all = 0;
  for (const Words& part : seen) {
    for (int lane = 0; lane < 16; ++lane) all ^= part[lane];
  }
  return all;
}

}  // namespace OCTAVO_ISA

extern const Probe OCTAVO_TABLE;
const Probe OCTAVO_TABLE = {OCTAVO_ISA::int8_loop, OCTAVO_ISA::bf16_loop, OCTAVO_ISA::read_loop};

}  // namespace octavo

// Dot products of one group of 32 inner values: Rows rows of activations by Panels panels of weights, in whole numbers, so that their order
// is free. Every instruction set has its own; each spreads four bytes of a row over all lanes and multiplies them with four of every output.

// Addresses of a few rows. Two bases with multiples of one stride keep the rows of a tile within few registers.
template <typename T>
struct Rows6 {
  const T* low;
  const T* high;
  std::size_t stride;  // in T

  OCTAVO_MEMBER Rows6(const T* first, std::size_t stride_, int rows) : low(first), high(first + (rows > 3 ? 3 * stride_ : 0)), stride(stride_) {}

  OCTAVO_MEMBER const T* at(int row) const { return row < 3 ? low + static_cast<std::size_t>(row) * stride : high + static_cast<std::size_t>(row - 3) * stride; }
  OCTAVO_MEMBER void advance(std::size_t count) {
    low += count;
    high += count;
    // Else the compiler keeps a pointer for each row, and most of those in memory.
    asm("" : "+r"(low));
    asm("" : "+r"(high));
  }
};

using Bytes6 = Rows6<std::int8_t>;

// The weights of part `part` in a cell of `panel_bytes` panels: vectors of parts lie side by side within a panel's 64 bytes.
OCTAVO_INLINE const std::uint8_t* part_of(const std::uint8_t* cell, std::size_t panel_bytes, int part) {
  return cell + static_cast<std::size_t>(part / kParts) * panel_bytes + part % kParts * 4 * kLanes;
}

// Four bytes of a row in every lane.
OCTAVO_INLINE Ints spread(const void* four) {
  std::int32_t quad;
  __builtin_memcpy(&quad, four, 4);
#if defined(__AVX512F__)
  return (Ints)_mm512_set1_epi32(quad);
#elif defined(__AVX2__)
  return (Ints)_mm256_set1_epi32(quad);
#else
  return splat_int(quad);
#endif
}

// Says that `sum` is wanted now. Whole numbers may be added in any order, and the compiler would turn a chain of sums into a tree whose leaves
// all wait in memory.
template <typename Vector>
OCTAVO_INLINE void settle([[maybe_unused]] Vector& sum) {
#if defined(__x86_64__)
  asm("" : "+x"(sum));
#elif defined(__aarch64__)
  asm("" : "+w"(sum));
#endif
}

#if defined(__AVX512VNNI__)

OCTAVO_INLINE Ints dot_bytes(Ints sum, Ints unsigned_bytes, Ints signed_bytes) {
  return (Ints)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)unsigned_bytes, (__m512i)signed_bytes);
}

template <int Rows, int Panels>
OCTAVO_INLINE void dot_int4(const std::uint8_t* cell, std::size_t panel_bytes, const Bytes6& x, Ints (&sums)[Rows][Panels]) {
#pragma GCC unroll 6
  for (int row = 0; row < Rows; ++row) {
#pragma GCC unroll 2
    for (int p = 0; p < Panels; ++p) sums[row][p] = Ints{};
  }
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    Ints low[Panels], high[Panels];
#pragma GCC unroll 2
    for (int p = 0; p < Panels; ++p) {
      const Words packed = load<Words>(part_of(cell, panel_bytes, p) + 64 * j);
      low[p] = (Ints)(packed & 0x0f0f0f0fu);
      high[p] = (Ints)(packed >> 4 & 0x0f0f0f0fu);
    }
#pragma GCC unroll 6
    for (int row = 0; row < Rows; ++row) {
      const Ints first = spread(x.at(row) + 4 * j), second = spread(x.at(row) + 16 + 4 * j);
#pragma GCC unroll 2
      for (int p = 0; p < Panels; ++p) sums[row][p] = dot_bytes(dot_bytes(sums[row][p], low[p], first), high[p], second);
    }
  }
}

template <int Rows, int Panels>
OCTAVO_INLINE void dot_int8(const std::uint8_t* cell, std::size_t panel_bytes, const Bytes6& x, const Rows6<std::int32_t>& offsets,
                            Ints (&sums)[Rows][Panels]) {
  // The instruction multiplies unsigned by signed bytes: weights are moved up by 128, and `offsets` take back what that adds.
  const Ints flip = splat_int(static_cast<std::int32_t>(0x80808080u));
#pragma GCC unroll 6
  for (int row = 0; row < Rows; ++row) {
    const Ints offset = spread(offsets.at(row));
#pragma GCC unroll 2
    for (int p = 0; p < Panels; ++p) sums[row][p] = offset;
  }
#pragma GCC unroll 8
  for (int j = 0; j < 8; ++j) {
    Ints moved[Panels];
#pragma GCC unroll 2
    for (int p = 0; p < Panels; ++p) moved[p] = load<Ints>(part_of(cell, panel_bytes, p) + 64 * j) ^ flip;
#pragma GCC unroll 6
    for (int row = 0; row < Rows; ++row) {
      const Ints quad = spread(x.at(row) + 4 * j);
#pragma GCC unroll 2
      for (int p = 0; p < Panels; ++p) sums[row][p] = dot_bytes(sums[row][p], moved[p], quad);
    }
  }
}

#elif defined(__AVX2__)

template <int Rows, int Panels>
OCTAVO_INLINE void dot_int4(const std::uint8_t* cell, std::size_t panel_bytes, const Bytes6& x, Ints (&sums)[Rows][Panels * kParts]) {
  constexpr int kCount = Panels * kParts;
  const __m256i mask = _mm256_set1_epi8(0x0f), ones = _mm256_set1_epi16(1);
  // A pair of products stays below 2^12, so the eight pairs of a lane fit into 16 bits.
  __m256i pairs[Rows][kCount];
#pragma GCC unroll 4
  for (int row = 0; row < Rows; ++row) {
#pragma GCC unroll 4
    for (int p = 0; p < kCount; ++p) pairs[row][p] = _mm256_setzero_si256();
  }
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    __m256i low[kCount], high[kCount];
#pragma GCC unroll 4
    for (int p = 0; p < kCount; ++p) {
      const __m256i packed = load<__m256i>(part_of(cell, panel_bytes, p) + 64 * j);
      low[p] = _mm256_and_si256(packed, mask);
      high[p] = _mm256_and_si256(_mm256_srli_epi16(packed, 4), mask);
    }
#pragma GCC unroll 4
    for (int row = 0; row < Rows; ++row) {
      const __m256i first = (__m256i)spread(x.at(row) + 4 * j), second = (__m256i)spread(x.at(row) + 16 + 4 * j);
#pragma GCC unroll 4
      for (int p = 0; p < kCount; ++p) {
        pairs[row][p] = _mm256_add_epi16(pairs[row][p], _mm256_maddubs_epi16(low[p], first));
        settle(pairs[row][p]);
        pairs[row][p] = _mm256_add_epi16(pairs[row][p], _mm256_maddubs_epi16(high[p], second));
        settle(pairs[row][p]);
      }
    }
  }
#pragma GCC unroll 4
  for (int row = 0; row < Rows; ++row) {
#pragma GCC unroll 4
    for (int p = 0; p < kCount; ++p) sums[row][p] = (Ints)_mm256_madd_epi16(pairs[row][p], ones);
  }
}

template <int Rows, int Panels>
OCTAVO_INLINE void dot_int8(const std::uint8_t* cell, std::size_t panel_bytes, const Bytes6& x, const Rows6<std::int32_t>&,
                            Ints (&sums)[Rows][Panels * kParts]) {
  constexpr int kCount = Panels * kParts;
  const __m256i ones = _mm256_set1_epi16(1);
#pragma GCC unroll 4
  for (int row = 0; row < Rows; ++row) {
#pragma GCC unroll 4
    for (int p = 0; p < kCount; ++p) sums[row][p] = Ints{};
  }
#pragma GCC unroll 8
  for (int j = 0; j < 8; ++j) {
    __m256i weights[kCount], magnitudes[kCount];
#pragma GCC unroll 4
    for (int p = 0; p < kCount; ++p) {
      weights[p] = load<__m256i>(part_of(cell, panel_bytes, p) + 64 * j);
      magnitudes[p] = _mm256_abs_epi8(weights[p]);
    }
#pragma GCC unroll 4
    for (int row = 0; row < Rows; ++row) {
      const __m256i quad = (__m256i)spread(x.at(row) + 4 * j);
#pragma GCC unroll 4
      for (int p = 0; p < kCount; ++p) {
        // |w| · (±x) is w · x, for w = −128 too; 128 · 127 · 2 fits into 16 bits.
        const __m256i pair = _mm256_maddubs_epi16(magnitudes[p], _mm256_sign_epi8(quad, weights[p]));
        sums[row][p] += (Ints)_mm256_madd_epi16(pair, ones);
        settle(sums[row][p]);
      }
    }
  }
}

#else

using Bytes = std::int8_t __attribute__((vector_size(16)));
using Pairs = std::int16_t __attribute__((vector_size(16)));

// Four signed bytes of weights in each lane, in the form that is quickest to multiply; a row's four bytes take the same form.
struct Quads {
#if defined(__aarch64__)
  Bytes all;

  OCTAVO_MEMBER explicit Quads(Bytes bytes) : all(bytes) {}
#else
  Pairs even, odd;  // bytes 0 and 2 of each lane, and 1 and 3

  OCTAVO_MEMBER explicit Quads(Bytes bytes) : even(((Pairs)bytes << 8) >> 8), odd((Pairs)bytes >> 8) {}
#endif
};

OCTAVO_INLINE Ints multiply_pairs(Pairs a, Pairs b) {
#if defined(__SSE2__)
  return (Ints)_mm_madd_epi16((__m128i)a, (__m128i)b);
#else
  const Ints low = (((Ints)a << 16) >> 16) * (((Ints)b << 16) >> 16);
  return low + ((Ints)a >> 16) * ((Ints)b >> 16);
#endif
}

OCTAVO_INLINE Ints dot_quads(Ints sum, const Quads& a, const Quads& b) {
#if defined(__ARM_FEATURE_DOTPROD)
  return (Ints)vdotq_s32((int32x4_t)sum, (int8x16_t)a.all, (int8x16_t)b.all);
#elif defined(__aarch64__)
  const int8x16_t x = (int8x16_t)a.all, y = (int8x16_t)b.all;
  // Pairs of products fit into 16 bits as long as one factor is above −128, which activations are.
  const int16x8_t pairs = vpaddq_s16(vmull_s8(vget_low_s8(x), vget_low_s8(y)), vmull_high_s8(x, y));
  return (Ints)vpadalq_s16((int32x4_t)sum, pairs);
#else
  return sum + multiply_pairs(a.even, b.even) + multiply_pairs(a.odd, b.odd);
#endif
}

// Quad j of a part, 0 … 7, in bytes.
template <Layout Packed>
OCTAVO_INLINE Bytes quads_at(const std::uint8_t* part, int j) {
  if constexpr (Packed == Layout::kInt8) return load<Bytes>(part + 64 * j);
  return (Bytes)(load<Words>(part + 64 * (j % 4)) >> (j / 4 * 4) & 0x0f0f0f0fu);
}

template <Layout Packed, int Rows, int Panels>
OCTAVO_INLINE void dot_quads_of(const std::uint8_t* cell, std::size_t panel_bytes, const Bytes6& x, Ints (&sums)[Rows][Panels * kParts]) {
  for (auto& row : sums) {
    for (Ints& sum : row) sum = Ints{};
  }
#pragma GCC unroll 1
  for (int j = 0; j < 8; ++j) {
    Bytes own[Rows];
#pragma GCC unroll 4
    for (int row = 0; row < Rows; ++row) own[row] = (Bytes)spread(x.at(row) + 4 * j);
#pragma GCC unroll 4
    for (int p = 0; p < Panels * kParts; ++p) {
      const Quads weights(quads_at<Packed>(part_of(cell, panel_bytes, p), j));
#pragma GCC unroll 4
      for (int row = 0; row < Rows; ++row) {
        sums[row][p] = dot_quads(sums[row][p], weights, Quads(own[row]));
        settle(sums[row][p]);
      }
    }
  }
}

template <int Rows, int Panels>
OCTAVO_INLINE void dot_int4(const std::uint8_t* cell, std::size_t panel_bytes, const Bytes6& x, Ints (&sums)[Rows][Panels * kParts]) {
  dot_quads_of<Layout::kInt4, Rows, Panels>(cell, panel_bytes, x, sums);
}

template <int Rows, int Panels>
OCTAVO_INLINE void dot_int8(const std::uint8_t* cell, std::size_t panel_bytes, const Bytes6& x, const Rows6<std::int32_t>&,
                            Ints (&sums)[Rows][Panels * kParts]) {
  dot_quads_of<Layout::kInt8, Rows, Panels>(cell, panel_bytes, x, sums);
}

#endif

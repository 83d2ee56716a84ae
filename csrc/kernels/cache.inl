// Numbers of the cache of each type: how a token's are rounded and put into its strip, and how cells are loaded and multiplied.

// ---- Into the cache

template <CacheType Type>
struct Stored {
  using Value = std::uint8_t;
};
template <>
struct Stored<CacheType::kFloat32> {
  using Value = float;
};
template <>
struct Stored<CacheType::kBfloat16> {
  using Value = std::uint16_t;
};
template <>
struct Stored<CacheType::kFloat16> {
  using Value = std::uint16_t;
};

// The largest magnitude of a row of whole vectors, and NaN if any of it is none or infinite, else 0.
struct Range {
  float most, poison;
};

OCTAVO_INLINE Range range_of(const float* x, std::size_t count) {
  Floats most{}, poison{};
  for (std::size_t i = 0; i < count; i += kLanes) {
    const Floats part = load<Floats>(x + i);
    most = max(most, absolute(part));
    poison += part - part;  // 0 for every number, NaN for NaN and infinity
  }
  return {max_lanes(most), sum_lanes(poison)};
}

// What turns the largest magnitude into `largest`: 0 for a row so small that the inverse would be infinite, and for one that is not a number.
OCTAVO_INLINE float inverse_of(const Range& range, float largest) {
  return range.most > 0x1p-100f && range.poison == 0.0f ? largest / range.most : 0.0f;
}

// x · inverse to the nearest whole number, ties to even; 0 where `inverse` is.
OCTAVO_INLINE Ints whole_of(Floats x, float inverse) {
  const Floats magic = splat(12582912.0f);  // 1.5 · 2^23: adding it rounds to a whole number, in the low bits
  // A NaN times 0 is no number still, and would leave bits of any kind.
  const Floats finite = (Floats)((Words)x & (inverse != 0.0f ? 0xffffffffu : 0u));
  return (Ints)(finite * inverse + magic) - (Ints)magic;
}

// E4M3 in the low byte of each lane: rounded to nearest even, ±448 beyond, and a NaN becomes that as well.
OCTAVO_INLINE Words float_to_fp8(Floats x) {
  const Words bits = (Words)x, magnitude = bits & 0x7fffffffu;
  const Ints normal = (Ints)((magnitude + 0x7ffffu + ((magnitude >> 20) & 1u)) >> 20) - (120 << 3);
  // Below 2^-6 the spacing is 2^-9, which is that of floats in [2^14, 2^15): the addition rounds.
  const Ints subnormal = (Ints)((Floats)magnitude + 16384.0f) - 0x46800000;
  const Ints code = (Ints)magnitude < 0x3c800000 ? subnormal : normal;
  return (Words)(code < 0x7e ? code : splat_int(0x7e)) | ((bits >> 24) & 0x80u);
}

OCTAVO_INLINE void store_halves(std::uint16_t* target, Floats x) {
#if defined(__AVX512F__)
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(target), _mm512_cvtps_ph((__m512)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#elif defined(__AVX2__)
  _mm_storeu_si128(reinterpret_cast<__m128i*>(target), _mm256_cvtps_ph((__m256)x, _MM_FROUND_TO_NEAREST_INT));
#else
  // As pack/float16.hpp does it for one.
  const Words bits = (Words)x, magnitude = bits & 0x7fffffffu;
  const Words normal = (magnitude - 0x38000000u + 0x0fffu + ((magnitude >> 13) & 1u)) >> 13;
  const Words subnormal = (Words)((Floats)magnitude + 0.5f) - 0x3f000000u;
  const Words nan = 0x7e00u | ((magnitude >> 13) & 0x03ffu);
  Words half = (Ints)magnitude < 0x38800000 ? subnormal : normal;
  half = (Ints)magnitude >= 0x477ff000 ? Words{} + 0x7c00u : half;
  half = x != x ? nan : half;
  store(target, __builtin_convertvector(half | ((bits >> 16) & 0x8000u), Halves));
#endif
}

// Rounds `width` floats, a multiple of 16. The result is the scale of an int8 row, and for fp8 NaN if the row is none and else 0.
template <CacheType Type>
OCTAVO_INLINE float round_values(const float* x, std::size_t width, typename Stored<Type>::Value* values) {
  if constexpr (Type == CacheType::kInt8) {
    const Range range = range_of(x, width);
    const float inverse = inverse_of(range, 127.0f);
    for (std::size_t i = 0; i < width; i += kLanes) store_bytes(reinterpret_cast<std::int8_t*>(values + i), whole_of(load<Floats>(x + i), inverse));
    return (inverse != 0.0f ? range.most / 127.0f : 0.0f) + range.poison;
  } else if constexpr (Type == CacheType::kFp8) {
    Floats none{};
    for (std::size_t i = 0; i < width; i += kLanes) {
      const Floats part = load<Floats>(x + i);
      none += (Floats)(part != part ? (Words)part : Words{});
      const Words codes = float_to_fp8(part);
      // As signed bytes, which is how they are packed.
      store_bytes(reinterpret_cast<std::int8_t*>(values + i), (Ints)(codes << 24) >> 24);
    }
    return sum_lanes(none);
  } else {
    for (std::size_t i = 0; i < width; i += kLanes) {
      const Floats part = load<Floats>(x + i);
      if constexpr (Type == CacheType::kFloat32) {
        store(values + i, part);
      } else if constexpr (Type == CacheType::kBfloat16) {
        store(values + i, float_to_bf16(part));
      } else {
        store_halves(values + i, part);
      }
    }
    return 0.0f;
  }
}

// A head of a token as whole vectors: where it lies, or in `space` with zeros behind it.
OCTAVO_INLINE const float* padded_head(const float* head, const CacheShape& shape, float* space) {
  if (shape.head_dim % 16 == 0) return head;
  for (std::size_t i = 0; i < shape.dim_padded(); ++i) space[i] = i < shape.head_dim ? head[i] : 0.0f;
  return space;
}

template <CacheType Type>
static void write_cache(const float* key, const float* value, const CacheShape& shape, int token, std::uint8_t* strip) {
  using Value = typename Stored<Type>::Value;
  constexpr std::size_t kValues = cell_values(Type);
  if (token == 0) __builtin_memset(strip, 0, shape.strip_bytes());
  alignas(64) float space[kMostHeadDim];
  alignas(64) Value rounded[kMostHeadDim];
  const std::size_t width = shape.dim_padded(), at = static_cast<std::size_t>(token);
  auto* keys = reinterpret_cast<Value*>(strip);
  auto* values = reinterpret_cast<Value*>(strip + shape.side_bytes());
  std::uint8_t* tail = strip + 2 * shape.side_bytes();
  const auto put_beside = [&](std::size_t side, float result) {
    if constexpr (Type == CacheType::kInt8) {
      reinterpret_cast<float*>(tail)[16 * side + at] = result;
    } else if constexpr (Type == CacheType::kFp8) {
      auto& none = reinterpret_cast<std::uint32_t*>(tail)[side];
      const std::uint32_t bit = 1u << at;
      none = result != result ? none | bit : none & ~bit;
    }
  };
  put_beside(0, round_values<Type>(padded_head(key, shape, space), width, rounded));
  for (std::size_t cell = 0; cell < width / kValues; ++cell) {
    __builtin_memcpy(keys + (16 * cell + at) * kValues, rounded + cell * kValues, kValues * sizeof(Value));
  }
  put_beside(1, round_values<Type>(padded_head(value, shape, space), width, rounded));
  Value* target = values + width * (at / kValues) * kValues + at % kValues;
  for (std::size_t d = 0; d < width; ++d) target[d * kValues] = rounded[d];
}

// ---- Out of the cache

// Pairs of 16-bit whole numbers in each lane.
struct WordPairs {
  Ints both;
};

// What a lane multiplies at a time.
template <CacheType Type>
struct Cells {
  using Lanes = PairOf;  // bfloat16 and fp8
};
template <>
struct Cells<CacheType::kInt8> {
  using Lanes = WordPairs;
};
template <>
struct Cells<CacheType::kFloat16> {
  using Lanes = Floats;
};
template <>
struct Cells<CacheType::kFloat32> {
  using Lanes = Floats;
};

OCTAVO_INLINE Floats dot_cells(Floats sum, const PairOf& a, const PairOf& b) { return dot_pair(sum, a, b); }

OCTAVO_INLINE Floats dot_cells(Floats sum, Floats a, Floats b) { return fma(a, b, sum); }

OCTAVO_INLINE Ints dot_cells(Ints sum, WordPairs a, WordPairs b) {
#if defined(__AVX512VNNI__)
  return (Ints)_mm512_dpwssd_epi32((__m512i)sum, (__m512i)a.both, (__m512i)b.both);
#elif defined(__AVX2__)
  sum += (Ints)_mm256_madd_epi16((__m256i)a.both, (__m256i)b.both);
  settle(sum);
  return sum;
#else
  sum += multiply_pairs((Pairs)a.both, (Pairs)b.both);
  settle(sum);
  return sum;
#endif
}

// What the values of the cache that `load_cells` gives are too small by: a power of two.
template <CacheType Type>
constexpr float kUnit = 1.0f;
#if defined(__AVX2__) && !defined(__AVX512F__)
template <>
constexpr float kUnit<CacheType::kFp8> = 256.0f;
#endif

// Each byte as a 16-bit number with the same sign.
OCTAVO_INLINE Ints widen_bytes(const std::uint8_t* bytes) {
#if defined(__AVX512F__)
  return (Ints)_mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(bytes)));
#elif defined(__AVX2__)
  return (Ints)_mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes)));
#else
  using Eight = std::int8_t __attribute__((vector_size(8)));
  return (Ints)__builtin_convertvector(load<Eight>(bytes), Pairs);
#endif
}

// Pairs of E4M3, which lose nothing on the way. None is a NaN.
OCTAVO_INLINE PairOf load_fp8(const std::uint8_t* bytes) {
#if defined(__AVX512F__)
  // To bfloat16: the bits of a normal number move into place and the exponent's bias grows from 7 to 127. What is below has eight magnitudes.
  const __m512i small = _mm512_castsi128_si512(_mm_setr_epi16(0, 0x3b00, 0x3b80, 0x3bc0, 0x3c00, 0x3c20, 0x3c40, 0x3c60));
  const __m512i words = (__m512i)widen_bytes(bytes), moved = _mm512_slli_epi16(words, 4);
  const __m512i normal = _mm512_add_epi16(_mm512_and_si512(moved, _mm512_set1_epi16(0x07f0)), _mm512_set1_epi16(0x3c00));
  const __mmask32 is_small = _mm512_testn_epi16_mask(words, _mm512_set1_epi16(0x0078));
  const __m512i magnitude = _mm512_mask_permutexvar_epi16(normal, is_small, words, small);
  constexpr int kOrAnd = 0xf8;  // a | b & c
  return PairOf((Words)_mm512_ternarylogic_epi32(magnitude, moved, _mm512_set1_epi16(static_cast<short>(0x8000)), kOrAnd));
#elif defined(__AVX2__)
  // To float16, whose bias is 15 where theirs is 7: the same bits are 2^-8 of the number, below the normal ones too.
  const __m256i words = _mm256_and_si256(_mm256_slli_epi16((__m256i)widen_bytes(bytes), 7), _mm256_set1_epi16(static_cast<short>(0xbfff)));
  const __m256i order = _mm256_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15, 0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);
  const __m256i apart = _mm256_permute4x64_epi64(_mm256_shuffle_epi8(words, order), 0xd8);
  return PairOf((Floats)_mm256_cvtph_ps(_mm256_castsi256_si128(apart)), (Floats)_mm256_cvtph_ps(_mm256_extracti128_si256(apart, 1)));
#else
  using Cell = std::uint16_t __attribute__((vector_size(2 * kLanes)));
  const Words cells = __builtin_convertvector(load<Cell>(bytes), Words);
  const auto one = [](Words byte) {
    const Words magnitude = (byte & 0x7fu) << 20;
    const Floats normal = (Floats)(magnitude + (120u << 23));
    // m · 2^-9 = 2^-6 · (1 + m / 8) - 2^-6, where both terms are normal and the difference is exact.
    const Floats subnormal = (Floats)(magnitude + (121u << 23)) - 0x1p-6f;
    return (Floats)((Words)((Ints)magnitude < 0x00800000 ? subnormal : normal) | (byte & 0x80u) << 24);
  };
  return PairOf(one(cells), one(cells >> 8));
#endif
}

template <CacheType Type>
OCTAVO_INLINE typename Cells<Type>::Lanes load_cells(const std::uint8_t* cells) {
  if constexpr (Type == CacheType::kFloat32) {
    return load<Floats>(cells);
  } else if constexpr (Type == CacheType::kBfloat16) {
    return PairOf(load<Words>(cells));
  } else if constexpr (Type == CacheType::kFloat16) {
    return half_to_float(cells);
  } else if constexpr (Type == CacheType::kInt8) {
    return {widen_bytes(cells)};
  } else {
    return load_fp8(cells);
  }
}

// The four bytes of a query or of weights that multiply a cell, in every lane.
template <CacheType Type>
OCTAVO_INLINE typename Cells<Type>::Lanes spread_cell(const std::uint8_t* four) {
  const Ints lanes = spread(four);
  if constexpr (Type == CacheType::kInt8) {
    return {lanes};
  } else if constexpr (cell_values(Type) == 2) {
    return PairOf((Words)lanes);
  } else {
    return (Floats)lanes;
  }
}

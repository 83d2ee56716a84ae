// Operations on one row.

#if defined(__AVX512F__)

// Folds the lanes of four vectors, each to one number: lane 4 · g is that of vector g, and so are the three that follow.
template <typename Fold>
OCTAVO_INLINE __m512i fold_four(const __m512i (&x)[4], Fold&& fold) {
  const __m512i first = fold(_mm512_shuffle_i32x4(x[0], x[1], 0x44), _mm512_shuffle_i32x4(x[0], x[1], 0xee));
  const __m512i second = fold(_mm512_shuffle_i32x4(x[2], x[3], 0x44), _mm512_shuffle_i32x4(x[2], x[3], 0xee));
  const __m512i four = fold(_mm512_shuffle_i32x4(first, second, 0x88), _mm512_shuffle_i32x4(first, second, 0xdd));
  const __m512i two = fold(four, _mm512_shuffle_epi32(four, _MM_PERM_BADC));
  return fold(two, _mm512_shuffle_epi32(two, _MM_PERM_CDAB));
}

// Four groups at a time, with the same bits as one at a time.
OCTAVO_INLINE void quantize_four(const float* x, std::int8_t* values, float* scales, float* sums, std::int32_t* offsets) {
  const __m512i each = _mm512_set_epi32(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 12, 8, 4, 0);
  const auto magnitude = [](const float* from) { return _mm512_and_si512(_mm512_loadu_si512(from), _mm512_set1_epi32(0x7fffffff)); };
  __m512i peaks[4], totals[4];
#pragma GCC unroll 4
  for (int g = 0; g < 4; ++g) peaks[g] = _mm512_max_epi32(magnitude(x + g * kGroup), magnitude(x + g * kGroup + 16));
  // As whole numbers the bits of magnitudes are in their order, with infinity and NaN above all others.
  const __m128i most_bits = _mm512_castsi512_si128(_mm512_permutexvar_epi32(each, fold_four(peaks, [](__m512i a, __m512i b) { return _mm512_max_epi32(a, b); })));
  const __m128 most = _mm_castsi128_ps(most_bits), step = _mm_set1_ps(127.0f);
  const __m128i bad = _mm_cmpgt_epi32(most_bits, _mm_set1_epi32(0x7f7fffff));
  const __m128 scale = _mm_or_ps(_mm_div_ps(most, step), _mm_and_ps(_mm_castsi128_ps(bad), _mm_set1_ps(__builtin_nanf(""))));
  const __m128 usable = _mm_andnot_ps(_mm_castsi128_ps(bad), _mm_cmp_ps(most, _mm_set1_ps(0x1p-120f), _CMP_GT_OQ));
  const __m512 inverses = _mm512_castps128_ps512(_mm_and_ps(_mm_div_ps(step, most), usable)), magic = _mm512_set1_ps(12582912.0f);
  const __m512i finite = _mm512_castsi128_si512(_mm_andnot_si128(bad, _mm_set1_epi32(-1)));
#pragma GCC unroll 4
  for (int g = 0; g < 4; ++g) {
    const __m512i own = _mm512_set1_epi32(g), mask = _mm512_permutexvar_epi32(own, finite);
    const __m512 inverse = _mm512_permutexvar_ps(own, inverses);
    __m512i q[2];
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v) {
      const __m512 value = _mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(x + g * kGroup + v * 16), mask));
      q[v] = _mm512_sub_epi32(_mm512_castps_si512(_mm512_add_ps(_mm512_mul_ps(value, inverse), magic)), _mm512_castps_si512(magic));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(values + g * kGroup + v * 16), _mm512_cvtepi32_epi8(q[v]));
    }
    totals[g] = _mm512_add_epi32(q[0], q[1]);
  }
  const __m512i folded = fold_four(totals, [](__m512i a, __m512i b) { return _mm512_add_epi32(a, b); });
  const __m128i sum = _mm512_castsi512_si128(_mm512_permutexvar_epi32(each, folded));
  _mm_storeu_ps(scales, scale);
  _mm_storeu_ps(sums, _mm_mul_ps(scale, _mm_cvtepi32_ps(sum)));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(offsets), _mm_slli_epi32(_mm_sub_epi32(_mm_setzero_si128(), sum), 7));
}

#endif

static void quantize_row(const float* x, std::size_t inner, std::int8_t* values, float* scales, float* sums,
                         std::int32_t* offsets) {
  constexpr int kGroupVectors = kGroup / kLanes;
  std::size_t group = 0;
#if defined(__AVX512F__)
  for (; (group + 4) * kGroup <= inner; group += 4) {
    quantize_four(x + group * kGroup, values + group * kGroup, scales + group, sums + group, offsets + group);
  }
#endif
  for (; group < groups(inner); ++group) {
    const float* source = x + group * kGroup;
    float padded[kGroup];
    if (group * kGroup + kGroup > inner) {
      const std::size_t count = inner - group * kGroup;
      __builtin_memset(padded, 0, sizeof(padded));
      __builtin_memcpy(padded, source, count * sizeof(float));
      source = padded;
    }
    Floats parts[kGroupVectors];
    Floats most_of{}, poison_of{};
#pragma GCC unroll 8
    for (int v = 0; v < kGroupVectors; ++v) {
      parts[v] = load<Floats>(source + v * kLanes);
      most_of = max(most_of, absolute(parts[v]));
      poison_of += parts[v] - parts[v];  // 0 for every number, NaN for NaN and infinity
    }
    const float most = max_lanes(most_of);
    const float poison = sum_lanes(poison_of);
    const float scale = most / 127.0f + poison;
    // A group so small that its inverse would be infinite is zero, as is one that is not a number.
    const float inverse = most > 0x1p-120f && poison == 0.0f ? 127.0f / most : 0.0f;
    const Floats magic = splat(12582912.0f);  // 1.5 · 2^23: adding it rounds to the nearest whole number, ties to even
    Ints sum_of{};
#pragma GCC unroll 8
    for (int v = 0; v < kGroupVectors; ++v) {
      // A NaN times 0 is no number still, and would leave bits of any kind.
      const Floats finite = (Floats)((Words)parts[v] & (poison == 0.0f ? 0xffffffffu : 0u));
      const Ints q = (Ints)(finite * inverse + magic) - (Ints)magic;
      sum_of += q;
      store_bytes(values + group * kGroup + v * kLanes, q);
    }
    // Whole numbers far below 2^24: exact as floats, in any order.
    const float sum = sum_lanes(to_float(sum_of));
    scales[group] = scale;
    sums[group] = scale * sum;
    offsets[group] = -128 * static_cast<std::int32_t>(sum);
  }
}

static void round_row(const float* x, std::size_t inner, std::uint16_t* values) {
  const std::size_t padded = groups(inner) * kGroup;
  std::size_t i = 0;
  for (; i + kLanes <= inner; i += kLanes) store(values + i, float_to_bf16(load<Floats>(x + i)));
  for (; i < inner; ++i) values[i] = float_to_bf16(x[i]);
  for (; i < padded; ++i) values[i] = 0;
}

static void rms_norm_row(const float* x, const float* weight, float epsilon, std::size_t width, float* y) {
  // Four sums, so that their latencies overlap.
  Floats squares[4] = {};
  std::size_t i = 0;
  for (; i + 4 * kLanes <= width; i += 4 * kLanes) {
#pragma GCC unroll 4
    for (std::size_t k = 0; k < 4; ++k) {
      const Floats part = load<Floats>(x + i + k * kLanes);
      squares[k] = fma(part, part, squares[k]);
    }
  }
  float total = sum_lanes((squares[0] + squares[1]) + (squares[2] + squares[3]));
  for (; i < width; ++i) total += x[i] * x[i];
  const float factor = 1.0f / __builtin_sqrtf(total / static_cast<float>(width) + epsilon);
  for (i = 0; i + kLanes <= width; i += kLanes) store(y + i, load<Floats>(x + i) * factor * load<Floats>(weight + i));
  for (; i < width; ++i) y[i] = x[i] * factor * weight[i];
}

OCTAVO_INLINE Floats silu(Floats gate) {
  const Floats one = splat(1.0f);
  return gate / (one + exp2(gate * -1.44269504088896340736f));
}

// gate / 2 · (1 + tanh(u)) is gate / (1 + e^(−2u)), and −2u · log2(e) is gate · (a + b · gate²).
OCTAVO_INLINE Floats gelu(Floats gate) {
  const Floats one = splat(1.0f);
  const Floats exponent = gate * fma(gate * gate, splat(-0.10294324f), splat(-2.3022082f));
  return gate / (one + exp2(exponent));
}

// activate(gate) · up.
template <typename Activate>
OCTAVO_INLINE void gate_up(const float* gate, const float* up, std::size_t count, float* y, Activate&& activate) {
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) store(y + i, activate(load<Floats>(gate + i)) * load<Floats>(up + i));
  if (i < count) {
    float lanes[kLanes] = {}, other[kLanes] = {};
    __builtin_memcpy(lanes, gate + i, (count - i) * sizeof(float));
    __builtin_memcpy(other, up + i, (count - i) * sizeof(float));
    store(lanes, activate(load<Floats>(lanes)) * load<Floats>(other));
    __builtin_memcpy(y + i, lanes, (count - i) * sizeof(float));
  }
}

static void silu_mul(const float* gate, const float* up, std::size_t count, float* y) {
  gate_up(gate, up, count, y, [](Floats x) { return silu(x); });
}

static void gelu_mul(const float* gate, const float* up, std::size_t count, float* y) {
  gate_up(gate, up, count, y, [](Floats x) { return gelu(x); });
}

// cap · tanh(x / cap), where `twice` is 2 / cap · log2(e).
OCTAVO_INLINE Floats cap_at(Floats x, float cap, float twice) {
  const Floats one = splat(1.0f), two = splat(2.0f);
  return (one - two / (one + exp2(x * twice))) * cap;
}

static void softcap(float* x, std::size_t count, float cap) {
  const float twice = 2.8853900817779268f / cap;
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) store(x + i, cap_at(load<Floats>(x + i), cap, twice));
  if (i < count) {
    float lanes[kLanes] = {};
    __builtin_memcpy(lanes, x + i, (count - i) * sizeof(float));
    store(lanes, cap_at(load<Floats>(lanes), cap, twice));
    __builtin_memcpy(x + i, lanes, (count - i) * sizeof(float));
  }
}

static void rope_head(float* head, const float* cosine, const float* sine, std::size_t half) {
  std::size_t i = 0;
  for (; i + kLanes <= half; i += kLanes) {
    const Floats first = load<Floats>(head + i), second = load<Floats>(head + half + i);
    const Floats c = load<Floats>(cosine + i), s = load<Floats>(sine + i);
    store(head + i, first * c - second * s);
    store(head + half + i, second * c + first * s);
  }
  for (; i < half; ++i) {
    const float first = head[i], second = head[half + i];
    head[i] = first * cosine[i] - second * sine[i];
    head[half + i] = second * cosine[i] + first * sine[i];
  }
}

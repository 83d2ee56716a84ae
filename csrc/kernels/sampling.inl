// What sampling needs of one row of logits. A row is worked on in runs of 256, and its end as a run filled up with what counts for nothing.

// e^x for x of at most 0, to about one unit in the last place, after Cephes (Moshier 1992); e^0 is exactly 1, and 0 below the smallest
// normal number. ln 2 is taken away in two parts, of which the first has few enough bits for an exact product also where nothing fuses.
//
// Of several vectors at once, step by step: one alone would wait for itself, and the machine does not look far enough ahead for the next.
template <std::size_t Count>
OCTAVO_INLINE void exp_negative(Floats (&x)[Count]) {
  const Floats low = splat(-87.0f), magic = splat(12582912.0f);  // 1.5 · 2^23: adding it rounds to a whole number, in the low bits
  constexpr float kFactors[] = {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f};
  Floats part[Count], y[Count], power[Count];
#pragma GCC unroll 8
  for (std::size_t i = 0; i < Count; ++i) {
#if defined(__AVX512F__)
    const Floats bounded = x[i];  // what comes of one below is nothing that is kept
#else
    const Floats bounded = x[i] < low ? low : x[i];
#endif
    const Floats shifted = fma(bounded, splat(1.44269504088896341f), magic);
    const Floats whole = shifted - magic;
    part[i] = fma(whole, splat(2.12194440e-4f), fma(whole, splat(-0.693359375f), bounded));
#if defined(__AVX512F__)
    power[i] = whole;
#else
    power[i] = (Floats)(((Ints)shifted - (Ints)magic + 127) << 23);
#endif
    y[i] = splat(1.9875691500e-4f);
  }
#pragma GCC unroll 8
  for (const float factor : kFactors) {
#pragma GCC unroll 8
    for (std::size_t i = 0; i < Count; ++i) y[i] = fma(y[i], part[i], splat(factor));
  }
#pragma GCC unroll 8
  for (std::size_t i = 0; i < Count; ++i) {
    y[i] = fma(y[i], part[i] * part[i], part[i]) + 1.0f;
#if defined(__AVX512F__)
    const __mmask16 kept = _mm512_cmp_ps_mask((__m512)x[i], (__m512)low, _CMP_NLT_UQ);
    x[i] = (Floats)_mm512_maskz_scalef_ps(kept, (__m512)y[i], (__m512)power[i]);
#else
    x[i] = x[i] < low ? Floats{} : y[i] * power[i];
#endif
  }
}

// Vectors whose powers are taken at once: as registers allow.
constexpr std::size_t kPowers = kLanes == 16 ? 4 : 2;

using Doubles = double __attribute__((vector_size(4 * kLanes)));

// One sum in float64 for each lane: of the lower half of the lanes, and of the upper.
struct LaneSums {
  Doubles halves[2] = {};
};

OCTAVO_INLINE void add_lanes(LaneSums& sums, Floats x) {
#if defined(__AVX512F__)
  sums.halves[0] += (Doubles)_mm512_cvtps_pd(_mm512_castps512_ps256((__m512)x));
  sums.halves[1] += (Doubles)_mm512_cvtps_pd(_mm512_extractf32x8_ps((__m512)x, 1));
#elif defined(__AVX2__)
  sums.halves[0] += (Doubles)_mm256_cvtps_pd(_mm256_castps256_ps128((__m256)x));
  sums.halves[1] += (Doubles)_mm256_cvtps_pd(_mm256_extractf128_ps((__m256)x, 1));
#else
  sums.halves[0] += Doubles{x[0], x[1]};
  sums.halves[1] += Doubles{x[2], x[3]};
#endif
}

// In one fixed tree.
OCTAVO_INLINE double total_of(const LaneSums& sums) {
  double lanes[kLanes];
  __builtin_memcpy(lanes, &sums, sizeof(lanes));
  for (int width = kLanes / 2; width >= 1; width /= 2) {
    for (int lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
  }
  return lanes[0];
}

OCTAVO_INLINE std::int32_t sum_ints(Ints x) {
  std::int32_t lanes[kLanes], total = 0;
  store(lanes, x);
  for (int lane = 0; lane < kLanes; ++lane) total += lanes[lane];
  return total;
}

// The run that begins at `begin`, where it lies or, if the row ends within it, in `space`, filled up with −infinity.
OCTAVO_INLINE const float* run_at(const float* x, std::size_t count, std::size_t begin, float* space) {
  if (begin + kSampleRun <= count) return x + begin;
  __builtin_memcpy(space, x + begin, (count - begin) * sizeof(float));
  for (std::size_t i = count - begin; i < kSampleRun; ++i) space[i] = -__builtin_inff();
  return space;
}

static float scan_row(const float* x, std::size_t count, float* maxima) {
  constexpr int kSetVectors = kSampleSets / kLanes;
  float space[kSampleRun];
  Floats most = splat(-__builtin_inff());
  Ints bad{};
  for (std::size_t begin = 0; begin < count; begin += kSampleRun) {
    const float* run = run_at(x, count, begin, space);
    Floats best[kSetVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kSetVectors; ++v) best[v] = splat(-__builtin_inff());
    for (std::size_t i = 0; i < kSampleRun; i += kSampleSets) {
#pragma GCC unroll 4
      for (int v = 0; v < kSetVectors; ++v) {
        const Floats part = load<Floats>(run + i + v * kLanes);
        bad |= part != part;
        best[v] = max(best[v], part);
      }
    }
#pragma GCC unroll 4
    for (int v = 0; v < kSetVectors; ++v) {
      store(maxima + begin / kSampleRun * kSampleSets + v * kLanes, best[v]);
      most = max(best[v], most);
    }
  }
  return sum_ints(bad) != 0 ? __builtin_nanf("") : max_lanes(most);
}

template <bool Divide>
OCTAVO_INLINE double weigh_runs(const float* x, std::size_t count, float top, float temperature, float min_p, float scale, float* weights,
                                double* sums) {
  float space[kSampleRun];
  const Floats whole = splat(8388608.0f);  // 2^23: adding it to less rounds to a whole number, and what is not less is one
  double total = 0.0;
  for (std::size_t begin = 0; begin < count; begin += kSampleRun) {
    const float* run = run_at(x, count, begin, space);
    LaneSums mass;
    for (std::size_t i = 0; i < kSampleRun; i += kPowers * kLanes) {
      Floats ratios[kPowers];
#pragma GCC unroll 8
      for (std::size_t k = 0; k < kPowers; ++k) {
        ratios[k] = load<Floats>(run + i + k * kLanes) - top;
        if constexpr (Divide) ratios[k] = ratios[k] / temperature;
      }
      exp_negative(ratios);
#pragma GCC unroll 8
      for (std::size_t k = 0; k < kPowers; ++k) {
        const Floats scaled = (ratios[k] < min_p ? Floats{} : ratios[k]) * scale;
        const Floats weight = scaled < whole ? (scaled + whole) - whole : scaled;
        store(weights + begin + i + k * kLanes, weight);
        add_lanes(mass, weight);
      }
    }
    sums[begin / kSampleRun] = total_of(mass);
    total += sums[begin / kSampleRun];
  }
  return total;
}

static double weigh_row(const float* x, std::size_t count, float top, float temperature, float min_p, float scale, float* weights,
                        double* sums) {
  // A division takes as long as a third of the rest, and by 1 it changes nothing.
  if (temperature == 1.0f) return weigh_runs<false>(x, count, top, temperature, min_p, scale, weights, sums);
  return weigh_runs<true>(x, count, top, temperature, min_p, scale, weights, sums);
}

static float sum_below(const float* x, std::size_t count, float ceiling) {
  // Four sums, so that their latencies overlap.
  Floats mass[4] = {};
  std::size_t i = 0;
  for (; i + 4 * kLanes <= count; i += 4 * kLanes) {
#pragma GCC unroll 4
    for (std::size_t k = 0; k < 4; ++k) {
      const Floats part = load<Floats>(x + i + k * kLanes);
      mass[k] += part < ceiling ? part : Floats{};
    }
  }
  float total = sum_lanes((mass[0] + mass[1]) + (mass[2] + mass[3]));
  for (; i < count; ++i) total += x[i] < ceiling ? x[i] : 0.0f;
  return total;
}

static double exp_sum(const float* x, std::size_t count, float top) {
  float space[kSampleRun];
  LaneSums mass;
  for (std::size_t begin = 0; begin < count; begin += kSampleRun) {
    const float* run = run_at(x, count, begin, space);
    for (std::size_t i = 0; i < kSampleRun; i += kPowers * kLanes) {
      Floats powers[kPowers];
#pragma GCC unroll 8
      for (std::size_t k = 0; k < kPowers; ++k) powers[k] = load<Floats>(run + i + k * kLanes) - top;
      exp_negative(powers);
#pragma GCC unroll 8
      for (std::size_t k = 0; k < kPowers; ++k) add_lanes(mass, powers[k]);
    }
  }
  return total_of(mass);
}

static std::size_t count_above(const float* x, std::size_t count, float floor) {
  Ints found{};
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) found -= load<Floats>(x + i) > floor;
  auto total = static_cast<std::size_t>(sum_ints(found));
  for (; i < count; ++i) total += x[i] > floor;
  return total;
}

static std::size_t pick_at_least(const float* x, std::size_t count, float floor, float* values, std::int32_t* ids) {
  std::size_t found = 0, i = 0;
#if defined(__AVX512F__)
  // Compressing into memory takes Zen 4 a hundred times as long as into a register.
  __m512i here = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __m512 least = _mm512_set1_ps(floor);
  const auto take = [&](__mmask16 mask, __m512 part) {
    _mm512_storeu_ps(values + found, _mm512_maskz_compress_ps(mask, part));
    _mm512_storeu_si512(ids + found, _mm512_maskz_compress_epi32(mask, here));
    found += static_cast<std::size_t>(__builtin_popcount(mask));
    here = _mm512_add_epi32(here, _mm512_set1_epi32(16));
  };
  // Four vectors have one branch, as whether a single one holds something can seldom be foretold.
  for (; i + 64 <= count; i += 64) {
    __m512 parts[4];
    __mmask16 masks[4];
#pragma GCC unroll 4
    for (int v = 0; v < 4; ++v) {
      parts[v] = _mm512_loadu_ps(x + i + 16 * v);
      masks[v] = _mm512_cmp_ps_mask(parts[v], least, _CMP_GE_OQ);
    }
    if ((masks[0] | masks[1] | masks[2] | masks[3]) == 0) {
      here = _mm512_add_epi32(here, _mm512_set1_epi32(64));
      continue;
    }
#pragma GCC unroll 4
    for (int v = 0; v < 4; ++v) take(masks[v], parts[v]);
  }
  for (; i + 16 <= count; i += 16) {
    const __m512 part = _mm512_loadu_ps(x + i);
    take(_mm512_cmp_ps_mask(part, least, _CMP_GE_OQ), part);
  }
#elif defined(__AVX2__)
  for (; i + 8 <= count; i += 8) {
    auto mask = static_cast<unsigned>(_mm256_movemask_ps(_mm256_cmp_ps(_mm256_loadu_ps(x + i), _mm256_set1_ps(floor), _CMP_GE_OQ)));
    for (; mask != 0; mask &= mask - 1, ++found) {
      const std::size_t at = i + static_cast<std::size_t>(__builtin_ctz(mask));
      values[found] = x[at];
      ids[found] = static_cast<std::int32_t>(at);
    }
  }
#endif
  for (; i < count; ++i) {
    values[found] = x[i];
    ids[found] = static_cast<std::int32_t>(i);
    found += x[i] >= floor;
  }
  return found;
}

// Operations on one row.

static void quantize_row(const float* x, std::size_t inner, std::int8_t* values, float* scales, float* sums,
                         std::int32_t* offsets) {
  constexpr int kGroupVectors = kGroup / kLanes;
  for (std::size_t group = 0; group < groups(inner); ++group) {
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

static void silu_mul(const float* gate, const float* up, std::size_t count, float* y) {
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) store(y + i, silu(load<Floats>(gate + i)) * load<Floats>(up + i));
  if (i < count) {
    float lanes[kLanes] = {}, other[kLanes] = {};
    __builtin_memcpy(lanes, gate + i, (count - i) * sizeof(float));
    __builtin_memcpy(other, up + i, (count - i) * sizeof(float));
    store(lanes, silu(load<Floats>(lanes)) * load<Floats>(other));
    __builtin_memcpy(y + i, lanes, (count - i) * sizeof(float));
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

// Operations on one row.

static void quantize_row(const float* x, std::size_t inner, std::int8_t* values, float* scales, float* sums,
                         std::int32_t* offsets) {
  for (std::size_t group = 0; group < groups(inner); ++group) {
    const float* source = x + group * kGroup;
    f32x16 low, high;
    if (group * kGroup + kGroup <= inner) {
      low = load<f32x16>(source);
      high = load<f32x16>(source + 16);
    } else {
      float padded[kGroup] = {};
      __builtin_memcpy(padded, source, (inner - group * kGroup) * sizeof(float));
      low = load<f32x16>(padded);
      high = load<f32x16>(padded + 16);
    }
    const float most = max_lanes(max(absolute(low), absolute(high)));
    // x − x is 0 for every number and NaN for NaN and infinity.
    const float poison = sum_lanes((low - low) + (high - high));
    const float scale = most / 127.0f + poison;
    const float inverse = most > 0.0f && poison == 0.0f ? 127.0f / most : 0.0f;
    const f32x16 magic = splat(12582912.0f);  // 1.5 · 2^23: adding it rounds to the nearest whole number, ties to even
    const i32x16 q_low = (i32x16)(low * inverse + magic) - (i32x16)magic;
    const i32x16 q_high = (i32x16)(high * inverse + magic) - (i32x16)magic;
    std::int32_t lanes[kGroup];
    store(lanes, q_low);
    store(lanes + 16, q_high);
    std::int32_t sum = 0;
    if (poison == 0.0f) {
      for (int i = 0; i < kGroup; ++i) sum += lanes[i];
    }
    for (int i = 0; i < kGroup; ++i) values[group * kGroup + static_cast<std::size_t>(i)] = static_cast<std::int8_t>(lanes[i]);
    scales[group] = scale;
    sums[group] = scale * static_cast<float>(sum);
    offsets[group] = -128 * sum;
  }
}

static void round_row(const float* x, std::size_t inner, std::uint16_t* values) {
  const std::size_t padded = groups(inner) * kGroup;
  std::size_t i = 0;
  for (; i + 16 <= inner; i += 16) store(values + i, float_to_bf16(load<f32x16>(x + i)));
  for (; i < inner; ++i) values[i] = float_to_bf16(x[i]);
  for (; i < padded; ++i) values[i] = 0;
}

static void rms_norm_row(const float* x, const float* weight, float epsilon, std::size_t width, float* y) {
  f32x16 squares{};
  std::size_t i = 0;
  for (; i + 16 <= width; i += 16) {
    const f32x16 part = load<f32x16>(x + i);
    squares = fma(part, part, squares);
  }
  float total = sum_lanes(squares);
  for (std::size_t rest = i; rest < width; ++rest) total += x[rest] * x[rest];
  const float factor = 1.0f / __builtin_sqrtf(total / static_cast<float>(width) + epsilon);
  for (i = 0; i + 16 <= width; i += 16) store(y + i, load<f32x16>(x + i) * factor * load<f32x16>(weight + i));
  for (; i < width; ++i) y[i] = x[i] * factor * weight[i];
}

OCTAVO_INLINE f32x16 silu(f32x16 gate) {
  const f32x16 one = splat(1.0f);
  return gate / (one + exp2(gate * -1.44269504088896340736f));
}

static void silu_mul(const float* gate, const float* up, std::size_t count, float* y) {
  std::size_t i = 0;
  for (; i + 16 <= count; i += 16) store(y + i, silu(load<f32x16>(gate + i)) * load<f32x16>(up + i));
  if (i < count) {
    float lanes[16] = {}, other[16] = {};
    __builtin_memcpy(lanes, gate + i, (count - i) * sizeof(float));
    __builtin_memcpy(other, up + i, (count - i) * sizeof(float));
    store(lanes, silu(load<f32x16>(lanes)) * load<f32x16>(other));
    __builtin_memcpy(y + i, lanes, (count - i) * sizeof(float));
  }
}

static void rope_head(float* head, const float* cosine, const float* sine, std::size_t half) {
  std::size_t i = 0;
  for (; i + 16 <= half; i += 16) {
    const f32x16 first = load<f32x16>(head + i), second = load<f32x16>(head + half + i);
    const f32x16 c = load<f32x16>(cosine + i), s = load<f32x16>(sine + i);
    store(head + i, first * c - second * s);
    store(head + half + i, second * c + first * s);
  }
  for (; i < half; ++i) {
    const float first = head[i], second = head[half + i];
    head[i] = first * cosine[i] - second * sine[i];
    head[half + i] = second * cosine[i] + first * sine[i];
  }
}

// Attention over the paged cache, one partition of keys at a time.

static void pack_query(const float* head, float scale, std::size_t head_dim, std::uint16_t* query) {
  std::size_t i = 0;
  for (; i + 16 <= head_dim; i += 16) store(query + i, float_to_bf16(load<f32x16>(head + i) * scale));
  for (; i < head_dim; ++i) query[i] = float_to_bf16(head[i] * scale);
  for (; i % 16 != 0; ++i) query[i] = 0;
}

static void write_cache(const float* key, const float* value, const CacheShape& shape, int token, std::uint16_t* key_strip,
                        std::uint16_t* value_strip) {
  const std::size_t width = shape.dim_padded();
  if (token == 0) {
    __builtin_memset(key_strip, 0, shape.strip_words() * sizeof(std::uint16_t));
    __builtin_memset(value_strip, 0, shape.strip_words() * sizeof(std::uint16_t));
  }
  const auto t = static_cast<std::size_t>(token);
  for (std::size_t pair = 0; pair < shape.head_dim / 2; ++pair) {
    key_strip[32 * pair + 2 * t] = float_to_bf16(key[2 * pair]);
    key_strip[32 * pair + 2 * t + 1] = float_to_bf16(key[2 * pair + 1]);
  }
  std::uint16_t* target = value_strip + 2 * width * (t / 2) + t % 2;
  for (std::size_t d = 0; d < shape.head_dim; ++d) target[2 * d] = float_to_bf16(value[d]);
}

// Scores of one strip of 16 keys.
template <int Rows>
OCTAVO_INLINE void score_strip(const QueryTile& tile, std::size_t width, const std::uint16_t* strip, f32x16 (&scores)[Rows]) {
  f32x16 odd[Rows];
  for (int r = 0; r < Rows; ++r) scores[r] = odd[r] = f32x16{};
  for (std::size_t pair = 0; pair < width / 2; pair += 2) {
    const u32x16 first = load<u32x16>(strip + 32 * pair), second = load<u32x16>(strip + 32 * pair + 32);
#pragma GCC unroll 6
    for (int r = 0; r < Rows; ++r) {
      const std::uint16_t* query = tile.query + static_cast<std::size_t>(r) * tile.query_stride + 2 * pair;
      dot_pair(scores[r], first, query);
      dot_pair(odd[r], second, query + 2);
    }
  }
  for (int r = 0; r < Rows; ++r) scores[r] += odd[r];
}

// Σ p · v over the strips of a partition, for 16 · Lanes dimensions from `dimension` on.
template <int Rows, int Lanes>
OCTAVO_INLINE void weigh_values(const std::uint16_t* const* strips, std::size_t count, const std::uint16_t* weights, std::size_t width,
                                std::size_t dimension, float* output) {
  f32x16 sums[Rows][Lanes];
  for (int r = 0; r < Rows; ++r) {
    for (int lane = 0; lane < Lanes; ++lane) sums[r][lane] = f32x16{};
  }
  for (std::size_t strip = 0; strip < count; ++strip) {
    for (std::size_t pair = 0; pair < kStrip / 2; ++pair) {
      const std::uint16_t* values = strips[strip] + 2 * width * pair + 2 * dimension;
      u32x16 loaded[Lanes];
#pragma GCC unroll 4
      for (int lane = 0; lane < Lanes; ++lane) loaded[lane] = load<u32x16>(values + 32 * lane);
#pragma GCC unroll 6
      for (int r = 0; r < Rows; ++r) {
        const std::uint16_t* weight = weights + static_cast<std::size_t>(r) * kPartition + strip * kStrip + 2 * pair;
#pragma GCC unroll 4
        for (int lane = 0; lane < Lanes; ++lane) dot_pair(sums[r][lane], loaded[lane], weight);
      }
    }
  }
  for (int r = 0; r < Rows; ++r) {
    for (int lane = 0; lane < Lanes; ++lane) store(output + static_cast<std::size_t>(r) * width + dimension + 16 * static_cast<std::size_t>(lane), sums[r][lane]);
  }
}

template <int Rows>
static void attend_rows(const QueryTile& tile, const CacheShape& shape, const std::uint16_t* keys, const std::uint16_t* values,
                        const std::int32_t* blocks, std::size_t kv_head, std::size_t first, std::size_t last, std::size_t window,
                        Softmax result) {
  const std::size_t width = shape.dim_padded();
  const std::size_t count = (last - first + kStrip - 1) / kStrip;
  alignas(64) float scores[Rows][kPartition];
  alignas(64) std::uint16_t weights[Rows][kPartition];
  const std::uint16_t* value_strips[kPartition / kStrip];
  const i32x16 lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  f32x16 highest[Rows];
  for (int r = 0; r < Rows; ++r) highest[r] = splat(-__builtin_inff());
  for (std::size_t strip = 0; strip < count; ++strip) {
    const std::size_t token = first + strip * kStrip;
    const auto block = static_cast<std::size_t>(blocks[token / shape.block_size]);
    const std::size_t at =
        block * shape.block_words() + kv_head * shape.head_words() + token % shape.block_size / kStrip * shape.strip_words();
    value_strips[strip] = values + at;
    f32x16 part[Rows];
    score_strip<Rows>(tile, width, keys + at, part);
    const i32x16 position = lane + static_cast<std::int32_t>(token);
    for (int r = 0; r < Rows; ++r) {
      const i32x16 own = splat_int(tile.positions[r]);
      i32x16 seen = position <= own;
      if (window != 0) seen &= position > own - static_cast<std::int32_t>(window);
      part[r] = seen ? part[r] : splat(-__builtin_inff());
      highest[r] = max(highest[r], part[r]);
      store(&scores[r][strip * kStrip], part[r]);
    }
  }
  for (int r = 0; r < Rows; ++r) {
    const float most = max_lanes(highest[r]);
    const float anchor = most == -__builtin_inff() ? 0.0f : most;
    f32x16 total{};
    for (std::size_t strip = 0; strip < count; ++strip) {
      const f32x16 weight = exp2(load<f32x16>(&scores[r][strip * kStrip]) - anchor);
      total += weight;
      store(&weights[r][strip * kStrip], float_to_bf16(weight));
    }
    result.maximum[r] = most;
    result.total[r] = sum_lanes(total);
  }
  std::size_t dimension = 0;
  for (; dimension + 64 <= width; dimension += 64) weigh_values<Rows, 4>(value_strips, count, weights[0], width, dimension, result.output);
  for (; dimension < width; dimension += 16) weigh_values<Rows, 1>(value_strips, count, weights[0], width, dimension, result.output);
}

static void attend(const QueryTile& tile, const CacheShape& shape, const std::uint16_t* keys, const std::uint16_t* values,
                   const std::int32_t* blocks, std::size_t kv_head, std::size_t first, std::size_t last, std::size_t window, Softmax result) {
  using Rows = void (*)(const QueryTile&, const CacheShape&, const std::uint16_t*, const std::uint16_t*, const std::int32_t*, std::size_t,
                        std::size_t, std::size_t, std::size_t, Softmax);
  static constexpr Rows kByRows[kQueryRows + 1] = {nullptr,        attend_rows<1>, attend_rows<2>, attend_rows<3>,
                                                   attend_rows<4>, attend_rows<5>, attend_rows<6>};
  kByRows[tile.rows](tile, shape, keys, values, blocks, kv_head, first, last, window, result);
}

static void merge(int rows, std::size_t dim_padded, Softmax running, Softmax partition) {
  for (int r = 0; r < rows; ++r) {
    const float most = running.maximum[r] > partition.maximum[r] ? running.maximum[r] : partition.maximum[r];
    if (most == -__builtin_inff()) continue;
    float pair[16] = {running.maximum[r] - most, partition.maximum[r] - most};
    store(pair, exp2(load<f32x16>(pair)));
    running.maximum[r] = most;
    running.total[r] = running.total[r] * pair[0] + partition.total[r] * pair[1];
    float* kept = running.output + static_cast<std::size_t>(r) * dim_padded;
    const float* added = partition.output + static_cast<std::size_t>(r) * dim_padded;
    for (std::size_t d = 0; d < dim_padded; d += 16) {
      store(kept + d, fma(load<f32x16>(added + d), splat(pair[1]), load<f32x16>(kept + d) * pair[0]));
    }
  }
}

static void normalize(const float* output, float total, std::size_t head_dim, float* y) {
  const float inverse = total == 0.0f ? 0.0f : 1.0f / total;
  std::size_t d = 0;
  for (; d + 16 <= head_dim; d += 16) store(y + d, load<f32x16>(output + d) * inverse);
  for (; d < head_dim; ++d) y[d] = output[d] * inverse;
}

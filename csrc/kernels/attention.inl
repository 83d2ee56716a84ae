// Attention over the paged cache, one partition of keys at a time.

static void pack_query(const float* head, float scale, std::size_t head_dim, std::uint16_t* query) {
  std::size_t i = 0;
  for (; i + kLanes <= head_dim; i += kLanes) store(query + i, float_to_bf16(load<Floats>(head + i) * scale));
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
  const auto word = [](float x) { return static_cast<std::uint32_t>(float_to_bf16(x)); };
  for (std::size_t pair = 0; pair < shape.head_dim / 2; ++pair) {
    store(key_strip + 32 * pair + 2 * t, word(key[2 * pair]) | word(key[2 * pair + 1]) << 16);
  }
  std::uint16_t* target = value_strip + 2 * width * (t / 2) + t % 2;
  for (std::size_t d = 0; d < shape.head_dim; ++d) target[2 * d] = float_to_bf16(value[d]);
}

// How many rows of queries share what is loaded of the keys, and rows and vectors of the values: as many sums as there are registers.
#if defined(__AVX512F__)
constexpr int kScoreRows = 6, kWeighRows = 6, kWeighVectors = 4;
#elif defined(__AVX2__)
constexpr int kScoreRows = 4, kWeighRows = 4, kWeighVectors = 2;
#elif defined(__aarch64__)
constexpr int kScoreRows = 4, kWeighRows = 4, kWeighVectors = 4;
#else
constexpr int kScoreRows = 2, kWeighRows = 2, kWeighVectors = 4;
#endif
constexpr int kStripVectors = kStrip / kLanes;  // that hold one number of each key of a strip

// Scores of one strip of 16 keys, for Rows rows from `query` on.
template <int Rows>
OCTAVO_INLINE void score_strip(const std::uint16_t* query, std::size_t stride, std::size_t width, const std::uint16_t* strip,
                               Floats (*scores)[kStripVectors]) {
  if constexpr (Rows > kScoreRows) {
    constexpr int kHalf = (Rows + 1) / 2;
    score_strip<kHalf>(query, stride, width, strip, scores);
    score_strip<Rows - kHalf>(query + kHalf * stride, stride, width, strip, scores + kHalf);
  } else {
    Floats sums[kSums][Rows][kStripVectors] = {};
    for (int even = 0; even < static_cast<int>(width / 2); even += 2) {
#pragma GCC unroll 2
      for (int k = 0; k < 2; ++k) {
        const std::uint16_t* keys = strip + 32 * (even + k);
        dot_pairs(sums[k % kSums], [&](int v) { return keys + 2 * kLanes * v; },
                  [&](int row) { return query + static_cast<std::size_t>(row) * stride + 2 * (even + k); });
      }
    }
    join_sums(sums, scores);
  }
}

// Σ p · v over the strips of a partition, for kLanes · Vectors dimensions from `dimension` on.
template <int Rows, int Vectors>
OCTAVO_INLINE void weigh_values(const std::uint16_t* const* strips, std::size_t count, const std::uint16_t* weights, std::size_t width,
                                std::size_t dimension, float* output) {
  if constexpr (Rows > kWeighRows) {
    constexpr int kHalf = (Rows + 1) / 2;
    weigh_values<kHalf, Vectors>(strips, count, weights, width, dimension, output);
    weigh_values<Rows - kHalf, Vectors>(strips, count, weights + kHalf * kPartition, width, dimension, output + kHalf * width);
  } else {
    Floats sums[Rows][Vectors] = {};
    for (std::size_t strip = 0; strip < count; ++strip) {
      const std::uint16_t* values = strips[strip] + 2 * dimension;
      const std::uint16_t* weight = weights + strip * kStrip;
      for (std::size_t pair = 0; pair < kStrip / 2; ++pair) {
        dot_pairs(sums, [&](int v) { return values + 2 * width * pair + 2 * kLanes * v; },
                  [&](int row) { return weight + static_cast<std::size_t>(row) * kPartition + 2 * pair; });
      }
    }
#pragma GCC unroll 6
    for (std::size_t r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
      for (std::size_t v = 0; v < Vectors; ++v) store(output + r * width + dimension + kLanes * v, sums[r][v]);
    }
  }
}

// With few rows attention is a pass over memory in pieces of two kilobytes, which the machine's own prefetching never gets into step with.
constexpr int kPrefetchRows = 4;
constexpr std::size_t kStripsAhead = 2;

OCTAVO_INLINE void prefetch_strip(const std::uint16_t* strip, std::size_t words) {
  for (std::size_t word = 0; word < words; word += 32) __builtin_prefetch(strip + word, 0, 3);
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
  Ints lane;
  for (int i = 0; i < kLanes; ++i) lane[i] = i;
  Floats highest[Rows];
  for (int r = 0; r < Rows; ++r) highest[r] = splat(-__builtin_inff());
  std::size_t places[kPartition / kStrip];
  for (std::size_t strip = 0; strip < count; ++strip) {
    const std::size_t token = first + strip * kStrip;
    const auto block = static_cast<std::size_t>(blocks[token / shape.block_size]);
    places[strip] = block * shape.block_words() + kv_head * shape.head_words() + token % shape.block_size / kStrip * shape.strip_words();
    value_strips[strip] = values + places[strip];
  }
  for (std::size_t strip = 0; strip < count; ++strip) {
    const std::size_t token = first + strip * kStrip;
    const std::size_t at = places[strip];
    if constexpr (Rows <= kPrefetchRows) {
      if (strip + kStripsAhead < count) prefetch_strip(keys + places[strip + kStripsAhead], shape.strip_words());
      prefetch_strip(value_strips[strip], shape.strip_words());
    }
    Floats part[Rows][kStripVectors];
    score_strip<Rows>(tile.query, tile.query_stride, width, keys + at, part);
    for (int r = 0; r < Rows; ++r) {
      const Ints own = splat_int(tile.positions[r]);
#pragma GCC unroll 4
      for (int v = 0; v < kStripVectors; ++v) {
        const Ints position = lane + (static_cast<std::int32_t>(token) + v * kLanes);
        Ints seen = position <= own;
        if (window != 0) seen &= position > own - static_cast<std::int32_t>(window);
        const Floats score = seen ? part[r][v] : splat(-__builtin_inff());
        highest[r] = max(highest[r], score);
        store(&scores[r][strip * kStrip + static_cast<std::size_t>(v * kLanes)], score);
      }
    }
  }
  for (int r = 0; r < Rows; ++r) {
    const float most = max_lanes(highest[r]);
    const float anchor = most == -__builtin_inff() ? 0.0f : most;
    Floats total{};
    for (std::size_t i = 0; i < count * kStrip; i += kLanes) {
      const Floats weight = exp2(load<Floats>(&scores[r][i]) - anchor);
      total += weight;
      store(&weights[r][i], float_to_bf16(weight));
    }
    result.maximum[r] = most;
    result.total[r] = sum_lanes(total);
  }
  std::size_t dimension = 0;
  for (; dimension + kLanes * kWeighVectors <= width; dimension += kLanes * kWeighVectors) {
    weigh_values<Rows, kWeighVectors>(value_strips, count, weights[0], width, dimension, result.output);
  }
  for (; dimension < width; dimension += kLanes) weigh_values<Rows, 1>(value_strips, count, weights[0], width, dimension, result.output);
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
    float pair[kLanes] = {running.maximum[r] - most, partition.maximum[r] - most};
    store(pair, exp2(load<Floats>(pair)));
    running.maximum[r] = most;
    running.total[r] = running.total[r] * pair[0] + partition.total[r] * pair[1];
    float* kept = running.output + static_cast<std::size_t>(r) * dim_padded;
    const float* added = partition.output + static_cast<std::size_t>(r) * dim_padded;
    for (std::size_t d = 0; d < dim_padded; d += kLanes) {
      store(kept + d, fma(load<Floats>(added + d), splat(pair[1]), load<Floats>(kept + d) * pair[0]));
    }
  }
}

static void normalize(const float* output, float total, std::size_t head_dim, float* y) {
  const float inverse = total == 0.0f ? 0.0f : 1.0f / total;
  std::size_t d = 0;
  for (; d + kLanes <= head_dim; d += kLanes) store(y + d, load<Floats>(output + d) * inverse);
  for (; d < head_dim; ++d) y[d] = output[d] * inverse;
}

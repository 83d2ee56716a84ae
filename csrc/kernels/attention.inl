// Attention over the paged cache, one partition of keys at a time.

template <CacheType Type>
static void pack_query(const float* head, float scale, const CacheShape& shape, std::uint8_t* query) {
  alignas(64) float space[kMostHeadDim];
  const std::size_t width = shape.dim_padded();
  for (std::size_t i = shape.head_dim; i < width; ++i) space[i] = 0.0f;
  std::size_t d = 0;
  for (; d + kLanes <= shape.head_dim; d += kLanes) store(space + d, load<Floats>(head + d) * scale);
  for (; d < shape.head_dim; ++d) space[d] = head[d] * scale;
  if constexpr (Type == CacheType::kInt8) {
    constexpr float kLargest = 16383.0f;
    const Range range = range_of(space, width);
    const float inverse = inverse_of(range, kLargest), unit = (inverse != 0.0f ? range.most / kLargest : 0.0f) + range.poison;
    for (std::size_t i = 0; i < width; i += kLanes) store(query + 2 * i, narrow((Words)whole_of(load<Floats>(space + i), inverse) & 0xffffu));
    __builtin_memcpy(query + 2 * width, &unit, sizeof(unit));
  } else if constexpr (cell_values(Type) == 2) {
    for (std::size_t i = 0; i < width; i += kLanes) store(query + 2 * i, float_to_bf16(load<Floats>(space + i)));
  } else {
    __builtin_memcpy(query, space, width * sizeof(float));
  }
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
constexpr std::size_t kStrips = kPartition / kStrip;

// How many strips `rows` rows are multiplied with at a time: a sum is one chain, and enough chains must be under way.
constexpr int strips_beside(int rows) { return kLanes < 16 ? 1 : rows <= 4 ? 4 : 2; }

template <CacheType Type>
struct SumOf {
  using Sum = Floats;
};
template <>
struct SumOf<CacheType::kInt8> {
  using Sum = Ints;
};

// Keys that are worked on together: what of them lies where.
struct Part {
  const CacheShape& shape;
  std::size_t first, window;
  float softcap;
  std::size_t count;  // strips
  const std::uint8_t* strips[kStrips];
};

// Strips that are asked for in the order of their addresses, a little with each step of the work on those before them. With few rows attention
// is a pass over memory in pieces of some kilobytes, which the machine's own prefetching never gets into step with.
struct Ahead {
  std::size_t bytes;  // of a strip
  std::size_t count = 0;
  const std::uint8_t* strips[kStrips] = {};
  std::size_t strip = 0, at = 0;

  // The next Bytes bytes, in whole lines: into the second-level cache, for which more requests can be under way than for the first.
  template <std::size_t Bytes>
  OCTAVO_MEMBER void ask() {
    if (strip == count) return;
    const std::uint8_t* here = strips[strip] + at;
#pragma GCC unroll 16
    for (std::size_t line = 0; line < Bytes; line += 64) __builtin_prefetch(here + line, 0, 2);
    at += (Bytes + 63) / 64 * 64;
    if (at < bytes) return;
    at = 0;
    ++strip;
  }

  // All that is left.
  void ask_all() {
    while (strip < count) ask<64>();
  }
};

constexpr int kPrefetchRows = 4;

// Adds the products of a cell in each lane of Vectors vectors, which `lanes(v)` finds, and a cell of each row, at `own(r)`.
template <CacheType Type, int Rows, int Vectors, typename Lanes, typename Own>
OCTAVO_INLINE void dot_lanes(typename SumOf<Type>::Sum (&sums)[Rows][Vectors], const Lanes& lanes, const Own& own) {
  if constexpr (kLanes > 4) {
    typename Cells<Type>::Lanes loaded[Vectors];
#pragma GCC unroll 4
    for (int v = 0; v < Vectors; ++v) loaded[v] = load_cells<Type>(lanes(v));
#pragma GCC unroll 6
    for (int r = 0; r < Rows; ++r) {
      const auto cell = spread_cell<Type>(own(r));
#pragma GCC unroll 4
      for (int v = 0; v < Vectors; ++v) sums[r][v] = dot_cells(sums[r][v], loaded[v], cell);
    }
  } else {
    // Short vectors are many: their cells would not fit into registers, but those of the rows do.
    typename Cells<Type>::Lanes cells[Rows];
#pragma GCC unroll 4
    for (int r = 0; r < Rows; ++r) cells[r] = spread_cell<Type>(own(r));
#pragma GCC unroll 4
    for (int v = 0; v < Vectors; ++v) {
      const auto here = load_cells<Type>(lanes(v));
#pragma GCC unroll 4
      for (int r = 0; r < Rows; ++r) sums[r][v] = dot_cells(sums[r][v], here, cells[r]);
    }
  }
}

// Products of Rows queries from `query` on and the keys of Strips strips.
template <CacheType Type, int Rows, int Strips>
OCTAVO_INLINE void score_strips(const CacheShape& shape, const std::uint8_t* query, const std::uint8_t* const* strips, Ahead& ahead,
                                typename SumOf<Type>::Sum (*products)[Strips * kStripVectors]) {
  const std::size_t stride = shape.query_bytes();
  if constexpr (Rows > kScoreRows) {
    constexpr int kHalf = (Rows + 1) / 2;
    score_strips<Type, kHalf, Strips>(shape, query, strips, ahead, products);
    score_strips<Type, Rows - kHalf, Strips>(shape, query + kHalf * stride, strips, ahead, products + kHalf);
  } else {
    typename SumOf<Type>::Sum sums[Rows][Strips * kStripVectors] = {};
    Rows6<std::uint8_t> own(query, stride, Rows);
    std::size_t at = 0;
    for (std::size_t cells = shape.dim_padded() / cell_values(Type); cells != 0; cells -= 2) {
      if constexpr (Rows <= kPrefetchRows) ahead.ask<Strips * 2 * kStrip * cell_bytes(Type)>();
#pragma GCC unroll 2
      for (std::size_t k = 0; k < 2; ++k) {
        dot_lanes<Type>(
            sums,
            [&](int v) { return strips[v / kStripVectors] + at + (kStrip * k + static_cast<std::size_t>(v % kStripVectors * kLanes)) * cell_bytes(Type); },
            [&](int row) { return own.at(row) + 4 * k; });
      }
      at += 2 * kStrip * cell_bytes(Type);
      own.advance(8);
    }
#pragma GCC unroll 6
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < Strips * kStripVectors; ++v) products[r][v] = sums[r][v];
    }
  }
}

// Whether the query at `position` sees the key at `token`.
template <typename Position>
OCTAVO_INLINE auto sees(Position position, Position token, std::size_t window) {
  const auto before = token <= position;
  return window == 0 ? before : before & (token > position - static_cast<std::int32_t>(window));
}

OCTAVO_INLINE Ints lane_numbers() {
  Ints lane;
  for (int i = 0; i < kLanes; ++i) lane[i] = i;
  return lane;
}

// Bits of the strip's tokens whose key (side 0) or value (side 1) is none, in fp8.
OCTAVO_INLINE std::uint32_t bits_of_none(const CacheShape& shape, const std::uint8_t* strip, std::size_t side) {
  std::uint32_t bits;
  __builtin_memcpy(&bits, strip + 2 * shape.side_bytes() + 4 * side, sizeof(bits));
  return bits;
}

// NaN in the lanes whose bit is set.
OCTAVO_INLINE Floats poison_lanes(std::uint32_t bits) {
  return (splat_int(static_cast<std::int32_t>(bits)) >> lane_numbers() & 1) != 0 ? splat(__builtin_nanf("")) : Floats{};
}

// Scores of the strips from `strip` on, masked, into `scores`.
template <CacheType Type, int Rows, int Strips>
OCTAVO_INLINE void score_part(const Part& part, const QueryTile& tile, Ahead& ahead, std::size_t strip, float (*scores)[kPartition], Floats* highest) {
  const CacheShape& shape = part.shape;
  const std::size_t side = shape.side_bytes();
  typename SumOf<Type>::Sum products[Rows][Strips * kStripVectors];
  score_strips<Type, Rows, Strips>(shape, tile.query, part.strips + strip, ahead, products);
  const std::int32_t lowest = tile.positions[0], last = tile.positions[Rows - 1], window = static_cast<std::int32_t>(part.window);
#pragma GCC unroll 4
  for (int s = 0; s < Strips; ++s) {
    const std::size_t place = strip + static_cast<std::size_t>(s);
    const auto token = static_cast<std::int32_t>(part.first + place * kStrip);
    const bool all_seen = token + kStrip - 1 <= lowest && (window == 0 || token > last - window);
    [[maybe_unused]] std::uint32_t none = 0;
    if constexpr (Type == CacheType::kFp8) none = bits_of_none(shape, part.strips[place], 0);
#pragma GCC unroll 6
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < kStripVectors; ++v) {
        Floats score;
        if constexpr (Type == CacheType::kInt8) {
          float unit;
          __builtin_memcpy(&unit, tile.query + static_cast<std::size_t>(r) * shape.query_bytes() + 2 * shape.dim_padded(), sizeof(unit));
          const auto scale = load<Floats>(part.strips[place] + 2 * side + 4 * v * kLanes);
          score = to_float(products[r][s * kStripVectors + v]) * (scale * unit);
        } else {
          score = products[r][s * kStripVectors + v];
          if constexpr (kUnit<Type> != 1.0f) score *= kUnit<Type>;
        }
        if constexpr (Type == CacheType::kFp8) {
          if (none != 0) score += poison_lanes(none >> (v * kLanes));
        }
        if (!all_seen) {
          const Ints position = lane_numbers() + (token + v * kLanes);
          score = sees(splat_int(tile.positions[r]), position, part.window) ? score : splat(-__builtin_inff());
        }
        highest[r] = max(highest[r], score);
        store(&scores[r][place * kStrip + static_cast<std::size_t>(v * kLanes)], score);
      }
    }
  }
}

template <CacheType Type, int Rows>
OCTAVO_INLINE void score_all(const Part& part, const QueryTile& tile, Ahead& ahead, float (*scores)[kPartition], Floats* highest) {
  constexpr int kBeside = strips_beside(Rows);
  std::size_t strip = 0;
  for (; strip + kBeside <= part.count; strip += kBeside) score_part<Type, Rows, kBeside>(part, tile, ahead, strip, scores, highest);
  for (; strip < part.count; ++strip) score_part<Type, Rows, 1>(part, tile, ahead, strip, scores, highest);
}

// Caps the scores of a row that are not masked; the result has the highest of each lane.
OCTAVO_INLINE Floats cap_scores(const Part& part, float* scores) {
  // The scores are s · log2(e), and so is the cap.
  const float twice = 2.8853900817779268f / part.softcap;
  Floats highest = splat(-__builtin_inff());
  for (std::size_t i = 0; i < part.count * kStrip; i += kLanes) {
    const Floats score = load<Floats>(scores + i), masked = splat(-__builtin_inff());
    const Floats capped = score == masked ? masked : cap_at(score, part.softcap, twice);
    highest = max(highest, capped);
    store(scores + i, capped);
  }
  return highest;
}

// The weights of a row, as they multiply the values: 4 bytes for each cell of tokens.
template <CacheType Type>
struct Weights {
  alignas(64) std::uint8_t cells[kPartition * 4 / cell_values(Type)];
  float unit;  // what the products are to be multiplied with
};

OCTAVO_INLINE Halves weight_to_bf16(Floats weight) {
#if defined(__AVX512BF16__)
  return (Halves)_mm512_cvtneps_pbh((__m512)weight);  // takes what is below 2^-126 for 0, as which such weights come
#else
  return float_to_bf16(weight);
#endif
}

// Scores to weights, 2 to the power of how far they are above `anchor`; the result is the sum. In a Careful row values that it does not see
// may be no numbers.
template <CacheType Type, bool Careful>
OCTAVO_INLINE float weigh_scores(const Part& part, std::int32_t position, float anchor, float* scores, Weights<Type>& weights) {
  const CacheShape& shape = part.shape;
  const std::size_t count = part.count * kStrip;
  Floats total{};
  [[maybe_unused]] Floats most{}, poison{};
  for (std::size_t i = 0; i < count; i += kLanes) {
    Floats weight = exp2(load<Floats>(scores + i) - anchor);
    total += weight;
    const std::uint8_t* strip = part.strips[i / kStrip];
    if constexpr (Type == CacheType::kInt8 || Type == CacheType::kFp8) {
      Floats scaled = weight;
      if constexpr (Type == CacheType::kInt8) {
        scaled = weight * load<Floats>(strip + 2 * shape.side_bytes() + 64 + 4 * (i % kStrip));
      } else {
        const std::uint32_t none = bits_of_none(shape, strip, 1);
        if (none != 0) scaled += poison_lanes(none >> (i % kStrip));
      }
      if constexpr (Careful) {
        const Ints token = lane_numbers() + static_cast<std::int32_t>(part.first + i);
        scaled = sees(splat_int(position), token, part.window) ? scaled : Floats{};
      }
      weight = scaled;
    }
    if constexpr (Type == CacheType::kInt8) {
      most = max(most, weight);
      poison += weight - weight;
      store(scores + i, weight);
    } else if constexpr (cell_values(Type) == 2) {
      store(weights.cells + 2 * i, weight_to_bf16(weight));
    } else {
      store(weights.cells + 4 * i, weight);
    }
  }
  weights.unit = kUnit<Type>;
  if constexpr (Type == CacheType::kInt8) {
    // A whole partition's sum stays within 32 bits: 256 · 32767 · 127 is below 2^31.
    constexpr float kLargest = 32767.0f;
    const Range range{max_lanes(most), sum_lanes(poison)};
    const float inverse = inverse_of(range, kLargest);
    for (std::size_t i = 0; i < count; i += kLanes) {
      store(weights.cells + 2 * i, narrow((Words)whole_of(load<Floats>(scores + i), inverse)));
    }
    weights.unit = (inverse != 0.0f ? range.most / kLargest : 0.0f) + range.poison;
  }
  return sum_lanes(total);
}

// Clears what lies in a step's cells of tokens that the row does not see.
template <CacheType Type, int Vectors>
OCTAVO_INLINE const std::uint8_t* cleared_cells(const Part& part, std::int32_t position, std::size_t token, const std::uint8_t* cells,
                                                std::uint8_t* space) {
  constexpr std::size_t kValues = cell_values(Type);
  __builtin_memcpy(space, cells, static_cast<std::size_t>(Vectors * kLanes) * cell_bytes(Type));
  for (std::size_t i = 0; i < kValues; ++i) {
    if (sees(position, static_cast<std::int32_t>(token + i), part.window)) continue;
    for (std::size_t lane = 0; lane < Vectors * kLanes; ++lane) {
      __builtin_memset(space + (lane * kValues + i) * value_bytes(Type), 0, value_bytes(Type));
    }
  }
  return space;
}

// Σ p · v over the strips of a partition, for kLanes · Vectors dimensions from `dimension` on.
template <CacheType Type, int Rows, int Vectors, bool Careful>
OCTAVO_INLINE void weigh_values(const Part& part, Ahead& ahead, const Weights<Type>* weights, std::int32_t position, std::size_t dimension, float* output) {
  const std::size_t width = part.shape.dim_padded();
  if constexpr (Rows > kWeighRows) {
    constexpr int kHalf = (Rows + 1) / 2;
    weigh_values<Type, kHalf, Vectors, Careful>(part, ahead, weights, position, dimension, output);
    weigh_values<Type, Rows - kHalf, Vectors, Careful>(part, ahead, weights + kHalf, position, dimension, output + kHalf * width);
  } else {
    constexpr std::size_t kValues = cell_values(Type), kCell = cell_bytes(Type), kSteps = kStrip / kValues;
    typename SumOf<Type>::Sum sums[Rows][Vectors] = {};
    for (std::size_t strip = 0; strip < part.count; ++strip) {
      const std::uint8_t* values = part.strips[strip] + part.shape.side_bytes() + dimension * kCell;
      for (std::size_t step = 0; step < kSteps; ++step) {
        const std::uint8_t* cells = values + step * width * kCell;
        if constexpr (Rows <= kPrefetchRows) {
          ahead.ask<Vectors * kLanes * kCell>();
        }
        [[maybe_unused]] alignas(64) std::uint8_t space[Vectors * kLanes * kCell];
        if constexpr (Careful) cells = cleared_cells<Type, Vectors>(part, position, part.first + strip * kStrip + step * kValues, cells, space);
        dot_lanes<Type>(
            sums, [&](int v) { return cells + static_cast<std::size_t>(v * kLanes) * kCell; },
            [&](int row) { return weights[row].cells + 4 * (strip * kSteps + step); });
      }
    }
#pragma GCC unroll 6
    for (std::size_t r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
      for (std::size_t v = 0; v < Vectors; ++v) {
        Floats sum;
        if constexpr (Type == CacheType::kInt8) {
          sum = to_float(sums[r][v]) * weights[r].unit;
        } else {
          sum = sums[r][v];
          if constexpr (kUnit<Type> != 1.0f) sum *= kUnit<Type>;
        }
        store(output + r * width + dimension + kLanes * v, sum);
      }
    }
  }
}

// The result says whether all of it are numbers.
template <CacheType Type, int Rows, bool Careful>
static bool attend_rows(const Part& part, Ahead& ahead, const QueryTile& tile, Softmax result) {
  const std::size_t width = part.shape.dim_padded();
  alignas(64) float scores[Rows][kPartition];
  Weights<Type> weights[Rows];
  Floats highest[Rows];
  for (int r = 0; r < Rows; ++r) highest[r] = splat(-__builtin_inff());
  score_all<Type, Rows>(part, tile, ahead, scores, highest);
  for (int r = 0; r < Rows; ++r) {
    if (part.softcap != 0.0f) highest[r] = cap_scores(part, scores[r]);
    const float most = max_lanes(highest[r]);
    const float anchor = most == -__builtin_inff() ? 0.0f : most;
    result.maximum[r] = most;
    result.total[r] = weigh_scores<Type, Careful>(part, tile.positions[r], anchor, scores[r], weights[r]);
  }
  std::size_t dimension = 0;
  for (; dimension + kLanes * kWeighVectors <= width; dimension += kLanes * kWeighVectors) {
    weigh_values<Type, Rows, kWeighVectors, Careful>(part, ahead, weights, tile.positions[0], dimension, result.output);
  }
  for (; dimension < width; dimension += kLanes) weigh_values<Type, Rows, 1, Careful>(part, ahead, weights, tile.positions[0], dimension, result.output);
  Floats poison{};
  for (std::size_t i = 0; i < Rows * width; i += kLanes) {
    const Floats y = load<Floats>(result.output + i);
    poison += y - y;
  }
  return sum_lanes(poison) == 0.0f;
}

// Where the strips of some keys lie; the result is how many there are.
OCTAVO_INLINE std::size_t find_strips(const CacheShape& shape, const CacheBlocks<const std::uint8_t>& cache, const KeyRange& keys,
                                      const std::uint8_t** strips) {
  const std::size_t count = (keys.last - keys.first + kStrip - 1) / kStrip;
  if (count == 0) return 0;
  const std::size_t in_block = shape.block_size / kStrip, strip_bytes = shape.strip_bytes(), head = keys.kv_head * shape.head_bytes();
  std::size_t block = keys.first / shape.block_size, inside = keys.first % shape.block_size / kStrip;
  for (std::size_t strip = 0; strip < count; ++strip) {
    strips[strip] = cache.block(static_cast<std::size_t>(keys.blocks[block])) + head + inside * strip_bytes;
    if (++inside < in_block) continue;
    inside = 0;
    ++block;
  }
  return count;
}

template <CacheType Type>
static void attend(const QueryTile& tile, const CacheShape& shape, const CacheBlocks<const std::uint8_t>& cache, const KeyPass& keys,
                   const ScoreRule& rule, Softmax result) {
  using Rows = bool (*)(const Part&, Ahead&, const QueryTile&, Softmax);
  static constexpr Rows kByRows[kQueryRows + 1] = {nullptr,
                                                   attend_rows<Type, 1, false>,
                                                   attend_rows<Type, 2, false>,
                                                   attend_rows<Type, 3, false>,
                                                   attend_rows<Type, 4, false>,
                                                   attend_rows<Type, 5, false>,
                                                   attend_rows<Type, 6, false>};
  Part part{shape, keys.now.first, rule.window, rule.softcap, 0, {}};
  part.count = find_strips(shape, cache, keys.now, part.strips);
  Ahead ahead{shape.strip_bytes()};
  if (tile.rows <= kPrefetchRows) {
    if (keys.cold) {
      ahead.count = part.count;
      __builtin_memcpy(ahead.strips, part.strips, sizeof(part.strips));
      ahead.ask_all();
      ahead = Ahead{shape.strip_bytes()};
    }
    ahead.count = find_strips(shape, cache, keys.next, ahead.strips);
  }
  const bool sound = kByRows[tile.rows](part, ahead, tile, result);
  ahead.ask_all();
  if (sound) return;
  // Somewhere is a number that is none. Weights of 0 don't keep it from rows that do not see it, so each is computed again without what it
  // does not see: the same sums, where all are numbers.
  for (int r = 0; r < tile.rows; ++r) {
    const auto row = static_cast<std::size_t>(r);
    const QueryTile own{tile.query + row * shape.query_bytes(), tile.positions + r, 1};
    attend_rows<Type, 1, true>(part, ahead, own, {result.maximum + r, result.total + r, result.output + row * shape.dim_padded()});
  }
}

static void merge(int rows, std::size_t dim_padded, Softmax running, Softmax partition) {
  for (int r = 0; r < rows; ++r) {
    if (partition.maximum[r] == -__builtin_inff() && partition.total[r] == 0.0f) continue;
    float* kept = running.output + static_cast<std::size_t>(r) * dim_padded;
    const float* added = partition.output + static_cast<std::size_t>(r) * dim_padded;
    if (running.maximum[r] == -__builtin_inff() && running.total[r] == 0.0f) {
      running.maximum[r] = partition.maximum[r];
      running.total[r] = partition.total[r];
      __builtin_memcpy(kept, added, dim_padded * sizeof(float));
      continue;
    }
    const float most = running.maximum[r] > partition.maximum[r] ? running.maximum[r] : partition.maximum[r];
    float pair[kLanes] = {running.maximum[r] - most, partition.maximum[r] - most};
    store(pair, exp2(load<Floats>(pair)));
    running.maximum[r] = most;
    running.total[r] = running.total[r] * pair[0] + partition.total[r] * pair[1];
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

template <CacheType Type>
constexpr AttentionKernels kAttention = {pack_query<Type>, write_cache<Type>, attend<Type>};

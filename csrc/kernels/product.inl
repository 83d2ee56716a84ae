// Products of packed weights. A tile is a few rows by one panel of 16 outputs, or by two: lanes hold outputs, so nothing is ever summed across
// lanes, and an output's sum runs over the groups in order, whatever other rows and panels share its tile.

// The most rows of a tile, and how many panels side by side it has when there are rows enough to share: as many sums as there are registers.
// What one panel leaves in the way of loads per product, two panels halve.
#if defined(__AVX512F__)
constexpr int kTileRows = 6, kTilePanels = 2;
#elif defined(__AVX2__) || defined(__aarch64__)
constexpr int kTileRows = 4, kTilePanels = 1;
#else
constexpr int kTileRows = 2, kTilePanels = 1;
#endif

// With fewer rows a product is bound by memory, which streams one panel after another best.
constexpr std::size_t kFewRows = 4;

struct TileOf {
  const PackedLinear& weight;
  const Activations& activations;
  std::size_t row, panel;
  bool first;  // whether it is the first to read its panels
};

// Asks for the cell that lies some kilobytes ahead: the machine's own prefetching stops at every page. Where two panels are read side by
// side, what follows the first is the second, so that one looks beyond it.
//
// Asking for the second-level cache costs a later wait for each line, and keeps more lines on their way than asking for the first. It pays
// where many rows hide the wait, and with few where a row has little to do for a line: all of it as measured on Zen 4.
template <Layout Packed, int Rows, int Panels>
OCTAVO_INLINE void prefetch_cells(const std::uint8_t* cell, std::size_t panel_bytes, std::size_t left) {
  constexpr std::size_t kBytes = cell_bytes(Packed);
  constexpr bool kStreams = Panels == 1 && (Packed == Layout::kBf16 || (Packed == Layout::kInt8 && Rows == 1));
  constexpr std::size_t kAhead = Panels > 1 ? 8192 : kStreams ? 2048 : 4096;
  constexpr int kCache = Panels > 1 || kStreams ? 2 : 3;  // as __builtin_prefetch counts: 3 is the first level
  const std::size_t ahead = left > kAhead ? kAhead : kAhead + (Panels - 1) * panel_bytes;
#pragma GCC unroll 2
  for (std::size_t p = 0; p < Panels; ++p) {
#pragma GCC unroll 16
    for (std::size_t line = 0; line < kBytes; line += 64) __builtin_prefetch(cell + p * panel_bytes + ahead + line, 0, kCache);
  }
}

// Where the sums of a tile lie: registers where they fit, else the stack.
template <int Rows, int Panels>
using Sums = Floats[Rows][Panels * kParts];

template <Layout Packed, int Rows, int Panels>
OCTAVO_INLINE void tile_integer(const TileOf& tile, Sums<Rows, Panels>& y) {
  constexpr std::size_t kCell = cell_bytes(Packed);
  constexpr std::size_t kScales = Packed == Layout::kInt4 ? 256 : 512;
  const std::size_t count = groups(tile.weight.inner), panel_bytes = count * kCell, at = tile.row * count;
  const std::uint8_t* cell = tile.weight.data + panel_offset(tile.weight, tile.panel);
  Bytes6 x(static_cast<const std::int8_t*>(tile.activations.values) + at * kGroup, count * kGroup, Rows);
  Rows6<float> scales(tile.activations.scales + at, count, Rows), totals(tile.activations.sums + at, count, Rows);
  Rows6<std::int32_t> offsets(tile.activations.offsets + at, count, Rows);
  for (std::size_t left = panel_bytes; left != 0; left -= kCell) {
    if (tile.first) prefetch_cells<Packed, Rows, Panels>(cell, panel_bytes, left);
    Ints sums[Rows][Panels * kParts];
    if constexpr (Packed == Layout::kInt4) {
      dot_int4<Rows, Panels>(cell, panel_bytes, x, sums);
    } else {
      dot_int8<Rows, Panels>(cell, panel_bytes, x, offsets, sums);
    }
#pragma GCC unroll 4
    for (int p = 0; p < Panels * kParts; ++p) {
      const std::uint8_t* halves = cell + static_cast<std::size_t>(p / kParts) * panel_bytes + kScales + p % kParts * 2 * kLanes;
      const Floats scale = half_to_float(halves);
      Floats minimum{};
      if constexpr (Packed == Layout::kInt4) minimum = half_to_float(halves + 32);
#pragma GCC unroll 6
      for (int r = 0; r < Rows; ++r) {
        if constexpr (Packed == Layout::kInt4) y[r][p] = fma(minimum, splat(*totals.at(r)), y[r][p]);
        y[r][p] = fma(to_float(sums[r][p]), scale * *scales.at(r), y[r][p]);
      }
    }
    cell += kCell;
    x.advance(kGroup);
    scales.advance(1);
    if constexpr (Packed == Layout::kInt4) {
      totals.advance(1);
    } else {
      offsets.advance(1);
    }
  }
}

// A pair of bfloat16 in every lane, ready to be multiplied.
struct PairOf {
  PairOf() = default;
#if defined(__AVX512BF16__)
  Words both;

  OCTAVO_MEMBER explicit PairOf(Words pairs) : both(pairs) {}
#else
  Floats first, second;

  OCTAVO_MEMBER explicit PairOf(Words pairs) : first((Floats)(pairs << 16)), second((Floats)(pairs & 0xffff0000u)) {}
  OCTAVO_MEMBER PairOf(Floats first_, Floats second_) : first(first_), second(second_) {}
#endif
};

// Adds the products of two neighbouring inner values, the first one first.
OCTAVO_INLINE Floats dot_pair(Floats sum, const PairOf& weights, const PairOf& pair) {
#if defined(__AVX512BF16__)
  return (Floats)_mm512_dpbf16_ps((__m512)sum, (__m512bh)weights.both, (__m512bh)pair.both);
#else
  return fma(weights.second, pair.second, fma(weights.first, pair.first, sum));
#endif
}

// Adds the products of a pair of bfloat16 in each lane of Vectors vectors, which `lanes(v)` finds, and a pair of each row, at `pair(r)`.
template <int Rows, int Vectors, typename Lanes, typename Pair>
OCTAVO_INLINE void dot_pairs(Floats (&sums)[Rows][Vectors], const Lanes& lanes, const Pair& pair) {
  if constexpr (kLanes > 4) {
    Words loaded[Vectors];
#pragma GCC unroll 4
    for (int v = 0; v < Vectors; ++v) loaded[v] = load<Words>(lanes(v));
#pragma GCC unroll 6
    for (int r = 0; r < Rows; ++r) {
      const PairOf own((Words)spread(pair(r)));
#pragma GCC unroll 4
      for (int v = 0; v < Vectors; ++v) sums[r][v] = dot_pair(sums[r][v], PairOf(loaded[v]), own);
    }
  } else {
    // Short vectors are many: their pairs would not fit into registers, but those of the rows do.
    Words own[Rows];
#pragma GCC unroll 4
    for (int r = 0; r < Rows; ++r) own[r] = (Words)spread(pair(r));
#pragma GCC unroll 4
    for (int v = 0; v < Vectors; ++v) {
      const PairOf here(load<Words>(lanes(v)));
#pragma GCC unroll 4
      for (int r = 0; r < Rows; ++r) sums[r][v] = dot_pair(sums[r][v], here, PairOf(own[r]));
    }
  }
}

// Where registers allow, an output has two sums, of even and of odd pairs: one row alone is not to be bound by the latency of its sums.
constexpr int kSums = kLanes == 16 ? 2 : 1;

template <int Rows, int Vectors>
OCTAVO_INLINE void join_sums(const Floats (&sums)[kSums][Rows][Vectors], Floats (*joined)[Vectors]) {
#pragma GCC unroll 6
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < Vectors; ++v) joined[r][v] = kSums == 2 ? sums[0][r][v] + sums[kSums - 1][r][v] : sums[0][r][v];
  }
}

template <int Rows, int Panels>
OCTAVO_INLINE void tile_bf16(const TileOf& tile, Sums<Rows, Panels>& y) {
  constexpr std::size_t kCell = cell_bytes(Layout::kBf16);
  const std::size_t count = groups(tile.weight.inner), panel_bytes = count * kCell, stride = count * kGroup;
  const std::uint8_t* cell = tile.weight.data + panel_offset(tile.weight, tile.panel);
  Rows6<std::uint16_t> x(static_cast<const std::uint16_t*>(tile.activations.values) + tile.row * stride, stride, Rows);
  Floats sums[kSums][Rows][Panels * kParts] = {};
  for (std::size_t left = panel_bytes; left != 0; left -= kCell) {
    if (tile.first) prefetch_cells<Layout::kBf16, Rows, Panels>(cell, panel_bytes, left);
#pragma GCC unroll kLanes
    for (int pair = 0; pair < kGroup / 2; ++pair) {
      dot_pairs(sums[pair % kSums], [&](int part) { return part_of(cell, panel_bytes, part) + 64 * pair; }, [&](int row) { return x.at(row) + 2 * pair; });
    }
    cell += kCell;
    x.advance(kGroup);
  }
  join_sums(sums, y);
}

// One panel's outputs of one row.
OCTAVO_INLINE void store_panel(float* target, const Floats* parts, std::size_t outputs, const float* bias, Store how) {
  if (outputs >= kPanel) {
#pragma GCC unroll 4
    for (int p = 0; p < kParts; ++p) {
      Floats value = parts[p];
      if (bias != nullptr) value += load<Floats>(bias + p * kLanes);
      if (how == Store::kAdd) value += load<Floats>(target + p * kLanes);
      store(target + p * kLanes, value);
    }
    return;
  }
  float values[kPanel];
  for (int p = 0; p < kParts; ++p) store(values + p * kLanes, parts[p]);
  for (std::size_t lane = 0; lane < outputs; ++lane) {
    const float biased = bias != nullptr ? values[lane] + bias[lane] : values[lane];
    target[lane] = how == Store::kAdd ? biased + target[lane] : biased;
  }
}

template <Layout Packed, int Rows, int Panels>
static void multiply_tile(const TileOf& tile, Store how, float* y, std::size_t stride) {
  if constexpr (Panels > 1) {
    // Many rows of results are seldom in the nearest cache, where one store after another would wait for its line.
    for (std::size_t r = 0; r < Rows; ++r) {
#pragma GCC unroll 2
      for (std::size_t p = 0; p < Panels; ++p) __builtin_prefetch(y + r * stride + p * kPanel, 1, 3);
    }
  }
  Sums<Rows, Panels> sums = {};
  if constexpr (Packed == Layout::kBf16) {
    tile_bf16<Rows, Panels>(tile, sums);
  } else {
    tile_integer<Packed, Rows, Panels>(tile, sums);
  }
  for (std::size_t p = 0; p < Panels; ++p) {
    const std::size_t output = (tile.panel + p) * kPanel, outputs = tile.weight.outputs - output;
    const float* bias = tile.weight.bias != nullptr ? tile.weight.bias + output : nullptr;
    for (std::size_t r = 0; r < Rows; ++r) store_panel(y + r * stride + p * kPanel, &sums[r][p * kParts], outputs, bias, how);
  }
}

using Tile = void (*)(const TileOf&, Store, float*, std::size_t);

template <Layout Packed, int Rows, int Panels>
constexpr Tile tile_or_none() {
  if constexpr (Rows <= kTileRows && Panels <= kTilePanels) return multiply_tile<Packed, Rows, Panels>;
  return nullptr;
}

template <Layout Packed, int Panels>
struct Tiles {
  static constexpr Tile of_rows[7] = {nullptr,
                                      tile_or_none<Packed, 1, Panels>(),
                                      tile_or_none<Packed, 2, Panels>(),
                                      tile_or_none<Packed, 3, Panels>(),
                                      tile_or_none<Packed, 4, Panels>(),
                                      tile_or_none<Packed, 5, Panels>(),
                                      tile_or_none<Packed, 6, Panels>()};
};

template <Layout Packed>
static void product_of(const PackedLinear& weight, const Activations& activations, std::size_t row_begin, std::size_t row_end,
                       std::size_t panel_begin, std::size_t panel_end, Store how, float* y, std::size_t stride) {
  const std::size_t rows = row_end - row_begin, tiles = (rows + kTileRows - 1) / kTileRows;
  // Panels stay in the nearest cache while all rows pass over them.
  for (std::size_t panel = panel_begin; panel < panel_end;) {
    const std::size_t width = rows > kFewRows && panel + kTilePanels <= panel_end ? kTilePanels : 1;
    const Tile* of_rows = width == 1 ? Tiles<Packed, 1>::of_rows : Tiles<Packed, kTilePanels>::of_rows;
    std::size_t row = 0;
    for (std::size_t tile = 0; tile < tiles; ++tile) {
      // Tiles as even as can be: one of a single row would be slow.
      const std::size_t own = rows / tiles + (tile < rows % tiles ? 1 : 0);
      const TileOf what{weight, activations, row_begin + row, panel, tile == 0};
      of_rows[own](what, how, y + row * stride + (panel - panel_begin) * kPanel, stride);
      row += own;
    }
    panel += width;
  }
}

static void product(const PackedLinear& weight, const Activations& activations, std::size_t row_begin, std::size_t row_end,
                    std::size_t panel_begin, std::size_t panel_end, Store how, float* y, std::size_t stride) {
  switch (weight.layout) {
    case Layout::kInt4:
      return product_of<Layout::kInt4>(weight, activations, row_begin, row_end, panel_begin, panel_end, how, y, stride);
    case Layout::kInt8:
      return product_of<Layout::kInt8>(weight, activations, row_begin, row_end, panel_begin, panel_end, how, y, stride);
    case Layout::kBf16:
      return product_of<Layout::kBf16>(weight, activations, row_begin, row_end, panel_begin, panel_end, how, y, stride);
  }
}

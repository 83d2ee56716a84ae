// Products of packed weights. A tile is one panel of 16 outputs and up to kRows rows: sixteen lanes hold sixteen outputs, so nothing is ever
// summed across lanes, and a row's sum runs over the groups in order, whatever other rows share the tile.

constexpr int kRows = 12;

#if defined(__AVX512VNNI__)
OCTAVO_INLINE i32x16 dot_bytes(i32x16 sum, i32x16 unsigned_bytes, const std::int8_t* signed_quad) {
  std::int32_t quad;
  __builtin_memcpy(&quad, signed_quad, 4);
  return (i32x16)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)unsigned_bytes, _mm512_set1_epi32(quad));
}
#endif

// Σ of one group: `rows` integer dot products of 32 bytes for 16 outputs.
template <int Rows>
OCTAVO_INLINE void dot_group_int4(const std::uint8_t* cell, const std::int8_t* x, std::size_t stride, i32x16 (&sums)[Rows]) {
#if defined(__AVX512VNNI__)
  for (int row = 0; row < Rows; ++row) sums[row] = i32x16{};
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    const i32x16 packed = load<i32x16>(cell + 64 * j);
    const i32x16 low = packed & 0x0f0f0f0f;
    const i32x16 high = (i32x16)((u32x16)packed >> 4) & 0x0f0f0f0f;
#pragma GCC unroll 12
    for (int row = 0; row < Rows; ++row) sums[row] = dot_bytes(sums[row], low, x + static_cast<std::size_t>(row) * stride + 4 * j);
#pragma GCC unroll 12
    for (int row = 0; row < Rows; ++row) sums[row] = dot_bytes(sums[row], high, x + static_cast<std::size_t>(row) * stride + 16 + 4 * j);
  }
#elif defined(__AVX2__)
  // Products of a nibble and a byte stay below 2^11, so all sixteen pairs of a group fit into 16 bits.
  const __m256i mask = _mm256_set1_epi8(0x0f), ones = _mm256_set1_epi16(1);
  for (int half = 0; half < 2; ++half) {
    __m256i low[4], high[4];
    for (int j = 0; j < 4; ++j) {
      const __m256i packed = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(cell + 64 * j + 32 * half));
      low[j] = _mm256_and_si256(packed, mask);
      high[j] = _mm256_and_si256(_mm256_srli_epi16(packed, 4), mask);
    }
    for (int row = 0; row < Rows; ++row) {
      const std::int8_t* values = x + static_cast<std::size_t>(row) * stride;
      __m256i pairs = _mm256_setzero_si256();
      for (int j = 0; j < 4; ++j) {
        std::int32_t first, second;
        __builtin_memcpy(&first, values + 4 * j, 4);
        __builtin_memcpy(&second, values + 16 + 4 * j, 4);
        pairs = _mm256_add_epi16(pairs, _mm256_maddubs_epi16(low[j], _mm256_set1_epi32(first)));
        pairs = _mm256_add_epi16(pairs, _mm256_maddubs_epi16(high[j], _mm256_set1_epi32(second)));
      }
      const __m256i total = _mm256_madd_epi16(pairs, ones);
      __builtin_memcpy(reinterpret_cast<char*>(&sums[row]) + 32 * half, &total, 32);
    }
  }
#else
  for (int row = 0; row < Rows; ++row) {
    const std::int8_t* values = x + static_cast<std::size_t>(row) * stride;
    std::int32_t lanes[kPanel] = {};
    for (int j = 0; j < 4; ++j) {
      for (int output = 0; output < kPanel; ++output) {
        const std::uint8_t* quad = cell + 64 * j + 4 * output;
        for (int i = 0; i < 4; ++i) lanes[output] += (quad[i] & 15) * values[4 * j + i] + (quad[i] >> 4) * values[16 + 4 * j + i];
      }
    }
    sums[row] = load<i32x16>(lanes);
  }
#endif
}

template <int Rows>
OCTAVO_INLINE void dot_group_int8(const std::uint8_t* cell, const std::int8_t* x, std::size_t stride,
                                  [[maybe_unused]] const std::int32_t* offsets, [[maybe_unused]] std::size_t offset_stride,
                                  i32x16 (&sums)[Rows]) {
#if defined(__AVX512VNNI__)
  // The instruction multiplies unsigned by signed bytes: weights are moved up by 128, and `offsets` take back what that adds.
  const i32x16 flip = splat_int(static_cast<std::int32_t>(0x80808080u));
#pragma GCC unroll 12
  for (int row = 0; row < Rows; ++row) sums[row] = splat_int(offsets[static_cast<std::size_t>(row) * offset_stride]);
#pragma GCC unroll 8
  for (int j = 0; j < 8; ++j) {
    const i32x16 moved = load<i32x16>(cell + 64 * j) ^ flip;
#pragma GCC unroll 12
    for (int row = 0; row < Rows; ++row) sums[row] = dot_bytes(sums[row], moved, x + static_cast<std::size_t>(row) * stride + 4 * j);
  }
#elif defined(__AVX2__)
  const __m256i ones = _mm256_set1_epi16(1);
  for (int half = 0; half < 2; ++half) {
    __m256i totals[Rows];
    for (int row = 0; row < Rows; ++row) totals[row] = _mm256_setzero_si256();
    for (int j = 0; j < 8; ++j) {
      const __m256i weights = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(cell + 64 * j + 32 * half));
      const __m256i magnitudes = _mm256_abs_epi8(weights);
      for (int row = 0; row < Rows; ++row) {
        std::int32_t quad;
        __builtin_memcpy(&quad, x + static_cast<std::size_t>(row) * stride + 4 * j, 4);
        // |w| · (±x) is w · x; 128 · 127 · 2 fits into 16 bits.
        const __m256i signed_x = _mm256_sign_epi8(_mm256_set1_epi32(quad), weights);
        totals[row] = _mm256_add_epi32(totals[row], _mm256_madd_epi16(_mm256_maddubs_epi16(magnitudes, signed_x), ones));
      }
    }
    for (int row = 0; row < Rows; ++row) __builtin_memcpy(reinterpret_cast<char*>(&sums[row]) + 32 * half, &totals[row], 32);
  }
#else
  for (int row = 0; row < Rows; ++row) {
    const std::int8_t* values = x + static_cast<std::size_t>(row) * stride;
    std::int32_t lanes[kPanel] = {};
    for (int j = 0; j < 8; ++j) {
      for (int output = 0; output < kPanel; ++output) {
        for (int i = 0; i < 4; ++i) {
          lanes[output] += static_cast<std::int8_t>(cell[64 * j + 4 * output + i]) * values[4 * j + i];
        }
      }
    }
    sums[row] = load<i32x16>(lanes);
  }
#endif
}

// Asks for the cell that lies some kilobytes ahead: with few rows a product is a pass over memory, and the machine's own prefetching stops at
// every page.
template <std::size_t Bytes>
OCTAVO_INLINE void prefetch_cell(const std::uint8_t* cell) {
  constexpr std::size_t kAhead = 4096;
#pragma GCC unroll 16
  for (std::size_t line = 0; line < Bytes; line += 64) __builtin_prefetch(cell + kAhead + line, 0, 3);
}

template <int Rows>
OCTAVO_INLINE void tile_integer(const PackedLinear& weight, const std::uint8_t* panel, const Activations& activations, std::size_t row,
                                f32x16 (&y)[Rows]) {
  const std::size_t count = groups(weight.inner);
  const std::size_t stride = count * kGroup;
  const auto* x = static_cast<const std::int8_t*>(activations.values) + row * stride;
  const float* scales = activations.scales + row * count;
  const float* totals = activations.sums + row * count;
  const bool nibbles = weight.layout == Layout::kInt4;
  for (int r = 0; r < Rows; ++r) y[r] = f32x16{};
  if (nibbles) {
    for (std::size_t group = 0; group < count; ++group) {
      const std::uint8_t* cell = panel + group * cell_bytes(Layout::kInt4);
      if (Rows <= 2) prefetch_cell<cell_bytes(Layout::kInt4)>(cell);
      i32x16 sums[Rows];
      dot_group_int4<Rows>(cell, x + group * kGroup, stride, sums);
      const f32x16 scale = half_to_float(cell + 256), minimum = half_to_float(cell + 288);
#pragma GCC unroll 12
      for (int r = 0; r < Rows; ++r) {
        const std::size_t at = static_cast<std::size_t>(r) * count + group;
        y[r] = fma(minimum, splat(totals[at]), y[r]);
        y[r] = fma(to_float(sums[r]), scale * scales[at], y[r]);
      }
    }
  } else {
    for (std::size_t group = 0; group < count; ++group) {
      const std::uint8_t* cell = panel + group * cell_bytes(Layout::kInt8);
      if (Rows <= 2) prefetch_cell<cell_bytes(Layout::kInt8)>(cell);
      i32x16 sums[Rows];
      dot_group_int8<Rows>(cell, x + group * kGroup, stride, activations.offsets + row * count + group, count, sums);
      const f32x16 scale = half_to_float(cell + 512);
#pragma GCC unroll 12
      for (int r = 0; r < Rows; ++r) {
        const std::size_t at = static_cast<std::size_t>(r) * count + group;
        y[r] = fma(to_float(sums[r]), scale * scales[at], y[r]);
      }
    }
  }
}

// Adds the products of two neighbouring inner values to `even` (and, where the machine has no instruction for both at once, to `odd`).
OCTAVO_INLINE void dot_pair(f32x16& sum, u32x16 weights, const std::uint16_t* pair) {
  std::uint32_t both;
  __builtin_memcpy(&both, pair, 4);
#if defined(__AVX512BF16__)
  sum = (f32x16)_mm512_dpbf16_ps((__m512)sum, (__m512bh)weights, (__m512bh)_mm512_set1_epi32(static_cast<int>(both)));
#else
  float first, second;
  const std::uint32_t low = both << 16, high = both & 0xffff0000u;
  __builtin_memcpy(&first, &low, 4);
  __builtin_memcpy(&second, &high, 4);
  sum = fma((f32x16)(weights << 16), splat(first), sum);
  sum = fma((f32x16)(weights & 0xffff0000u), splat(second), sum);
#endif
}

template <int Rows>
OCTAVO_INLINE void tile_bf16(const PackedLinear& weight, const std::uint8_t* panel, const Activations& activations, std::size_t row,
                             f32x16 (&y)[Rows]) {
  const std::size_t stride = groups(weight.inner) * kGroup;
  const auto* x = static_cast<const std::uint16_t*>(activations.values) + row * stride;
  // Two sums a row, of even and of odd pairs, so that one row alone is not bound by the latency of its sum.
  f32x16 odd[Rows];
  for (int r = 0; r < Rows; ++r) y[r] = odd[r] = f32x16{};
  for (std::size_t pair = 0; pair < stride / 2; pair += 2) {
    const u32x16 first = load<u32x16>(panel + 64 * pair), second = load<u32x16>(panel + 64 * pair + 64);
#pragma GCC unroll 12
    for (int r = 0; r < Rows; ++r) {
      dot_pair(y[r], first, x + static_cast<std::size_t>(r) * stride + 2 * pair);
      dot_pair(odd[r], second, x + static_cast<std::size_t>(r) * stride + 2 * pair + 2);
    }
  }
  for (int r = 0; r < Rows; ++r) y[r] += odd[r];
}

OCTAVO_INLINE void store_lanes(float* target, f32x16 value, std::size_t lanes, const float* bias, Store how) {
  if (lanes == kPanel) {
    if (bias != nullptr) value += load<f32x16>(bias);
    if (how == Store::kAdd) value += load<f32x16>(target);
    store(target, value);
    return;
  }
  float values[kPanel];
  store(values, value);
  for (std::size_t lane = 0; lane < lanes; ++lane) {
    const float biased = bias != nullptr ? values[lane] + bias[lane] : values[lane];
    target[lane] = how == Store::kAdd ? biased + target[lane] : biased;
  }
}

template <int Rows>
static void tile(const PackedLinear& weight, const Activations& activations, std::size_t row, std::size_t panel, Store how, float* y,
                 std::size_t stride) {
  const std::uint8_t* data = weight.data + panel * groups(weight.inner) * cell_bytes(weight.layout);
  f32x16 sums[Rows];
  if (weight.layout == Layout::kBf16) {
    tile_bf16<Rows>(weight, data, activations, row, sums);
  } else {
    tile_integer<Rows>(weight, data, activations, row, sums);
  }
  const std::size_t output = panel * kPanel;
  const std::size_t lanes = weight.outputs - output < kPanel ? weight.outputs - output : kPanel;
  const float* bias = weight.bias != nullptr ? weight.bias + output : nullptr;
  for (int r = 0; r < Rows; ++r) store_lanes(y + static_cast<std::size_t>(r) * stride, sums[r], lanes, bias, how);
}

using Tile = void (*)(const PackedLinear&, const Activations&, std::size_t, std::size_t, Store, float*, std::size_t);
static constexpr Tile kTiles[kRows + 1] = {nullptr,  tile<1>, tile<2>, tile<3>,  tile<4>,  tile<5>, tile<6>,
                                           tile<7>, tile<8>, tile<9>, tile<10>, tile<11>, tile<12>};

static void product(const PackedLinear& weight, const Activations& activations, std::size_t row_begin, std::size_t row_end,
                    std::size_t panel_begin, std::size_t panel_end, Store how, float* y, std::size_t stride) {
  // A panel stays in the nearest cache while all rows pass over it.
  for (std::size_t panel = panel_begin; panel < panel_end; ++panel) {
    float* target = y + (panel - panel_begin) * kPanel;
    std::size_t row = row_begin;
    for (; row + kRows <= row_end; row += kRows) tile<kRows>(weight, activations, row, panel, how, target + (row - row_begin) * stride, stride);
    if (row < row_end) kTiles[row_end - row](weight, activations, row, panel, how, target + (row - row_begin) * stride, stride);
  }
}

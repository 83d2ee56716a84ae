// The arithmetic, as a table of functions that exists once for each instruction set. Rows, panels and heads are the caller's to divide:
// every function gives an output element the same bits whatever else it is asked to compute beside it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cache.hpp"
#include "kernels/layout.hpp"

namespace octavo {

// What a product does with its results.
enum class Store : int { kAssign = 0, kAdd = 1 };

constexpr std::size_t kPartition = 256;  // keys in a partition: softmax is exact within one, and partitions merge in order
constexpr int kQueryRows = 6;            // most query rows of a tile
constexpr std::size_t kSampleRun = 256;  // values of a row of logits that sampling takes at a time
constexpr int kSampleSets = 16;          // of a run: those whose index is the same modulo 16

// Rows of queries that share a KV head: each row is one head of one token.
struct QueryTile {
  const std::uint8_t* query;      // [rows][query_bytes], scaled by scale · log2(e)
  const std::int32_t* positions;  // [rows], none below the one before
  int rows;
};

// A running softmax: maxima, totals and unnormalised outputs of a tile's rows.
struct Softmax {
  float* maximum;  // [rows]
  float* total;    // [rows]
  float* output;   // [rows][dim_padded]
};

// Keys [first, last) of a sequence for one KV head; `blocks` is the sequence's block table.
struct KeyRange {
  const std::int32_t* blocks;
  std::size_t kv_head;
  std::size_t first, last;
};

// What a thread attends over: the keys of one partition, and those of the one after it, if there is any, so that their memory is asked for in
// time. Nothing has asked for that of a `cold` one.
struct KeyPass {
  KeyRange now, next;
  bool cold;
};

// What becomes of scores. A query sees `window` keys, itself included; 0 for all. A score x becomes cap · tanh(x / cap), with `softcap` that cap
// in the units of the scores, which are logarithms to base 2; 0 for none.
struct ScoreRule {
  std::size_t window = 0;
  float softcap = 0.0f;
};

// Attention over a cache of one type.
struct AttentionKernels {
  // One head of a token's query: scaled, and in the form that multiplies the cache's keys, padded with zeros. For bfloat16 and fp8 rounded to
  // bfloat16; for int8 to 15 bits with a scale; otherwise in float32.
  void (*pack_query)(const float* head, float scale, const CacheShape& shape, std::uint8_t* query);

  // One head of a token's key and value into `token` of their strip. A strip's first token clears it, so that no stale bits are ever read.
  void (*write_cache)(const float* key, const float* value, const CacheShape& shape, int token, std::uint8_t* strip);

  // Attention of a tile over the keys of one partition, into a fresh Softmax. A row's result depends on the keys and values that it sees and
  // on nothing else, not even where others are no numbers.
  void (*attend)(const QueryTile& tile, const CacheShape& shape, const CacheBlocks<const std::uint8_t>& cache, const KeyPass& keys,
                 const ScoreRule& rule, Softmax result);
};

struct Kernels {
  const char* name;

  // One row of `inner` floats into the form that kInt4 and kInt8 weights multiply: see Activations. NaN or infinity makes its group's scale NaN.
  void (*quantize_row)(const float* x, std::size_t inner, std::int8_t* values, float* scales, float* sums,
                       std::int32_t* offsets);

  // One row of floats to bfloat16, rounded to nearest even, padded with zeros to whole groups.
  void (*round_row)(const float* x, std::size_t inner, std::uint16_t* values);

  // y = x / sqrt(mean(x²) + epsilon) · weight.
  void (*rms_norm_row)(const float* x, const float* weight, float epsilon, std::size_t width, float* y);

  // (=, +=) activations · weightᵀ + bias for rows [row_begin, row_end) and panels [panel_begin, panel_end). `y` is where the first row's first
  // output goes; `stride` floats on begins the next row.
  void (*product)(const PackedLinear& weight, const Activations& activations, std::size_t row_begin, std::size_t row_end,
                  std::size_t panel_begin, std::size_t panel_end, Store store, float* y, std::size_t stride);

  // gate · sigmoid(gate) · up.
  void (*silu_mul)(const float* gate, const float* up, std::size_t count, float* y);

  // gelu(gate) · up, with GELU's approximation by tanh.
  void (*gelu_mul)(const float* gate, const float* up, std::size_t count, float* y);

  // x = cap · tanh(x / cap), in place.
  void (*softcap)(float* x, std::size_t count, float cap);

  // Rotates one head in place: pairs (i, i + half) by cosine[i] and sine[i], i below half.
  void (*rope_head)(float* head, const float* cosine, const float* sine, std::size_t half);

  AttentionKernels attention[kCacheTypes];

  // Merges a partition's softmax into the running one; partitions must come in order. A row that sees nothing of the partition stays as it is.
  void (*merge)(int rows, std::size_t dim_padded, Softmax running, Softmax partition);

  // output / total of one row.
  void (*normalize)(const float* output, float total, std::size_t head_dim, float* y);

  // The highest of `count` values, NaN if any is. maxima[16·r + s] is the highest of set s of run r, and there are 16 for every
  // run begun.
  float (*scan_row)(const float* x, std::size_t count, float* maxima);

  // weights = round(e^((x − top) / temperature) · scale), whole numbers, 0 where the power is below min_p; `top` is the highest of x, and
  // none is NaN. sums[r] is that of run r, and the result is that of all. `weights` has room for whole runs; what lies beyond `count` becomes 0.
  double (*weigh_row)(const float* x, std::size_t count, float top, float temperature, float min_p, float scale, float* weights,
                      double* sums);

  // The sum of e^(x − top), float32 powers added in float64 in one fixed order; `top` is the highest of x.
  double (*exp_sum)(const float* x, std::size_t count, float top);

  // How many values exceed `floor`.
  std::size_t (*count_above)(const float* x, std::size_t count, float floor);

  // The sum of the values below `ceiling`, none of them negative, in float32: to within count · 2^-24 of itself.
  float (*sum_below)(const float* x, std::size_t count, float ceiling);

  // Values of at least `floor` with their indices, in order, and how many there are. Both targets have room for count + 16.
  std::size_t (*pick_at_least)(const float* x, std::size_t count, float floor, float* values, std::int32_t* ids);
};

extern const Kernels kPortableKernels;
#if defined(__x86_64__)
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512VnniKernels;
extern const Kernels kAvx512Bf16Kernels;
#endif

}  // namespace octavo

// One step as the caller lays it out, and what all operations of the step share.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/kernels.hpp"

namespace octavo {

constexpr std::int64_t kCached = -1;  // in a slot's place: this token's key and value are in the cache already, and are not written

// Plain arrays, as octavo.backends.base.StepInputs has them; all are the caller's and outlive the step.
struct StepInputs {
  std::size_t tokens;
  std::size_t sequences;
  std::size_t samples;
  std::size_t table_width;
  const std::int32_t* token_ids;         // [tokens]
  const std::int32_t* positions;         // [tokens]
  const std::int64_t* slots;             // [tokens], kCached for none
  const std::int32_t* query_starts;      // [sequences + 1]
  const std::int32_t* sequence_lengths;  // [sequences]
  const std::int32_t* block_tables;      // [sequences][table_width], −1 beyond a sequence's end, and for what it has given back
  const std::int32_t* logit_rows;        // [samples], the last `hidden` of them as ~row
  std::size_t hidden = 0;                // samples, the last ones, whose hidden state is wanted and no logits
  // Like block_tables, of the layers with blocks of their own, if there are any: by their number among these.
  const std::int32_t* window_tables = nullptr;

  std::size_t drawn() const { return samples - hidden; }
  std::size_t row_of(std::size_t sample) const {
    const std::int32_t row = logit_rows[sample];
    return static_cast<std::size_t>(sample < drawn() ? row : ~row);
  }
};

// Tokens of one sequence that fall into one strip of the cache: whoever takes the run is the only one to write that strip.
struct StripRun {
  std::size_t first, last;  // tokens
};

// Query rows [first, last) of the flat [tokens · group] rows of a KV head, all of one sequence.
struct TileRange {
  std::size_t sequence;
  std::size_t first, last;
  std::size_t keys;  // keys that its last row sees
};

struct Range {
  std::size_t first, last;
};

// Where the tokens of a step lie in one of the caches.
struct Placement {
  const std::int32_t* tables;  // [sequences][table_width]
  const std::int64_t* slots;   // [tokens]
};

// Partitions that are merged with one another before they are merged with others, counted from a sequence's start: always the same tree of
// sums. What a thread hands to another is then one result for each span.
constexpr std::size_t kSpan = 4;

// Tiles that are worked on side by side, a partition of the keys after another: the first `shared` partitions of all of them lie in the same
// blocks, and so are read from memory once.
struct TileGroup {
  Range tiles;
  std::size_t shared = 0;
};
constexpr std::size_t kGroupTiles = 8;

// Partitions of one span and one unit (a tile for a KV head) that a thread takes as a whole.
struct Piece {
  std::size_t unit, first, last;
};

// How the step is cut for attention with `group` query heads to each of `kv_heads` KV heads.
struct AttentionPlan {
  std::size_t group = 0, kv_heads = 0;
  std::vector<TileRange> tiles;
  std::vector<std::int32_t> row_positions;  // [tokens · group]
  std::size_t most_partitions = 0;
  std::vector<TileGroup> groups;  // all tiles, in their order

  // With few tiles and long contexts some threads would have nothing to do. Then partitions are shared out as well: in pieces, unit after unit
  // (tile · kv_heads + KV head), which threads take in runs. Whoever does the last piece of a unit that is left merges them all.
  bool split = false;
  std::vector<Piece> pieces;
  std::vector<Range> runs;         // of pieces
  std::vector<Range> unit_pieces;  // of each unit
  std::unique_ptr<std::atomic<std::size_t>[]> left;  // pieces of each unit that are still to be done; all of them again when an operation ends
};

// Checks the step against what the program holds: every index in range, so that no input can reach beyond a buffer. No layer sees further
// back than `window` tokens; 0 for all. Throws std::invalid_argument.
void check_step(const StepInputs& step, std::size_t vocabulary, std::size_t num_blocks, std::size_t block_size, std::size_t window);

// The same of the blocks of one kind of layers, which see no further back than `window`.
void check_tables(const StepInputs& step, const std::int32_t* tables, std::size_t num_blocks, std::size_t block_size, std::size_t window);

// The slots that window_tables give the tokens of a step; kCached where the step says so.
std::vector<std::int64_t> window_slots(const StepInputs& step, std::size_t block_size);

std::vector<StripRun> strip_runs(const StepInputs& step);

// With `share_prefixes` tiles of sequences whose first blocks are the same are grouped, and stand beside one another.
AttentionPlan plan_attention(const StepInputs& step, std::size_t block_size, std::size_t group, std::size_t kv_heads, std::size_t threads,
                             bool share_prefixes);

}  // namespace octavo

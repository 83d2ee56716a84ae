#include "program/step.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace octavo {

namespace {

void require(bool condition, const char* message) {
  if (!condition) throw std::invalid_argument(message);
}

}  // namespace

void check_tables(const StepInputs& step, const std::int32_t* tables, std::size_t num_blocks, std::size_t block_size, std::size_t window) {
  for (std::size_t s = 0; s < step.sequences; ++s) {
    const auto length = static_cast<std::size_t>(step.sequence_lengths[s]);
    const auto count = static_cast<std::size_t>(step.query_starts[s + 1] - step.query_starts[s]);
    const std::size_t before = length - count + 1;
    const std::size_t passed = window == 0 || before <= window ? 0 : (before - window) / block_size;  // blocks that no token sees
    for (std::size_t block = passed; block * block_size < length; ++block) {
      const std::int32_t id = tables[s * step.table_width + block];
      require(id >= 0 && static_cast<std::size_t>(id) < num_blocks, "a block id is out of range");
    }
  }
}

std::vector<std::int64_t> window_slots(const StepInputs& step, std::size_t block_size) {
  std::vector<std::int64_t> slots(step.slots, step.slots + step.tokens);
  for (std::size_t s = 0; s < step.sequences; ++s) {
    const std::int32_t* table = step.window_tables + s * step.table_width;
    for (auto token = static_cast<std::size_t>(step.query_starts[s]); token < static_cast<std::size_t>(step.query_starts[s + 1]); ++token) {
      const auto position = static_cast<std::size_t>(step.positions[token]);
      if (slots[token] != kCached) slots[token] = static_cast<std::int64_t>(static_cast<std::size_t>(table[position / block_size]) * block_size + position % block_size);
    }
  }
  return slots;
}

void check_step(const StepInputs& step, std::size_t vocabulary, std::size_t num_blocks, std::size_t block_size, std::size_t window) {
  require(step.tokens > 0 && step.sequences > 0, "a step needs tokens");
  require(step.query_starts[0] == 0, "query_starts must begin at 0");
  require(static_cast<std::size_t>(step.query_starts[step.sequences]) == step.tokens, "query_starts must end at the number of tokens");
  for (std::size_t s = 0; s < step.sequences; ++s) {
    require(step.query_starts[s] < step.query_starts[s + 1], "every sequence of a step needs a token");
    const auto first = static_cast<std::size_t>(step.query_starts[s]), last = static_cast<std::size_t>(step.query_starts[s + 1]);
    require(last <= step.tokens, "query_starts run beyond the number of tokens");
    const auto length = static_cast<std::size_t>(std::max(step.sequence_lengths[s], 0));
    require(length >= last - first, "a sequence is shorter than its tokens in the step");
    require((length + block_size - 1) / block_size <= step.table_width, "a block table is too short for its sequence");
  }
  check_tables(step, step.block_tables, num_blocks, block_size, window);
  for (std::size_t s = 0; s < step.sequences; ++s) {
    const auto first = static_cast<std::size_t>(step.query_starts[s]), last = static_cast<std::size_t>(step.query_starts[s + 1]);
    const auto length = static_cast<std::size_t>(step.sequence_lengths[s]);
    const std::int32_t* table = step.block_tables + s * step.table_width;
    for (std::size_t token = first; token < last; ++token) {
      const std::size_t position = length - (last - token);
      require(step.positions[token] >= 0 && static_cast<std::size_t>(step.positions[token]) == position,
              "positions must run up to the sequence's length");
      const std::size_t slot = static_cast<std::size_t>(table[position / block_size]) * block_size + position % block_size;
      // The first token of a strip clears it, and with it what a later one would find there.
      require(step.slots[token] != kCached || token == first || step.slots[token - 1] == kCached,
              "a token in the cache already follows one that is written");
      require(step.slots[token] == kCached || step.slots[token] == static_cast<std::int64_t>(slot), "a slot does not match its block table");
    }
  }
  for (std::size_t token = 0; token < step.tokens; ++token) {
    require(step.token_ids[token] >= 0 && static_cast<std::size_t>(step.token_ids[token]) < vocabulary, "a token id is out of range");
  }
  require(step.hidden <= step.samples, "more hidden states are wanted than there are samples");
  for (std::size_t sample = 0; sample < step.samples; ++sample) {
    require(step.row_of(sample) < step.tokens, "a logit row is out of range");
  }
}

std::vector<StripRun> strip_runs(const StepInputs& step) {
  std::vector<StripRun> runs;
  for (std::size_t s = 0; s < step.sequences; ++s) {
    const auto last = static_cast<std::size_t>(step.query_starts[s + 1]);
    for (auto first = static_cast<std::size_t>(step.query_starts[s]); first < last;) {
      const auto inside = static_cast<std::size_t>(step.positions[first]) % kStrip;
      const std::size_t end = std::min(last, first + kStrip - inside);
      runs.push_back({first, end});
      first = end;
    }
  }
  return runs;
}

namespace {

// Long runs first, which ask in time for what follows, and short ones at the end, so that threads end together.
void share_out(AttentionPlan& plan, std::size_t threads) {
  const std::size_t units = plan.tiles.size() * plan.kv_heads;
  plan.split = threads > 1 && plan.most_partitions > 1 && units < 4 * threads;
  if (!plan.split) return;
  const auto partitions_of = [&](std::size_t unit) { return (plan.tiles[unit / plan.kv_heads].keys + kPartition - 1) / kPartition; };
  std::size_t whole = 0;
  for (std::size_t unit = 0; unit < units; ++unit) whole += partitions_of(unit);
  // A piece is a span, but towards the end, and wherever there are few of them, a partition.
  const std::size_t fine = std::min(whole, 2 * kSpan * threads);
  std::size_t before = 0;
  plan.left = std::make_unique<std::atomic<std::size_t>[]>(units);
  for (std::size_t unit = 0; unit < units; ++unit) {
    const std::size_t begin = plan.pieces.size(), partitions = partitions_of(unit);
    for (std::size_t first = 0; first < partitions;) {
      const std::size_t size = before + first + kSpan + fine > whole ? 1 : kSpan;
      const std::size_t last = std::min(partitions, first + size);
      plan.pieces.push_back({unit, first, last});
      first = last;
    }
    before += partitions;
    plan.unit_pieces.push_back({begin, plan.pieces.size()});
    plan.left[unit].store(plan.pieces.size() - begin, std::memory_order_relaxed);
  }
  for (std::size_t first = 0; first < plan.pieces.size();) {
    const std::size_t last = first + std::max<std::size_t>(1, (plan.pieces.size() - first) / (3 * threads));
    plan.runs.push_back({first, last});
    first = last;
  }
}

// Puts tiles beside one another whose keys begin with the same blocks: those that are all that their sequence has in the step, as where it
// decodes. They stand before the others, which are longer and are taken from the end.
void group_tiles(AttentionPlan& plan, const StepInputs& step, std::size_t block_size, std::size_t threads) {
  struct Candidate {
    TileRange tile;
    std::size_t full;  // partitions
    const std::int32_t *begin, *end;  // their blocks
  };
  std::vector<Candidate> candidates;
  std::vector<TileRange> others;
  for (const TileRange& tile : plan.tiles) {
    const std::size_t full = tile.keys / kPartition;
    const std::size_t rows = static_cast<std::size_t>(step.query_starts[tile.sequence + 1] - step.query_starts[tile.sequence]) * plan.group;
    if (full == 0 || tile.last - tile.first != rows) {
      others.push_back(tile);
      continue;
    }
    const std::int32_t* table = step.block_tables + tile.sequence * step.table_width;
    candidates.push_back({tile, full, table, table + (full * kPartition + block_size - 1) / block_size});
  }
  std::stable_sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) {
    return std::lexicographical_compare(a.begin, a.end, b.begin, b.end);
  });
  // Enough groups for all threads.
  const std::size_t most = std::clamp<std::size_t>(candidates.size() * plan.kv_heads / (4 * threads), 1, kGroupTiles);
  plan.tiles.clear();
  const auto common = [&](const Candidate& a, const Candidate& b) {
    const auto same = static_cast<std::size_t>(std::mismatch(a.begin, a.end, b.begin, b.end).first - a.begin);
    return std::min({a.full, b.full, same * block_size / kPartition});
  };
  for (std::size_t first = 0; first < candidates.size();) {
    std::size_t last = first + 1, shared = candidates[first].full;
    for (; last < candidates.size() && last - first < most; ++last) {
      const std::size_t with = common(candidates[first], candidates[last]);
      if (with == 0) break;
      shared = std::min(shared, with);
    }
    plan.groups.push_back({{first, last}, last - first > 1 ? shared : 0});
    for (; first < last; ++first) plan.tiles.push_back(candidates[first].tile);
  }
  for (const TileRange& tile : others) {
    plan.groups.push_back({{plan.tiles.size(), plan.tiles.size() + 1}, 0});
    plan.tiles.push_back(tile);
  }
}

void leave_alone(AttentionPlan& plan) {
  for (std::size_t tile = 0; tile < plan.tiles.size(); ++tile) plan.groups.push_back({{tile, tile + 1}, 0});
}

}  // namespace

AttentionPlan plan_attention(const StepInputs& step, std::size_t block_size, std::size_t group, std::size_t kv_heads, std::size_t threads,
                             bool share_prefixes) {
  AttentionPlan plan;
  plan.group = group;
  plan.kv_heads = kv_heads;
  plan.row_positions.resize(step.tokens * group);
  for (std::size_t row = 0; row < plan.row_positions.size(); ++row) plan.row_positions[row] = step.positions[row / group];
  for (std::size_t s = 0; s < step.sequences; ++s) {
    const std::size_t end = static_cast<std::size_t>(step.query_starts[s + 1]) * group;
    for (std::size_t first = static_cast<std::size_t>(step.query_starts[s]) * group; first < end;) {
      const std::size_t last = std::min(end, first + static_cast<std::size_t>(kQueryRows));
      const std::size_t keys = static_cast<std::size_t>(plan.row_positions[last - 1]) + 1;
      plan.tiles.push_back({s, first, last, keys});
      plan.most_partitions = std::max(plan.most_partitions, (keys + kPartition - 1) / kPartition);
      first = last;
    }
  }
  share_out(plan, threads);
  if (share_prefixes && !plan.split && step.sequences > 1) {
    group_tiles(plan, step, block_size, threads);
  } else {
    leave_alone(plan);
  }
  return plan;
}

}  // namespace octavo

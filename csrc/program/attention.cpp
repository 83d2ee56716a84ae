// Rope, cache write and attention, shared out over tiles of query rows and KV heads.

#include <algorithm>
#include <utility>

#include "program/program.hpp"

namespace octavo {

namespace {

constexpr float kLog2E = 1.44269504088896340736f;

constexpr std::size_t kSplitRuns = 8;  // runs of partitions for each thread

std::size_t partitions_of(const TileRange& tile) { return (tile.keys + kPartition - 1) / kPartition; }

// A softmax in `floats` of kQueryRows · (2 + width).
Softmax softmax_at(float* floats) { return {floats, floats + kQueryRows, floats + 2 * kQueryRows}; }

}  // namespace

// Turns and stores what the tokens of a run bring for one KV head: the queries of its group, and its key and value where it has a slot.
void Program::write_run(const AttendOp& op, const StripRun& run, std::size_t kv_head, const StepInputs& step) {
  const CacheShape shape = cache_.shape(op.layer);
  const CacheBlocks<std::uint8_t> blocks = cache_.blocks(op.layer);
  const std::size_t dim = shape.head_dim, group = op.heads / shape.kv_heads, size = shape.query_bytes();
  const std::size_t half = ropes_[op.rope].inverse_frequencies.size();
  const auto* cosines = reinterpret_cast<const float*>(cosines_[op.rope].data());
  const auto* sines = reinterpret_cast<const float*>(sines_[op.rope].data());
  std::uint8_t* queries = queries_.data() + kv_head * step.tokens * group * size;
  for (std::size_t token = run.first; token < run.last; ++token) {
    float* row = floats_[op.source].row(token);
    const float* cosine = cosines + token * half;
    const float* sine = sines + token * half;
    for (std::size_t head = 0; head < group; ++head) {
      float* query = row + (kv_head * group + head) * dim;
      kernels_.rope_head(query, cosine, sine, half);
      attention().pack_query(query, op.scale * kLog2E, shape, queries + (token * group + head) * size);
    }
    if (step.slots[token] == kCached) continue;
    float* key = row + (op.heads + kv_head) * dim;
    const float* value = row + (op.heads + shape.kv_heads + kv_head) * dim;
    kernels_.rope_head(key, cosine, sine, half);
    const auto slot = static_cast<std::size_t>(step.slots[token]);
    std::uint8_t* strip = blocks.block(slot / shape.block_size) + shape.strip_at(kv_head, slot);
    attention().write_cache(key, value, shape, static_cast<int>(slot % kStrip), strip);
  }
}

// Attends over one partition; the caller goes on with those up to `partitions`.
void Program::attend_tile(const AttendOp& op, const AttentionPlan& plan, const TileRange& tile, std::size_t kv_head, std::size_t partition,
                          std::size_t partitions, const StepInputs& step, Softmax result) {
  const CacheShape shape = cache_.shape(op.layer);
  const std::uint8_t* queries = queries_.data() + (kv_head * step.tokens * plan.group + tile.first) * shape.query_bytes();
  const QueryTile rows{queries, plan.row_positions.data() + tile.first, static_cast<int>(tile.last - tile.first)};
  const KeyRange keys{partition * kPartition, std::min(tile.keys, (partition + 1) * kPartition), std::min(tile.keys, partitions * kPartition)};
  attention().attend(rows, shape, std::as_const(cache_).blocks(op.layer), step.block_tables + tile.sequence * step.table_width, kv_head, keys,
                     op.window, result);
}

void Program::finish_tile(const AttendOp& op, const AttentionPlan& plan, const TileRange& tile, std::size_t kv_head, Softmax result) {
  const CacheShape shape = cache_.shape(op.layer);
  for (std::size_t row = tile.first; row < tile.last; ++row) {
    const std::size_t token = row / plan.group, head = kv_head * plan.group + row % plan.group, local = row - tile.first;
    kernels_.normalize(result.output + local * shape.dim_padded(), result.total[local], shape.head_dim,
                       floats_[op.target].row(token) + head * shape.head_dim);
  }
}

// One thread takes a tile through all partitions, in order.
void Program::attend_whole(const AttendOp& op, const AttentionPlan& plan, const TileRange& tile, std::size_t kv_head, Scratch& scratch,
                           const StepInputs& step) {
  const std::size_t width = cache_.shape(op.layer).dim_padded();
  const int rows = static_cast<int>(tile.last - tile.first);
  auto* floats = reinterpret_cast<float*>(scratch.softmax.data());
  const Softmax running = softmax_at(floats), part = softmax_at(floats + kQueryRows * (2 + width));
  const std::size_t first = first_partition(op, plan, tile), last = partitions_of(tile);
  attend_tile(op, plan, tile, kv_head, first, last, step, running);
  for (std::size_t partition = first + 1; partition < last; ++partition) {
    attend_tile(op, plan, tile, kv_head, partition, last, step, part);
    kernels_.merge(rows, width, running, part);
  }
  finish_tile(op, plan, tile, kv_head, running);
}

// Threads take partitions, then tiles merge theirs in order: the same sums as in attend_whole.
void Program::attend_split(const AttendOp& op, const AttentionPlan& plan, Member& member, const StepInputs& step) {
  const CacheShape shape = cache_.shape(op.layer);
  const std::size_t width = shape.dim_padded(), size = kQueryRows * (2 + width), heads = shape.kv_heads;
  auto* partials = reinterpret_cast<float*>(partials_.data());
  const auto partial = [&](std::size_t unit, std::size_t partition) {
    return softmax_at(partials + (unit * plan.most_partitions + partition) * size);
  };
  const std::size_t count = plan.tiles.size() * heads * plan.most_partitions;
  // In runs, so that what follows is asked for in time.
  member.share(count, count / (static_cast<std::size_t>(member.size()) * kSplitRuns), [&](std::size_t begin, std::size_t end) {
    for (std::size_t work = begin; work < end; ++work) {
      const std::size_t unit = work / plan.most_partitions, partition = work % plan.most_partitions;
      const TileRange& tile = plan.tiles[unit / heads];
      if (partition < first_partition(op, plan, tile) || partition >= partitions_of(tile)) continue;
      attend_tile(op, plan, tile, unit % heads, partition, partition + end - work, step, partial(unit, partition));
    }
  });
  member.share(plan.tiles.size() * heads, 1, [&](std::size_t begin, std::size_t end) {
    for (std::size_t unit = begin; unit < end; ++unit) {
      const TileRange& tile = plan.tiles[unit / heads];
      const int rows = static_cast<int>(tile.last - tile.first);
      const std::size_t first = first_partition(op, plan, tile);
      const Softmax running = partial(unit, first);
      for (std::size_t partition = first + 1; partition < partitions_of(tile); ++partition) kernels_.merge(rows, width, running, partial(unit, partition));
      finish_tile(op, plan, tile, unit % heads, running);
    }
  });
}

// Partitions that lie before every row's window add exactly nothing, so they are not read.
std::size_t Program::first_partition(const AttendOp& op, const AttentionPlan& plan, const TileRange& tile) const {
  const auto first = static_cast<std::size_t>(plan.row_positions[tile.first]) + 1;
  return op.window == 0 || first <= op.window ? 0 : (first - op.window) / kPartition;
}

void Program::run_op(const AttendOp& op, Member& member, const StepInputs& step) {
  const std::size_t heads = cache_.shape(op.layer).kv_heads, group = op.heads / heads;
  const AttentionPlan& plan = *std::find_if(plans_.begin(), plans_.end(), [group](const AttentionPlan& p) { return p.group == group; });
  Scratch& scratch = scratch_[static_cast<std::size_t>(member.index())];
  const bool shared_out = split(plan, heads);
  if (step.tokens == step.sequences && !shared_out && plan.tiles.size() == step.sequences) {
    // One token and one tile a sequence: whoever writes a head's key and value is the only one to read them in this step.
    member.share(step.sequences * heads, 1, [&](std::size_t begin, std::size_t end) {
      for (std::size_t unit = begin; unit < end; ++unit) {
        const std::size_t sequence = unit / heads;
        write_run(op, {sequence, sequence + 1}, unit % heads, step);
        attend_whole(op, plan, plan.tiles[sequence], unit % heads, scratch, step);
      }
    });
    return;
  }
  member.share(runs_.size() * heads, 1, [&](std::size_t begin, std::size_t end) {
    for (std::size_t unit = begin; unit < end; ++unit) write_run(op, runs_[unit / heads], unit % heads, step);
  });
  if (shared_out) {
    attend_split(op, plan, member, step);
    return;
  }
  // Later tiles of a prompt see more keys: they go first, so that the last ones to be taken are short.
  const std::size_t count = plan.tiles.size();
  member.share(count * heads, 1, [&](std::size_t begin, std::size_t end) {
    for (std::size_t unit = begin; unit < end; ++unit) {
      attend_whole(op, plan, plan.tiles[count - 1 - unit / heads], unit % heads, scratch, step);
    }
  });
}

}  // namespace octavo

// Rope, cache write and attention, shared out over tiles of query rows and KV heads.

#include <algorithm>
#include <array>
#include <utility>

#include "program/program.hpp"

namespace octavo {

namespace {

constexpr float kLog2E = 1.44269504088896340736f;

// A softmax in `floats` of kQueryRows · (2 + width).
Softmax softmax_at(float* floats) { return {floats, floats + kQueryRows, floats + 2 * kQueryRows}; }

// The first key that a query sees.
std::size_t first_seen(std::int32_t position, std::size_t window) {
  const auto keys = static_cast<std::size_t>(position) + 1;
  return window == 0 || keys <= window ? 0 : keys - window;
}

}  // namespace

// Norms a head, where it is normed, and turns it by its token's position.
void Program::turn_head(float* head, const AttendOp& op, std::size_t norm, std::size_t token) const {
  const std::size_t half = ropes_[op.rope].inverse_frequencies.size(), at = token * half;
  if (norm != kNoVector) kernels_.rms_norm_row(head, vectors_[norm].data(), op.norms.epsilon, vectors_[norm].size(), head);
  kernels_.rope_head(head, reinterpret_cast<const float*>(cosines_[op.rope].data()) + at,
                     reinterpret_cast<const float*>(sines_[op.rope].data()) + at, half);
}

// Turns and stores what the tokens of a run bring for one KV head: the queries of its group, and its key and value where it has a slot.
void Program::write_run(const AttendOp& op, const StripRun& run, std::size_t kv_head, const StepInputs& step) {
  const CacheShape shape = shape_of(op);
  const CacheBlocks<std::uint8_t> blocks = caches_.of(op.windowed).blocks(op.layer);
  const std::size_t dim = shape.head_dim, group = op.heads / shape.kv_heads, size = shape.query_bytes();
  std::uint8_t* queries = queries_.data() + kv_head * step.tokens * group * size;
  const std::int64_t* slots = placement_of(op).slots;
  for (std::size_t token = run.first; token < run.last; ++token) {
    float* row = floats_[op.source].row(token);
    for (std::size_t head = 0; head < group; ++head) {
      float* query = row + (kv_head * group + head) * dim;
      turn_head(query, op, op.norms.query, token);
      attention().pack_query(query, op.scale * kLog2E, shape, queries + (token * group + head) * size);
    }
    if (slots[token] == kCached) continue;
    float* key = row + (op.heads + kv_head) * dim;
    const float* value = row + (op.heads + shape.kv_heads + kv_head) * dim;
    turn_head(key, op, op.norms.key, token);
    const auto slot = static_cast<std::size_t>(slots[token]);
    std::uint8_t* strip = blocks.block(slot / shape.block_size) + shape.strip_at(kv_head, slot);
    attention().write_cache(key, value, shape, static_cast<int>(slot % kStrip), strip);
  }
}

// The keys of a partition that any of the tile's rows sees. Blocks that the window has passed may be gone, and what another sequence writes
// there may be no numbers.
KeyRange Program::keys_of(const AttendOp& op, const AttentionPlan& plan, const Place& place, const StepInputs& step) const {
  if (place.tile == nullptr) return {nullptr, 0, 0, 0};
  const std::size_t begin = place.partition * kPartition, seen = first_seen(plan.row_positions[place.tile->first], op.window);
  return {placement_of(op).tables + place.tile->sequence * step.table_width, place.kv_head, std::max(begin, seen / kStrip * kStrip),
          std::min(place.tile->keys, begin + kPartition)};
}

// Attends over one partition, and asks for what the thread takes next. `cold` says whether nothing has asked for this one.
void Program::attend_partition(const AttendOp& op, const AttentionPlan& plan, const Place& place, const Place& next, bool& cold,
                               const StepInputs& step, Softmax result) {
  const CacheShape shape = shape_of(op);
  const TileRange& tile = *place.tile;
  const std::uint8_t* queries = queries_.data() + (place.kv_head * step.tokens * plan.group + tile.first) * shape.query_bytes();
  const QueryTile rows{queries, plan.row_positions.data() + tile.first, static_cast<int>(tile.last - tile.first)};
  attention().attend(rows, shape, std::as_const(caches_).of(op.windowed).blocks(op.layer), {keys_of(op, plan, place, step), keys_of(op, plan, next, step), cold},
                     {op.window, op.softcap * kLog2E}, result);
  cold = next.tile == nullptr;
}

void Program::finish_tile(const AttendOp& op, const AttentionPlan& plan, const TileRange& tile, std::size_t kv_head, Softmax result) {
  const CacheShape shape = shape_of(op);
  for (std::size_t row = tile.first; row < tile.last; ++row) {
    const std::size_t token = row / plan.group, head = kv_head * plan.group + row % plan.group, local = row - tile.first;
    kernels_.normalize(result.output + local * shape.dim_padded(), result.total[local], shape.head_dim,
                       floats_[op.target].row(token) + head * shape.head_dim);
  }
}

// Attends over one partition, the one after those that `sum` holds.
void Program::add_partition(const AttendOp& op, const AttentionPlan& plan, const Place& place, const Place& next, bool& cold,
                            const StepInputs& step, TileSum& sum, Softmax space) {
  const std::size_t width = shape_of(op).dim_padded();
  const int rows = static_cast<int>(place.tile->last - place.tile->first);
  const bool new_span = sum.begun && place.partition % kSpan == 0, begins = !sum.begun || new_span;
  if (new_span) {
    if (sum.in_span) kernels_.merge(rows, width, sum.running, sum.span);
    sum.in_span = true;
  }
  const Softmax target = sum.in_span ? sum.span : sum.running;
  attend_partition(op, plan, place, next, cold, step, begins ? target : space);
  if (!begins) kernels_.merge(rows, width, target, space);
  sum.begun = true;
}

// One thread takes the tiles of a group: the partitions that they share one after another, each for all tiles while it is in the cache; then
// those of each tile. `after` is what follows.
void Program::attend_group(const AttendOp& op, const AttentionPlan& plan, const TileGroup& group, std::size_t kv_head, const Place& after,
                           bool& cold, Scratch& scratch, const StepInputs& step) {
  const std::size_t width = shape_of(op).dim_padded(), size = kQueryRows * (2 + width), count = group.tiles.last - group.tiles.first;
  // What a window leaves of the first partitions is not the same for all.
  const std::size_t shared = op.window == 0 ? group.shared : 0;
  auto* floats = reinterpret_cast<float*>(scratch.softmax.data());
  const Softmax space = softmax_at(floats + 2 * kGroupTiles * size);
  const TileRange* tiles = plan.tiles.data() + group.tiles.first;
  std::array<TileSum, kGroupTiles> sums;
  std::array<Range, kGroupTiles> own;
  for (std::size_t i = 0; i < count; ++i) {
    sums[i] = {softmax_at(floats + 2 * i * size), softmax_at(floats + (2 * i + 1) * size)};
    own[i] = partitions_of(op, plan, tiles[i]);
    own[i].first = std::max(own[i].first, shared);
  }
  const auto from = [&](std::size_t tile) {
    while (tile < count && own[tile].first == own[tile].last) ++tile;
    return tile < count ? Place{tiles + tile, kv_head, own[tile].first} : after;
  };
  scratch.shared_reads += shared * (count - 1);
  for (std::size_t partition = 0; partition < shared; ++partition) {
    const Place following = partition + 1 < shared ? Place{tiles, kv_head, partition + 1} : from(0);
    for (std::size_t i = 0; i < count; ++i) {
      add_partition(op, plan, {tiles + i, kv_head, partition}, i + 1 < count ? Place{} : following, cold, step, sums[i], space);
      if (i + 1 < count) cold = false;
    }
  }
  for (std::size_t i = 0; i < count; ++i) {
    for (std::size_t partition = own[i].first; partition < own[i].last; ++partition) {
      const Place next = partition + 1 < own[i].last ? Place{tiles + i, kv_head, partition + 1} : from(i + 1);
      add_partition(op, plan, {tiles + i, kv_head, partition}, next, cold, step, sums[i], space);
    }
    if (sums[i].in_span) kernels_.merge(static_cast<int>(tiles[i].last - tiles[i].first), width, sums[i].running, sums[i].span);
    finish_tile(op, plan, tiles[i], kv_head, sums[i].running);
  }
}

Place Program::first_place(const AttendOp& op, const AttentionPlan& plan, std::size_t tile, std::size_t kv_head) const {
  return {&plan.tiles[tile], kv_head, partitions_of(op, plan, plan.tiles[tile]).first};
}

// Threads take pieces, and the last of a unit is followed by the merging of all: the same sums as in attend_group.
void Program::attend_split(const AttendOp& op, const AttentionPlan& plan, Member& member, const StepInputs& step) {
  const std::size_t size = kQueryRows * (2 + shape_of(op).dim_padded());
  auto* partials = reinterpret_cast<float*>(partials_.data());
  const Softmax space = softmax_at(reinterpret_cast<float*>(scratch_[static_cast<std::size_t>(member.index())].softmax.data()));
  // The partitions of a piece that the tile sees.
  const auto seen_of = [&](const Piece& piece) {
    const Range all = partitions_of(op, plan, plan.tiles[piece.unit / plan.kv_heads]);
    return Range{std::clamp(piece.first, all.first, all.last), std::clamp(piece.last, all.first, all.last)};
  };
  const auto first_in = [&](const Range& pieces) {
    for (std::size_t index = pieces.first; index < pieces.last; ++index) {
      const Piece& piece = plan.pieces[index];
      const Range seen = seen_of(piece);
      if (seen.first < seen.last) return Place{&plan.tiles[piece.unit / plan.kv_heads], piece.unit % plan.kv_heads, seen.first};
    }
    return Place{};
  };
  bool cold = true;
  member.share_ahead(plan.runs.size(), 1, [&](std::size_t run, std::size_t, std::size_t next) {
    const Range& pieces = plan.runs[run];
    const Place after = next < plan.runs.size() ? first_in(plan.runs[next]) : Place{};
    for (std::size_t index = pieces.first; index < pieces.last; ++index) {
      const Piece& piece = plan.pieces[index];
      const Range seen = seen_of(piece);
      if (seen.first < seen.last) {
        const Place here = first_in({index, index + 1}), following = first_in({index + 1, pieces.last});
        TileSum sum{softmax_at(partials + index * size), {}};
        for (Place at = here; at.partition < seen.last; ++at.partition) {
          const Place beyond = at.partition + 1 < seen.last ? Place{at.tile, at.kv_head, at.partition + 1} : following;
          add_partition(op, plan, at, beyond.tile != nullptr ? beyond : after, cold, step, sum, space);
        }
      }
      if (plan.left[piece.unit].fetch_sub(1, std::memory_order_acq_rel) == 1) merge_unit(op, plan, piece.unit);
    }
  }, [&] { ask_ahead(member, step); });
}

// Merges the pieces of a unit, span by span, and makes it ready for the next operation.
void Program::merge_unit(const AttendOp& op, const AttentionPlan& plan, std::size_t unit) {
  const std::size_t width = shape_of(op).dim_padded(), size = kQueryRows * (2 + width);
  const TileRange& tile = plan.tiles[unit / plan.kv_heads];
  const Range all = partitions_of(op, plan, tile), own = plan.unit_pieces[unit];
  const int rows = static_cast<int>(tile.last - tile.first);
  const auto result = [&](std::size_t index) { return softmax_at(reinterpret_cast<float*>(partials_.data()) + index * size); };
  std::size_t first = own.first;
  while (plan.pieces[first].last <= all.first) ++first;
  for (std::size_t span = first; span < own.last;) {
    std::size_t next = span + 1;
    for (; next < own.last && plan.pieces[next].first / kSpan == plan.pieces[span].first / kSpan; ++next) {
      kernels_.merge(rows, width, result(span), result(next));
    }
    if (span != first) kernels_.merge(rows, width, result(first), result(span));
    span = next;
  }
  finish_tile(op, plan, tile, unit % plan.kv_heads, result(first));
  plan.left[unit].store(own.last - own.first, std::memory_order_relaxed);
}

// Those that any of its rows sees. What lies before every row's window adds exactly nothing, so it is not read.
Range Program::partitions_of(const AttendOp& op, const AttentionPlan& plan, const TileRange& tile) const {
  return {first_seen(plan.row_positions[tile.first], op.window) / kPartition, (tile.keys + kPartition - 1) / kPartition};
}

// Asks for the first keys and values that the step's only sequence sees in one head, up to `most` tokens of them.
void Program::ask_keys(const AttendOp& op, std::size_t kv_head, std::size_t most, const StepInputs& step) const {
  const CacheShape shape = shape_of(op);
  const CacheBlocks<const std::uint8_t> blocks = caches_.of(op.windowed).blocks(op.layer);
  const auto seen = static_cast<std::size_t>(step.positions[0]) + 1;
  const std::size_t first = first_seen(step.positions[0], op.window) / kStrip * kStrip;
  for (std::size_t token = first; token < std::min(seen, first + most); token += kStrip) {
    const auto block = static_cast<std::size_t>(placement_of(op).tables[token / shape.block_size]);
    const std::uint8_t* strip = blocks.block(block) + shape.strip_at(kv_head, token);
    for (std::size_t at = 0; at < shape.strip_bytes(); at += 64) __builtin_prefetch(strip + at, 0, 2);
  }
}

void Program::run_op(const AttendOp& op, Member& member, const StepInputs& step) {
  const AttentionPlan& plan = plan_of(op);
  const std::size_t heads = plan.kv_heads;
  Scratch& scratch = scratch_[static_cast<std::size_t>(member.index())];
  bool cold = true;
  const std::size_t count = plan.groups.size() * heads;
  // Later tiles of a prompt see more keys: they go first, so that the last ones to be taken are short.
  const auto group_of = [&](std::size_t unit) -> const TileGroup& { return plan.groups[plan.groups.size() - 1 - unit / heads]; };
  const auto place_of = [&](std::size_t unit) {
    return unit < count ? first_place(op, plan, group_of(unit).tiles.first, unit % heads) : Place{};
  };
  const auto attend = [&](std::size_t unit, std::size_t next) {
    attend_group(op, plan, group_of(unit), unit % heads, place_of(next), cold, scratch, step);
  };
  const auto meanwhile = [&] { ask_ahead(member, step); };
  if (step.tokens == step.sequences && !plan.split && plan.tiles.size() == step.sequences) {
    // One token and one tile a sequence: whoever writes a head's key and value is the only one to read them in this step.
    member.share_ahead(
        count, 1,
        [&](std::size_t unit, std::size_t, std::size_t next) {
          const Range tiles = group_of(unit).tiles;
          for (std::size_t tile = tiles.first; tile < tiles.last; ++tile) {
            const std::size_t token = plan.tiles[tile].sequence;
            write_run(op, {token, token + 1}, unit % heads, step);
          }
          attend(unit, next);
        },
        meanwhile);
    return;
  }
  member.share(runs_.size() * heads, 1, [&](std::size_t begin, std::size_t end) {
    for (std::size_t unit = begin; unit < end; ++unit) write_run(op, runs_[unit / heads], unit % heads, step);
  });
  if (plan.split) {
    attend_split(op, plan, member, step);
    return;
  }
  member.share_ahead(
      count, 1, [&](std::size_t unit, std::size_t, std::size_t next) { attend(unit, next); }, meanwhile);
}

}  // namespace octavo

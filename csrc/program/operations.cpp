// How the team runs each operation, attention apart.

#include <algorithm>
#include <cmath>

#include "pack/pack.hpp"
#include "program/program.hpp"

namespace octavo {

namespace {

// Rows that a product works on while a panel passes: their activations should stay in the second-level cache.
constexpr std::size_t kRowBlock = 120;

// Rows whose gates and ups are held while they are combined: both should stay in the first-level cache.
constexpr std::size_t kGatedRows = 48;

// Groups of what comes out that are converted together: kernels take four at a time.
constexpr std::size_t kGatedGroups = 4;

// Up to so many rows a product is a pass over memory.
constexpr std::size_t kFewRows = 4;

// What a thread asks for while it waits: bytes of the next weights, and tokens whose keys and values it needs before.
constexpr std::size_t kWeightsAhead = std::size_t{32} << 10, kKeysAhead = 128;

void ask(const void* data, std::size_t bytes) {
  const auto* lines = static_cast<const std::uint8_t*>(data);
  for (std::size_t at = 0; at < bytes; at += 64) __builtin_prefetch(lines + at, 0, 2);
}

std::size_t blocks(std::size_t rows, std::size_t block) { return (rows + block - 1) / block; }

// Chunks small enough to even out the threads, large enough that taking them costs nothing.
std::size_t chunk_of(std::size_t count, int threads) { return std::max<std::size_t>(1, count / (static_cast<std::size_t>(threads) * 8)); }

// Where chunk `chunk` begins of the `count` pairs of panels of a region of a product: a multiple of `multiple`, or the end. With few rows it is a
// pass over memory, and long runs are read faster than short ones: the first chunk is half of them, the next half of what is left, so that
// whoever is done first finds something small to take.
std::size_t cut_pairs(std::size_t count, std::size_t rows, std::size_t chunk, std::size_t multiple) {
  if (rows > kFewRows) return chunk * std::max<std::size_t>(blocks(blocks(count, 8), multiple), 1) * multiple;
  const std::size_t left = chunk < 64 ? count >> chunk : 0;
  return left == 0 ? count : (count - left) / multiple * multiple;
}

std::size_t pairs(std::size_t panel_count) { return (panel_count + 1) / 2; }

}  // namespace

// A step of one row converts it in every thread for itself, which is cheaper than meeting at a barrier; the bits are the same.
ActivationBuffer& Program::activations(std::size_t index, Member& member, std::size_t rows) {
  if (rows == 1 && !shared_[index]) return scratch_[static_cast<std::size_t>(member.index())].activations[index];
  return activations_[index];
}

// A step of few rows is a pass over memory, which stands still where threads meet, and while they norm and attend between products. So that
// it does not, a thread that waits asks for what it reads next: keys and values, and the beginning of its region of the next weights.
void Program::ask_ahead(Member& member, const StepInputs& step) const {
  if (step.tokens > kFewRows) return;
  const auto index = static_cast<std::size_t>(member.index());
  for (std::size_t i = scratch_[index].upcoming; i < operations_.size(); ++i) {
    std::size_t linear;
    if (const auto* norm = std::get_if<NormOp>(&operations_[i])) {
      ask(vectors_[norm->vector].data(), floats_[norm->source].width * sizeof(float));
      continue;
    } else if (const auto* added = std::get_if<AddNormOp>(&operations_[i])) {
      ask(vectors_[added->vector].data(), floats_[added->source].width * sizeof(float));
      continue;
    } else if (const auto* attend = std::get_if<AttendOp>(&operations_[i])) {
      if (step.sequences == 1 && index < shape_of(*attend).kv_heads) ask_keys(*attend, index, kKeysAhead, step);
      continue;
    } else if (const auto* product = std::get_if<ProductOp>(&operations_[i])) {
      linear = product->parts[0].linear;
    } else if (const auto* gated = std::get_if<GatedOp>(&operations_[i])) {
      linear = gated->gate;
    } else {
      continue;
    }
    const Linear& next = linears_[linear];
    ask(next.data[index], std::min(kWeightsAhead, panel_offset(next.regions[index], next.panel_count(index))));
    return;
  }
}

template <typename Put>
void Program::convert_rows(std::size_t target, Member& member, const StepInputs& step, Put&& put) {
  const std::size_t rows = rows_of(activations_[target].samples, step);
  ActivationBuffer& buffer = activations(target, member, rows);
  if (&buffer != &activations_[target]) {
    put(buffer, 0);
    return;
  }
  member.share(rows, chunk_of(rows, member.size()), [&](std::size_t begin, std::size_t end) {
    for (std::size_t row = begin; row < end; ++row) put(buffer, row);
  });
}

void Program::fill_rope(std::size_t index, Member& member, const StepInputs& step) {
  const Rope& rope = ropes_[index];
  const std::size_t width = rope.inverse_frequencies.size();
  auto* cosines = reinterpret_cast<float*>(cosines_[index].data());
  auto* sines = reinterpret_cast<float*>(sines_[index].data());
  member.share(step.tokens, chunk_of(step.tokens, member.size()), [&](std::size_t begin, std::size_t end) {
    for (std::size_t token = begin; token < end; ++token) {
      for (std::size_t i = 0; i < width; ++i) {
        // The angle is a float32 product, as in the models' training code.
        const double angle = static_cast<float>(step.positions[token]) * rope.inverse_frequencies[i];
        cosines[token * width + i] = static_cast<float>(std::cos(angle) * static_cast<double>(rope.scale));
        sines[token * width + i] = static_cast<float>(std::sin(angle) * static_cast<double>(rope.scale));
      }
    }
  });
}

void Program::run_op(const EmbedOp& op, Member& member, const StepInputs& step) {
  FloatBuffer& target = floats_[op.target];
  const Linear& table = linears_[op.linear];
  member.share(step.tokens, chunk_of(step.tokens, member.size()), [&](std::size_t begin, std::size_t end) {
    for (std::size_t token = begin; token < end; ++token) {
      const auto id = static_cast<std::size_t>(step.token_ids[token]);
      const std::size_t region = table.region_of(id / kPanel);
      float* row = target.row(token);
      unpack_row(table.regions[region], id - table.first[region] * kPanel, row);
      if (op.scale == 1.0f) continue;
      for (std::size_t i = 0; i < target.width; ++i) row[i] *= op.scale;
    }
  });
}

void Program::run_op(const GatherOp& op, Member& member, const StepInputs& step) {
  FloatBuffer& source = floats_[op.source];
  FloatBuffer& target = floats_[op.target];
  member.share(step.samples, chunk_of(step.samples, member.size()), [&](std::size_t begin, std::size_t end) {
    for (std::size_t sample = begin; sample < end; ++sample) {
      std::memcpy(target.row(sample), source.row(step.row_of(sample)), source.width * sizeof(float));
    }
  });
}

void Program::run_op(const NormOp& op, Member& member, const StepInputs& step) {
  FloatBuffer& source = floats_[op.source];
  const float* weight = vectors_[op.vector].data();
  AlignedBytes& memory = scratch_[static_cast<std::size_t>(member.index())].floats;
  memory.reserve(source.width * sizeof(float));
  auto* normed = reinterpret_cast<float*>(memory.data());
  convert_rows(op.target, member, step, [&](ActivationBuffer& buffer, std::size_t row) {
    kernels_.rms_norm_row(source.row(row), weight, op.epsilon, source.width, normed);
    buffer.put(kernels_, normed, source.width, row, 0);
  });
}

void Program::run_op(const AddNormOp& op, Member& member, const StepInputs& step) {
  FloatBuffer& source = floats_[op.source];
  FloatBuffer& target = floats_[op.target];
  const std::size_t rows = rows_of(source.samples, step);
  AlignedBytes& memory = scratch_[static_cast<std::size_t>(member.index())].floats;
  memory.reserve(source.width * sizeof(float));
  auto* normed = reinterpret_cast<float*>(memory.data());
  member.share(rows, chunk_of(rows, member.size()), [&](std::size_t begin, std::size_t end) {
    for (std::size_t row = begin; row < end; ++row) {
      kernels_.rms_norm_row(source.row(row), vectors_[op.vector].data(), op.epsilon, source.width, normed);
      float* sum = target.row(row);
      for (std::size_t i = 0; i < source.width; ++i) sum[i] += normed[i];
    }
  });
}

void Program::run_op(const ConvertOp& op, Member& member, const StepInputs& step) {
  FloatBuffer& source = floats_[op.source];
  convert_rows(op.target, member, step, [&](ActivationBuffer& buffer, std::size_t row) {
    buffer.put(kernels_, source.row(row), source.width, row, 0);
  });
}

void Program::run_op(const ProductOp& op, Member& member, const StepInputs& step) {
  const std::size_t given = rows_of(activations_[op.source].samples, step);
  const Activations source = activations(op.source, member, given).view();
  // Rows whose hidden state is all that is wanted have no logits, and come last.
  const std::size_t rows = &op == &logits_product() ? step.drawn() : given;
  FloatBuffer& target = floats_[op.target];
  const Store how = op.add ? Store::kAdd : Store::kAssign;
  const std::size_t row_blocks = blocks(rows, kRowBlock);
  const auto total = [&](std::size_t region) {
    std::size_t count = 0;
    for (const ProductPart& part : op.parts) count += pairs(linears_[part.linear].panel_count(region));
    return count;
  };
  // Within a block of rows the panels follow one another, so that the rows' activations are read from the cache.
  member.share_regions(
      [&](std::size_t region) { return total(region) * row_blocks; }, [&](std::size_t region, std::size_t chunk) { return cut_pairs(total(region), rows, chunk, 1); },
      [&](std::size_t region, std::size_t begin, std::size_t end) {
        const std::size_t all = total(region);
        while (begin < end) {
          const std::size_t block = begin / all;
          std::size_t first = begin % all;
          std::size_t last = std::min(all, first + (end - begin));
          begin += last - first;
          const std::size_t row_end = std::min(rows, (block + 1) * kRowBlock);
          for (const ProductPart& part : op.parts) {
            const Linear& linear = linears_[part.linear];
            const std::size_t panel_count = linear.panel_count(region), here = pairs(panel_count);
            if (first < here && last > 0) {
              const std::size_t panel_end = std::min(2 * last, panel_count);
              float* made = target.row(block * kRowBlock) + part.column + (linear.first[region] + 2 * first) * kPanel;
              kernels_.product(linear.regions[region], source, block * kRowBlock, row_end, 2 * first, panel_end, how, made, target.width);
              if (op.softcap != 0.0f) {
                const std::size_t width = std::min(linear.regions[region].outputs, panel_end * kPanel) - 2 * first * kPanel;
                for (std::size_t row = block * kRowBlock; row < row_end; ++row, made += target.width) kernels_.softcap(made, width, op.softcap);
              }
            }
            first = first > here ? first - here : 0;
            last = last > here ? last - here : 0;
            if (last == 0) break;
          }
        }
      },
      [&] { ask_ahead(member, step); });
}

void Program::run_op(const GatedOp& op, Member& member, const StepInputs& step) {
  const std::size_t rows = rows_of(activations_[op.source].samples, step);
  const Activations source = activations(op.source, member, rows).view();
  ActivationBuffer& target = activations_[op.target];
  const Linear& gate = linears_[op.gate];
  const Linear& up = linears_[op.up];
  const auto combine = op.activation == Activation::kGelu ? kernels_.gelu_mul : kernels_.silu_mul;
  AlignedBytes& memory = scratch_[static_cast<std::size_t>(member.index())].floats;
  memory.reserve((2 + kGatedGroups) * kGatedRows * kGroup * sizeof(float));
  auto* gates = reinterpret_cast<float*>(memory.data());
  float *ups = gates + kGatedRows * kGroup, *combined = ups + kGatedRows * kGroup;
  const std::size_t row_blocks = blocks(rows, kGatedRows);
  // A unit is one group of 32 outputs, a pair of panels, so that it can be converted where it is made.
  member.share_regions(
      [&](std::size_t region) { return pairs(gate.panel_count(region)) * row_blocks; },
      [&](std::size_t region, std::size_t chunk) { return cut_pairs(pairs(gate.panel_count(region)), rows, chunk, kGatedGroups); },
      [&](std::size_t region, std::size_t begin, std::size_t end) {
        const PackedLinear& own_gate = gate.regions[region];
        const PackedLinear& own_up = up.regions[region];
        const std::size_t panel_count = gate.panel_count(region), total = pairs(panel_count);
        while (begin < end) {
          const std::size_t unit = begin % total, units = std::min({kGatedGroups, end - begin, total - unit});
          const std::size_t first = begin / total * kGatedRows, count = std::min(kGatedRows, rows - first);
          begin += units;
          std::size_t width = 0;
          for (std::size_t panel = 2 * unit; panel < 2 * (unit + units); panel += 2) {
            const std::size_t panel_end = std::min(panel_count, panel + 2), own = std::min<std::size_t>(kGroup, own_gate.outputs - panel * kPanel);
            kernels_.product(own_gate, source, first, first + count, panel, panel_end, Store::kAssign, gates, kGroup);
            kernels_.product(own_up, source, first, first + count, panel, panel_end, Store::kAssign, ups, kGroup);
            for (std::size_t row = 0; row < count; ++row) {
              combine(gates + row * kGroup, ups + row * kGroup, own, combined + row * kGatedGroups * kGroup + width);
            }
            width += own;
          }
          for (std::size_t row = 0; row < count; ++row) {
            target.put(kernels_, combined + row * kGatedGroups * kGroup, width, first + row, gate.first[region] / 2 + unit);
          }
        }
      },
      [&] { ask_ahead(member, step); });
}

}  // namespace octavo

#include "program/program.hpp"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "team/clock.hpp"

namespace octavo {

namespace {

void require(bool condition, const char* message) {
  if (!condition) throw std::invalid_argument(message);
}

}  // namespace

Program::Program(std::size_t vocabulary, int threads, std::vector<int> cores, const Kernels& kernels, CacheType cache_type)
    : vocabulary_(vocabulary),
      kernels_(kernels),
      team_(std::make_unique<Team>(threads, std::move(cores))),
      sampler_(vocabulary, threads, kernels),
      arenas_(static_cast<std::size_t>(threads)),
      caches_(cache_type) {
  scratch_.resize(static_cast<std::size_t>(threads));
}

std::size_t Program::add_floats(std::size_t width, bool samples) {
  require(width > 0, "a buffer needs a width");
  floats_.push_back({width, samples, {}});
  return floats_.size() - 1;
}

std::size_t Program::add_activations(std::size_t inner, bool integer, bool samples) {
  require(inner > 0, "a buffer needs a width");
  ActivationBuffer buffer;
  buffer.inner = inner;
  buffer.integer = integer;
  buffer.samples = samples;
  for (Scratch& scratch : scratch_) {
    scratch.activations.emplace_back();
    scratch.activations.back().inner = inner;
    scratch.activations.back().integer = integer;
    scratch.activations.back().samples = samples;
  }
  activations_.push_back(std::move(buffer));
  shared_.push_back(false);
  return activations_.size() - 1;
}

std::size_t Program::add_vector(std::vector<float> values) {
  vectors_.push_back(std::move(values));
  return vectors_.size() - 1;
}

std::size_t Program::add_linear(Layout layout, std::size_t outputs, std::size_t inner, std::vector<float> bias) {
  Linear& linear = make_linear(layout, outputs, inner, std::move(bias));
  const std::size_t bytes = panel_bytes(layout, inner);
  for (std::size_t region = 0; region < arenas_.size(); ++region) {
    linear.data[region] = arenas_[region].take(linear.panel_count(region) * bytes);
    linear.regions[region].data = linear.data[region];
  }
  return linears_.size() - 1;
}

std::size_t Program::add_linear_pair(Layout first, Layout second, std::size_t outputs, std::size_t inner, std::vector<float> first_bias,
                                     std::vector<float> second_bias) {
  make_linear(first, outputs, inner, std::move(first_bias));
  make_linear(second, outputs, inner, std::move(second_bias));
  Linear* both = &linears_[linears_.size() - 2];
  const std::size_t one = 2 * panel_bytes(first, inner), stride = one + 2 * panel_bytes(second, inner);
  for (std::size_t region = 0; region < arenas_.size(); ++region) {
    std::uint8_t* data = arenas_[region].take((both->panel_count(region) + 1) / 2 * stride);
    for (std::size_t i = 0; i < 2; ++i) {
      both[i].data[region] = data + i * one;
      both[i].regions[region].data = both[i].data[region];
      both[i].regions[region].pair_stride = stride;
    }
  }
  return linears_.size() - 2;
}

// Everything but the place in memory.
Linear& Program::make_linear(Layout layout, std::size_t outputs, std::size_t inner, std::vector<float> bias) {
  require(outputs > 0 && inner > 0, "a linear needs outputs and inner values");
  require(bias.empty() || bias.size() == outputs, "a bias needs one value for each output");
  const std::size_t pairs = (panels(outputs) + 1) / 2, regions = arenas_.size();
  Linear linear{layout, outputs, inner, std::move(bias), {}, std::vector<std::uint8_t*>(regions), {0}};
  for (std::size_t region = 0; region < regions; ++region) {
    const std::size_t first = linear.first.back(), last = std::min(panels(outputs), 2 * (pairs * (region + 1) / regions));
    const std::size_t begin = std::min(outputs, first * kPanel), end = std::min(outputs, last * kPanel);
    // Moving a vector keeps its elements where they are, so the pointer stays true wherever the linear goes.
    linear.regions.push_back({layout, end - begin, inner, nullptr, linear.bias.empty() ? nullptr : linear.bias.data() + begin});
    linear.first.push_back(last);
  }
  linears_.push_back(std::move(linear));
  return linears_.back();
}

PackStats Program::pack(std::size_t index, const CheckpointLinear& checkpoint, std::size_t panel) {
  Linear& linear = linears_.at(index);
  const std::size_t region = linear.region_of(panel);
  std::uint8_t* place = linear.data[region] + panel_offset(linear.regions[region], panel - linear.first[region]);
  return pack_panel(checkpoint, linear.layout, panel, place);
}

std::size_t Program::add_rope(std::vector<float> inverse_frequencies, float scale) {
  ropes_.push_back({std::move(inverse_frequencies), scale});
  return ropes_.size() - 1;
}

namespace {

// Which form of activations a layout multiplies.
bool integer_form(Layout layout) { return layout != Layout::kBf16; }

}  // namespace

void Program::add_operation(Operation operation) {
  const auto linear_fits = [this](std::size_t linear, std::size_t source) {
    const Linear& packed = linears_.at(linear);
    require(packed.inner == activations_.at(source).inner, "a linear and its activations differ in size");
    require(integer_form(packed.layout) == activations_.at(source).integer, "a linear's layout can't multiply this form of activations");
  };
  const auto same_rows = [](bool a, bool b) { require(a == b, "an operation mixes rows of tokens and rows of samples"); };
  if (const auto* embed = std::get_if<EmbedOp>(&operation)) {
    require(linears_.at(embed->linear).outputs == vocabulary_, "the embedding needs a row for each token of the vocabulary");
    require(linears_.at(embed->linear).inner == floats_.at(embed->target).width, "the embedding's width differs from its target's");
  } else if (const auto* gather = std::get_if<GatherOp>(&operation)) {
    require(floats_.at(gather->source).width == floats_.at(gather->target).width, "a gather's buffers differ in width");
    require(!floats_.at(gather->source).samples && floats_.at(gather->target).samples, "a gather goes from tokens to samples");
  } else if (const auto* norm = std::get_if<NormOp>(&operation)) {
    require(vectors_.at(norm->vector).size() == floats_.at(norm->source).width, "a norm's weight differs in size from its input");
    require(activations_.at(norm->target).inner == floats_.at(norm->source).width, "a norm's target differs in size from its input");
    same_rows(floats_.at(norm->source).samples, activations_.at(norm->target).samples);
  } else if (const auto* added = std::get_if<AddNormOp>(&operation)) {
    const std::size_t width = floats_.at(added->source).width;
    require(vectors_.at(added->vector).size() == width, "a norm's weight differs in size from its input");
    require(floats_.at(added->target).width == width, "a norm's target differs in size from its input");
    same_rows(floats_.at(added->source).samples, floats_.at(added->target).samples);
  } else if (const auto* convert = std::get_if<ConvertOp>(&operation)) {
    require(activations_.at(convert->target).inner == floats_.at(convert->source).width, "a conversion's buffers differ in size");
    same_rows(floats_.at(convert->source).samples, activations_.at(convert->target).samples);
  } else if (const auto* product = std::get_if<ProductOp>(&operation)) {
    for (const ProductPart& part : product->parts) {
      linear_fits(part.linear, product->source);
      require(part.column + linears_.at(part.linear).outputs <= floats_.at(product->target).width, "a product reaches beyond its target");
    }
    require(product->softcap == 0.0f || !product->add, "what is added to can't be capped");
    same_rows(activations_.at(product->source).samples, floats_.at(product->target).samples);
  } else if (const auto* gated = std::get_if<GatedOp>(&operation)) {
    linear_fits(gated->gate, gated->source);
    linear_fits(gated->up, gated->source);
    const std::size_t width = activations_.at(gated->target).inner;
    require(linears_.at(gated->gate).outputs == width && linears_.at(gated->up).outputs == width, "gate, up and target differ in size");
    same_rows(activations_.at(gated->source).samples, activations_.at(gated->target).samples);
    shared_[gated->target] = true;
  } else if (const auto* attend = std::get_if<AttendOp>(&operation)) {
    require(attend->layer < caches_.of(attend->windowed).layers(), "attention needs a layer of the cache");
    require(!attend->windowed || attend->window != 0, "a layer with blocks of its own needs a window");
    const CacheShape layer = shape_of(*attend);
    require(attend->heads > 0 && attend->heads % layer.kv_heads == 0, "the heads are no multiple of the KV heads");
    require(floats_.at(attend->source).width == (attend->heads + 2 * layer.kv_heads) * layer.head_dim, "attention's source has another width");
    require(floats_.at(attend->target).width == attend->heads * layer.head_dim, "attention's target has another width");
    require(2 * ropes_.at(attend->rope).inverse_frequencies.size() <= layer.head_dim, "rope turns more than a head");
    for (const std::size_t own : {attend->norms.query, attend->norms.key}) {
      require(own == kNoVector || vectors_.at(own).size() == layer.head_dim, "a head's norm has another size than the head");
    }
    require(!floats_.at(attend->source).samples && !floats_.at(attend->target).samples, "attention works on rows of tokens");
  }
  operations_.push_back(std::move(operation));
}

std::size_t Program::weights_bytes() const {
  std::size_t total = 0;
  for (const Linear& linear : linears_) total += packed_bytes(linear.layout, linear.outputs, linear.inner) + linear.bias.size() * sizeof(float);
  for (const auto& vector : vectors_) total += vector.size() * sizeof(float);
  return total;
}

void Program::check(const StepInputs& step) const {
  require(caches_.block_size() != 0, "the cache is not allocated");
  require(!operations_.empty() && std::holds_alternative<ProductOp>(operations_.back()), "the last operation must be the logits' product");
  require(caches_.apart() == (step.window_tables != nullptr), "there are tables of two kinds where the blocks are of one, or the other way round");
  check_step(step, vocabulary_, caches_.of(false).num_blocks(), caches_.block_size(), window_of(false));
  if (caches_.apart()) check_tables(step, step.window_tables, caches_.of(true).num_blocks(), caches_.block_size(), window_of(true));
}

// How far back any layer sees that has blocks of this kind; 0 for all.
std::size_t Program::window_of(bool windowed) const {
  std::size_t window = 0;
  for (const Operation& operation : operations_) {
    const auto* attend = std::get_if<AttendOp>(&operation);
    if (attend == nullptr || (caches_.apart() && attend->windowed != windowed)) continue;
    if (attend->window == 0) return 0;
    window = std::max(window, attend->window);
  }
  return window;
}

const ProductOp& Program::logits_product() const { return std::get<ProductOp>(operations_.back()); }

const float* Program::logits() { return floats_[logits_product().target].row(0); }

std::shared_ptr<const std::uint8_t[]> Program::logits_memory() const { return floats_[logits_product().target].memory.keep(); }

// The last norm has put them into the form that the logits' product takes; here they are norms in float32.
void Program::keep_hidden(const StepInputs& step) {
  const auto* norm = operations_.size() < 2 ? nullptr : std::get_if<NormOp>(&operations_[operations_.size() - 2]);
  require(step.hidden == 0 || norm != nullptr, "there is no norm before the logits, so there are no hidden states");
  const std::size_t width = step.hidden == 0 ? 0 : floats_[norm->source].width;
  hidden_.resize(step.hidden * width);
  for (std::size_t i = 0; i < step.hidden; ++i) {
    const float* source = floats_[norm->source].row(step.drawn() + i);
    kernels_.rms_norm_row(source, vectors_[norm->vector].data(), norm->epsilon, width, hidden_.data() + i * width);
  }
}

const float* Program::run(const StepInputs& step) {
  check(step);
  prepare(step);
  team_->run([&](Member& member) { execute(member, step); });
  keep_hidden(step);
  return logits();
}

template <typename Work>
void Program::timed(Member& member, std::size_t operation, Work&& work) {
  if (profile_.empty()) return work();
  const std::int64_t start = nanoseconds_now(), waited = member.waited();
  work();
  Spent& spent = profile_[static_cast<std::size_t>(member.index())][operation];
  const std::int64_t waiting = member.waited() - waited;
  spent.waiting += waiting;
  spent.working += nanoseconds_now() - start - waiting;
}

const SamplingResults& Program::run_and_sample(const StepInputs& step, const SamplingInputs& sampling) {
  check(step);
  require(sampling.rows.size() == step.drawn(), "the rows to sample differ in number from the rows of logits");
  sampler_.prepare(sampling);
  prepare(step);
  team_->run([&](Member& member) {
    execute(member, step);
    timed(member, operations_.size() + 1, [&] { sampler_.run(member, sampling, logits()); });
  });
  keep_hidden(step);
  return sampler_.results();
}

const SamplingResults& Program::sample(const float* logits, const SamplingInputs& sampling) {
  sampler_.prepare(sampling);
  team_->run([&](Member& member) { timed(member, operations_.size() + 1, [&] { sampler_.run(member, sampling, logits); }); });
  return sampler_.results();
}

void Program::prepare(const StepInputs& step) {
  const std::size_t logits_target = logits_product().target;
  for (std::size_t i = 0; i < floats_.size(); ++i) {
    floats_[i].reserve(std::max<std::size_t>(1, i == logits_target ? step.drawn() : rows_of(floats_[i].samples, step)));
  }
  for (ActivationBuffer& buffer : activations_) buffer.reserve(std::max<std::size_t>(1, rows_of(buffer.samples, step)));
  for (Scratch& scratch : scratch_) {
    for (ActivationBuffer& buffer : scratch.activations) buffer.reserve(1);
  }
  cosines_.resize(ropes_.size());
  sines_.resize(ropes_.size());
  for (std::size_t rope = 0; rope < ropes_.size(); ++rope) {
    const std::size_t bytes = step.tokens * ropes_[rope].inverse_frequencies.size() * sizeof(float);
    cosines_[rope].reserve(bytes);
    sines_[rope].reserve(bytes);
  }
  placements_.fill({step.block_tables, step.slots});
  if (caches_.apart()) {
    window_slots_ = window_slots(step, caches_.block_size());
    placements_[1] = {step.window_tables, window_slots_.data()};
  }
  runs_ = strip_runs(step);
  plans_.clear();
  std::size_t query_bytes = 0, partial_floats = 0, scratch_floats = 0;
  for (const Operation& operation : operations_) {
    const auto* op = std::get_if<AttendOp>(&operation);
    if (op == nullptr) continue;
    const CacheShape shape = shape_of(*op);
    const std::size_t group = op->heads / shape.kv_heads;
    const auto fits = [&](const AttentionPlan& plan) { return plan.kv_heads == shape.kv_heads && plan.group == group; };
    if (std::none_of(plans_.begin(), plans_.end(), fits)) {
      plans_.push_back(plan_attention(step, caches_.block_size(), group, shape.kv_heads, static_cast<std::size_t>(team_->size()), share_prefixes_));
    }
    const AttentionPlan& plan = plan_of(*op);
    query_bytes = std::max(query_bytes, op->heads * step.tokens * shape.query_bytes());
    const std::size_t softmax = kQueryRows * (2 + shape.dim_padded());
    scratch_floats = std::max(scratch_floats, (2 * kGroupTiles + 1) * softmax);
    if (plan.split) partial_floats = std::max(partial_floats, plan.pieces.size() * softmax);
  }
  queries_.reserve(query_bytes);
  partials_.reserve(partial_floats * sizeof(float));
  for (Scratch& scratch : scratch_) {
    scratch.softmax.reserve(scratch_floats * sizeof(float));
    scratch.shared_reads = 0;
  }
}

std::size_t Program::shared_reads() const {
  std::size_t reads = 0;
  for (const Scratch& scratch : scratch_) reads += scratch.shared_reads;
  return reads;
}

const AttentionPlan& Program::plan_of(const AttendOp& op) const {
  const std::size_t kv_heads = shape_of(op).kv_heads;
  return *std::find_if(plans_.begin(), plans_.end(), [&](const AttentionPlan& plan) {
    return plan.kv_heads == kv_heads && plan.group * kv_heads == op.heads;
  });
}

void Program::execute(Member& member, const StepInputs& step) {
  timed(member, operations_.size(), [&] {
    for (std::size_t rope = 0; rope < ropes_.size(); ++rope) fill_rope(rope, member, step);
  });
  for (std::size_t i = 0; i < operations_.size(); ++i) {
    scratch_[static_cast<std::size_t>(member.index())].upcoming = i + 1;
    timed(member, i, [&] { std::visit([&](const auto& op) { run_op(op, member, step); }, operations_[i]); });
  }
}

}  // namespace octavo

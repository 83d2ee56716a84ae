// A model as a list of fused operations over buffers, run by a team of threads in one call.
//
// Built once: buffers, weights, then operations in the order they run. Every operation is executed by the whole team, which shares out rows,
// panels or heads; a reduction is never shared, so neither the number of threads nor the shape of the batch shows in the numbers.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "kernels/kernels.hpp"
#include "pack/pack.hpp"
#include "program/buffers.hpp"
#include "program/cache.hpp"
#include "program/profile.hpp"
#include "program/step.hpp"
#include "sampling/sampler.hpp"
#include "team/team.hpp"

namespace octavo {

// A part of a product: a linear whose outputs go to `column` of the target's rows.
struct ProductPart {
  std::size_t linear;
  std::size_t column;
};

struct EmbedOp {
  std::size_t linear, target;
  float scale = 1.0f;
};
// Picks the rows whose logits are wanted.
struct GatherOp {
  std::size_t source, target;
};
// RMS norm of floats into activations.
struct NormOp {
  std::size_t source, vector, target;
  float epsilon;
};
// RMS norm of floats, added to others.
struct AddNormOp {
  std::size_t source, vector, target;
  float epsilon;
};
// Floats into activations.
struct ConvertOp {
  std::size_t source, target;
};
struct ProductOp {
  std::size_t source, target;
  std::vector<ProductPart> parts;
  bool add;
  float softcap = 0.0f;  // of what comes out; 0 for none
};
// What a gate is put through.
enum class Activation : int { kSilu = 0, kGelu = 1 };
// activation(gate) · up of one activation, into another.
struct GatedOp {
  std::size_t source, gate, up, target;
  Activation activation = Activation::kSilu;
};
constexpr std::size_t kNoVector = static_cast<std::size_t>(-1);
// Norms of the heads of queries and keys, if they have vectors.
struct HeadNorms {
  std::size_t query = kNoVector, key = kNoVector;
  float epsilon = 0.0f;
};
// Norms, rope, cache write and attention of the columns [queries | keys | values] of `source`.
struct AttendOp {
  std::size_t source, target, layer, rope, heads, window;
  float scale;
  float softcap = 0.0f;  // of the scores; 0 for none
  HeadNorms norms = {};
  bool windowed = false;  // which of the caches has the layer
};
using Operation = std::variant<EmbedOp, GatherOp, NormOp, AddNormOp, ConvertOp, ProductOp, GatedOp, AttendOp>;

// A packed linear. Each thread of the team has a region of all weights, in the order in which they are read, so that a step of few rows
// reads as many long streams of memory as there are threads: many short ones are read at half the speed. Region r has `regions[r]`, whole
// pairs of panels (none, if the linear is small) from panel `first[r]` on; first.back() is the number of panels.
struct Linear {
  Layout layout;
  std::size_t outputs, inner;
  std::vector<float> bias;
  std::vector<PackedLinear> regions;
  std::vector<std::uint8_t*> data;
  std::vector<std::size_t> first;

  std::size_t panel_count(std::size_t region) const { return first[region + 1] - first[region]; }
  // Which region has a panel.
  std::size_t region_of(std::size_t panel) const {
    return static_cast<std::size_t>(std::upper_bound(first.begin(), first.end(), panel) - first.begin()) - 1;
  }
};

struct Rope {
  std::vector<float> inverse_frequencies;
  float scale;
};

// A partition of the keys of a tile, for one KV head; no tile means none.
struct Place {
  const TileRange* tile = nullptr;
  std::size_t kv_head = 0, partition = 0;
};

// The sum over the partitions of a tile that have been worked on, always in the same tree: see kSpan.
struct TileSum {
  Softmax running, span;
  bool begun = false, in_span = false;
};

class Program {
 public:
  Program(std::size_t vocabulary, int threads, std::vector<int> cores, const Kernels& kernels, CacheType cache_type);

  std::size_t add_floats(std::size_t width, bool samples);
  std::size_t add_activations(std::size_t inner, bool integer, bool samples);
  std::size_t add_vector(std::vector<float> values);
  // Memory for a packed linear, which is then to be packed.
  std::size_t add_linear(Layout layout, std::size_t outputs, std::size_t inner, std::vector<float> bias);
  // Two that are read in turns, a pair of panels of each: a gate and its up. Their indices follow one another; the first is returned.
  std::size_t add_linear_pair(Layout first, Layout second, std::size_t outputs, std::size_t inner, std::vector<float> first_bias,
                              std::vector<float> second_bias);
  const Linear& linear(std::size_t index) const { return linears_.at(index); }
  // Packs one panel. Threads may pack different ones at the same time.
  PackStats pack(std::size_t index, const CheckpointLinear& checkpoint, std::size_t panel);
  std::size_t add_rope(std::vector<float> inverse_frequencies, float scale);
  // Throws std::invalid_argument if the operation's buffers and weights do not fit together.
  void add_operation(Operation operation);

  std::size_t weights_bytes() const;
  // Keys and values; layers are added to it, and it is allocated, before the first step.
  Caches& cache() { return caches_; }
  const Caches& cache() const { return caches_; }

  // Runs one step; the result is [samples that are drawn from][vocabulary] floats, valid until the next run. Whoever looks at them for longer holds
  // `logits_memory`: the next run may overwrite them, but does not free them then.
  const float* run(const StepInputs& step);
  std::shared_ptr<const std::uint8_t[]> logits_memory() const;

  // Runs one step and samples a token for each of its rows of logits; the result is valid until the next of these two.
  const SamplingResults& run_and_sample(const StepInputs& step, const SamplingInputs& sampling);

  // The hidden states, after the last norm, that the last step wanted: [hidden][width] floats.
  const std::vector<float>& hidden() const { return hidden_; }

  // Samples from logits [rows][vocabulary].
  const SamplingResults& sample(const float* logits, const SamplingInputs& sampling);

  // Whether keys and values that sequences of a step share are read once for several of them, which is so at first. The bits are the same.
  void share_prefixes(bool share) { share_prefixes_ = share; }

  // Partitions of keys and values that the last step took for another sequence while they were in the cache, over all layers and KV heads.
  std::size_t shared_reads() const;

  // Counts from now on, and from zero, what steps spend where; or no longer. Not while a step runs.
  void profile(bool on);
  std::vector<ProfileLine> profiled() const;

  Team& team() { return *team_; }
  const Kernels& kernels() const { return kernels_; }
  std::size_t vocabulary() const { return vocabulary_; }

 private:
  // What one thread needs for itself.
  struct Scratch {
    std::vector<ActivationBuffer> activations;  // for steps of one row, which every thread converts for itself
    AlignedBytes floats, softmax;
    std::size_t upcoming = 0;  // the operation that follows the one that runs
    std::size_t shared_reads = 0;
  };

  Linear& make_linear(Layout layout, std::size_t outputs, std::size_t inner, std::vector<float> bias);
  void prepare(const StepInputs& step);
  void check(const StepInputs& step) const;
  std::size_t window_of(bool windowed) const;
  const float* logits();
  const ProductOp& logits_product() const;
  void keep_hidden(const StepInputs& step);
  void execute(Member& member, const StepInputs& step);
  std::size_t rows_of(bool samples, const StepInputs& step) const { return samples ? step.samples : step.tokens; }
  ActivationBuffer& activations(std::size_t index, Member& member, std::size_t rows);
  void ask_ahead(Member& member, const StepInputs& step) const;

  void run_op(const EmbedOp& op, Member& member, const StepInputs& step);
  void run_op(const GatherOp& op, Member& member, const StepInputs& step);
  void run_op(const NormOp& op, Member& member, const StepInputs& step);
  void run_op(const AddNormOp& op, Member& member, const StepInputs& step);
  void run_op(const ConvertOp& op, Member& member, const StepInputs& step);
  void run_op(const ProductOp& op, Member& member, const StepInputs& step);
  void run_op(const GatedOp& op, Member& member, const StepInputs& step);
  void run_op(const AttendOp& op, Member& member, const StepInputs& step);

  template <typename Work>
  void timed(Member& member, std::size_t operation, Work&& work);
  std::string name_of(std::size_t operation) const;
  template <typename Put>
  void convert_rows(std::size_t target, Member& member, const StepInputs& step, Put&& put);
  void turn_head(float* head, const AttendOp& op, std::size_t norm, std::size_t token) const;
  void write_run(const AttendOp& op, const StripRun& run, std::size_t kv_head, const StepInputs& step);
  KeyRange keys_of(const AttendOp& op, const AttentionPlan& plan, const Place& place, const StepInputs& step) const;
  void attend_partition(const AttendOp& op, const AttentionPlan& plan, const Place& place, const Place& next, bool& cold,
                        const StepInputs& step, Softmax result);
  void finish_tile(const AttendOp& op, const AttentionPlan& plan, const TileRange& tile, std::size_t kv_head, Softmax result);
  void add_partition(const AttendOp& op, const AttentionPlan& plan, const Place& place, const Place& next, bool& cold, const StepInputs& step,
                     TileSum& sum, Softmax space);
  void attend_group(const AttendOp& op, const AttentionPlan& plan, const TileGroup& group, std::size_t kv_head, const Place& after, bool& cold,
                    Scratch& scratch, const StepInputs& step);
  void attend_split(const AttendOp& op, const AttentionPlan& plan, Member& member, const StepInputs& step);
  void merge_unit(const AttendOp& op, const AttentionPlan& plan, std::size_t unit);
  Place first_place(const AttendOp& op, const AttentionPlan& plan, std::size_t tile, std::size_t kv_head) const;
  void ask_keys(const AttendOp& op, std::size_t kv_head, std::size_t most, const StepInputs& step) const;
  Range partitions_of(const AttendOp& op, const AttentionPlan& plan, const TileRange& tile) const;
  const AttentionPlan& plan_of(const AttendOp& op) const;
  void fill_rope(std::size_t index, Member& member, const StepInputs& step);
  const AttentionKernels& attention() const { return kernels_.attention[static_cast<std::size_t>(caches_.type())]; }
  CacheShape shape_of(const AttendOp& op) const { return caches_.of(op.windowed).shape(op.layer); }
  const Placement& placement_of(const AttendOp& op) const { return placements_[op.windowed ? 1 : 0]; }


  std::size_t vocabulary_;
  const Kernels& kernels_;
  std::unique_ptr<Team> team_;
  Sampler sampler_;
  std::vector<FloatBuffer> floats_;
  std::vector<ActivationBuffer> activations_;
  std::vector<bool> shared_;  // activations that the team writes together whatever their rows
  std::vector<std::vector<float>> vectors_;
  std::vector<Arena> arenas_;  // one for each region
  std::vector<Linear> linears_;
  std::vector<Rope> ropes_;
  Caches caches_;
  bool share_prefixes_ = true;
  std::vector<Operation> operations_;
  std::vector<Scratch> scratch_;
  Profile profile_;  // empty unless steps are timed

  // Of the step that runs.
  std::array<Placement, 2> placements_{};
  std::vector<std::int64_t> window_slots_;
  std::vector<StripRun> runs_;
  std::vector<float> hidden_;
  std::vector<AttentionPlan> plans_;
  std::vector<AlignedBytes> cosines_, sines_;  // for each rope [tokens][frequencies]
  AlignedBytes queries_;                       // [kv head][tokens · group][query_bytes]
  AlignedBytes partials_;                      // softmax of each partition, when partitions are shared out
};

}  // namespace octavo

// The Python module octavo._native: what octavo.backends.cpu builds programs with. It checks what Python hands over and holds no policy.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "binding/probe.hpp"
#include "binding/sources.hpp"
#include "isa/isa.hpp"
#include "kernels/tables.hpp"
#include "pack/pack.hpp"
#include "program/program.hpp"

namespace nb = nanobind;

namespace octavo {
namespace {

using Bytes = nb::ndarray<const std::uint8_t, nb::ndim<2>, nb::device::cpu>;
using Integers = nb::ndarray<const std::int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Longs = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Table = nb::ndarray<const std::int32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Logits = nb::ndarray<nb::numpy, const float, nb::ndim<2>, nb::c_contig>;
using GivenLogits = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Records = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Ids = std::vector<std::int32_t>;
using Logprobs = std::vector<float>;
using Results = std::tuple<Ids, Logprobs, Ids, Ids, Logprobs>;

std::vector<float> copy_of(const Floats& values) { return {values.data(), values.data() + values.shape(0)}; }

void require(bool condition, const char* message) {
  if (!condition) throw std::invalid_argument(message);
}

// Marks a program as running, under the GIL, from before it is let go of until it is held again: what another thread asks of the program
// meanwhile is refused, as it would move the memory that the step works in.
class Turn {
 public:
  explicit Turn(bool& running) : running_(running) {
    check(running);
    running = true;
  }
  ~Turn() { running_ = false; }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

  static void check(bool running) {
    if (running) throw std::logic_error("a program does one thing at a time, and another thread still runs it");
  }

 private:
  bool& running_;
};

CacheType cache_type_of(const std::string& name) {
  static const std::map<std::string, CacheType> kByName = {{"float32", CacheType::kFloat32},
                                                           {"bfloat16", CacheType::kBfloat16},
                                                           {"float16", CacheType::kFloat16},
                                                           {"int8", CacheType::kInt8},
                                                           {"fp8", CacheType::kFp8}};
  const auto found = kByName.find(name);
  require(found != kByName.end(), "unknown type of the KV cache");
  return found->second;
}

// A program that one Python thread runs at a time.
class BoundProgram {
 public:
  BoundProgram(std::size_t vocabulary, int threads, std::vector<int> cores, const std::string& isa, const std::string& cache_type)
      : program_(vocabulary, threads, std::move(cores), kernels_of(isa.empty() ? chosen() : from_name(isa)), cache_type_of(cache_type)) {}

  // To be changed, which it must not be while it runs.
  Program* operator->() {
    Turn::check(running_);
    return &program_;
  }

  const Program& read() const { return program_; }

  // How many of a linear's values the layout could not hold exactly. `data` is [rows, bytes a row]; row r of the linear is row order[r] of it.
  std::size_t fill(std::size_t linear, int storage, const Bytes& data, const Longs& order) {
    const Turn turn(running_);
    const Linear& packed = program_.linear(linear);
    require(storage >= 0 && storage <= static_cast<int>(kLastStorage), "unknown storage");
    const std::size_t bytes = row_bytes(static_cast<Storage>(storage), packed.inner);
    require(bytes != 0 && data.shape(1) == bytes && (data.shape(1) <= 1 || data.stride(1) == 1), "the rows have another size than the linear's");
    require(data.stride(0) >= 0, "the rows run backwards");
    require(order.shape(0) == 0 ? data.shape(0) == packed.outputs : order.shape(0) == packed.outputs, "the rows differ in number from the linear's");
    for (std::size_t i = 0; i < order.shape(0); ++i) {
      require(order.data()[i] >= 0 && static_cast<std::size_t>(order.data()[i]) < data.shape(0), "a row to take is out of range");
    }
    const CheckpointLinear checkpoint{static_cast<Storage>(storage), packed.outputs, packed.inner, data.data(),
                                      static_cast<std::size_t>(data.stride(0)), order.shape(0) == 0 ? nullptr : order.data()};
    std::size_t changed = 0;
    std::mutex mutex;
    nb::gil_scoped_release release;
    program_.team().run([&](Member& member) {
      PackStats own;
      member.share(panels(packed.outputs), 8, [&](std::size_t begin, std::size_t end) {
        for (std::size_t panel = begin; panel < end; ++panel) own += program_.pack(linear, checkpoint, panel);
      });
      const std::lock_guard lock(mutex);
      changed += own.changed;
    });
    return changed;
  }

  // The logits [samples drawn from, vocabulary]: a view that the next run overwrites, or leaves behind if it needs more room.
  Logits run(const Integers& token_ids, const Integers& positions, const Longs& slots, const Integers& query_starts,
             const Integers& sequence_lengths, const Table& block_tables, const std::optional<Table>& window_tables, const Integers& logit_rows) {
    const Turn turn(running_);
    const StepInputs step = step_of(token_ids, positions, slots, query_starts, sequence_lengths, block_tables, window_tables, logit_rows);
    const float* logits = nullptr;
    {
      nb::gil_scoped_release release;
      logits = program_.run(step);
    }
    using Kept = std::shared_ptr<const std::uint8_t[]>;
    auto kept = std::make_unique<Kept>(program_.logits_memory());
    const nb::capsule owner(kept.get(), [](void* pointer) noexcept { delete static_cast<Kept*>(pointer); });
    kept.release();
    return {logits, {step.drawn(), program_.vocabulary()}, owner};
  }

  // A step and its sampling in one call; see SamplingInputs and SamplingResults. `records` holds a SamplingRow for each of logit_rows.
  Results run_and_sample(const Integers& token_ids, const Integers& positions, const Longs& slots, const Integers& query_starts,
                         const Integers& sequence_lengths, const Table& block_tables, const std::optional<Table>& window_tables,
                         const Integers& logit_rows, const Records& records,
                         const Integers& ids, const Integers& counts, const Integers& bias_ids, const Floats& biases, const Table& masks) {
    const Turn turn(running_);
    const StepInputs step = step_of(token_ids, positions, slots, query_starts, sequence_lengths, block_tables, window_tables, logit_rows);
    const SamplingInputs sampling = sampling_of(records, ids, counts, bias_ids, biases, masks);
    const SamplingResults* results = nullptr;
    {
      nb::gil_scoped_release release;
      results = &program_.run_and_sample(step, sampling);
    }
    return as_tuple(*results);
  }

  // The hidden states that the last step wanted, one after another, as a copy.
  nb::bytes hidden() {
    const Turn turn(running_);
    return nb::bytes(program_.hidden().data(), program_.hidden().size() * sizeof(float));
  }

  nb::bytes read_block(std::int64_t block) {
    const Turn turn(running_);
    const std::vector<BlockPiece> pieces = program_.cache().pieces(block);
    if (pieces.size() == 1) return nb::bytes(pieces[0].data, pieces[0].size);
    std::string bytes;
    for (const BlockPiece& piece : pieces) bytes.append(reinterpret_cast<const char*>(piece.data), piece.size);
    return nb::bytes(bytes.data(), bytes.size());
  }

  void write_block(std::int64_t block, const nb::bytes& bytes) {
    const Turn turn(running_);
    const std::vector<BlockPiece> pieces = program_.cache().pieces(block);
    std::size_t size = 0, at = 0;
    for (const BlockPiece& piece : pieces) size += piece.size;
    require(bytes.size() == size, "a block has another number of bytes");
    for (const BlockPiece& piece : pieces) {
      std::memcpy(piece.data, static_cast<const std::uint8_t*>(bytes.data()) + at, piece.size);
      at += piece.size;
    }
  }

  Results sample(const GivenLogits& logits, const Records& records, const Integers& ids, const Integers& counts, const Integers& bias_ids,
                 const Floats& biases, const Table& masks) {
    const Turn turn(running_);
    const SamplingInputs sampling = sampling_of(records, ids, counts, bias_ids, biases, masks);
    const bool fits = logits.shape(0) == sampling.rows.size() && logits.shape(1) == program_.vocabulary();
    require(fits, "the logits have another shape than the rows");
    const SamplingResults* results = nullptr;
    {
      nb::gil_scoped_release release;
      results = &program_.sample(logits.data(), sampling);
    }
    return as_tuple(*results);
  }

 private:
  static StepInputs step_of(const Integers& token_ids, const Integers& positions, const Longs& slots, const Integers& query_starts,
                            const Integers& sequence_lengths, const Table& block_tables, const std::optional<Table>& window_tables,
                            const Integers& logit_rows) {
    StepInputs step{token_ids.shape(0),  sequence_lengths.shape(0), logit_rows.shape(0),     block_tables.shape(1),
                          token_ids.data(),    positions.data(),          slots.data(),            query_starts.data(),
                          sequence_lengths.data(), block_tables.data(),   logit_rows.data()};
    while (step.hidden < step.samples && logit_rows.data()[step.samples - 1 - step.hidden] < 0) ++step.hidden;
    require(positions.shape(0) == step.tokens && slots.shape(0) == step.tokens, "token_ids, positions and slots differ in length");
    require(query_starts.shape(0) == step.sequences + 1 && block_tables.shape(0) == step.sequences, "the sequences differ in number");
    if (window_tables) {
      const bool same = window_tables->shape(0) == block_tables.shape(0) && window_tables->shape(1) == block_tables.shape(1);
      require(same, "the tables of the two kinds of blocks differ in shape");
      step.window_tables = window_tables->data();
    }
    return step;
  }

  SamplingInputs sampling_of(const Records& records, const Integers& ids, const Integers& counts, const Integers& bias_ids,
                             const Floats& biases, const Table& masks) const {
    require(records.shape(0) % sizeof(SamplingRow) == 0, "the rows to sample have another size than the sampler's");
    require(ids.shape(0) == counts.shape(0), "the tokens to change and their counts differ in number");
    require(bias_ids.shape(0) == biases.shape(0), "the tokens to bias and their biases differ in number");
    require(masks.shape(0) == 0 || masks.shape(1) == (program_.vocabulary() + 31) / 32, "the masks have another width than the vocabulary");
    SamplingInputs sampling{std::vector<SamplingRow>(records.shape(0) / sizeof(SamplingRow)),
                            ids.data(),
                            counts.data(),
                            ids.shape(0),
                            bias_ids.data(),
                            biases.data(),
                            biases.shape(0),
                            masks.data(),
                            masks.shape(0)};
    if (!sampling.rows.empty()) std::memcpy(sampling.rows.data(), records.data(), records.shape(0));
    return sampling;
  }

  static Results as_tuple(const SamplingResults& results) {
    return {results.token_ids, results.logprobs, results.ranks, results.top_ids, results.top_logprobs};
  }

  Program program_;
  bool running_ = false;
};

}  // namespace
}  // namespace octavo

NB_MODULE(_native, module) {
  using namespace octavo;
  module.doc() = "Octavo's native CPU backend.";
  module.attr("version") = OCTAVO_VERSION;
  module.attr("sources_digest") = sources_digest();
  module.def(
      "isa", [] { return std::string(name(chosen())); },
      "The instruction set in use: the best of this machine, or the one that OCTAVO_CPU_ISA names (ValueError if it can't be).");
  module.def(
      "available_isas",
      [] {
        std::vector<std::string> names;
        for (const Isa isa : available()) names.emplace_back(name(isa));
        return names;
      },
      "The instruction sets that this machine can run, the least able first.");
  bind_probes(module);
  nb::class_<BoundProgram>(module, "Program", "A model as fused operations; see csrc/program/program.hpp.")
      .def(nb::init<std::size_t, int, std::vector<int>, const std::string&, const std::string&>(), nb::arg("vocabulary"), nb::arg("threads"), nb::arg("cores"),
           nb::arg("isa"), nb::arg("cache_type") = "bfloat16")
      .def("add_floats", [](BoundProgram& p, std::size_t width, bool samples) { return p->add_floats(width, samples); })
      .def("add_activations",
           [](BoundProgram& p, std::size_t inner, bool integer, bool samples) { return p->add_activations(inner, integer, samples); })
      .def("add_vector", [](BoundProgram& p, const Floats& values) { return p->add_vector(copy_of(values)); })
      .def("add_linear",
           [](BoundProgram& p, int layout, std::size_t outputs, std::size_t inner, const Floats& bias) {
             require(layout >= 0 && layout <= static_cast<int>(Layout::kBf16), "unknown layout");
             return p->add_linear(static_cast<Layout>(layout), outputs, inner, copy_of(bias));
           })
      .def("add_linear_pair",
           [](BoundProgram& p, int first, int second, std::size_t outputs, std::size_t inner, const Floats& first_bias, const Floats& second_bias) {
             const auto known = [](int layout) { return layout >= 0 && layout <= static_cast<int>(Layout::kBf16); };
             require(known(first) && known(second), "unknown layout");
             return p->add_linear_pair(static_cast<Layout>(first), static_cast<Layout>(second), outputs, inner, copy_of(first_bias),
                                       copy_of(second_bias));
           })
      .def("fill", &BoundProgram::fill)
      .def("add_rope", [](BoundProgram& p, const Floats& frequencies, float scale) { return p->add_rope(copy_of(frequencies), scale); })
      .def("add_cache_layer", [](BoundProgram& p, std::size_t kv_heads, std::size_t head_dim,
                                 bool windowed) { return p->cache().add_layer(kv_heads, head_dim, windowed); },
           nb::arg("kv_heads"), nb::arg("head_dim"), nb::arg("windowed") = false)
      .def(
          "embed",
          [](BoundProgram& p, std::size_t linear, std::size_t target, float scale) { p->add_operation(EmbedOp{linear, target, scale}); },
          nb::arg("linear"), nb::arg("target"), nb::arg("scale") = 1.0f)
      .def("gather", [](BoundProgram& p, std::size_t source, std::size_t target) { p->add_operation(GatherOp{source, target}); })
      .def("norm", [](BoundProgram& p, std::size_t source, std::size_t vector, std::size_t target,
                      float epsilon) { p->add_operation(NormOp{source, vector, target, epsilon}); })
      .def("add_norm", [](BoundProgram& p, std::size_t source, std::size_t vector, std::size_t target,
                          float epsilon) { p->add_operation(AddNormOp{source, vector, target, epsilon}); })
      .def("convert", [](BoundProgram& p, std::size_t source, std::size_t target) { p->add_operation(ConvertOp{source, target}); })
      .def(
          "product",
          [](BoundProgram& p, std::size_t source, std::size_t target, const std::vector<std::pair<std::size_t, std::size_t>>& parts, bool add,
             float softcap) {
            std::vector<ProductPart> list;
            for (const auto& [linear, column] : parts) list.push_back({linear, column});
            p->add_operation(ProductOp{source, target, std::move(list), add, softcap});
          },
          nb::arg("source"), nb::arg("target"), nb::arg("parts"), nb::arg("add"), nb::arg("softcap") = 0.0f)
      .def(
          "gated",
          [](BoundProgram& p, std::size_t source, std::size_t gate, std::size_t up, std::size_t target, int activation) {
            require(activation >= 0 && activation <= static_cast<int>(Activation::kGelu), "unknown activation");
            p->add_operation(GatedOp{source, gate, up, target, static_cast<Activation>(activation)});
          },
          nb::arg("source"), nb::arg("gate"), nb::arg("up"), nb::arg("target"), nb::arg("activation") = 0)
      .def(
          "attend",
          [](BoundProgram& p, std::size_t source, std::size_t target, std::size_t layer, std::size_t rope, std::size_t heads,
             std::size_t window, float scale, float softcap, const std::pair<int, int>& norms, float epsilon, bool windowed) {
            const auto vector = [](int index) { return index < 0 ? kNoVector : static_cast<std::size_t>(index); };
            const HeadNorms both{vector(norms.first), vector(norms.second), epsilon};
            p->add_operation(AttendOp{source, target, layer, rope, heads, window, scale, softcap, both, windowed});
          },
          nb::arg("source"), nb::arg("target"), nb::arg("layer"), nb::arg("rope"), nb::arg("heads"), nb::arg("window"), nb::arg("scale"),
          nb::arg("softcap") = 0.0f, nb::arg("norms") = std::pair<int, int>(-1, -1), nb::arg("epsilon") = 0.0f,
          nb::arg("windowed") = false)
      .def("weights_bytes", [](const BoundProgram& p) { return p.read().weights_bytes(); })
      .def("cache_bytes_per_block", [](const BoundProgram& p, std::size_t block_size) { return p.read().cache().bytes_per_block(block_size); })
      .def("cache_bytes_per_window_block",
           [](const BoundProgram& p, std::size_t block_size) { return p.read().cache().of(true).bytes_per_block(block_size); })
      .def(
          "allocate_cache",
          [](BoundProgram& p, std::size_t blocks, std::size_t block_size, std::size_t window_blocks) {
            p->cache().allocate(blocks, block_size, window_blocks);
          },
          nb::arg("blocks"), nb::arg("block_size"), nb::arg("window_blocks") = 0)
      .def("copy_blocks",
           [](BoundProgram& p, const std::vector<std::tuple<std::int64_t, std::int64_t, std::int64_t>>& copies) {
             std::vector<BlockCopy> list;
             for (const auto& [source, destination, tokens] : copies) list.push_back({source, destination, tokens});
             p->cache().copy(list);
           })
      .def("read_block", &BoundProgram::read_block)
      .def("write_block", &BoundProgram::write_block)
      .def("share_prefixes", [](BoundProgram& p, bool share) { p->share_prefixes(share); })
      .def("shared_reads", [](BoundProgram& p) { return p->shared_reads(); })
      .def("expect_step", [](BoundProgram& p) { p->team().expect_run(); })
      .def("profile", [](BoundProgram& p, bool on) { p->profile(on); })
      .def("profiled",
           [](BoundProgram& p) {
             std::vector<std::tuple<std::string, double, double>> lines;
             for (const ProfileLine& line : p->profiled()) lines.emplace_back(line.name, line.working_seconds, line.waiting_seconds);
             return lines;
           })
      .def("run", &BoundProgram::run)
      .def("hidden", &BoundProgram::hidden)
      .def("run_and_sample", &BoundProgram::run_and_sample)
      .def("sample", &BoundProgram::sample);
}

// A small model of random weights, run as a whole by teams of several sizes, in steps of every shape: the same bits from all, and no data
// races (thread sanitizer) or stray accesses (address sanitizer) on the way.
#include "program/program.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <stdexcept>
#include <vector>

#include "isa/isa.hpp"
#include "pack/pack.hpp"
#include "tests/check.hpp"
#include "kernels/tables.hpp"

namespace {

using namespace octavo;

constexpr std::size_t kVocabulary = 53, kHidden = 64, kIntermediate = 112, kHeads = 6, kKvHeads = 2, kDim = 24, kBlock = 16, kBlocks = 64;

std::vector<float> normals(std::size_t count, std::mt19937& made, float size = 1.0f) {
  std::normal_distribution<float> normal(0.0f, size);
  std::vector<float> values(count);
  for (float& value : values) value = normal(made);
  return values;
}

void fill(Program& program, std::size_t index, std::mt19937& made) {
  const std::size_t outputs = program.linear(index).outputs, inner = program.linear(index).inner;
  const std::vector<float> values = normals(outputs * inner, made, 0.2f);
  const CheckpointLinear source{Storage::kF32, outputs, inner, reinterpret_cast<const std::uint8_t*>(values.data()), inner * sizeof(float), nullptr};
  for (std::size_t panel = 0; panel < panels(outputs); ++panel) program.pack(index, source, panel);
}

std::size_t add_linear(Program& program, Layout layout, std::size_t outputs, std::size_t inner, std::mt19937& made, bool biased = false) {
  const std::size_t index = program.add_linear(layout, outputs, inner, biased ? normals(outputs, made) : std::vector<float>());
  fill(program, index, made);
  return index;
}

// Two layers of a model of the Llama family.
std::unique_ptr<Program> model(const Kernels& kernels, int threads, Layout layout, CacheType type = CacheType::kBfloat16) {
  std::mt19937 made(3);
  auto program = std::make_unique<Program>(kVocabulary, threads, std::vector<int>(), kernels, type);
  Program& p = *program;
  const bool integer = layout != Layout::kBf16;
  const std::size_t queries = kHeads * kDim, keys = kKvHeads * kDim;
  std::vector<float> frequencies(kDim / 2);
  for (std::size_t i = 0; i < frequencies.size(); ++i) frequencies[i] = 1.0f / static_cast<float>(1 + i * i);
  const std::size_t rope = p.add_rope(frequencies, 1.0f), table = add_linear(p, layout, kVocabulary, kHidden, made);
  std::size_t x = p.add_floats(kHidden, false);
  const std::size_t normed = p.add_activations(kHidden, integer, false), qkv = p.add_floats(queries + 2 * keys, false);
  const std::size_t attended = p.add_floats(queries, false), mixed = p.add_activations(queries, integer, false);
  const std::size_t hidden = p.add_activations(kIntermediate, integer, false);
  p.add_operation(EmbedOp{table, x});
  for (std::size_t layer = 0; layer < 2; ++layer) {
    const std::size_t norm = p.add_vector(normals(kHidden, made)), cache = p.cache().add_layer(kKvHeads, kDim);
    p.add_operation(NormOp{x, norm, normed, 1e-5f});
    p.add_operation(ProductOp{normed,
                              qkv,
                              {{add_linear(p, layout, queries, kHidden, made, true), 0},
                               {add_linear(p, layout, keys, kHidden, made), queries},
                               {add_linear(p, layout, keys, kHidden, made, true), queries + keys}},
                              false});
    p.add_operation(AttendOp{qkv, attended, cache, rope, kHeads, layer == 0 ? 0u : 300u, 0.2f});
    p.add_operation(ConvertOp{attended, mixed});
    p.add_operation(ProductOp{mixed, x, {{add_linear(p, layout, kHidden, queries, made), 0}}, true});
    p.add_operation(NormOp{x, norm, normed, 1e-5f});
    const std::size_t gate = p.add_linear_pair(layout, layout, kIntermediate, kHidden, normals(kIntermediate, made), {}), up = gate + 1;
    fill(p, gate, made);
    fill(p, up, made);
    p.add_operation(GatedOp{normed, gate, up, hidden});
    p.add_operation(ProductOp{hidden, x, {{add_linear(p, layout, kHidden, kIntermediate, made), 0}}, true});
  }
  const std::size_t chosen = p.add_floats(kHidden, true), last = p.add_activations(kHidden, integer, true);
  p.add_operation(GatherOp{x, chosen});
  p.add_operation(NormOp{chosen, p.add_vector(normals(kHidden, made)), last, 1e-5f});
  p.add_operation(ProductOp{last, p.add_floats(kVocabulary, true), {{table, 0}}, false});
  p.cache().allocate(kBlocks, kBlock);
  return program;
}

struct Sequence {
  std::vector<std::int32_t> tokens, blocks;
  std::size_t done = 0;
  std::vector<float> logits;  // [done][vocabulary]
};

// The next counts[i] tokens of sequences[i], all in one step, with the logits of every row.
void run(Program& program, std::vector<Sequence*> sequences, const std::vector<std::size_t>& counts) {
  std::vector<std::int32_t> tokens, positions, starts{0}, lengths, tables, rows;
  std::vector<std::int64_t> slots;
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    const Sequence& sequence = *sequences[i];
    for (std::size_t at = sequence.done; at < sequence.done + counts[i]; ++at) {
      rows.push_back(static_cast<std::int32_t>(tokens.size()));
      tokens.push_back(sequence.tokens[at]);
      positions.push_back(static_cast<std::int32_t>(at));
      slots.push_back(sequence.blocks[at / kBlock] * static_cast<std::int64_t>(kBlock) + static_cast<std::int64_t>(at % kBlock));
    }
    starts.push_back(static_cast<std::int32_t>(tokens.size()));
    lengths.push_back(static_cast<std::int32_t>(sequence.done + counts[i]));
    for (std::size_t block = 0; block < kBlocks; ++block) tables.push_back(block < sequence.blocks.size() ? sequence.blocks[block] : -1);
  }
  const float* logits = program.run({tokens.size(), sequences.size(), rows.size(), kBlocks, tokens.data(), positions.data(), slots.data(),
                                     starts.data(), lengths.data(), tables.data(), rows.data()});
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    Sequence& sequence = *sequences[i];
    const float* own = logits + static_cast<std::size_t>(starts[i]) * kVocabulary;
    sequence.logits.insert(sequence.logits.end(), own, own + counts[i] * kVocabulary);
    sequence.done += counts[i];
  }
}

std::vector<Sequence> sequences_of(std::mt19937& made) {
  std::vector<std::int32_t> ids(kBlocks);
  for (std::size_t i = 0; i < kBlocks; ++i) ids[i] = static_cast<std::int32_t>(i);
  std::shuffle(ids.begin(), ids.end(), made);
  std::mt19937 fixed(5);
  std::vector<Sequence> all;
  for (const std::size_t length : {1u, 16u, 40u, 560u}) {
    Sequence sequence;
    for (std::size_t i = 0; i < length; ++i) sequence.tokens.push_back(static_cast<std::int32_t>(fixed() % kVocabulary));
    for (std::size_t block = 0; block * kBlock < length; ++block) {
      sequence.blocks.push_back(ids.back());
      ids.pop_back();
    }
    all.push_back(sequence);
  }
  return all;
}

// Every sequence to its end: the long one alone with 500 tokens, then all in chunks, then the long one token by token.
std::vector<std::vector<float>> run_all(Program& program, unsigned seed) {
  std::mt19937 made(seed);
  std::vector<Sequence> all = sequences_of(made);
  if (seed == 0) {
    for (Sequence& sequence : all) run(program, {&sequence}, {sequence.tokens.size()});
  } else {
    run(program, {&all[3]}, {500});
    run(program, {&all[0], &all[2], &all[3], &all[1]}, {1, 7, 40, 16});
    run(program, {&all[2], &all[3]}, {1, 1});
    while (all[3].done < all[3].tokens.size()) run(program, {&all[3]}, {1});
    run(program, {&all[2]}, {all[2].tokens.size() - all[2].done});
  }
  std::vector<std::vector<float>> logits;
  for (const Sequence& sequence : all) logits.push_back(sequence.logits);
  return logits;
}

bool same_bits(const std::vector<std::vector<float>>& a, const std::vector<std::vector<float>>& b) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i].size() != b[i].size() || std::memcmp(a[i].data(), b[i].data(), a[i].size() * sizeof(float)) != 0) return false;
  }
  return a.size() == b.size();
}

void any_number_of_threads(const Kernels& kernels) {
  const auto check = [&](Layout layout, CacheType type) {
    const std::vector<std::vector<float>> wanted = run_all(*model(kernels, 1, layout, type), 0);
    for (const int threads : {1, 2, 4}) {
      const auto program = model(kernels, threads, layout, type);
      for (unsigned seed = 1; seed <= 2; ++seed) CHECK(same_bits(run_all(*program, seed), wanted));
    }
  };
  for (const Layout layout : {Layout::kInt4, Layout::kInt8, Layout::kBf16}) check(layout, CacheType::kBfloat16);
  for (const CacheType type : {CacheType::kFloat32, CacheType::kFloat16, CacheType::kInt8, CacheType::kFp8}) check(Layout::kInt4, type);
}

// A step that is refused leaves the program as it was.
void refused_steps(const Kernels& kernels) {
  const auto program = model(kernels, 4, Layout::kInt4);
  const std::vector<std::vector<float>> wanted = run_all(*program, 1);
  const std::int32_t token = 0, position = 0, start[2] = {0, 1}, length = 1, table = static_cast<std::int32_t>(kBlocks), row = 0;
  const std::int64_t slot = static_cast<std::int64_t>(kBlocks * kBlock);
  for (int i = 0; i < 3; ++i) {
    bool refused = false;
    try {
      program->run({1, 1, 1, 1, &token, &position, &slot, start, &length, &table, &row});
    } catch (const std::invalid_argument&) {
      refused = true;
    }
    CHECK(refused);
  }
  CHECK(same_bits(run_all(*program, 1), wanted));
}

// One token of each sequence: `lengths` tokens long, in the blocks of `tables`.
AttentionPlan decode_plan(const std::vector<std::vector<std::int32_t>>& tables, const std::vector<std::int32_t>& lengths, std::size_t threads,
                          bool share) {
  const std::size_t count = tables.size(), width = 200;
  std::vector<std::int32_t> flat(count * width, -1), starts(count + 1), positions(count), tokens(count);
  for (std::size_t s = 0; s < count; ++s) {
    std::copy(tables[s].begin(), tables[s].end(), flat.begin() + static_cast<std::ptrdiff_t>(s * width));
    starts[s + 1] = static_cast<std::int32_t>(s + 1);
    positions[s] = lengths[s] - 1;
  }
  const StepInputs step{count, count, 0, width, tokens.data(), positions.data(), nullptr, starts.data(), lengths.data(), flat.data(), nullptr};
  return plan_attention(step, 16, 3, 3, threads, share);
}

// Sequences 0, 2 and 4 begin with the same 40 blocks, of which 0 and 4 share two more; 1 and 3 have blocks of their own.
void shared_prefixes() {
  const auto blocks = [](std::int32_t first, std::size_t count) {
    std::vector<std::int32_t> ids(count);
    for (std::size_t i = 0; i < count; ++i) ids[i] = first + static_cast<std::int32_t>(i);
    return ids;
  };
  const auto joined = [](std::vector<std::int32_t> a, const std::vector<std::int32_t>& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
  };
  const std::vector<std::int32_t> common = blocks(1000, 40);
  const std::vector<std::vector<std::int32_t>> tables = {joined(joined(common, {5, 6}), blocks(0, 4)), blocks(100, 60), joined(common, blocks(200, 20)),
                                                         blocks(300, 2), joined(joined(common, {5, 6}), blocks(400, 1))};
  const std::vector<std::int32_t> lengths = {720, 950, 950, 20, 688};
  const AttentionPlan shared = decode_plan(tables, lengths, 1, true);
  std::size_t tiles = 0, together = 0;
  std::vector<bool> seen(tables.size());
  for (const TileGroup& group : shared.groups) {
    CHECK(group.tiles.first == tiles && group.tiles.last > tiles);
    tiles = group.tiles.last;
    for (std::size_t tile = group.tiles.first; tile < group.tiles.last; ++tile) seen[shared.tiles[tile].sequence] = true;
    if (group.tiles.last - group.tiles.first == 1) {
      CHECK(group.shared == 0);
      continue;
    }
    ++together;
    CHECK(group.tiles.last - group.tiles.first == 3 && group.shared == 2);  // 40 blocks are two partitions and a half
    for (std::size_t tile = group.tiles.first; tile < group.tiles.last; ++tile) CHECK(shared.tiles[tile].sequence % 2 == 0);
  }
  CHECK(together == 1 && tiles == tables.size() && std::count(seen.begin(), seen.end(), true) == 5);
  // Threads that would have nothing to do are worth more than what is read once.
  for (const AttentionPlan& apart : {decode_plan(tables, lengths, 1, false), decode_plan(tables, lengths, 3, true)}) {
    for (const TileGroup& group : apart.groups) CHECK(group.tiles.last - group.tiles.first == 1 && group.shared == 0);
  }
}

}  // namespace

int main() {
  shared_prefixes();
  const std::vector<octavo::Isa>& isas = octavo::available();
#if defined(__SANITIZE_THREAD__)
  any_number_of_threads(octavo::kernels_of(isas.back()));  // what threads share does not depend on the kernels
#else
  for (const octavo::Isa isa : isas) any_number_of_threads(octavo::kernels_of(isa));
#endif
  refused_steps(octavo::kernels_of(isas.back()));
  return octavo::test::report("program");
}

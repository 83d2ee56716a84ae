// How long attention takes on one thread, by type of cache and instruction set: one token's three rows over a long context that no cache holds,
// and tiles of a prompt over keys that are at hand. Prints a table: build/native/attention_bench [ISA...]
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "isa/isa.hpp"
#include "kernels/tables.hpp"
#include "program/cache.hpp"

namespace {

using namespace octavo;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kHeads = 3, kDim = 64, kBlock = 16;
constexpr const char* kNames[kCacheTypes] = {"float32", "bfloat16", "float16", "int8", "fp8"};

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

struct Bench {
  const Kernels& kernels;
  const AttentionKernels& attention;
  CacheType type;
  std::vector<float> numbers;

  Bench(const Kernels& kernels_, CacheType type_) : kernels(kernels_), attention(kernels_.attention[static_cast<int>(type_)]), type(type_), numbers(1 << 16) {
    std::mt19937 made(1);
    std::normal_distribution<float> normal;
    for (float& number : numbers) number = normal(made);
  }

  Cache filled(std::size_t layers, std::size_t tokens) {
    Cache cache(type);
    for (std::size_t layer = 0; layer < layers; ++layer) cache.add_layer(kHeads, kDim);
    cache.allocate(tokens / kBlock, kBlock);
    for (std::size_t layer = 0; layer < layers; ++layer) {
      for (std::size_t token = 0; token < tokens; ++token) {
        for (std::size_t head = 0; head < kHeads; ++head) {
          const float* key = &numbers[(token * 7919 + head * 64 + layer) % (numbers.size() - 2 * kDim)];
          attention.write_cache(key, key + kDim, cache.shape(layer), static_cast<int>(token % kStrip),
                                cache.blocks(layer).block(token / kBlock) + cache.shape(layer).strip_at(head, token));
        }
      }
    }
    return cache;
  }

  // Seconds for `rows` rows at the end of `tokens` tokens, over every head of every layer.
  double attend(const Cache& cache, int rows, std::size_t tokens) {
    std::vector<std::int32_t> blocks(tokens / kBlock), positions(static_cast<std::size_t>(rows), static_cast<std::int32_t>(tokens - 1));
    for (std::size_t i = 0; i < blocks.size(); ++i) blocks[i] = static_cast<std::int32_t>(i);
    const CacheShape shape = cache.shape(0);
    std::vector<std::uint8_t> query(static_cast<std::size_t>(rows) * shape.query_bytes());
    for (std::size_t r = 0; r < static_cast<std::size_t>(rows); ++r) attention.pack_query(&numbers[r * kDim], 0.2f, shape, &query[r * shape.query_bytes()]);
    std::vector<float> floats(2 * kQueryRows * (2 + kDim));
    const Softmax running{floats.data(), floats.data() + kQueryRows, floats.data() + 2 * kQueryRows};
    float* other = floats.data() + kQueryRows * (2 + kDim);
    const Softmax part{other, other + kQueryRows, other + 2 * kQueryRows};
    const auto start = Clock::now();
    for (std::size_t layer = 0; layer < cache.layers(); ++layer) {
      for (std::size_t head = 0; head < kHeads; ++head) {
        for (std::size_t first = 0; first < tokens; first += kPartition) {
          const std::size_t last = std::min(tokens, first + kPartition);
          const KeyPass keys{{blocks.data(), head, first, last}, {blocks.data(), head, last, std::min(tokens, last + kPartition)}, first == 0};
          attention.attend({query.data(), positions.data(), rows}, shape, cache.blocks(layer), keys, {}, first == 0 ? running : part);
          if (first != 0) kernels.merge(rows, kDim, running, part);
        }
      }
    }
    return seconds_since(start);
  }
};

double best(Bench& bench, const Cache& cache, int rows, std::size_t tokens, int times) {
  double least = 1e9;
  for (int i = 0; i < times; ++i) least = std::min(least, bench.attend(cache, rows, tokens));
  return least;
}

}  // namespace

int main(int count, char** arguments) {
  std::printf("%-12s %-9s  %12s %12s %12s  %12s %12s\n", "isa", "type", "8000 tokens", "GB/s", "ns a key", "prompt: GOP/s", "ns a key");
  for (const Isa isa : available()) {
    if (count > 1 && std::none_of(arguments + 1, arguments + count, [&](const char* wanted) { return std::string(name(isa)) == wanted; })) continue;
    for (std::size_t type = 0; type < kCacheTypes; ++type) {
      Bench bench(kernels_of(isa), static_cast<CacheType>(type));
      constexpr std::size_t kLong = 8000, kLayers = 30, kShort = 512;
      const Cache cache = bench.filled(kLayers, kLong);
      const double decode = best(bench, cache, 3, kLong, 5);
      const double keys = static_cast<double>(kLong * kHeads * kLayers);
      const Cache near = bench.filled(1, kShort);
      const double near3 = best(bench, near, 3, kShort, 200) / static_cast<double>(kShort * kHeads);
      const double near1 = best(bench, near, 1, kShort, 200) / static_cast<double>(kShort * kHeads);
      std::printf("near: 3 rows %.2f ns a key, 1 row %.2f; ", near3 * 1e9, near1 * 1e9);
      const double prompt = best(bench, near, kQueryRows, kShort, 200) / static_cast<double>(kShort * kHeads * kQueryRows);
      std::printf("%-12s %-9s  %9.3f ms %12.1f %12.2f  %12.0f %12.3f\n", std::string(name(isa)).c_str(), kNames[type], decode * 1e3,
                  static_cast<double>(cache.bytes_per_block(kBlock) * (kLong / kBlock)) / decode / 1e9, decode / keys * 1e9,
                  4.0 * static_cast<double>(kDim) / prompt / 1e9, prompt * 1e9);
    }
  }
}

// Attention and its cache on every instruction set that this machine has, for every type of cache: what is stored of a number, and attention by
// its definition over what was stored.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "isa/isa.hpp"
#include "kernels/tables.hpp"
#include "pack/float16.hpp"
#include "program/cache.hpp"
#include "tests/check.hpp"

namespace {

using namespace octavo;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
const float kNan = std::nanf("");

std::mt19937 made(7);

std::vector<float> normals(std::size_t count, float size = 1.0f) {
  std::normal_distribution<float> normal(0.0f, size);
  std::vector<float> values(count);
  for (float& value : values) value = normal(made);
  return values;
}

bool near(double given, double wanted, double tolerance) { return std::fabs(given - wanted) <= tolerance; }

template <typename T>
T at(const std::uint8_t* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(value));
  return value;
}

// E4M3 by its definition.
double fp8_value(std::uint8_t code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  const double magnitude = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return code & 128 ? -magnitude : magnitude;
}

// The nearest code of either sign, and of two the even one; not a NaN.
std::uint8_t nearest_fp8(float value) {
  const double magnitude = std::min(std::fabs(static_cast<double>(value)), 448.0);
  std::uint8_t best = 0;
  for (int code = 1; code < 127; ++code) {
    const double distance = std::fabs(fp8_value(static_cast<std::uint8_t>(code)) - magnitude), least = std::fabs(fp8_value(best) - magnitude);
    if (distance < least || (distance == least && code % 2 == 0)) best = static_cast<std::uint8_t>(code);
  }
  return static_cast<std::uint8_t>(best | (std::signbit(value) ? 128 : 0));
}

// A number of a strip, as kernels/cache.hpp says where it lies and what it means. Side 0 is the keys.
double stored(const CacheShape& shape, const std::uint8_t* strip, std::size_t side, std::size_t token, std::size_t dimension) {
  const std::size_t n = cell_values(shape.type), width = shape.dim_padded();
  const std::size_t value = side == 0 ? (16 * (dimension / n) + token) * n + dimension % n : (width * (token / n) + dimension) * n + token % n;
  const std::uint8_t* bytes = strip + side * shape.side_bytes() + value * value_bytes(shape.type);
  const std::uint8_t* tail = strip + 2 * shape.side_bytes();
  switch (shape.type) {
    case CacheType::kFloat32:
      return static_cast<double>(at<float>(bytes));
    case CacheType::kBfloat16:
      return static_cast<double>(bf16_to_float(at<std::uint16_t>(bytes)));
    case CacheType::kFloat16:
      return static_cast<double>(half_to_float(at<std::uint16_t>(bytes)));
    case CacheType::kInt8:
      return static_cast<double>(at<std::int8_t>(bytes)) * static_cast<double>(at<float>(tail + 4 * (16 * side + token)));
    case CacheType::kFp8:
      return at<std::uint32_t>(tail + 4 * side) >> token & 1 ? static_cast<double>(kNan) : fp8_value(*bytes);
  }
  return 0.0;
}

// What a head's numbers become in the cache.
std::vector<double> rounded(CacheType type, const std::vector<float>& head) {
  std::vector<double> values;
  float most = 0.0f;
  bool none = false, infinite = false;
  for (const float x : head) {
    most = std::max(most, std::fabs(x));
    none |= std::isnan(x);
    infinite |= std::isinf(x);
  }
  const float inverse = most > 0x1p-100f ? 127.0f / most : 0.0f;
  for (const float x : head) {
    switch (type) {
      case CacheType::kFloat32:
        values.push_back(static_cast<double>(x));
        break;
      case CacheType::kBfloat16:
        values.push_back(static_cast<double>(bf16_to_float(float_to_bf16(x))));
        break;
      case CacheType::kFloat16:
        values.push_back(static_cast<double>(half_to_float(float_to_half(x))));
        break;
      case CacheType::kInt8:
        values.push_back(none || infinite ? static_cast<double>(kNan)
                                          : static_cast<double>(static_cast<int>(std::nearbyintf(x * inverse))) * static_cast<double>(inverse > 0.0f ? most / 127.0f : 0.0f));
        break;
      case CacheType::kFp8:
        values.push_back(none ? static_cast<double>(kNan) : fp8_value(nearest_fp8(x)));
        break;
    }
  }
  return values;
}

bool same(double a, double b) { return (std::isnan(a) && std::isnan(b)) || (a == b && std::signbit(a) == std::signbit(b)); }

void check_stored(const AttentionKernels& kernels, const CacheShape& shape, const std::vector<float>& key, const std::vector<float>& value) {
  std::vector<std::uint8_t> strip(shape.strip_bytes(), 0xff);
  const std::vector<double> keys = rounded(shape.type, key), values = rounded(shape.type, value);
  const std::size_t token = made() % kStrip;
  kernels.write_cache(key.data(), value.data(), shape, 0, strip.data());
  if (token != 0) kernels.write_cache(key.data(), value.data(), shape, static_cast<int>(token), strip.data());
  for (std::size_t d = 0; d < shape.dim_padded(); ++d) {
    for (std::size_t t = 0; t < kStrip; ++t) {
      const bool written = (t == 0 || t == token) && d < shape.head_dim;
      const double given[2] = {stored(shape, strip.data(), 0, t, d), stored(shape, strip.data(), 1, t, d)};
      if (written) {
        CHECK(same(given[0], keys[d]) && same(given[1], values[d]));
      } else if (t != 0 && t != token) {
        CHECK(given[0] == 0.0 && given[1] == 0.0);
      }
    }
  }
}

// Every number that a cache of 8 or 16 bits holds, those halfway between two, and their neighbours.
std::vector<float> edges() {
  std::vector<float> found = {0.0f, -0.0f, 1e-45f, -1e-40f, 0x1p-101f, 448.0f, 464.0f, 480.0f, 65504.0f, 65519.9f, 65520.0f, 1e30f, -3e38f};
  const auto add = [&](double value) {
    for (const double sign : {1.0, -1.0}) {
      const auto x = static_cast<float>(sign * value);
      found.insert(found.end(), {x, std::nextafterf(x, kInfinity), std::nextafterf(x, -kInfinity)});
    }
  };
  for (std::uint8_t code = 0; code < 126; ++code) {
    add(fp8_value(code));
    add((fp8_value(code) + fp8_value(static_cast<std::uint8_t>(code + 1))) / 2);
  }
  for (std::uint32_t half = 0; half < 0x7bff; half += 1 + half % 97) {
    const auto value = [](std::uint32_t bits) { return static_cast<double>(half_to_float(static_cast<std::uint16_t>(bits))); };
    add(value(half));
    add((value(half) + value(half + 1)) / 2);
  }
  for (int i = 0; i < 2000; ++i) {
    const auto bits = static_cast<std::uint32_t>(made());
    const float x = at<float>(reinterpret_cast<const std::uint8_t*>(&bits));
    if (std::isfinite(x)) found.push_back(x);
  }
  return found;
}

void numbers(const Kernels& all, CacheType type) {
  const AttentionKernels& kernels = all.attention[static_cast<std::size_t>(type)];
  std::vector<float> cases = edges();
  cases.resize((cases.size() + 15) / 16 * 16);
  for (std::size_t first = 0; first < cases.size(); first += 16) {
    const auto begin = cases.begin() + static_cast<std::ptrdiff_t>(first);
    const std::vector<float> head(begin, begin + 16);
    check_stored(kernels, {type, 1, 16, 16}, head, {head.rbegin(), head.rend()});
  }
  for (const std::size_t dim : {2u, 6u, 24u, 64u, 80u, 256u, 1024u}) {
    for (const float size : {1e-35f, 1e-3f, 1.0f, 1e5f}) check_stored(kernels, {type, 1, dim, 16}, normals(dim, size), normals(dim, size));
    for (const float bad : {kNan, kInfinity, -kInfinity}) {
      std::vector<float> key = normals(dim), value = normals(dim);
      key[made() % dim] = bad;
      check_stored(kernels, {type, 1, dim, 16}, key, value);
      check_stored(kernels, {type, 1, dim, 16}, value, key);
    }
  }
}

// A query as it was packed.
std::vector<double> unpacked(const CacheShape& shape, const std::uint8_t* query) {
  std::vector<double> values;
  for (std::size_t d = 0; d < shape.dim_padded(); ++d) {
    if (shape.type == CacheType::kInt8) {
      values.push_back(static_cast<double>(at<std::int16_t>(query + 2 * d)) * static_cast<double>(at<float>(query + 2 * shape.dim_padded())));
    } else if (cell_values(shape.type) == 2) {
      values.push_back(static_cast<double>(bf16_to_float(at<std::uint16_t>(query + 2 * d))));
    } else {
      values.push_back(static_cast<double>(at<float>(query + 4 * d)));
    }
  }
  return values;
}

// One KV head's queries, keys and values over scattered blocks.
struct Scene {
  const Kernels& kernels;
  const AttentionKernels& attention;
  CacheShape shape;
  std::size_t tokens, kv_head, stride;
  std::vector<std::int32_t> blocks;
  std::vector<std::uint8_t> cache;

  Scene(const Kernels& kernels_, CacheShape shape_, std::size_t tokens_, bool sick = false)
      : kernels(kernels_),
        attention(kernels_.attention[static_cast<std::size_t>(shape_.type)]),
        shape(shape_),
        tokens(tokens_),
        kv_head(made() % shape.kv_heads),
        stride(shape.layer_bytes() + 64 * (made() % 3)) {
    const std::size_t used = (tokens + shape.block_size - 1) / shape.block_size, all = used + 2;
    // Wherever no token is written there are numbers that are none.
    cache.assign(all * stride, 0xff);
    std::vector<std::int32_t> ids(all);
    for (std::size_t i = 0; i < all; ++i) ids[i] = static_cast<std::int32_t>(i);
    std::shuffle(ids.begin(), ids.end(), made);
    blocks.assign(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(used));
    for (std::size_t token = 0; token < tokens; ++token) {
      std::vector<float> key = normals(shape.head_dim), value = normals(shape.head_dim);
      if (sick && token % 7 == 3) key[token % key.size()] = token % 2 ? kNan : kInfinity;
      if (sick && token % 5 == 3) value[token % value.size()] = token % 2 ? kNan : -kInfinity;
      attention.write_cache(key.data(), value.data(), shape, static_cast<int>(token % kStrip), strip(token));
    }
  }

  std::uint8_t* strip(std::size_t token) {
    return cache.data() + static_cast<std::size_t>(blocks[token / shape.block_size]) * stride + shape.strip_at(kv_head, token);
  }

  // Attention of `rows` rows, the last of which stands at `last`, two to a token: [rows][head_dim].
  std::vector<std::vector<float>> attend(const std::vector<float>& queries, std::size_t rows, std::size_t last, const ScoreRule& rule) {
    const std::size_t dim = shape.head_dim, width = shape.dim_padded();
    std::vector<std::uint8_t> packed(rows * shape.query_bytes());
    std::vector<std::int32_t> positions(rows);
    for (std::size_t r = 0; r < rows; ++r) {
      attention.pack_query(&queries[r * dim], scale(), shape, &packed[r * shape.query_bytes()]);
      positions[r] = static_cast<std::int32_t>(position(rows, r, last));
    }
    std::vector<float> running(rows * (2 + width)), part(rows * (2 + width));
    const auto view = [&](std::vector<float>& floats) { return Softmax{floats.data(), floats.data() + rows, floats.data() + 2 * rows}; };
    const QueryTile tile{packed.data(), positions.data(), static_cast<int>(rows)};
    for (std::size_t first = 0; first <= last; first += kPartition) {
      const std::size_t end = std::min(last + 1, first + kPartition);
      const KeyPass keys{{blocks.data(), kv_head, first, end}, {blocks.data(), kv_head, end, std::min(last + 1, end + kPartition)}, first == 0};
      attention.attend(tile, shape, {cache.data(), stride}, keys, rule, view(first == 0 ? running : part));
      if (first != 0) kernels.merge(static_cast<int>(rows), width, view(running), view(part));
    }
    std::vector<std::vector<float>> result(rows, std::vector<float>(dim));
    for (std::size_t r = 0; r < rows; ++r) kernels.normalize(&running[2 * rows + r * width], running[rows + r], dim, result[r].data());
    return result;
  }

  static std::size_t position(std::size_t rows, std::size_t row, std::size_t last) {
    const std::size_t back = (rows - 1 - row) / 2;
    return last < back ? 0 : last - back;
  }

  float scale() const { return 1.0f / std::sqrt(static_cast<float>(shape.head_dim)); }

  void check(std::size_t rows, const ScoreRule& rule) {
    const std::size_t dim = shape.head_dim;
    const std::vector<float> queries = normals(rows * dim);
    const std::vector<std::vector<float>> given = attend(queries, rows, tokens - 1, rule);
    for (std::size_t r = 0; r < rows; ++r) compare(&queries[r * dim], position(rows, r, tokens - 1), rule, given[r]);
    // A row alone, in a tile of other height, and at the end of fewer keys: the same bits.
    for (std::size_t r = 0; r < rows; ++r) {
      const std::vector<float> own(queries.begin() + static_cast<std::ptrdiff_t>(r * dim), queries.begin() + static_cast<std::ptrdiff_t>((r + 1) * dim));
      CHECK(std::memcmp(attend(own, 1, position(rows, r, tokens - 1), rule)[0].data(), given[r].data(), dim * sizeof(float)) == 0);
    }
  }

 private:
  void compare(const float* head, std::size_t position, const ScoreRule& rule, const std::vector<float>& given) {
    const std::size_t dim = shape.head_dim, first = rule.window != 0 && position + 1 > rule.window ? position + 1 - rule.window : 0;
    std::vector<std::uint8_t> packed(shape.query_bytes());
    attention.pack_query(head, scale(), shape, packed.data());
    const std::vector<double> query = unpacked(shape, packed.data());
    double most = 0.0;
    for (std::size_t d = 0; d < dim; ++d) most = std::max(most, std::fabs(static_cast<double>(head[d] * scale())));
    for (std::size_t d = 0; d < shape.dim_padded(); ++d) {
      const double exact = d < dim ? static_cast<double>(head[d] * scale()) : 0.0;  // int8: half a unit, and what float32 loses on the way
      CHECK(near(query[d], exact, shape.type == CacheType::kInt8 ? most / 32766 * 1.01 : cell_values(shape.type) == 2 ? 0x1p-8 * std::fabs(exact) : 0.0));
    }
    std::vector<double> sums(dim, 0.0), sizes(dim, 0.0), steps(dim, 0.0);
    double total = 0.0, heaviest = 0.0;
    for (std::size_t token = first; token <= position; ++token) {
      const std::uint8_t* here = strip(token);
      double score = 0.0;
      for (std::size_t d = 0; d < dim; ++d) score += query[d] * stored(shape, here, 0, token % kStrip, d);
      if (rule.softcap != 0.0f) score = static_cast<double>(rule.softcap) * std::tanh(score / static_cast<double>(rule.softcap));
      const double weight = std::exp2(score);
      double unit = 1.0;
      if (shape.type == CacheType::kInt8) unit = static_cast<double>(at<float>(here + 2 * shape.side_bytes() + 4 * (16 + token % kStrip)));
      heaviest = std::max(heaviest, weight * unit);
      total += weight;
      for (std::size_t d = 0; d < dim; ++d) {
        const double value = stored(shape, here, 1, token % kStrip, d);
        sums[d] += weight * value;
        sizes[d] += std::fabs(weight * value);
        steps[d] += std::fabs(value / unit);
      }
    }
    for (std::size_t d = 0; d < dim; ++d) {
      // A weight is rounded to bfloat16, of eight significant bits; or with int8's scale to a part in 32767 of the largest.
      double tolerance = 2e-5 * sizes[d];
      if (shape.type == CacheType::kInt8) {
        tolerance += heaviest / 65534 * 1.001 * steps[d];
      } else if (cell_values(shape.type) == 2) {
        tolerance += 0x1p-8 * sizes[d];
      }
      CHECK(near(static_cast<double>(given[d]), sums[d] / total, tolerance / total));
    }
  }
};

void attention(const Kernels& kernels, CacheType type) {
  for (const std::size_t dim : {2u, 16u, 24u, 64u, 80u, 96u, 128u, 256u}) {
    for (const std::size_t block_size : {16u, 32u, 128u}) {
      for (const std::size_t tokens : {1u, 16u, 17u, 100u, 256u, 300u, 700u}) {
        if (tokens > 300 && dim > 100) continue;
        Scene scene(kernels, {type, 1 + made() % 3, dim, block_size}, tokens);
        for (std::size_t rows = 1; rows <= kQueryRows; ++rows) scene.check(rows, {rows % 2 == 0 ? 0 : 1 + made() % 400, rows % 3 == 0 ? 2.5f : 0.0f});
      }
    }
  }
}

// A query sees the keys and values before it: those behind it may be no numbers, in the same strip and the same tile.
void no_numbers(const Kernels& kernels, CacheType type) {
  for (const std::size_t window : {0u, 2u, 30u}) {
    for (const std::size_t dim : {8u, 64u, 80u}) {
      Scene scene(kernels, {type, 2, dim, 16}, 300, true);
      const ScoreRule rule{window, dim == 64 ? 2.0f : 0.0f};
      for (const std::size_t last : {2u, 3u, 8u, 33u, 257u, 299u}) {
        const std::vector<float> queries = normals(kQueryRows * dim);
        const std::vector<std::vector<float>> given = scene.attend(queries, kQueryRows, last, rule);
        for (std::size_t r = 0; r < kQueryRows; ++r) {
          const std::size_t position = Scene::position(kQueryRows, r, last), first = window != 0 && position + 1 > window ? position + 1 - window : 0;
          std::vector<float> own(queries.begin() + static_cast<std::ptrdiff_t>(r * dim), queries.begin() + static_cast<std::ptrdiff_t>((r + 1) * dim));
          Scene sound = scene;
          bool sees_none = false;
          const std::vector<float> zero(dim, 0.0f);
          for (std::size_t token = 0; token < scene.tokens; ++token) {
            // float16 and bfloat16 have infinities of their own, whose weight is 0 or whose score is not the highest.
            const bool sick = token % 7 == 3 || token % 5 == 3;
            if (token >= first && token <= position) sees_none |= sick;
            if (sick && token % kStrip != 0) sound.attention.write_cache(zero.data(), zero.data(), scene.shape, static_cast<int>(token % kStrip), sound.strip(token));
          }
          if (!sees_none) CHECK(std::memcmp(sound.attend(own, 1, position, rule)[0].data(), given[r].data(), dim * sizeof(float)) == 0);
          for (std::size_t d = 0; sees_none && d < dim && type == CacheType::kInt8; ++d) CHECK(std::isnan(given[r][d]));
        }
      }
    }
  }
}

// A window that sees nothing of a partition leaves it out, and nothing at all is zero.
void nothing(const Kernels& kernels) {
  float maximum = -kInfinity, total = 0.0f, none = -kInfinity, other_total = 0.0f, zero[16] = {}, other[16] = {};
  kernels.merge(1, 16, {&maximum, &total, zero}, {&none, &other_total, other});
  CHECK(maximum == -kInfinity && total == 0.0f);
  float y[16];
  kernels.normalize(zero, total, 16, y);
  for (const float value : y) CHECK(value == 0.0f && !std::signbit(value));
  // What is merged with nothing stays as it is, −0 too.
  float most = 2.0f, sum = 3.0f, some[16];
  std::fill(some, some + 16, -0.0f);
  kernels.merge(1, 16, {&most, &sum, some}, {&none, &other_total, other});
  CHECK(most == 2.0f && sum == 3.0f && std::signbit(some[5]));
  kernels.merge(1, 16, {&none, &other_total, other}, {&most, &sum, some});
  CHECK(none == 2.0f && other_total == 3.0f && std::signbit(other[5]));
}

// Copies take the tokens that they are told, of every layer and head, and clear the rest; a block's bytes are all that it holds.
void blocks(const Kernels& kernels, CacheType type) {
  const AttentionKernels& attention = kernels.attention[static_cast<std::size_t>(type)];
  for (const std::size_t block_size : {16u, 48u}) {
    Cache cache(type);
    cache.add_layer(2, 24);
    cache.add_layer(1, 6);
    cache.allocate(4, block_size);
    for (std::int64_t block = 0; block < 4; ++block) std::memset(cache.block(block), 0xff, cache.bytes_per_block(block_size));
    for (std::size_t layer = 0; layer < cache.layers(); ++layer) {
      const CacheShape shape = cache.shape(layer);
      for (std::size_t slot = 0; slot < block_size; ++slot) {
        for (std::size_t head = 0; head < shape.kv_heads; ++head) {
          std::vector<float> key = normals(shape.head_dim), value = normals(shape.head_dim);
          if (slot % 3 == 2) key[1] = value[0] = kNan;
          attention.write_cache(key.data(), value.data(), shape, static_cast<int>(slot % kStrip), cache.blocks(layer).block(2) + shape.strip_at(head, slot));
        }
      }
    }
    const std::size_t bytes = cache.bytes_per_block(block_size);
    for (std::size_t tokens = 0; tokens <= block_size; ++tokens) {
      cache.copy({{2, 1, static_cast<std::int64_t>(tokens)}, {1, 3, static_cast<std::int64_t>(block_size)}});
      CHECK(std::memcmp(cache.block(1), cache.block(3), bytes) == 0);
      for (std::size_t layer = 0; layer < cache.layers(); ++layer) {
        const CacheShape shape = cache.shape(layer);
        for (std::size_t place = 0; place < shape.kv_heads * block_size * shape.head_dim * 2; ++place) {
          const std::size_t side = place % 2, d = place / 2 % shape.head_dim, slot = place / 2 / shape.head_dim % block_size;
          const std::size_t strip = shape.strip_at(place / 2 / shape.head_dim / block_size, slot);
          const double given = stored(shape, cache.blocks(layer).block(1) + strip, side, slot % kStrip, d);
          const double source = stored(shape, cache.blocks(layer).block(2) + strip, side, slot % kStrip, d);
          CHECK(slot < tokens ? same(given, source) : given == 0.0);
        }
      }
    }
    cache.copy({{1, 1, 5}});
    CHECK(cache.block(0)[bytes - 1] == 0xff);
  }
}

}  // namespace

int main() {
  for (const octavo::Isa isa : octavo::available()) {
    const octavo::Kernels& kernels = octavo::kernels_of(isa);
    for (std::size_t type = 0; type < octavo::kCacheTypes; ++type) {
      numbers(kernels, static_cast<octavo::CacheType>(type));
      attention(kernels, static_cast<octavo::CacheType>(type));
      no_numbers(kernels, static_cast<octavo::CacheType>(type));
      blocks(kernels, static_cast<octavo::CacheType>(type));
    }
    nothing(kernels);
  }
  return octavo::test::report("attention");
}

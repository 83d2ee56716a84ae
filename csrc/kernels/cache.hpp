// The paged cache of keys and values: what lies where.
#pragma once

#include <cstddef>
#include <cstdint>

namespace octavo {

// How a key or a value is held. Int8 has a scale for each token and KV head, max|x| / 127. Fp8 is E4M3 without infinities, has no scale, and
// what lies beyond ±448 becomes that.
enum class CacheType : int { kFloat32 = 0, kBfloat16 = 1, kFloat16 = 2, kInt8 = 3, kFp8 = 4 };
constexpr std::size_t kCacheTypes = 5;

constexpr int kStrip = 16;                  // tokens in a strip
constexpr std::size_t kMostHeadDim = 1024;  // sums of an int8 key stay within 32 bits

constexpr std::size_t value_bytes(CacheType type) {
  return type == CacheType::kFloat32 ? 4 : type == CacheType::kBfloat16 || type == CacheType::kFloat16 ? 2 : 1;
}

// Values that one lane multiplies at a time: they lie side by side, as a cell.
constexpr std::size_t cell_values(CacheType type) { return type == CacheType::kFloat32 || type == CacheType::kFloat16 ? 1 : 2; }

constexpr std::size_t cell_bytes(CacheType type) { return cell_values(type) * value_bytes(type); }

// Keys and values of one layer. A block holds `block_size` tokens of every KV head, head after head, and a head's part of a block is cut into
// strips of 16 tokens. A strip holds keys, values and what belongs to them:
//
// keys: cell 16·c + t is dimensions n·c … n·c + n − 1 of token t, where n is cell_values.
// values: cell dim_padded·c + d is dimension d of tokens n·c … n·c + n − 1.
// int8: then 16 float scales of the keys, 16 of the values. A token with a number that is none has the scale NaN.
// fp8: then a line of 64 bytes that begins with two 32-bit words: bit t of the first says that token t's key has a number that is none, and
//   is none as a whole; the second says it of values.
//
// So both products of attention read whole vectors and never sum across lanes.
struct CacheShape {
  CacheType type;
  std::size_t kv_heads;
  std::size_t head_dim;    // even, at most kMostHeadDim
  std::size_t block_size;  // a multiple of 16

  std::size_t dim_padded() const { return (head_dim + 15) / 16 * 16; }
  std::size_t side_bytes() const { return 16 * dim_padded() * value_bytes(type); }  // a strip's keys, or its values
  std::size_t tail_bytes() const { return type == CacheType::kInt8 ? 128 : type == CacheType::kFp8 ? 64 : 0; }
  std::size_t strip_bytes() const { return 2 * side_bytes() + tail_bytes(); }
  std::size_t head_bytes() const { return strip_bytes() * (block_size / kStrip); }
  std::size_t layer_bytes() const { return head_bytes() * kv_heads; }

  // Where the strip of a token lies in a layer's part of its block.
  std::size_t strip_at(std::size_t kv_head, std::size_t slot) const { return kv_head * head_bytes() + slot % block_size / kStrip * strip_bytes(); }

  // One row of a query as pack_query leaves it: in 16 bits a number with int8's scale behind it, or as many as a cell has.
  std::size_t query_bytes() const { return dim_padded() * (4 / cell_values(type)) + (type == CacheType::kInt8 ? sizeof(float) : 0); }
};

// The blocks of one layer: a block's part begins `stride` bytes after that of the block before.
template <typename Byte>
struct CacheBlocks {
  Byte* data;
  std::size_t stride;

  Byte* block(std::size_t index) const { return data + index * stride; }
};

}  // namespace octavo

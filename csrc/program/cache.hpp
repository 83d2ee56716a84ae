// The paged cache of a program: one piece of memory, in which the layers of a block lie one after another, so that a block is one run of bytes;
// or two, where some layers have blocks of their own.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/cache.hpp"
#include "program/buffers.hpp"

namespace octavo {

// The first `tokens` slots of block `source` go to block `destination`, whose other slots become zero.
struct BlockCopy {
  std::int64_t source, destination, tokens;
};

class Cache {
 public:
  explicit Cache(CacheType type) : type_(type) {}
  CacheType type() const { return type_; }

  // Throws std::invalid_argument for heads that the kernels can't work on.
  std::size_t add_layer(std::size_t kv_heads, std::size_t head_dim);
  std::size_t layers() const { return layers_.size(); }

  std::size_t bytes_per_block(std::size_t block_size) const;

  // The system commits the memory as it is first written; a strip's first token clears it. Throws std::invalid_argument for a block size that
  // is no multiple of 16.
  void allocate(std::size_t num_blocks, std::size_t block_size);
  std::size_t num_blocks() const { return num_blocks_; }
  std::size_t block_size() const { return block_size_; }

  CacheShape shape(std::size_t layer) const { return {type_, layers_[layer].kv_heads, layers_[layer].head_dim, block_size_}; }
  CacheBlocks<std::uint8_t> blocks(std::size_t layer) { return {memory_.data() + layers_[layer].offset, bytes_per_block_}; }
  CacheBlocks<const std::uint8_t> blocks(std::size_t layer) const { return {memory_.data() + layers_[layer].offset, bytes_per_block_}; }

  // One after another. Throws std::invalid_argument, with nothing copied, for a block or a number of tokens out of range.
  void copy(const std::vector<BlockCopy>& copies);

  // A block's bytes, `bytes_per_block` of them. Throws std::invalid_argument for a block out of range.
  std::uint8_t* block(std::int64_t index);

 private:
  struct Layer {
    std::size_t kv_heads, head_dim;
    std::size_t offset;  // in a block
  };

  CacheType type_;
  std::vector<Layer> layers_;
  AlignedBytes memory_;
  std::size_t num_blocks_ = 0, block_size_ = 0, bytes_per_block_ = 0;
};

// Bytes of a block that lie together.
struct BlockPiece {
  std::uint8_t* data;
  std::size_t size;
};

// The layers of a model in up to two caches. Those that are `windowed`, of a model whose others see everything, have blocks of their own if
// the cache is allocated with some; their ids then begin where those of the others end. Else a block is of all layers.
class Caches {
 public:
  explicit Caches(CacheType type) : of_{Cache(type), Cache(type)} {}
  CacheType type() const { return of_[0].type(); }

  // The index is among the layers of its kind.
  std::size_t add_layer(std::size_t kv_heads, std::size_t head_dim, bool windowed = false) { return of(windowed).add_layer(kv_heads, head_dim); }
  Cache& of(bool windowed) { return of_[windowed ? 1 : 0]; }
  const Cache& of(bool windowed) const { return of_[windowed ? 1 : 0]; }

  std::size_t bytes_per_block(std::size_t block_size) const { return of_[0].bytes_per_block(block_size) + of_[1].bytes_per_block(block_size); }
  std::size_t block_size() const { return of_[0].block_size(); }
  // Whether there are blocks of either kind.
  bool apart() const { return apart_; }

  // As Cache::allocate. Throws std::invalid_argument for blocks of windowed layers where there are none.
  void allocate(std::size_t num_blocks, std::size_t block_size, std::size_t num_window_blocks = 0);

  // As Cache::copy, and it throws for a block that is copied to one of other layers.
  void copy(const std::vector<BlockCopy>& copies);

  // Where a block's bytes lie. Throws std::invalid_argument for a block out of range.
  std::vector<BlockPiece> pieces(std::int64_t index);

 private:
  bool is_windowed(std::int64_t index) const { return apart_ && index >= static_cast<std::int64_t>(of_[0].num_blocks()); }

  std::array<Cache, 2> of_;
  bool apart_ = false;
};

}  // namespace octavo

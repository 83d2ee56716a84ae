#include "program/cache.hpp"

#include <cstring>
#include <stdexcept>

namespace octavo {

namespace {

void require(bool condition, const char* message) {
  if (!condition) throw std::invalid_argument(message);
}

// Clears the tokens of a strip from `first` on.
void clear_tokens(const CacheShape& shape, std::size_t first, std::uint8_t* strip) {
  const std::size_t width = shape.dim_padded(), values = cell_values(shape.type), bytes = value_bytes(shape.type), cell = values * bytes;
  std::uint8_t* side = strip + shape.side_bytes();
  std::uint8_t* tail = side + shape.side_bytes();
  for (std::size_t c = 0; c < width / values; ++c) std::memset(strip + (kStrip * c + first) * cell, 0, (kStrip - first) * cell);
  for (std::size_t token = first; token < kStrip; ++token) {
    for (std::size_t d = 0; d < width; ++d) std::memset(side + (width * (token / values) + d) * cell + token % values * bytes, 0, bytes);
  }
  if (shape.type == CacheType::kInt8) {
    for (std::size_t which = 0; which < 2; ++which) std::memset(tail + (kStrip * which + first) * sizeof(float), 0, (kStrip - first) * sizeof(float));
  } else if (shape.type == CacheType::kFp8) {
    auto* none = reinterpret_cast<std::uint32_t*>(tail);
    for (std::size_t which = 0; which < 2; ++which) none[which] &= (1u << first) - 1;
  }
}

// Copies the first `tokens` of one head's strips, and clears the rest.
void copy_head(const CacheShape& shape, std::size_t tokens, const std::uint8_t* source, std::uint8_t* target) {
  const std::size_t begun = (tokens + kStrip - 1) / kStrip * shape.strip_bytes();
  std::memmove(target, source, begun);
  std::memset(target + begun, 0, shape.head_bytes() - begun);
  if (tokens % kStrip != 0) clear_tokens(shape, tokens % kStrip, target + begun - shape.strip_bytes());
}

}  // namespace

std::size_t Cache::add_layer(std::size_t kv_heads, std::size_t head_dim) {
  require(kv_heads > 0 && head_dim > 0 && head_dim % 2 == 0, "a cache layer needs heads of an even size");
  require(head_dim <= kMostHeadDim, "a head of the cache can be no wider than 1024");
  require(block_size_ == 0, "the cache is allocated already");
  layers_.push_back({kv_heads, head_dim, 0});
  return layers_.size() - 1;
}

std::size_t Cache::bytes_per_block(std::size_t block_size) const {
  std::size_t bytes = 0;
  for (const Layer& layer : layers_) bytes += CacheShape{type_, layer.kv_heads, layer.head_dim, block_size}.layer_bytes();
  return bytes;
}

void Cache::allocate(std::size_t num_blocks, std::size_t block_size) {
  require(block_size > 0 && block_size % kStrip == 0, "the block size must be a multiple of 16");
  num_blocks_ = num_blocks;
  block_size_ = block_size;
  bytes_per_block_ = bytes_per_block(block_size);
  std::size_t offset = 0;
  for (std::size_t layer = 0; layer < layers_.size(); ++layer) {
    layers_[layer].offset = offset;
    offset += shape(layer).layer_bytes();
  }
  memory_ = AlignedBytes(bytes_per_block_ * num_blocks);
}

void Cache::copy(const std::vector<BlockCopy>& copies) {
  const auto known = [this](std::int64_t block) { return block >= 0 && static_cast<std::size_t>(block) < num_blocks_; };
  for (const BlockCopy& each : copies) {
    require(known(each.source) && known(each.destination), "a block to copy is out of range");
    require(each.tokens >= 0 && static_cast<std::size_t>(each.tokens) <= block_size_, "a number of tokens to copy is out of range");
  }
  for (const BlockCopy& each : copies) {
    for (std::size_t layer = 0; layer < layers_.size(); ++layer) {
      const CacheShape own = shape(layer);
      const std::uint8_t* source = blocks(layer).block(static_cast<std::size_t>(each.source));
      std::uint8_t* target = blocks(layer).block(static_cast<std::size_t>(each.destination));
      for (std::size_t head = 0; head < own.kv_heads; ++head) {
        copy_head(own, static_cast<std::size_t>(each.tokens), source + head * own.head_bytes(), target + head * own.head_bytes());
      }
    }
  }
}

std::uint8_t* Cache::block(std::int64_t index) {
  require(index >= 0 && static_cast<std::size_t>(index) < num_blocks_, "a block is out of range");
  return memory_.data() + static_cast<std::size_t>(index) * bytes_per_block_;
}

void Caches::allocate(std::size_t num_blocks, std::size_t block_size, std::size_t num_window_blocks) {
  require(num_window_blocks == 0 || of_[1].layers() != 0, "no layer sees a window where others see everything");
  apart_ = num_window_blocks != 0;
  of_[0].allocate(num_blocks, block_size);
  of_[1].allocate(apart_ ? num_window_blocks : num_blocks, block_size);
}

void Caches::copy(const std::vector<BlockCopy>& copies) {
  if (!apart_) {
    for (Cache& cache : of_) cache.copy(copies);
    return;
  }
  const auto first = static_cast<std::int64_t>(of_[0].num_blocks());
  std::array<std::vector<BlockCopy>, 2> own;
  for (const BlockCopy& each : copies) {
    const bool windowed = is_windowed(each.source);
    require(windowed == is_windowed(each.destination), "a block is copied to one of other layers");
    own[windowed ? 1 : 0].push_back(windowed ? BlockCopy{each.source - first, each.destination - first, each.tokens} : each);
  }
  for (std::size_t kind = 0; kind < 2; ++kind) of_[kind].copy(own[kind]);
}

std::vector<BlockPiece> Caches::pieces(std::int64_t index) {
  const auto piece = [&](bool windowed, std::int64_t local) {
    Cache& cache = of(windowed);
    return BlockPiece{cache.block(local), cache.bytes_per_block(cache.block_size())};
  };
  if (apart_) {
    const bool windowed = is_windowed(index);
    return {piece(windowed, windowed ? index - static_cast<std::int64_t>(of_[0].num_blocks()) : index)};
  }
  std::vector<BlockPiece> all = {piece(false, index)};
  if (of_[1].layers() != 0) all.push_back(piece(true, index));
  return all;
}

}  // namespace octavo

// Memory of a program: aligned, grown on demand, never shrunk while it runs.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "kernels/kernels.hpp"

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace octavo {

// 64-byte aligned bytes. Large ones are aligned to 2 MiB and offered to the kernel for huge pages: weights are read from end to end at every
// step, and small pages would cost a table walk every 4 KiB.
class AlignedBytes {
 public:
  AlignedBytes() = default;
  explicit AlignedBytes(std::size_t size, bool zero = false) : size_(size) {
    if (size == 0) return;
    constexpr std::size_t kHuge = std::size_t{2} << 20;
    const std::size_t alignment = size >= kHuge ? kHuge : 64;
    auto* bytes = static_cast<std::uint8_t*>(std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment));
    if (bytes == nullptr) throw std::bad_alloc();
    data_.reset(bytes, Free{});
#if defined(__linux__)
    if (size >= kHuge) madvise(data_.get(), size, MADV_HUGEPAGE);
#endif
    if (zero) std::memset(data_.get(), 0, size);
  }

  AlignedBytes(AlignedBytes&&) = default;
  AlignedBytes& operator=(AlignedBytes&&) = default;

  std::uint8_t* data() { return data_.get(); }
  const std::uint8_t* data() const { return data_.get(); }
  std::size_t size() const { return size_; }

  // Keeps the bytes alive even when this grows or goes: for those who look at them from outside.
  std::shared_ptr<const std::uint8_t[]> keep() const { return data_; }

  // At least `size` bytes; what was there is lost if it grows.
  void reserve(std::size_t size) {
    if (size > size_) *this = AlignedBytes(size + size / 2);
  }

 private:
  struct Free {
    void operator()(std::uint8_t* pointer) const { std::free(pointer); }
  };
  std::shared_ptr<std::uint8_t[]> data_;
  std::size_t size_ = 0;
};

// Memory that is handed out piece by piece and freed as a whole. Weights lie in it one after another, so that huge pages cover them all.
class Arena {
 public:
  std::uint8_t* take(std::size_t size) {
    size = (size + 63) / 64 * 64;
    if (chunks_.empty() || used_ + size > chunks_.back().size()) {
      chunks_.emplace_back(std::max(size, kChunk));
      used_ = 0;
    }
    std::uint8_t* piece = chunks_.back().data() + used_;
    used_ += size;
    return piece;
  }

 private:
  static constexpr std::size_t kChunk = std::size_t{64} << 20;
  std::vector<AlignedBytes> chunks_;
  std::size_t used_ = 0;
};

// Rows of floats, one a token or one a sample.
struct FloatBuffer {
  std::size_t width = 0;
  bool samples = false;
  AlignedBytes memory;

  float* row(std::size_t index) { return reinterpret_cast<float*>(memory.data()) + index * width; }
  void reserve(std::size_t rows) { memory.reserve(rows * width * sizeof(float)); }
};

// Activations of one form, with room for their scales.
struct ActivationBuffer {
  std::size_t inner = 0;
  bool integer = false;  // int8 with scales, else bfloat16
  bool samples = false;
  AlignedBytes values, scales, sums, offsets;

  std::size_t cells() const { return groups(inner); }
  std::size_t value_bytes() const { return cells() * kGroup * (integer ? 1 : 2); }

  void reserve(std::size_t rows) {
    values.reserve(rows * value_bytes());
    if (!integer) return;
    scales.reserve(rows * cells() * sizeof(float));
    sums.reserve(rows * cells() * sizeof(float));
    offsets.reserve(rows * cells() * sizeof(std::int32_t));
  }

  Activations view() {
    return {values.data(), reinterpret_cast<float*>(scales.data()), reinterpret_cast<float*>(sums.data()),
            reinterpret_cast<std::int32_t*>(offsets.data())};
  }

  // Converts `count` floats into the groups from `group` on of row `row`.
  void put(const Kernels& kernels, const float* x, std::size_t count, std::size_t row, std::size_t group) {
    const std::size_t at = row * cells() + group;
    if (integer) {
      const Activations all = view();
      kernels.quantize_row(x, count, static_cast<std::int8_t*>(all.values) + at * kGroup, all.scales + at, all.sums + at, all.offsets + at);
    } else {
      kernels.round_row(x, count, reinterpret_cast<std::uint16_t*>(values.data()) + at * kGroup);
    }
  }
};

}  // namespace octavo

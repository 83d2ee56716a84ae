// A number that threads wait for to change: they spin for a while, then yield, then sleep in the kernel.
#pragma once

#include <atomic>
#include <cstdint>

namespace octavo {

class Gate {
 public:
  // How long a waiter stays awake.
  struct Patience {
    std::uint32_t spin_nanoseconds;  // spinning, with the processor's pause
    std::uint32_t yields;            // then so many calls of sched_yield
  };

  std::uint32_t value() const { return value_.load(std::memory_order_acquire); }

  // Changes the value and wakes all who sleep. What the caller wrote before is seen by those who leave `wait`.
  void set(std::uint32_t value);

  // Returns the value once it differs from `old`.
  std::uint32_t wait(std::uint32_t old, Patience patience);

 private:
  alignas(64) std::atomic<std::uint32_t> value_{0};
  alignas(64) std::atomic<std::uint32_t> sleepers_{0};
};

}  // namespace octavo

// A number that threads wait for to change: they spin for a while, then sleep in the kernel.
//
// They don't call sched_yield in between. Since Linux 6.18 a yield forfeits the rest of the thread's time slice, and beside a busy process
// on its core each one costs milliseconds: a step with two yields at each barrier took up to 40 times as long, one that sleeps at once 2.
#pragma once

#include <atomic>
#include <cstdint>

namespace octavo {

class Gate {
 public:
  std::uint32_t value() const { return value_.load(std::memory_order_acquire); }

  // Changes the value and wakes all who sleep. What the caller wrote before is seen by those who leave `wait`.
  void set(std::uint32_t value);

  // Wakes all who sleep, though nothing has changed: it will soon, and until then they spin, as long as if they had just come. A hint.
  void nudge();

  // Returns the value once it differs from `old`. Stays awake for about `spin_nanoseconds`.
  std::uint32_t wait(std::uint32_t old, std::uint32_t spin_nanoseconds);

 private:
  alignas(64) std::atomic<std::uint32_t> value_{0};
  alignas(64) std::atomic<std::uint32_t> sleepers_{0};
};

}  // namespace octavo

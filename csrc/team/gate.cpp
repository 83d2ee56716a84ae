// Waiting: Linux futexes, or std::atomic's own waiting elsewhere.
#include "team/gate.hpp"

#include <chrono>

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace octavo {
namespace {

static_assert(sizeof(std::atomic<std::uint32_t>) == 4 && std::atomic<std::uint32_t>::is_always_lock_free);

void pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb");  // `yield` does nothing on most cores; this waits about as long as x86's pause
#endif
}

#if defined(__linux__)
// Returns when woken, interrupted, or at once if the value isn't `old`: the caller looks again.
void sleep_while(std::atomic<std::uint32_t>& value, std::uint32_t old) {
  syscall(SYS_futex, &value, FUTEX_WAIT_PRIVATE, old, nullptr, nullptr, 0);
}
void wake_all(std::atomic<std::uint32_t>& value) { syscall(SYS_futex, &value, FUTEX_WAKE_PRIVATE, 0x7fffffff, nullptr, nullptr, 0); }
#else
void sleep_while(std::atomic<std::uint32_t>& value, std::uint32_t old) { value.wait(old, std::memory_order_acquire); }
void wake_all(std::atomic<std::uint32_t>& value) { value.notify_all(); }
#endif

}  // namespace

void Gate::set(std::uint32_t value) {
  // One order of both variables for all threads: either the sleeper sees the new value, or it is counted here.
  value_.store(value, std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) != 0) wake_all(value_);
}

void Gate::nudge() {
  if (sleepers_.load(std::memory_order_relaxed) != 0) wake_all(value_);
}

std::uint32_t Gate::wait(std::uint32_t old, std::uint32_t spin_nanoseconds) {
  std::uint32_t now = value_.load(std::memory_order_acquire);
  while (now == old) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::nanoseconds(spin_nanoseconds);
    do {
      for (int i = 0; i < 16; ++i) {
        pause();
        now = value_.load(std::memory_order_acquire);
        if (now != old) return now;
      }
    } while (std::chrono::steady_clock::now() < until);
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    // Who is woken without a change was nudged, or interrupted, and stays awake for a while once more.
    now = value_.load(std::memory_order_seq_cst);
    if (now == old) sleep_while(value_, old);
    sleepers_.fetch_sub(1, std::memory_order_relaxed);
    now = value_.load(std::memory_order_seq_cst);
  }
  return now;
}

}  // namespace octavo

// One persistent team of threads. A step is one call of `run`: every thread executes the same function, meets the others at barriers, and
// takes its share of each operation. Nothing here knows what is computed.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <thread>
#include <vector>

#include "team/clock.hpp"
#include "team/gate.hpp"

namespace octavo {

class Team;

// What a thread knows of itself while it runs.
class Member {
 public:
  // 0 is the thread that called `run`.
  int index() const { return index_; }
  int size() const;

  // Nanoseconds that this thread has waited at barriers in this run; 0 unless the team is timed.
  std::int64_t waited() const { return waited_; }

  // Returns when every thread of the team has arrived; what any wrote before it, all may read after it. Spins briefly, then
  // sleeps. If another thread's function has thrown, this throws too (something that only `run` should catch).
  void barrier() {
    barrier([] {});
  }
  // The same; `meanwhile()` is called after arriving, before waiting.
  template <typename Meanwhile>
  void barrier(Meanwhile&& meanwhile);

  // Hands out [0, count) in chunks of `chunk` (the last may be shorter), first come first served: `work(begin, end)` is called for each
  // chunk that falls to this thread, so a thread that the system keeps waiting delays only the chunk it has. Every thread must call it,
  // with the same arguments. It ends with a barrier.
  template <typename Work>
  void share(std::size_t count, std::size_t chunk, Work&& work);

  // The same for work that is cut into a region for each thread, count(region) units of it, whose chunk i begins with unit cut(region, i): a
  // thread first takes what is left of its own region, then of the others', so that it reads one piece of memory from end to end while nobody
  // lags behind. `work(region, begin, end)` gets units of one region.
  //
  // Whoever is done calls `meanwhile()` before it waits for the others.
  template <typename Count, typename Cut, typename Work, typename Meanwhile>
  void share_regions(Count&& count, Cut&& cut, Work&& work, Meanwhile&& meanwhile);

  // The same, for work that is done sooner when what follows is known: `work(begin, end, next)` is told where the chunk begins that this thread
  // takes after this one, or `count` if there is none.
  template <typename Work, typename Meanwhile>
  void share_ahead(std::size_t count, std::size_t chunk, Work&& work, Meanwhile&& meanwhile);

 private:
  friend class Team;
  Member(Team& team, int index) : team_(team), index_(index) {}

  void leave(std::uint32_t phase);
  // What hands out the chunks of this turn.
  std::atomic<std::size_t>& counter();

  Team& team_;
  int index_;
  std::size_t turn_ = 0;         // number of `share` calls in this run; picks the counter
  std::size_t region_turn_ = 0;  // the same for `share_regions`
  std::int64_t waited_ = 0;
};

// The threads. Only one `run` at a time. Threads don't survive fork(): in a child process `run` throws.
class Team {
 public:
  // `cores` pins thread i to core cores[i] while it runs; if it is empty, threads are not pinned. Throws std::invalid_argument if `threads`
  // isn't positive or differs from the number of cores, or if this process may not run on one of them.
  explicit Team(int threads, std::vector<int> cores = {});
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int size() const { return threads_; }

  // Whether members count the time that they wait. Not while a job runs.
  void timed(bool timed) { timed_ = timed; }

  // Says that a run comes within some tens of microseconds: threads that sleep wake up meanwhile.
  void expect_run() {
    if (threads_ > 1) start_.nudge();
  }

  // Calls `job` on every thread, the calling one among them as member 0, and returns when all have returned. While it runs the calling
  // thread is pinned like the others; afterwards it may run where it could before. The first exception that leaves `job` on any thread is
  // thrown here, after all have stopped at their next barrier. Throws std::logic_error if the team is running already or after fork().
  void run(const std::function<void(Member&)>& job);

 private:
  friend class Member;

  void loop(int index);
  void work(int index);
  bool meet() { return leave(arrive()); }
  std::uint32_t arrive();
  bool leave(std::uint32_t phase);
  void stop();

  struct alignas(64) Counter {
    std::atomic<std::size_t> next{0};
  };

  const int threads_;
  const std::vector<int> cores_;
  const long process_;
  std::vector<std::thread> workers_;
  std::atomic<bool> running_{false};

  // Set by member 0 before `start_` opens, read by all after.
  const std::function<void(Member&)>* job_ = nullptr;
  bool stopping_ = false;
  bool timed_ = false;
  Gate start_;

  // The barrier: the last to arrive opens `phase_` anew. Its lowest bit says that a thread has failed, and is the same for all who leave.
  alignas(64) std::atomic<int> arrived_{0};
  Gate phase_;

  std::atomic<bool> failed_{false};
  std::exception_ptr error_;

  // Two counters take turns: while one hands out chunks, nobody uses the other, and member 0 sets it to zero.
  std::array<Counter, 2> counters_;
  // The same, one for each region; each thread sets its own region's to zero.
  std::array<std::vector<Counter>, 2> region_counters_;
};

inline int Member::size() const { return team_.size(); }

template <typename Meanwhile>
void Member::barrier(Meanwhile&& meanwhile) {
  const std::uint32_t phase = team_.arrive();
  if (!team_.timed_) {
    meanwhile();
    leave(phase);
    return;
  }
  const std::int64_t start = nanoseconds_now();
  meanwhile();
  leave(phase);
  waited_ += nanoseconds_now() - start;
}

inline std::atomic<std::size_t>& Member::counter() {
  std::atomic<std::size_t>& next = team_.counters_[turn_ % 2].next;
  if (index_ == 0) team_.counters_[(turn_ + 1) % 2].next.store(0, std::memory_order_relaxed);
  ++turn_;
  return next;
}

template <typename Work>
void Member::share(std::size_t count, std::size_t chunk, Work&& work) {
  chunk = std::max<std::size_t>(chunk, 1);
  if (team_.threads_ == 1) {
    for (std::size_t begin = 0; begin < count; begin += chunk) work(begin, std::min(begin + chunk, count));
    return;
  }
  std::atomic<std::size_t>& next = counter();
  for (;;) {
    const std::size_t begin = next.fetch_add(chunk, std::memory_order_relaxed);
    if (begin >= count) break;
    work(begin, std::min(begin + chunk, count));
  }
  barrier();
}

template <typename Count, typename Cut, typename Work, typename Meanwhile>
void Member::share_regions(Count&& count, Cut&& cut, Work&& work, Meanwhile&& meanwhile) {
  const int threads = team_.threads_;
  std::vector<Team::Counter>& counters = team_.region_counters_[region_turn_ % 2];
  team_.region_counters_[(region_turn_ + 1) % 2][static_cast<std::size_t>(index_)].next.store(0, std::memory_order_relaxed);
  ++region_turn_;
  for (int i = 0; i < threads; ++i) {
    const auto region = static_cast<std::size_t>((index_ + i) % threads);
    const std::size_t total = count(region);
    std::atomic<std::size_t>& next = counters[region].next;
    while (cut(region, next.load(std::memory_order_relaxed)) < total) {
      const std::size_t chunk = next.fetch_add(1, std::memory_order_relaxed);
      const std::size_t begin = cut(region, chunk);
      if (begin >= total) break;
      const std::size_t end = std::min<std::size_t>(cut(region, chunk + 1), total);
      if (begin < end) work(region, begin, end);
    }
  }
  barrier(meanwhile);
}

template <typename Work, typename Meanwhile>
void Member::share_ahead(std::size_t count, std::size_t chunk, Work&& work, Meanwhile&& meanwhile) {
  chunk = std::max<std::size_t>(chunk, 1);
  if (team_.threads_ == 1) {
    for (std::size_t begin = 0; begin < count; begin += chunk) work(begin, std::min(begin + chunk, count), std::min(begin + chunk, count));
    return;
  }
  std::atomic<std::size_t>& next = counter();
  std::size_t begin = next.fetch_add(chunk, std::memory_order_relaxed);
  while (begin < count) {
    const std::size_t after = std::min(count, next.fetch_add(chunk, std::memory_order_relaxed));
    work(begin, std::min(begin + chunk, count), after);
    begin = after;
  }
  barrier(meanwhile);
}

}  // namespace octavo

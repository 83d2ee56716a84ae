// The team's threads: start, meet, stop.
#include "team/team.hpp"

#include <csignal>
#include <stdexcept>
#include <string>

#include "team/affinity.hpp"

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#include <unistd.h>
#endif

namespace octavo {
namespace {

// How long threads stay awake where they wait, in nanoseconds. At barriers, between operations, they wait some microseconds for the slowest;
// between runs, for Python to schedule the next step, so that back-to-back steps find them awake while an idle server sleeps. Sleeping and
// waking costs 5 microseconds, and up to 40 on a virtual machine. A thread that isn't pinned may spin on the very core where the one that it
// waits for should run, so it gives way sooner.
constexpr std::uint32_t kAtBarrier = 20'000;
constexpr std::uint32_t kAtBarrierNotPinned = 5'000;
constexpr std::uint32_t kBetweenRuns = 50'000;
constexpr std::uint32_t kBetweenRunsNotPinned = 20'000;

// Thrown by a barrier when another thread has failed, to leave the job.
struct Abandoned {};

std::vector<int> checked(int threads, std::vector<int> cores) {
  if (threads < 1) throw std::invalid_argument("a team needs at least one thread, not " + std::to_string(threads));
  if (!cores.empty() && cores.size() != static_cast<std::size_t>(threads)) {
    throw std::invalid_argument("a team of " + std::to_string(threads) + " threads can't be pinned to " + std::to_string(cores.size()) + " cores");
  }
  for (const int core : cores) {
    if (!may_run_on(core)) throw std::invalid_argument("this process may not run on core " + std::to_string(core));
  }
  return cores;
}

long this_process() {
#if defined(__unix__) || defined(__APPLE__)
  return getpid();
#else
  return 0;
#endif
}

// While it lives, threads that this one starts get no signals: they are for the threads that the program knows.
class SignalsBlocked {
 public:
#if defined(__unix__) || defined(__APPLE__)
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
#endif
};

}  // namespace

Team::Team(int threads, std::vector<int> cores) : threads_(threads), cores_(checked(threads, std::move(cores))), process_(this_process()) {
  for (std::vector<Counter>& counters : region_counters_) counters = std::vector<Counter>(static_cast<std::size_t>(threads_));
  const SignalsBlocked blocked;
  try {
    workers_.reserve(static_cast<std::size_t>(threads_ - 1));
    for (int index = 1; index < threads_; ++index) workers_.emplace_back([this, index] { loop(index); });
  } catch (...) {
    stop();
    throw;
  }
}

Team::~Team() { stop(); }

void Team::stop() {
  if (this_process() != process_) {
    for (std::thread& worker : workers_) worker.detach();  // they are not in this process
    return;
  }
  stopping_ = true;
  start_.set(start_.value() + 1);
  for (std::thread& worker : workers_) worker.join();
}

void Team::loop(int index) {
  name_this_thread("octavo-" + std::to_string(index));
  if (!cores_.empty()) pin_this_thread(cores_[static_cast<std::size_t>(index)]);
  std::uint32_t seen = 0;
  for (;;) {
    seen = start_.wait(seen, cores_.empty() ? kBetweenRunsNotPinned : kBetweenRuns);
    if (stopping_) return;
    work(index);
  }
}

void Team::run(const std::function<void(Member&)>& job) {
  if (this_process() != process_) throw std::logic_error("a team of threads was used in a process forked from the one that made it");
  if (running_.exchange(true, std::memory_order_acquire)) throw std::logic_error("a team of threads can't run two jobs at once");
  job_ = &job;
  failed_.store(false, std::memory_order_relaxed);
  error_ = nullptr;
  for (Counter& counter : counters_) counter.next.store(0, std::memory_order_relaxed);
  for (std::vector<Counter>& counters : region_counters_) {
    for (Counter& counter : counters) counter.next.store(0, std::memory_order_relaxed);
  }
  {
    const PinnedHere pinned(cores_.empty() ? -1 : cores_[0]);
    if (threads_ > 1) start_.set(start_.value() + 1);
    work(0);
  }
  const std::exception_ptr error = std::move(error_);
  running_.store(false, std::memory_order_release);
  if (error) std::rethrow_exception(error);
}

// Runs the job on this thread, and returns when every thread has left it.
void Team::work(int index) {
  Member member(*this, index);
  bool abandoned = false;
  try {
    (*job_)(member);
  } catch (const Abandoned&) {
    abandoned = true;
  } catch (...) {
    if (!failed_.exchange(true, std::memory_order_acq_rel)) error_ = std::current_exception();
  }
  // One who failed meets the others here while they are at a barrier of the job or have returned; that tells them, and they follow.
  if (!abandoned) abandoned = meet();
  if (abandoned) meet();
}

// The barrier's first half: returns the phase that ends when the last thread arrives.
std::uint32_t Team::arrive() {
  if (threads_ == 1) return 0;
  const std::uint32_t phase = phase_.value();
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == threads_) {
    arrived_.store(0, std::memory_order_relaxed);
    phase_.set(((phase | 1) + 1) | static_cast<std::uint32_t>(failed_.load(std::memory_order_relaxed)));
  }
  return phase;
}

// Its second half; returns whether a thread had failed before the last one arrived.
bool Team::leave(std::uint32_t phase) {
  return threads_ > 1 && (phase_.wait(phase, cores_.empty() ? kAtBarrierNotPinned : kAtBarrier) & 1) != 0;
}

void Member::leave(std::uint32_t phase) {
  if (team_.leave(phase)) throw Abandoned{};
}

}  // namespace octavo

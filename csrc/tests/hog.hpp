// A step of many operations, and a busy process to take it beside.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <thread>
#include <vector>

#include "team/affinity.hpp"
#include "team/team.hpp"

namespace octavo::test {

using Clock = std::chrono::steady_clock;

inline double microseconds_since(Clock::time_point start) { return std::chrono::duration<double, std::micro>(Clock::now() - start).count(); }

// Keeps the core busy for a fixed amount of work, about so many microseconds.
inline volatile double sink = 0;
inline void toil(double microseconds) {
  static const double kPerMicrosecond = [] {
    const auto start = Clock::now();
    double sum = 1;
    for (int i = 0; i < 20'000'000; ++i) sum = sum * 0.999 + 1;
    sink = sum;
    return 20e6 / microseconds_since(start);
  }();
  double sum = 1;
  for (int i = static_cast<int>(microseconds * kPerMicrosecond); i > 0; --i) sum = sum * 0.999 + 1;
  sink = sum;
}

// 2,000 operations: each 8 chunks of work a thread, 20 microseconds a thread in all, and a barrier.
inline double step_milliseconds(Team& team) {
  const auto start = Clock::now();
  team.run([](Member& member) {
    const auto chunks = static_cast<std::size_t>(member.size()) * 8;
    for (int i = 0; i < 2000; ++i) {
      member.share(chunks, 1, [](std::size_t, std::size_t) { toil(2.5); });
    }
  });
  return microseconds_since(start) / 1e3;
}

// The times of `count` steps, the shortest first.
inline std::vector<double> step_times(Team& team, int count) {
  std::vector<double> times;
  for (int i = 0; i < count; ++i) times.push_back(step_milliseconds(team));
  std::sort(times.begin(), times.end());
  return times;
}

// A process that does nothing but compute while this lives: on one core, or with -1 on any.
class Hog {
 public:
  explicit Hog(int core) : child_(fork()) {
    if (child_ == 0) {
      if (core >= 0) pin_this_thread(core);
      alarm(60);
      for (;;) sink = sink + 1;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  ~Hog() {
    kill(child_, SIGKILL);
    waitpid(child_, nullptr, 0);
  }
  Hog(const Hog&) = delete;
  Hog& operator=(const Hog&) = delete;

 private:
  pid_t child_;
};

}  // namespace octavo::test

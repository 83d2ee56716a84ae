// How long the team's meetings take: barriers, starting a run with the threads awake or asleep, and a step beside a busy process that is
// pinned to one of the team's cores. Prints a table. Run it alone on the machine: build/native/team_bench
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "team/affinity.hpp"
#include "team/team.hpp"

namespace {

using Clock = std::chrono::steady_clock;
using octavo::Member;
using octavo::Team;

double microseconds_since(Clock::time_point start) { return std::chrono::duration<double, std::micro>(Clock::now() - start).count(); }

// Keeps the core busy for a fixed amount of work, about so many microseconds.
volatile double sink = 0;
void toil(double microseconds) {
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

double barrier_nanoseconds(Team& team) {
  constexpr int kRounds = 200'000;
  double best = 1e30;
  for (int trial = 0; trial < 5; ++trial) {
    const auto start = Clock::now();
    team.run([](Member& member) {
      for (int i = 0; i < kRounds; ++i) member.barrier();
    });
    best = std::min(best, 1e3 * microseconds_since(start) / kRounds);
  }
  return best;
}

// Median time of an empty run that follows the last by `pause`.
double run_microseconds(Team& team, std::chrono::microseconds pause) {
  std::vector<double> times;
  for (int i = 0; i < 500; ++i) {
    if (pause.count() > 0) std::this_thread::sleep_for(pause);
    const auto start = Clock::now();
    team.run([](Member&) {});
    times.push_back(microseconds_since(start));
  }
  std::nth_element(times.begin(), times.begin() + 250, times.end());
  return times[250];
}

// 2,000 operations: each 8 chunks of work a thread, 20 microseconds a thread in all, and a barrier.
double step_milliseconds(Team& team) {
  const auto start = Clock::now();
  team.run([](Member& member) {
    const auto chunks = static_cast<std::size_t>(member.size()) * 8;
    for (int i = 0; i < 2000; ++i) {
      member.share(chunks, 1, [](std::size_t, std::size_t) { toil(2.5); });
    }
  });
  return microseconds_since(start) / 1e3;
}

double median_step(Team& team) {
  std::vector<double> times;
  for (int i = 0; i < 5; ++i) times.push_back(step_milliseconds(team));
  std::sort(times.begin(), times.end());
  return times[2];
}

pid_t start_hog(int core) {
  const pid_t child = fork();
  if (child == 0) {
    octavo::pin_this_thread(core);
    alarm(60);
    for (;;) sink = sink + 1;
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  return child;
}

}  // namespace

int main() {
  std::vector<int> cores;
  for (int core = 0; core < 256; ++core) {
    if (octavo::may_run_on(core)) cores.push_back(core);
  }
  toil(1);
  const int threads = static_cast<int>(cores.size());
  for (const bool pinned : {true, false}) {
    Team team(threads, pinned ? cores : std::vector<int>{});
    std::printf("%d threads, %s\n", threads, pinned ? "pinned" : "not pinned");
    std::printf("  barrier                      %8.0f ns\n", barrier_nanoseconds(team));
    std::printf("  run, threads awake           %8.1f us\n", run_microseconds(team, std::chrono::microseconds(0)));
    std::printf("  run, threads asleep          %8.1f us\n", run_microseconds(team, std::chrono::microseconds(500)));
    const double alone = median_step(team);
    std::printf("  2000 operations of 20 us     %8.1f ms\n", alone);
    for (const int core : {cores.front(), cores.back()}) {
      const pid_t hog = start_hog(core);
      const double beside = median_step(team);
      kill(hog, SIGKILL);
      waitpid(hog, nullptr, 0);
      std::printf("  beside a hog on core %-3d     %8.1f ms, %.1f times as long\n", core, beside, beside / alone);
    }
  }
  return 0;
}

// How long the team's meetings take: barriers, starting a run with the threads awake or asleep, and a step beside a busy process, pinned
// to one of the team's cores or not. Prints a table. Run it alone on the machine: build/native/team_bench
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "team/affinity.hpp"
#include "team/team.hpp"
#include "tests/hog.hpp"

namespace {

using octavo::Member;
using octavo::Team;
using octavo::test::Clock;
using octavo::test::Hog;
using octavo::test::microseconds_since;
using octavo::test::step_times;

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

// Median time of an empty run that follows the last by `pause`, and, if `notice` is not 0, by as much on being told that it comes.
double run_microseconds(Team& team, std::chrono::microseconds pause, std::chrono::microseconds notice = {}) {
  std::vector<double> times;
  for (int i = 0; i < 500; ++i) {
    if (pause.count() > 0) std::this_thread::sleep_for(pause);
    if (notice.count() > 0) {
      team.expect_run();
      for (const auto told = Clock::now(); Clock::now() - told < notice;) {
      }
    }
    const auto start = Clock::now();
    team.run([](Member&) {});
    times.push_back(microseconds_since(start));
  }
  std::nth_element(times.begin(), times.begin() + 250, times.end());
  return times[250];
}

}  // namespace

int main() {
  std::vector<int> cores;
  for (int core = 0; core < 256; ++core) {
    if (octavo::may_run_on(core)) cores.push_back(core);
  }
  const int threads = static_cast<int>(cores.size());
  for (const bool pinned : {true, false}) {
    Team team(threads, pinned ? cores : std::vector<int>{});
    std::printf("%d threads, %s\n", threads, pinned ? "pinned" : "not pinned");
    std::printf("  barrier                      %8.0f ns\n", barrier_nanoseconds(team));
    std::printf("  run, threads awake           %8.1f us\n", run_microseconds(team, std::chrono::microseconds(0)));
    std::printf("  run, threads asleep          %8.1f us\n", run_microseconds(team, std::chrono::microseconds(500)));
    const double told = run_microseconds(team, std::chrono::microseconds(500), std::chrono::microseconds(40));
    std::printf("  asleep, told 40 us before    %8.1f us\n", told);
    const double alone = step_times(team, 5)[2];
    std::printf("  2000 operations of 20 us     %8.1f ms\n", alone);
    for (const int core : {cores.front(), cores.back(), -1}) {
      const Hog hog(core);
      const double beside = step_times(team, 5)[2];
      const std::string where = core < 0 ? "on any core" : "on core " + std::to_string(core);
      std::printf("  beside a hog %-16s%8.1f ms, %.1f times as long\n", where.c_str(), beside, beside / alone);
    }
  }
  return 0;
}

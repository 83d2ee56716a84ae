// The team of threads: barriers, shares, exceptions, its start and end. Meant to run under the thread sanitizer too.
#include "team/team.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <ctime>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "team/affinity.hpp"
#include "tests/check.hpp"
#include "tests/hog.hpp"

namespace {

using octavo::Member;
using octavo::Team;

std::size_t at(int index) { return static_cast<std::size_t>(index); }

// Every thread writes its plain slot, and after the barrier reads all the others'.
void barriers_order_memory(Team& team, int rounds) {
  std::vector<int> slots(at(team.size()) * 16, 0);
  std::vector<int> wrong(at(team.size()) * 16, 0);
  team.run([&](Member& member) {
    for (int round = 1; round <= rounds; ++round) {
      slots[at(member.index()) * 16] = round;
      member.barrier();
      for (int other = 0; other < member.size(); ++other) wrong[at(member.index()) * 16] += slots[at(other) * 16] != round;
      member.barrier();
    }
  });
  CHECK(std::accumulate(wrong.begin(), wrong.end(), 0) == 0);
}

// Each item is worked on once, in chunks of the right size, and a chain of shares sees what the one before wrote.
void shares_cover_everything(Team& team, int rounds) {
  constexpr std::size_t counts[] = {0, 1, 2, 3, 7, 16, 97, 1000};
  constexpr std::size_t chunks[] = {0, 1, 3, 16, 5000};
  std::vector<int> items(1000, 0);
  std::vector<int> wrong(at(team.size()) * 16, 0);
  std::size_t total = 0;
  for (int round = 0; round < rounds; ++round) {
    for (const std::size_t count : counts) total += count;
  }
  for (const std::size_t chunk : chunks) {
    std::fill(items.begin(), items.end(), 0);
    team.run([&](Member& member) {
      std::vector<int> expected(items.size(), 0);
      for (int round = 0; round < rounds; ++round) {
        for (const std::size_t count : counts) {
          member.share(count, chunk, [&](std::size_t begin, std::size_t end) {
            int& bad = wrong[at(member.index()) * 16];
            bad += begin >= end || end > count || end - begin > std::max<std::size_t>(chunk, 1) || begin % std::max<std::size_t>(chunk, 1) != 0;
            for (std::size_t i = begin; i < end; ++i) bad += items[i]++ != expected[i];
          });
          for (std::size_t i = 0; i < count; ++i) ++expected[i];
        }
      }
    });
    CHECK(std::accumulate(items.begin(), items.end(), std::size_t{0}) == total);
  }
  CHECK(std::accumulate(wrong.begin(), wrong.end(), 0) == 0);
}

// Each unit of each region is worked on once, whoever gets it, in runs of an odd number of shares too.
void regions_cover_everything(Team& team, int rounds) {
  const std::size_t regions = at(team.size());
  std::vector<std::vector<int>> units(regions);
  for (std::size_t region = 0; region < regions; ++region) units[region].resize(1 + 37 * region % 11);
  units[0].clear();
  std::vector<int> wrong(regions * 16, 0), waits(regions * 16, 0);
  for (int round = 0; round < rounds; ++round) {
    for (auto& region : units) std::fill(region.begin(), region.end(), 0);
    const int shares = 1 + round % 4;
    team.run([&](Member& member) {
      for (int share = 0; share < shares; ++share) {
        // Chunks of 0 units too: chunk i has i % (region % 4 + 2).
        const auto cut = [](std::size_t region, std::size_t chunk) {
          const std::size_t turn = region % 4 + 2, rest = chunk % turn;
          return chunk / turn * (turn * (turn - 1) / 2) + rest * (rest - 1 + (rest == 0)) / 2;
        };
        member.share_regions([&](std::size_t region) { return units[region].size(); }, cut,
                             [&](std::size_t region, std::size_t begin, std::size_t end) {
                               int& bad = wrong[at(member.index()) * 16];
                               bad += begin >= end || end - begin > region % 4 + 1;
                               for (std::size_t i = begin; i < end; ++i) bad += units[region][i]++ != share;
                             },
                             [&] { ++waits[at(member.index()) * 16]; });
      }
    });
    for (int member = 0; member < team.size(); ++member) wrong[0] += std::exchange(waits[at(member) * 16], 0) != shares;
    for (const auto& region : units) {
      for (const int count : region) wrong[0] += count != shares;
    }
  }
  CHECK(std::accumulate(wrong.begin(), wrong.end(), 0) == 0);
}

void many_runs(Team& team, int rounds) {
  std::vector<int> calls(at(team.size()) * 16, 0);
  int sum = 0;
  for (int round = 0; round < rounds; ++round) {
    team.run([&](Member& member) { ++calls[at(member.index()) * 16]; });
    sum += std::accumulate(calls.begin(), calls.end(), 0) == (round + 1) * team.size();
    // Now and then long enough for the threads to fall asleep.
    if (round % 50 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  CHECK(sum == rounds);
}

std::string message_of(Team& team, const std::function<void(Member&)>& job) {
  try {
    team.run(job);
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

// Wherever a thread throws, the others stop, `run` throws it, and the team works as before.
void exceptions_reach_the_caller(Team& team, int rounds) {
  for (int round = 0; round < rounds; ++round) {
    const int thrower = round % team.size();
    const std::string in_barriers = message_of(team, [&](Member& member) {
      for (int i = 0; i < 10; ++i) {
        member.barrier();
        if (member.index() == thrower && i == round % 10) throw std::runtime_error("at " + std::to_string(i));
      }
    });
    CHECK(in_barriers == "at " + std::to_string(round % 10));
    const std::string in_share = message_of(team, [&](Member& member) {
      for (int i = 0; i < 5; ++i) {
        member.share(64, 4, [&](std::size_t begin, std::size_t) {
          if (i == round % 5 && begin == 32) throw std::out_of_range("in a share");
        });
      }
    });
    CHECK(in_share == "in a share");
    const std::string by_all = message_of(team, [&](Member&) { throw std::runtime_error("all"); });
    CHECK(by_all == "all");
    const std::string at_the_end = message_of(team, [&](Member& member) {
      member.barrier();
      if (member.index() == thrower) throw std::runtime_error("end");
    });
    CHECK(at_the_end == "end");
    CHECK(message_of(team, [](Member& member) { member.barrier(); }).empty());
  }
  shares_cover_everything(team, 1);
  regions_cover_everything(team, 8);
}

void unusual_uses_are_refused(Team& team) {
  const std::string nested = message_of(team, [&](Member& member) {
    if (member.index() == 0) team.run([](Member&) {});
  });
  CHECK(nested.find("two jobs") != std::string::npos);
  CHECK(message_of(team, [](Member&) {}).empty());
}

void bad_teams_are_refused() {
  const auto refused = [](int threads, std::vector<int> cores) {
    try {
      Team(threads, std::move(cores));
    } catch (const std::invalid_argument&) {
      return true;
    }
    return false;
  };
  CHECK(refused(0, {}));
  CHECK(refused(-3, {}));
  CHECK(refused(2, {0}));
  CHECK(refused(1, {-1}));
  CHECK(refused(1, {100000}));
}

std::vector<int> cores_here() {
  std::vector<int> cores;
  for (int core = 0; core < 256; ++core) {
    if (octavo::may_run_on(core)) cores.push_back(core);
  }
  return cores;
}

// Pinned threads run where they should, and the caller is free again afterwards, also if the job threw.
void pinned_threads_stay() {
  const std::vector<int> cores = cores_here();
  Team team(static_cast<int>(cores.size()), cores);
  std::vector<std::vector<int>> seen(cores.size());
  team.run([&](Member& member) { seen[at(member.index())] = cores_here(); });
  for (std::size_t i = 0; i < cores.size(); ++i) CHECK(seen[i] == std::vector<int>{cores[i]});
  CHECK(cores_here() == cores);
  CHECK(message_of(team, [](Member&) { throw std::runtime_error("x"); }) == "x");
  CHECK(cores_here() == cores);
}

// Half of a core is left on the busy one, so about twice as long is to be expected. Threads that don't sleep at barriers took 40 times as long.
[[maybe_unused]] void busy_neighbours_cost_their_share(const std::vector<int>& pinned) {
  const std::vector<int> cores = cores_here();
  Team team(static_cast<int>(cores.size()), pinned);
  const double alone = octavo::test::step_times(team, 5)[0];
  for (const int core : {cores.front(), -1}) {
    const octavo::test::Hog hog(core);
    CHECK(octavo::test::step_times(team, 5)[0] < 8 * alone);
  }
}

double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

void idle_teams_sleep() {
  Team team(4);
  team.run([](Member&) {});
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const double before = cpu_seconds();
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  CHECK(cpu_seconds() - before < 0.01);
}

// Who is told of a run that does not come starts nothing, and sleeps again.
void notices_start_nothing() {
  Team team(4);
  std::vector<int> runs(4 * 16, 0);
  for (int i = 0; i < 20; ++i) {
    for (int told = 0; told < i; ++told) team.expect_run();
    if (i % 3 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    team.run([&](Member& member) { ++runs[at(member.index()) * 16]; });
    team.expect_run();
  }
  for (int index = 0; index < 4; ++index) CHECK(runs[at(index) * 16] == 20);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  team.expect_run();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const double before = cpu_seconds();
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  CHECK(cpu_seconds() - before < 0.01);
}

// A thread that is late for long makes the others sleep at the barrier, not spin.
void long_waits_sleep() {
  Team team(4);
  const double before = cpu_seconds();
  team.run([](Member& member) {
    if (member.index() == 2) std::this_thread::sleep_for(std::chrono::milliseconds(300));
    member.barrier();
  });
  CHECK(cpu_seconds() - before < 0.02);
}

[[maybe_unused]] void forked_children_are_refused() {
  auto team = std::make_unique<Team>(3);
  const pid_t child = fork();
  if (child == 0) {
    const bool refused = message_of(*team, [](Member&) {}).find("forked") != std::string::npos;
    team.reset();  // must not wait for threads that aren't there
    _exit(refused ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  CHECK(message_of(*team, [](Member& member) { member.barrier(); }).empty());
}

}  // namespace

int main() {
#if defined(__SANITIZE_THREAD__)
  constexpr int kRounds = 100;
#else
  constexpr int kRounds = 2000;
#endif
  const int cores = static_cast<int>(cores_here().size());
  for (int threads = 1; threads <= 8; ++threads) {
    Team team(threads);
    CHECK(team.size() == threads);
    // More threads than cores sleep at every barrier, which is slow.
    const int rounds = threads <= cores ? kRounds : kRounds / 10;
    barriers_order_memory(team, rounds);
    shares_cover_everything(team, rounds / 20 + 1);
    regions_cover_everything(team, rounds);
    many_runs(team, rounds);
    exceptions_reach_the_caller(team, rounds / 20 + 1);
    unusual_uses_are_refused(team);
  }
  for (int i = 0; i < 100; ++i) Team unused(1 + i % 8);
  bad_teams_are_refused();
  pinned_threads_stay();
  idle_teams_sleep();
  notices_start_nothing();
  long_waits_sleep();
#if !defined(__SANITIZE_THREAD__)
  forked_children_are_refused();
  busy_neighbours_cost_their_share(cores_here());
  busy_neighbours_cost_their_share({});
#endif
  return octavo::test::report("team");
}

#include "probe/probe.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <vector>

#include "program/buffers.hpp"

namespace octavo {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// Keeps what the threads read from being optimized away.
std::atomic<std::uint32_t> sink{0};

}  // namespace

const Probe& probe_for(Isa isa) {
  switch (isa) {
#if defined(__x86_64__)
    case Isa::kAvx512Bf16:
      return kAvx512Bf16Probe;
    case Isa::kAvx512Vnni:
      return kAvx512VnniProbe;
    case Isa::kAvx2:
      return kAvx2Probe;
#endif
    default:
      return kPortableProbe;
  }
}

double arithmetic_rate(Team& team, const Probe& probe, Arithmetic kind) {
  constexpr int kRuns = 8;
  constexpr double kRunSeconds = 0.02;
  const auto loop = kind == Arithmetic::kInt8 ? probe.int8 : probe.bf16;
  std::size_t iterations = 1000, ops = loop(iterations);
  for (;;) {
    const Clock::time_point start = Clock::now();
    loop(iterations);
    if (seconds_since(start) >= kRunSeconds / 2) break;
    iterations *= 2;
  }
  double best = 0;
  for (int run = 0; run < kRuns; ++run) {
    double seconds = 0;
    team.run([&](Member& member) {
      member.barrier();
      // Before a barrier, so that a thread that the system stops here never makes the time shorter than the work.
      const Clock::time_point start = Clock::now();
      member.barrier();
      loop(iterations);
      member.barrier();
      if (member.index() == 0) seconds = seconds_since(start);
    });
    best = std::max(best, static_cast<double>(ops) * static_cast<double>(iterations) * team.size() / seconds);
  }
  return best;
}

double read_rate(Team& team, const Probe& probe, std::size_t size, int passes) {
  constexpr std::size_t kPiece = std::size_t{1} << 20;
  const std::size_t pieces = std::max<std::size_t>(1, size / kPiece);
  AlignedBytes memory(pieces * kPiece);
  // Pages that were never written are all the same one.
  team.run([&](Member& member) {
    member.share(pieces, 1, [&](std::size_t begin, std::size_t end) { std::memset(memory.data() + begin * kPiece, 1, (end - begin) * kPiece); });
  });
  double best = 0;
  for (int pass = 0; pass < passes; ++pass) {
    double seconds = 0;
    team.run([&](Member& member) {
      std::uint32_t seen = 0;
      member.barrier();
      const Clock::time_point start = Clock::now();
      member.barrier();
      member.share(pieces, 4, [&](std::size_t begin, std::size_t end) {
        seen ^= probe.read(memory.data() + begin * kPiece, (end - begin) * kPiece);
      });
      if (member.index() == 0) seconds = seconds_since(start);
      sink.fetch_xor(seen, std::memory_order_relaxed);
    });
    best = std::max(best, static_cast<double>(pieces * kPiece) / seconds);
  }
  return best;
}

}  // namespace octavo

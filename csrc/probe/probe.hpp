// What the machine can do at most, measured: memory read and multiply-adds in registers, with each instruction set. These are the limits that
// the benchmarks set their figures against; nothing that serves a request uses them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "isa/isa.hpp"
#include "team/team.hpp"

namespace octavo {

// Loops of one instruction set. Each is reached through a pointer only, as the kernels are.
struct Probe {
  // `iterations` rounds of independent multiply-adds on registers, in the instructions that products of 8-bit and of bfloat16 values run on;
  // returns how many operations (a multiplication and an addition are two) a round is.
  std::size_t (*int8)(std::size_t iterations);
  std::size_t (*bf16)(std::size_t iterations);

  // Reads `size` bytes, a multiple of 512, and returns something that depends on all of them.
  std::uint32_t (*read)(const std::uint8_t* bytes, std::size_t size);
};

extern const Probe kPortableProbe;
#if defined(__x86_64__)
extern const Probe kAvx2Probe;
extern const Probe kAvx512VnniProbe;
extern const Probe kAvx512Bf16Probe;
#endif

const Probe& probe_for(Isa isa);

enum class Arithmetic : int { kInt8 = 0, kBf16 = 1 };

// Operations a second of all threads together, the best of several runs of about 20 ms.
double arithmetic_rate(Team& team, const Probe& probe, Arithmetic kind);

// Bytes a second at which all threads together read `size` bytes, which should be many times the last cache's size; the best of `passes`.
// Throws std::bad_alloc.
double read_rate(Team& team, const Probe& probe, std::size_t size, int passes);

}  // namespace octavo

// Levels of instructions that kernels are compiled for, and which of them this machine can run.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace octavo {

// From the least to the most able; a machine that can run one can run all before it.
enum class Isa : int {
  kPortable = 0,    // what the compiler targets by default: SSE2 on x86-64, NEON on aarch64
  kAvx2 = 1,        // x86-64-v3: AVX2, FMA, F16C
  kAvx512Vnni = 2,  // x86-64-v4: AVX-512 F, BW, CD, DQ, VL, with VNNI
  kAvx512Bf16 = 3,  // that, with BF16
};

// "portable", "avx2", "avx512_vnni" or "avx512_bf16".
std::string_view name(Isa isa);

// The levels that this machine's processor and operating system can run, kPortable first.
const std::vector<Isa>& available();

// The most able of `available()`.
Isa best();

// The level of that name. Throws std::invalid_argument for a name that isn't one, or a level that this machine can't run.
Isa from_name(std::string_view name);

// The level to use: the one that the environment's OCTAVO_CPU_ISA names, or the best if it's unset or empty. Throws as `from_name` does.
Isa chosen();

}  // namespace octavo

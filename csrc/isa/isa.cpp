// Asks the processor which instructions it has, and the operating system which registers it saves.
#include "isa/isa.hpp"

#include <array>
#include <cstdlib>
#include <stdexcept>

#if OCTAVO_X86
#include <cpuid.h>
#endif

namespace octavo {
namespace {

constexpr std::array<std::string_view, 4> kNames{"portable", "avx2", "avx512_vnni", "avx512_bf16"};

#if OCTAVO_X86
// F16C, MOVBE and LZCNT, whose names Clang's __builtin_cpu_supports does not know before version 18. They need no registers of their own.
bool has_f16c_movbe_lzcnt() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  constexpr unsigned kMovbe = 1u << 22, kF16c = 1u << 29, kLzcnt = 1u << 5;
  if (!__get_cpuid(1, &a, &b, &c, &d) || (c & (kMovbe | kF16c)) != (kMovbe | kF16c)) return false;
  return __get_cpuid(0x80000001u, &a, &b, &c, &d) && (c & kLzcnt) != 0;
}
#endif

std::vector<Isa> detect() {
  std::vector<Isa> found{Isa::kPortable};
#if OCTAVO_X86
  // The compiler's runtime reads cpuid, and clears what the operating system doesn't save (xgetbv).
  __builtin_cpu_init();
  const bool v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
                  __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("popcnt") && has_f16c_movbe_lzcnt();
  if (!v3) return found;
  found.push_back(Isa::kAvx2);
  const bool v4 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512cd") &&
                  __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (!v4 || !__builtin_cpu_supports("avx512vnni")) return found;
  found.push_back(Isa::kAvx512Vnni);
  if (__builtin_cpu_supports("avx512bf16")) found.push_back(Isa::kAvx512Bf16);
#endif
  return found;
}

std::string listed() {
  std::string text;
  for (const Isa isa : available()) {
    if (!text.empty()) text += ", ";
    text += name(isa);
  }
  return text;
}

}  // namespace

std::string_view name(Isa isa) { return kNames[static_cast<std::size_t>(isa)]; }

const std::vector<Isa>& available() {
  static const std::vector<Isa> found = detect();
  return found;
}

Isa best() { return available().back(); }

Isa from_name(std::string_view wanted) {
  for (const Isa isa : available()) {
    if (name(isa) == wanted) return isa;
  }
  for (const std::string_view known : kNames) {
    if (known == wanted) {
      throw std::invalid_argument("this machine has no " + std::string(wanted) + " instructions; it has " + listed());
    }
  }
  throw std::invalid_argument("there is no instruction set \"" + std::string(wanted) + "\"; this machine has " + listed());
}

Isa chosen() {
  const char* forced = std::getenv("OCTAVO_CPU_ISA");
  if (forced == nullptr || *forced == '\0') return best();
  try {
    return from_name(forced);
  } catch (const std::invalid_argument& error) {
    throw std::invalid_argument("OCTAVO_CPU_ISA: " + std::string(error.what()));
  }
}

}  // namespace octavo

// Every kernel, compiled once for each instruction set by a file that defines OCTAVO_ISA (a namespace) and OCTAVO_TABLE (its table).
//
// The table's functions are reached through pointers only, and everything here is static or in the instruction set's own namespace: a
// function compiled for AVX-512 must never be what the linker picks for a machine without it.

#include <cstddef>
#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "kernels/kernels.hpp"

#pragma GCC diagnostic ignored "-Wpsabi"
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // GCC 12 on its own AVX-512 headers (bug 105593)
#pragma GCC diagnostic ignored "-Wuninitialized"        // likewise
#endif

namespace octavo {
namespace OCTAVO_ISA {

#include "kernels/vec.inl"
#include "kernels/rows.inl"
#include "kernels/dot.inl"
#include "kernels/product.inl"
#include "kernels/cache.inl"
#include "kernels/attention.inl"
#include "kernels/sampling.inl"

}  // namespace OCTAVO_ISA

extern const Kernels OCTAVO_TABLE;
const Kernels OCTAVO_TABLE = {
    OCTAVO_NAME,
    OCTAVO_ISA::quantize_row,
    OCTAVO_ISA::round_row,
    OCTAVO_ISA::rms_norm_row,
    OCTAVO_ISA::product,
    OCTAVO_ISA::silu_mul,
    OCTAVO_ISA::gelu_mul,
    OCTAVO_ISA::softcap,
    OCTAVO_ISA::rope_head,
    {OCTAVO_ISA::kAttention<CacheType::kFloat32>, OCTAVO_ISA::kAttention<CacheType::kBfloat16>, OCTAVO_ISA::kAttention<CacheType::kFloat16>,
     OCTAVO_ISA::kAttention<CacheType::kInt8>, OCTAVO_ISA::kAttention<CacheType::kFp8>},
    OCTAVO_ISA::merge,
    OCTAVO_ISA::normalize,
    OCTAVO_ISA::scan_row,
    OCTAVO_ISA::weigh_row,
    OCTAVO_ISA::exp_sum,
    OCTAVO_ISA::count_above,
    OCTAVO_ISA::sum_below,
    OCTAVO_ISA::pick_at_least,
};

}  // namespace octavo

// The kernels for one level of instruction sets; the build gives this file the flags of that level.
#define OCTAVO_ISA isa_avx512_bf16
#define OCTAVO_TABLE kAvx512Bf16Kernels
#define OCTAVO_NAME "avx512_bf16"
#include "kernels/kernels.inl"

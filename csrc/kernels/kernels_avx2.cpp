// The kernels for one level of instruction sets; the build gives this file the flags of that level.
#define OCTAVO_ISA isa_avx2
#define OCTAVO_TABLE kAvx2Kernels
#define OCTAVO_NAME "avx2"
#include "kernels/kernels.inl"

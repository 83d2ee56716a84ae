// The kernels for one level of instruction sets; the build gives this file the flags of that level.
#define OCTAVO_ISA isa_avx512_vnni
#define OCTAVO_TABLE kAvx512VnniKernels
#define OCTAVO_NAME "avx512_vnni"
#include "kernels/kernels.inl"

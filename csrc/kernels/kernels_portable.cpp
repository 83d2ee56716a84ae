// The kernels for one level of instruction sets; the build gives this file the flags of that level.
#define OCTAVO_ISA isa_portable
#define OCTAVO_TABLE kPortableKernels
#define OCTAVO_NAME "portable"
#include "kernels/kernels.inl"

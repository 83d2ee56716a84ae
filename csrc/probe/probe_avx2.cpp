// The probes for one level of instruction sets; the build gives this file the flags of that level.
#define OCTAVO_ISA probe_avx2
#define OCTAVO_TABLE kAvx2Probe
#include "probe/probe.inl"

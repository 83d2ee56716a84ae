// The probes for one level of instruction sets; the build gives this file the flags of that level.
#define OCTAVO_ISA probe_avx512_vnni
#define OCTAVO_TABLE kAvx512VnniProbe
#include "probe/probe.inl"

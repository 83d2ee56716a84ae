// The probes for one level of instruction sets; the build gives this file the flags of that level.
#define OCTAVO_ISA probe_portable
#define OCTAVO_TABLE kPortableProbe
#include "probe/probe.inl"

// The part of octavo._native that measures the machine, for octavo.bench.
#pragma once

#include <nanobind/nanobind.h>

namespace octavo {

void bind_probes(nanobind::module_& module);

}  // namespace octavo

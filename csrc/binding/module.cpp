// The Python module octavo._native.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <vector>

#include "isa/isa.hpp"

namespace nb = nanobind;

NB_MODULE(_native, module) {
  module.doc() = "Octavo's native CPU backend.";
  module.attr("version") = OCTAVO_VERSION;
  module.def("isa", [] { return std::string(octavo::name(octavo::chosen())); },
             "The instruction set in use: the best of this machine, or the one that OCTAVO_CPU_ISA names (ValueError if it can't be).");
  module.def("available_isas", [] {
    std::vector<std::string> names;
    for (const octavo::Isa isa : octavo::available()) names.emplace_back(octavo::name(isa));
    return names;
  }, "The instruction sets that this machine can run, the least able first.");
}

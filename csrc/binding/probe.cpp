#include "probe/probe.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <stdexcept>
#include <string>

#include "binding/probe.hpp"

namespace nb = nanobind;

namespace octavo {

namespace {

Isa isa_of(const std::string& name) { return name.empty() ? chosen() : from_name(name); }

}  // namespace

void bind_probes(nb::module_& module) {
  module.def(
      "arithmetic_rate",
      [](int threads, const std::string& isa, const std::string& kind) {
        if (kind != "int8" && kind != "bf16") throw std::invalid_argument("the kind of arithmetic must be int8 or bf16");
        const Probe& probe = probe_for(isa_of(isa));
        Team team(threads);
        nb::gil_scoped_release release;
        return arithmetic_rate(team, probe, kind == "int8" ? Arithmetic::kInt8 : Arithmetic::kBf16);
      },
      nb::arg("threads"), nb::arg("isa"), nb::arg("kind"),
      "Operations a second that `threads` threads reach together in registers, multiplying \"int8\" or \"bf16\" values.");
  module.def(
      "read_rate",
      [](int threads, const std::string& isa, std::size_t size, int passes) {
        if (size == 0 || passes < 1) throw std::invalid_argument("size and passes must be positive");
        const Probe& probe = probe_for(isa_of(isa));
        Team team(threads);
        nb::gil_scoped_release release;
        return read_rate(team, probe, size, passes);
      },
      nb::arg("threads"), nb::arg("isa"), nb::arg("size"), nb::arg("passes"),
      "Bytes a second at which `threads` threads read `size` bytes of memory together; the best of `passes`.");
}

}  // namespace octavo

"""The native module as built for this machine: its version, and the choice of an instruction set."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

import octavo
from octavo.backends.cpu.backend import CpuBackend
from octavo.backends.cpu.isa import chosen_isa
from octavo.graph.graph import Graph
from octavo.protocol.errors import ConfigError

native = pytest.importorskip("octavo._native", reason="Octavo was installed without a C++ compiler")

NAMES = ["portable", "avx2", "avx512_vnni", "avx512_bf16"]


def isa_with(forced: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "import octavo._native as native; print(native.isa())"],
        env={**os.environ, "OCTAVO_CPU_ISA": forced},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_version_is_the_packages():
    assert native.version == octavo.__version__


def test_levels_of_this_machine_are_a_prefix_of_all():
    available = native.available_isas()
    assert available == NAMES[: len(available)]
    assert available


@pytest.mark.skipif(platform.system() != "Linux" or platform.machine() != "x86_64", reason="reads /proc/cpuinfo of x86-64")
def test_levels_are_those_that_the_kernel_reports():
    with open("/proc/cpuinfo") as file:
        flags = set(next(line for line in file if line.startswith("flags")).split(":")[1].split())
    expected = ["portable"]
    if {"avx2", "fma", "f16c", "bmi1", "bmi2", "abm", "movbe", "popcnt"} <= flags:
        expected.append("avx2")
        if {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "avx512_vnni"} <= flags:
            expected.append("avx512_vnni")
            if "avx512_bf16" in flags:
                expected.append("avx512_bf16")
    assert native.available_isas() == expected


def test_every_level_of_this_machine_can_be_forced():
    for name in native.available_isas():
        assert isa_with(name).stdout.strip() == name


def test_the_best_level_is_the_default():
    assert isa_with("").stdout.strip() == native.available_isas()[-1]


def test_an_unknown_level_is_refused_with_what_there_is():
    run = isa_with("sse9")
    assert run.returncode != 0
    last = run.stderr.strip().splitlines()[-1]
    assert last.startswith("ValueError: OCTAVO_CPU_ISA: ")
    assert '"sse9"' in last
    assert all(name in last for name in native.available_isas())


@pytest.mark.skipif(native.available_isas() == NAMES, reason="this machine has every level")
def test_a_level_that_this_machine_lacks_is_refused():
    missing = NAMES[len(native.available_isas())]
    run = isa_with(missing)
    assert run.returncode != 0
    assert f"no {missing} instructions" in run.stderr


def test_a_variable_that_names_no_level_is_one_error_wherever_it_is_met(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_CPU_ISA", "sse9")
    with pytest.raises(ConfigError) as by_name:
        chosen_isa()
    with pytest.raises(ConfigError) as by_backend:
        CpuBackend(1).compile(Graph(8), lambda name: None, lambda done: None)  # type: ignore[arg-type, return-value]
    assert by_name.value.message == by_backend.value.message
    assert by_name.value.message.startswith('OCTAVO_CPU_ISA: there is no instruction set "sse9"; this machine has portable')
    assert by_name.value.param == by_backend.value.param == "OCTAVO_CPU_ISA"


def test_a_cpu_that_has_gone_is_no_matter_of_instruction_sets() -> None:
    with pytest.raises(ConfigError, match="threads: 1 could not be started: this process may not run on core 100000") as caught:
        CpuBackend(1, cpus=[100_000]).compile(Graph(8), lambda name: None, lambda done: None)  # type: ignore[arg-type, return-value]
    assert caught.value.param == "threads"

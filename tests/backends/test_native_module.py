"""The native module as built for this machine: its version, and the choice of an instruction set."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

import octavo

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

#!/bin/sh
# Builds the C++ core and its tests for 64-bit Arm, with and without the dot product instructions, and runs them in an emulator: about two
# minutes. Needs a cross compiler and qemu (Debian, Ubuntu: apt-get install g++-aarch64-linux-gnu qemu-user). CXX picks the compiler.
# STAGE=beside leaves out the test that measures time, and may run beside other things; STAGE=alone, after that, runs only that one.
set -eu
cd "$(dirname "$0")/../csrc"
export CXX="${CXX:-aarch64-linux-gnu-g++}"
for tool in "$CXX" qemu-aarch64; do
    command -v "$tool" >/dev/null || { echo "$tool is missing: apt-get install g++-aarch64-linux-gnu qemu-user" >&2; exit 1; }
done
jobs=$(nproc)
core=$(ls isa/*.cpp kernels/*.cpp pack/*.cpp program/*.cpp sampling/*.cpp team/*.cpp | grep -v -e _avx2 -e _avx512)

for march in armv8-a armv8.2-a+dotprod; do
    export OUT="../build/aarch64/$march"
    export FLAGS="-std=c++20 -O3 -march=$march -ffp-contract=off -fno-math-errno -fno-trapping-math -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Wno-psabi -Werror -I. -DOCTAVO_X86=0"
    if [ "${STAGE:-}" != alone ]; then
        mkdir -p "$OUT"
        rm -f "$OUT"/*
        echo "$core" | xargs -P "$jobs" -I{} sh -c '$CXX $FLAGS -c {} -o "$OUT/$(echo {} | tr / _).o"'
        ls tests/*_test.cpp | xargs -P "$jobs" -I{} sh -c '$CXX $FLAGS {} "$OUT"/*.o -static -lpthread -o "$OUT/$(basename {} .cpp)"'
    fi
    for test in "$OUT"/*_test; do
        case ${STAGE:-}:$(basename "$test") in beside:team_test) continue ;; alone:team_test) ;; alone:*) continue ;; esac
        echo "$march: $(basename "$test")"
        qemu-aarch64 -cpu max "$test"
    done
done

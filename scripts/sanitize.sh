#!/bin/sh
# Runs the C++ tests and the tests of the native backend with the address and undefined-behaviour sanitizers, and the tests of the thread
# team with the thread sanitizer. Arguments are the pytest tests to run instead. STAGE=beside leaves out the tests that measure time, and may
# run beside other things; STAGE=alone, after that, runs only those.
set -eu
cd "$(dirname "$0")/.."

scripts/native.sh tsan
scripts/native.sh asan
[ "${STAGE:-}" != alone ] || exit 0
if [ $# -eq 0 ]; then set -- tests/backends -m "not model"; fi
# Python itself frees little of what it allocates, so leaks are not looked for. Its own allocator would hide overruns of small arrays.
export ASAN_OPTIONS=detect_leaks=0:abort_on_error=0 UBSAN_OPTIONS=print_stacktrace=1 PYTHONMALLOC=malloc
exec env LD_PRELOAD="$("${CXX:-g++}" -print-file-name=libasan.so) $("${CXX:-g++}" -print-file-name=libstdc++.so.6)" \
    .venv/bin/python scripts/pytest_with_native.py build/asan -p no:cacheprovider "$@"

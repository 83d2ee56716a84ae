#!/bin/sh
# Builds the C++ incrementally, each kind in its own folder of build/. Two who build the same kind at once wait for one another.
#
#   scripts/native.sh module    octavo._native into src/octavo, where the editable install finds it
#   scripts/native.sh test      that and the C++ tests, and runs them
#   scripts/native.sh asan      module and tests with the address and undefined-behaviour sanitizers, in build/asan, and runs the C++ tests
#   scripts/native.sh tsan      the C++ tests with the thread sanitizer, in build/tsan, and runs those of the thread team
#
# Further arguments go to CMake. Needs .venv (make setup) and a C++ compiler: CXX picks one. WERROR=OFF lets warnings pass. STAGE=beside
# leaves out the tests that measure time, and may run beside other things; STAGE=alone runs only those.
set -eu
cd "$(dirname "$0")/.."
PATH="$PWD/.venv/bin:$PATH"
export PATH

kind=${1:-module}
[ $# -eq 0 ] || shift
target=all
tests=.
case $kind in
module) dir=build/native; target=octavo_native; set -- -DOCTAVO_INPLACE=ON "$@" ;;
test) dir=build/native; set -- -DOCTAVO_INPLACE=ON "$@" ;;
asan) dir=build/asan; set -- -DOCTAVO_SANITIZE=address,undefined "$@" ;;
tsan) dir=build/tsan; target="team_test program_test"; tests="team|program"; set -- -DOCTAVO_SANITIZE=thread "$@" ;;
*) echo "usage: scripts/native.sh module|test|asan|tsan [CMake arguments]" >&2; exit 2 ;;
esac

mkdir -p "$dir"
exec 9>"$dir.lock"
if command -v flock >/dev/null; then flock 9; fi
# What CMake was configured with. If it's the same again, the build itself notices what changed, also in CMakeLists.txt.
wanted=$(printf '%s\n' "$PWD" "${CXX:-}" "${WERROR:-ON}" "$@")
if [ ! -f "$dir/build.ninja" ] || [ "$(cat "$dir/.configured" 2>/dev/null)" != "$wanted" ]; then
    rm -f "$dir/CMakeCache.txt" "$dir/.configured"
    cmake -S . -B "$dir" -G Ninja -Wno-dev -DOCTAVO_NATIVE=ON -DOCTAVO_TESTS=ON -DOCTAVO_WERROR="${WERROR:-ON}" \
        -DPython_EXECUTABLE="$PWD/.venv/bin/python" "$@" >"$dir.log" 2>&1 || { cat "$dir.log" >&2; exit 1; }
    echo "$wanted" >"$dir/.configured"
fi
if [ -n "${QUIET:-}" ]; then
    cmake --build "$dir" --target $target >"$dir.log" 2>&1 || { cat "$dir.log" >&2; exit 1; }
else
    cmake --build "$dir" --target $target
fi
exec 9>&-
[ "$kind" != module ] || exit 0
case ${STAGE:-} in
beside) set -- -R "$tests" -E team ;;
alone) set -- -R team ;;
*) set -- -R "$tests" ;;
esac
ctest --test-dir "$dir" "$@" --output-on-failure --no-tests=error

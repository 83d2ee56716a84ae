#!/bin/sh
# Builds C++ incrementally, each kind in its own folder of build/; two who build the same kind at once wait for one another.
#
#   scripts/native.sh module            octavo._native into src/octavo, where the editable install finds it
#   scripts/native.sh test              that, with the C++ tests, and runs them
#   scripts/native.sh asan              the module and tests with address and undefined-behaviour sanitizers in build/asan; runs the C++ tests
#   scripts/native.sh tsan              the C++ tests with the thread sanitizer in build/tsan; runs them
#
# Any further arguments go to CMake. CXX picks the compiler.
set -eu
cd "$(dirname "$0")/.."
PATH="$PWD/.venv/bin:$PATH"
export PATH

kind=${1:-module}
[ $# -eq 0 ] || shift
case $kind in
module) dir=build/native; set -- -DOCTAVO_INPLACE=ON -DOCTAVO_TESTS=OFF "$@" ;;
test) dir=build/native; set -- -DOCTAVO_INPLACE=ON -DOCTAVO_TESTS=ON "$@" ;;
asan) dir=build/asan; set -- -DOCTAVO_SANITIZE=address,undefined -DOCTAVO_TESTS=ON -DCMAKE_BUILD_TYPE=RelWithDebInfo "$@" ;;
tsan) dir=build/tsan; set -- -DOCTAVO_SANITIZE=thread -DOCTAVO_TESTS=ON -DCMAKE_BUILD_TYPE=RelWithDebInfo "$@" ;;
*) echo "usage: scripts/native.sh module|test|asan|tsan [cmake arguments]" >&2; exit 2 ;;
esac

mkdir -p "$dir"
exec 9>"$dir.lock"
flock 9
# What CMake was configured with; with the same again the build itself notices changed files and CMakeLists.
wanted=$(printf '%s\n' "$PWD" "${CXX:-}" "$@")
if [ ! -f "$dir/build.ninja" ] || [ "$(cat "$dir/.configured" 2>/dev/null)" != "$wanted" ]; then
    rm -f "$dir/CMakeCache.txt" "$dir/.configured"
    cmake -S . -B "$dir" -G Ninja -Wno-dev -DOCTAVO_NATIVE=ON -DOCTAVO_WERROR=ON -DPython_EXECUTABLE="$PWD/.venv/bin/python" "$@" >"$dir.log" 2>&1 ||
        { cat "$dir.log" >&2; exit 1; }
    echo "$wanted" >"$dir/.configured"
fi
cmake --build "$dir"
if [ "$kind" != module ]; then ctest --test-dir "$dir" --output-on-failure --no-tests=error; fi

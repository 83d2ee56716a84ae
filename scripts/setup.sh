#!/bin/sh
# Makes .venv at the project's root and installs Octavo into it, in editable form: `scripts/setup.sh serve` (to run it) or
# `scripts/setup.sh dev` (with the tools that tests and checks need). Does nothing when what was installed is still what
# pyproject.toml asks for. With a C++ compiler it builds the native CPU backend too, and `dev` builds it again where C++ has changed.
# Needs no terminal; PYTHON=/path/to/python picks the interpreter, CXX the compiler.
set -eu
cd "$(dirname "$0")/.."

kind=${1:-serve}
case $kind in
serve) target=. ;;
dev) target='.[dev]' ;;
*) echo "usage: scripts/setup.sh serve|dev" >&2; exit 2 ;;
esac

venv=.venv
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1

say() { echo "setup: $*" >&2; }

# Whether $1 runs and is new enough. A name on PATH may be a shim that fails, so it is run.
is_python() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

find_python() {
    if [ -n "${PYTHON:-}" ]; then
        if is_python "$PYTHON"; then echo "$PYTHON"; return; fi
        say "PYTHON=$PYTHON is not a working Python 3.11 or newer"; exit 1
    fi
    for name in python3 python3.14 python3.13 python3.12 python3.11 /usr/bin/python3; do
        if is_python "$name"; then echo "$name"; return; fi
    done
    found=$(python3 -V 2>/dev/null) || found="none"
    say "Octavo needs Python 3.11 or newer (found: $found); on Debian 12+ or Ubuntu 24.04+: sudo apt-get install python3 python3-venv"
    exit 1
}

has_pip() { "$venv/bin/python" -m pip --version >/dev/null 2>&1; }

# Debian and Ubuntu ship python3 without ensurepip, which `python -m venv` needs; the package python3.X-venv brings it.
make_venv() {
    python=$1
    package=python$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')-venv
    say "making $venv with $("$python" -V)"
    if "$python" -m venv --clear "$venv" >/dev/null 2>&1 && has_pip; then return; fi
    if "$python" -m pip --version >/dev/null 2>&1 && "$python" -m venv --clear --without-pip "$venv" >/dev/null 2>&1; then
        "$python" -m pip --python "$venv/bin/python" install -q pip && has_pip && return
    fi
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        say "this Python can't make virtual environments; installing $package with apt-get"
        export DEBIAN_FRONTEND=noninteractive
        apt-get install -y -q "$package" >/dev/null 2>&1 || { apt-get update -q >/dev/null && apt-get install -y -q "$package" >/dev/null; } || true
        if "$python" -m venv --clear "$venv" && has_pip; then return; fi
    fi
    rm -rf "$venv"
    say "$python can't make virtual environments; install $package first: sudo apt-get install $package"
    exit 1
}

# Whether the native backend can be built: a compiler, and the headers of this Python.
has_compiler() { command -v "${CXX:-c++}" >/dev/null 2>&1 || command -v g++ >/dev/null 2>&1 || command -v clang++ >/dev/null 2>&1; }
has_headers() { "$venv/bin/python" -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))'; }

# Installs what the native backend needs, if this is root on Debian or Ubuntu; otherwise says what to install and goes on without it.
find_compiler() {
    packages=
    has_compiler || packages=g++
    has_headers || packages="$packages python$("$venv/bin/python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')-dev"
    if [ -z "$packages" ]; then return; fi
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        say "installing $packages with apt-get, to build the native CPU backend"
        export DEBIAN_FRONTEND=noninteractive
        # shellcheck disable=SC2086  # several packages
        apt-get install -y -q $packages >/dev/null 2>&1 || { apt-get update -q >/dev/null && apt-get install -y -q $packages >/dev/null; } || true
    fi
    if has_compiler && has_headers; then return; fi
    say "going on WITHOUT the native CPU backend, which needs a C++ compiler and Python's headers; the reference backend works, slowly"
    say "to get it: sudo apt-get install$(printf ' %s' $packages), then make setup"
}

# What the environment was made from: the requirements, this place (an editable install points at it), the interpreter, and whether there
# is a compiler. Without the development tools pip builds the module, so then the C++ counts as well.
state() {
    { pwd -P; sha256sum <pyproject.toml; sha256sum <compat/pyproject.toml; "$venv/bin/python" -V; if has_compiler && has_headers; then echo native; fi; } 2>&1
    [ "$1" = dev ] || find CMakeLists.txt cmake csrc -type f -exec sha256sum {} + | sort | sha256sum
}

# Builds the module where C++ has changed; that takes no time when nothing did.
build_native() { if has_compiler && has_headers; then QUIET=1 scripts/native.sh module; fi; }

# Scripts in an environment hold its absolute path, so one that was moved or copied here is of no use.
moved() { ! grep -qsF "$(pwd -P)/$venv" "$venv/pyvenv.cfg" && [ "$(grep -cs '^command' "$venv/pyvenv.cfg")" = 1 ]; }

if is_python "$venv/bin/python"; then
    if [ "$(cat "$venv/.octavo-dev" 2>/dev/null)" = "$(state dev)" ]; then build_native; exit 0; fi  # dev has all that serve needs
    if [ "$kind" = serve ] && [ "$(cat "$venv/.octavo-serve" 2>/dev/null)" = "$(state serve)" ]; then exit 0; fi
fi
if ! is_python "$venv/bin/python" || ! has_pip || moved; then
    python=$(find_python)
    make_venv "$python"
fi
find_compiler
say "installing Octavo into $venv (the first time takes a minute or two)"
rm -f "$venv/.octavo-serve" "$venv/.octavo-dev"
if [ "$kind" = dev ]; then
    "$venv/bin/python" -m pip install -q --config-settings=cmake.define.OCTAVO_NATIVE=OFF -e "$target"
    build_native
else
    "$venv/bin/python" -m pip install -q -e "$target"
fi
# vLLM's names, unless vLLM itself is there, which the build then says.
"$venv/bin/python" -m pip install -q --no-deps -e ./compat
state "$kind" >"$venv/.octavo-$kind"

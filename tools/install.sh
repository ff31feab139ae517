#!/usr/bin/env bash
# Sets up .venv from pyproject.toml, to `run` Stoker or to `develop` it. `make` calls this when it is needed.
set -euo pipefail
cd "$(dirname "$0")/.."

purpose=${1:?usage: tools/install.sh run|develop}
venv=.venv

say() { printf '\nstoker: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

# A version manager may offer a name that it cannot run, so each candidate has to prove itself.
find_python() {
    local name
    for name in python3.13 python3.12 python3.11 python3; do
        if "$name" -c 'import sys, venv; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
            echo "$name"
            return
        fi
    done
    return 1
}

make_venv() {
    local python
    python=$(find_python) || die "no Python 3.11 or newer was found (tried python3.13, python3.12, python3.11, python3). Install one."
    say "making $venv with $("$python" --version)"
    "$python" -m venv --clear "$venv" || die "'$python -m venv' failed. On Debian and Ubuntu: apt install python3-venv"
}

# Stoker's own kernels are compiled on installation; for development llama.cpp is too.
has_compiler() {
    local name
    for name in "${CXX:-c++}" g++ clang++; do
        if command -v "$name" >/dev/null; then return; fi
    done
    return 1
}

# To run Stoker, a compiler from the package registry does as well as the machine's own.
borrow_compiler() {
    [[ $purpose == run && $(uname -s) == Linux ]] ||
        die "no C++ compiler was found, and Stoker's kernels are compiled on installation. Install g++ or clang (Debian and Ubuntu: apt install g++)."
    say "no C++ compiler was found; fetching one (ziglang, about 100 MB)"
    "${pip[@]}" install --quiet ziglang==0.17.1
    tools/zig.sh "$venv/bin/python" native build/zig
    export CC=$PWD/build/zig/cc CXX=$PWD/build/zig/c++ CMAKE_ARGS="-DCMAKE_AR=$PWD/build/zig/ar -DCMAKE_RANLIB=$PWD/build/zig/ranlib"
}

"$venv/bin/python" -m pip --version >/dev/null 2>&1 || make_venv
pip=("$venv/bin/python" -m pip --disable-pip-version-check --no-input)
"${pip[@]}" install --quiet --upgrade 'pip>=25.1' # the first that knows --group
has_compiler || borrow_compiler
case $purpose in
    run)
        say "installing; Stoker's kernels are compiled for this machine now: about a minute, once."
        "${pip[@]}" install --editable .
        ;;
    develop)
        "$venv/bin/python" -c 'import llama_cpp' >/dev/null 2>&1 ||
            say "installing. Unless pip has it in its cache, llama.cpp is compiled for this machine now: about 5 minutes, once."
        "${pip[@]}" install --editable '.[llama]' --group dev
        touch "$venv/.ready-to-develop"
        ;;
    *) die "unknown purpose '$purpose'" ;;
esac
touch "$venv/.ready-to-run"

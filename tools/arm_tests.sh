#!/bin/sh
# Builds the extension for 64-bit Arm with a cross compiler, and runs its tests in a Python for Arm under qemu-user:
#     tools/arm_tests.sh [pytest arguments]
# once for each of the CPUs below, whose best kernels are plain, with dot products, and with 8-bit matrix products.
#
# It needs Debian or Ubuntu with g++-aarch64-linux-gnu and qemu-user, and `dpkg --add-architecture arm64; apt-get update`;
# what it downloads (Python and NumPy for Arm) stays in build/arm and is not installed.
set -eu

cd "$(dirname "$0")/.."
folder=$PWD/build/arm
python=${PYTHON:-python3}
version=$($python -c 'import sys; print("{}.{}".format(*sys.version_info))')
cpus=${CPUS:-cortex-a72 cortex-a76 max}

for command in aarch64-linux-gnu-g++ qemu-aarch64 apt-get cmake; do
    if ! command -v "$command" > /dev/null; then
        echo "$0: $command is missing" >&2
        exit 2
    fi
done

# A system that is only unpacked: the loader of Arm programs looks for libraries there.
if [ ! -x "$folder/root/usr/bin/python$version" ]; then
    mkdir -p "$folder/packages"
    (
        cd "$folder/packages"
        for package in "python$version-minimal" "libpython$version-minimal" "libpython$version-stdlib" \
            "libpython$version-dev" libc6 libgcc-s1 libstdc++6 libexpat1 zlib1g libssl3 libffi8 libbz2-1.0 liblzma5 \
            libsqlite3-0 libuuid1 libcrypt1; do
            apt-get download -qq "$package:arm64"
        done
        for file in *.deb; do
            dpkg -x "$file" "$folder/root"
        done
    )
fi
if [ ! -d "$folder/wheels/numpy" ]; then
    numpy=$($python -c 'import numpy; print(numpy.__version__)')
    $python -m pip install -q --no-deps --only-binary :all: --python-version "$version" --target "$folder/wheels" \
        --platform manylinux_2_27_aarch64 --platform manylinux_2_28_aarch64 --platform manylinux2014_aarch64 "numpy==$numpy"
fi

# Of the same release, so that only the part for this architecture comes from the unpacked system.
include=$folder/root/usr/include
cmake -S . -B "$folder/build" -DCMAKE_BUILD_TYPE=Release -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 \
    -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ "-DCMAKE_CXX_FLAGS=-I$include" \
    -DPython_EXECUTABLE="$(command -v "$python")" -DPython_INCLUDE_DIR="$include/python$version" \
    -DNB_SUFFIX=.abi3.so > "$folder/cmake.log"
cmake --build "$folder/build" --parallel "${JOBS:-2}"
# The package as it is, with this extension in place of the one that is installed.
rm -rf "$folder/package"
mkdir -p "$folder/package"
cp -r src/stoker "$folder/package/stoker"
rm -f "$folder/package/stoker"/_native*.so
cp "$folder/build/_native.abi3.so" "$folder/package/stoker/"

pure=$($python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
# What a test gets as `sys.executable`, and starts other processes with: Python in the emulator again.
emulated=$folder/python
cat > "$emulated" << END
#!/bin/sh
exec qemu-aarch64 -0 "$emulated" -L "$folder/root" -cpu "\$STOKER_ARM_CPU" "$folder/root/usr/bin/python$version" "\$@"
END
chmod +x "$emulated"
cores=tests/unit/native/test_shared_cores.py
# The emulator shows a thread as a task for a moment after it has been joined, and gives nobody's mutexes back when a process
# is killed: the tests that are left out count tasks, or kill whoever has a seat.
for cpu in $cpus; do
    echo "== $cpu"
    STOKER_ARM_CPU=$cpu PYTHONHOME="$folder/root/usr" \
        PYTHONPATH="$folder/package:$folder/wheels:$pure:$PWD" OPENBLAS_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE=1 \
        PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 \
        "$emulated" -m pytest tests/unit/native -q --noconftest -p no:cacheprovider -p pytest_timeout -o timeout=0 \
        --deselect tests/unit/native/test_decoder_limits.py::test_threads_end_with_the_decoder \
        --deselect $cores::test_the_seats_of_a_killed_process_are_free \
        --deselect $cores::test_nobody_wants_anything_after_a_killed_process_that_waited \
        --deselect $cores::test_a_model_goes_on_when_another_one_is_killed_in_a_pass "$@"
done

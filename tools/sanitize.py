"""Builds the C++ extension with sanitizers and runs its tests under them: `tools/sanitize.py address,undefined`.

They do not see what tiles and masked instructions read and write. So tiles are plain C++ in all these builds, which
every CPU with AVX-512 can run (native/software_tiles.hpp); `tools/sanitize.py tiles` is that alone, at full speed. And
with `tools/sanitize.py guard` all memory that the extension takes lies between pages that nobody may touch
(native/guarded.hpp).
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import stoker

ROOT = Path(__file__).resolve().parent.parent
MODULE = "stoker._native"
TESTS = ("tests/unit/native", "tests/properties/test_sampling_kernels.py")
"""Unless the arguments name others: a folder, a file, or tests of a file."""
TIMEOUT_S = 3600
"""Of a test. Checked instructions take many times as long, and some tests compute for seconds without checks."""
RUNTIMES = {"address": "libasan.so", "undefined": "libubsan.so", "thread": "libtsan.so"}
BUILDS = ("guard", "tiles")
"""Alone; they need no runtime."""
OPTIONS = {
    "OPENBLAS_NUM_THREADS": "1",  # its threads would be seen without their locks
    "ASAN_OPTIONS": "detect_leaks=0",  # the interpreter itself keeps memory until it ends
    "UBSAN_OPTIONS": "print_stacktrace=1",
    "TSAN_OPTIONS": f"suppressions={ROOT / 'tools' / 'tsan.supp'} halt_on_error=1",
}


def main(sanitizers: str, *pytest_arguments: str) -> int:
    """Starts itself again with the sanitizer's runtime loaded before everything else, as it demands."""
    if "STOKER_SANITIZED" not in os.environ:
        extension = build(sanitizers)
        preload = " ".join(runtime(name) for name in sanitizers.split(",") if name in RUNTIMES)
        environment = {**os.environ, **OPTIONS, "LD_PRELOAD": preload, "STOKER_SANITIZED": str(extension)}
        command = [sys.executable, __file__, sanitizers, *pytest_arguments]
        return subprocess.run(command, env=environment, check=False).returncode
    use(Path(os.environ["STOKER_SANITIZED"]))
    options = ["-q", "--capture=sys", "-p", "no:cacheprovider", "--rootdir", str(ROOT), f"--timeout={TIMEOUT_S}"]
    return pytest.main([*options, *tests(pytest_arguments), *pytest_arguments])


def tests(pytest_arguments: Sequence[str]) -> Sequence[str]:
    """What to run besides what the arguments name: everything, if they name no tests."""
    return () if any(argument.startswith("tests/") for argument in pytest_arguments) else TESTS


def build(sanitizers: str) -> Path:
    folder = ROOT / "build" / f"sanitize-{sanitizers.replace(',', '-')}"
    options = [
        f"-DSTOKER_SANITIZE={sanitizers}",
        "-DCMAKE_BUILD_TYPE=RelWithDebInfo",
        f"-DPython_EXECUTABLE={sys.executable}",
    ]
    subprocess.run(["cmake", "-S", ROOT, "-B", folder, *options], check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["cmake", "--build", folder, "--parallel", "2"], check=True)
    for compiled in folder.glob("**/kernels_*.o"):
        check_alone(compiled)
    (extension,) = folder.glob("_native*.so")
    return extension


def check_alone(compiled: Path) -> None:
    """Refuses functions that other files may define too: one of them is linked, which other CPUs may not understand."""
    isa = compiled.name.split(".")[0].removeprefix("kernels_")
    command = ["nm", "--demangle", "--defined-only", compiled]
    symbols = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    shared = [line for line in symbols if " W " in line and f"stoker::{isa}::" not in line]
    if shared:
        sys.exit(f"{compiled.name} has functions that are not its own:\n" + "\n".join(shared))


def runtime(sanitizer: str) -> str:
    """Path of the sanitizer's shared library, of the compiler that builds."""
    name = RUNTIMES[sanitizer]
    command = [os.environ.get("CXX", "c++"), f"-print-file-name={name}"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def use(extension: Path) -> None:
    """Puts the extension where the tests will import it from."""
    spec = importlib.util.spec_from_file_location(MODULE, extension)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules[MODULE] = module
    setattr(stoker, "_native", module)  # noqa: B010  the package does not know its own extension


if __name__ == "__main__":
    if len(sys.argv) < 2 or (sys.argv[1] not in BUILDS and not set(sys.argv[1].split(",")) <= set(RUNTIMES)):
        known = f"some of {','.join(RUNTIMES)}, or {' or '.join(BUILDS)}"
        sys.exit(f"usage: {sys.argv[0]} SANITIZERS [pytest arguments]    SANITIZERS: {known}")
    sys.exit(main(*sys.argv[1:]))

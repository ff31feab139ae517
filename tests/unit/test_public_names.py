"""What `from stoker import ...` offers; a new name is a decision."""

from __future__ import annotations

import subprocess
import sys
from importlib.resources import files

import stoker

PUBLIC = [
    "LLM",
    "AsyncLLM",
    "AsyncTextStream",
    "CallArguments",
    "CallBegin",
    "CallEnd",
    "Completion",
    "Content",
    "EngineConfig",
    "EngineStats",
    "Health",
    "Message",
    "ModelCard",
    "PositionLogprobs",
    "Reasoning",
    "SamplingParams",
    "StokerError",
    "TextStream",
    "TokenLogprob",
    "ToolCall",
    "Transcriber",
    "Usage",
    "__version__",
]


def test_the_public_names_are_these() -> None:
    assert stoker.__all__ == PUBLIC
    for name in PUBLIC:
        assert getattr(stoker, name) is not None


def test_a_shell_completes_the_public_names() -> None:
    assert dir(stoker) == sorted(PUBLIC)


def test_type_checkers_are_told_that_the_types_are_meant_for_them() -> None:
    assert files("stoker").joinpath("py.typed").is_file()


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(stoker, "nothing_of_that_name")


def test_importing_the_package_or_showing_help_loads_nothing_heavy() -> None:
    code = (
        "import sys; import stoker, stoker.cli.app, stoker.cli.commands;"
        "print([m for m in ('numpy', 'jinja2', 'zmq', 'starlette', 'asyncio', 'llama_cpp') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"

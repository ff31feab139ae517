"""The sources of llama.cpp that come with the package llama-cpp-python: templates, grammars, and tests."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from functools import cache
from pathlib import Path

import pytest

from stoker.models.cache import cache_dir

SOURCES = "llama-cpp-python==0.3.36"


@cache
def sources() -> Path:
    """The archive; fetched by pip if it is not in the folder of the tests yet. Skips the test if that fails."""
    folder = cache_dir() / "tests"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{SOURCES.replace('-', '_').replace('==', '-')}.tar.gz"
    if not path.exists():
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--disable-pip-version-check"]
        command = [*pip, "--no-binary", "llama-cpp-python", "--dest", str(folder), SOURCES]
        done = subprocess.run(command, check=False, timeout=900, capture_output=True, text=True)
        if done.returncode or not path.exists():
            pytest.skip(f"the sources of {SOURCES} cannot be fetched: {done.stderr.strip()[-200:]}")
    return path


@cache
def templates() -> dict[str, str]:
    """The chat templates, by name."""
    return _texts("models/templates", ".jinja")


@cache
def grammars() -> dict[str, str]:
    """The grammars, by name."""
    return _texts("grammars", ".gbnf")


def _texts(folder: str, suffix: str) -> dict[str, str]:
    with tarfile.open(sources()) as files:
        found = [
            (Path(member.name), files.extractfile(member))
            for member in files.getmembers()
            if f"/llama.cpp/{folder}/" in member.name and member.name.endswith(suffix)
        ]
        return {path.stem: file.read().decode() for path, file in sorted(found, key=lambda pair: pair[0]) if file}


def parser_tests() -> str:
    """The source of the tests of parsers."""
    return source_of_tests("test-chat.cpp")


@cache
def source_of_tests(file_name: str) -> str:
    """The source of a file of tests."""
    with tarfile.open(sources()) as files:
        name = next(name for name in files.getnames() if name.endswith(f"/llama.cpp/tests/{file_name}"))
        file = files.extractfile(name)
        assert file is not None
        return file.read().decode()

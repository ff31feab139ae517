"""Stores conversations and the input history between two sessions, in the user's state folder."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from stoker.cli.later import platformdirs
from stoker.cli.talk.turns import Turns
from stoker.errors import InvalidInput

LAST = "last"
"""The name under which the last conversation on a terminal is stored."""
_NAME = re.compile(r"[\w][\w.-]{0,99}")
_MAX_BYTES = 64 << 20


def state_dir() -> Path:
    """The folder for state between sessions: `STOKER_STATE_DIR` if set, else the platform's user state folder."""
    chosen = os.environ.get("STOKER_STATE_DIR")
    return Path(chosen).expanduser() if chosen else platformdirs.user_state_path("stoker")


def history_file() -> Path:
    """The file of the input history, for the arrow keys. It is created if missing, readable for its user only.

    Raises:
        OSError: the file cannot be written.
    """
    path = state_dir() / "chat" / "history"
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.touch(mode=0o600)
    return path


def save(name: str, turns: Turns, model: str) -> Path:
    """Writes a conversation and returns its path; a conversation of the same name is replaced atomically.

    Raises:
        InvalidInput: the name is not allowed, or the file cannot be written.
    """
    path = _path(name)
    replacement = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with os.fdopen(os.open(replacement, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            json.dump({"model": model, **turns.saved()}, file)
        os.replace(replacement, path)
    except OSError as error:
        raise InvalidInput(f"{path} cannot be written: {error.strerror}") from error
    return path


def load(name: str) -> Turns:
    """Reads a saved conversation.

    Raises:
        InvalidInput: there is no conversation of this name, or its file cannot be read.
    """
    path = _path(name)
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise ValueError("too large")
        saved: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return Turns.restored(saved)
    except FileNotFoundError:
        raise InvalidInput(_nothing(name)) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidInput(f"{path} is not a saved conversation") from error


def names() -> list[str]:
    """The names of all saved conversations, in alphabetical order."""
    return sorted(path.stem for path in (state_dir() / "chat").glob("*.json"))


def _nothing(name: str) -> str:
    if name == LAST:
        return "there is no conversation to continue yet"
    known = ", ".join(each for each in names() if each != LAST) or "none"
    return f"no conversation was saved as {name!r}; saved: {known}"


def _path(name: str) -> Path:
    if not _NAME.fullmatch(name):
        raise InvalidInput(f"{name!r} cannot be the name of a conversation: use letters, digits, - and _")
    return state_dir() / "chat" / f"{name}.json"

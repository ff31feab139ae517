"""Runs the command line in this process, over the scripted backend: MODEL is what the model always answers."""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from stoker.cli.app import main


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str


Stoker = Callable[..., Outcome]


class Terminal(io.TextIOWrapper):
    """Standard input, as if it were typed."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def _clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("STOKER_BACKEND", "scripted")
    monkeypatch.setenv("STOKER_LOG_LEVEL", "warning")
    monkeypatch.setenv("STOKER_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("STOKER_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr("platformdirs.user_config_path", lambda name: tmp_path / "config_home" / name)
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers, root.level = handlers, level


@pytest.fixture
def stoker(_clean_environment: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Stoker:
    def run(*args: str, stdin: bytes | None = b"", is_terminal: bool = False) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["stoker", *args])
        kind = Terminal if is_terminal else io.TextIOWrapper
        opened = None if stdin is None else kind(io.BytesIO(stdin), encoding="utf-8")
        monkeypatch.setattr(sys, "stdin", opened)
        with pytest.raises(SystemExit) as caught:
            main()
        said = capsys.readouterr()
        assert isinstance(caught.value.code, int)
        return Outcome(caught.value.code, said.out, said.err)

    return run

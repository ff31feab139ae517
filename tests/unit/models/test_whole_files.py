"""Files that are replaced in one step."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from stoker.models.whole_files import write_whole


def test_a_file_is_replaced_with_its_time(tmp_path: Path):
    path = tmp_path / "a.json"
    write_whole(path, b"old")
    write_whole(path, b"new", time_ns=5_000_000_000)
    assert (path.read_bytes(), path.stat().st_mtime_ns) == (b"new", 5_000_000_000)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("step", ["replace", "utime"])
def test_what_cannot_be_written_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
):
    def fail(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    path = tmp_path / "a.json"
    write_whole(path, b"old")
    monkeypatch.setattr(os, step, fail)
    with pytest.raises(OSError, match="No space left"):
        write_whole(path, b"new", time_ns=1)
    assert (path.read_bytes(), list(tmp_path.iterdir())) == (b"old", [path])

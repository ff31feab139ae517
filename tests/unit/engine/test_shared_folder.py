"""Several processes on one folder of the disk tier, and one of them is killed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

from stoker.cache.directory import BlockDirectory
from tests.unit.engine import writing_child
from tests.unit.engine.writing_child import FINGERPRINT, answer, open_engine
from tests.waiting import BOUND_S

LONG_AGO = (0, 0)
MOST_LINES = 100_000
NUM_BLOCKS = 12
"""More than one conversation has."""


@contextmanager
def killed_when(folder: Path, is_time: Callable[[str], bool], *arguments: str) -> Generator[None]:
    """Another process writes into the folder until it is time, by what it says; it is dead when the block is left."""
    command = [sys.executable, writing_child.__file__, str(folder), *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        lines = islice(iter(process.stdout.readline, ""), MOST_LINES)
        assert any(is_time(said.strip()) for said in lines)
        yield
    finally:
        process.kill()
        process.communicate(timeout=BOUND_S)


def check_answers(folder: Path, numbers: Iterable[int]) -> list[int]:
    """All are those of an engine that has seen nothing; returns how much of each prompt came from the folder."""
    found: list[int] = []
    for number in numbers:
        # One that has measured nothing yet always tries what is there.
        engine = open_engine(folder)
        tokens, num_cached = answer(engine, number)
        engine.close()
        assert tokens == cold_answer(number)
        found.append(num_cached)
    return found


def cold_answer(number: int) -> list[int]:
    engine = open_engine(None)
    tokens, _ = answer(engine, number)
    engine.close()
    return tokens


def check_clean(folder: Path) -> None:
    """The clean-up leaves nothing but whole blocks."""
    directory = BlockDirectory(folder)
    for leftover in folder.glob("kv/*/*.tmp"):
        os.utime(leftover, LONG_AGO)  # as if an hour had passed
    assert [fault for _, fault in directory.sweep() if fault] == []
    assert [fault for _, fault in directory.check(FINGERPRINT.hex()) if fault] == []
    assert not list(folder.glob("kv/*/*.tmp"))


def test_one_that_is_killed_in_the_middle_of_a_file_leaves_the_others_as_they_were(tmp_path: Path) -> None:
    survivor = open_engine(tmp_path)
    first = answer(survivor, 50)
    with killed_when(tmp_path, lambda said: said == "half a file", "HALVES"):
        second = answer(survivor, 52)
    assert len(list(tmp_path.glob("kv/*/*.tmp"))) == 1, "blocks that were being written"
    third = answer(survivor, 53)
    survivor.close()
    assert check_answers(tmp_path, [0, 50, 52, 53]) == [64, 165, 165, 165], "two blocks of the killed one; all others"
    assert [first[0], second[0], third[0]] == [cold_answer(number) for number in (50, 52, 53)]
    check_clean(tmp_path)


def test_one_that_is_killed_at_any_moment_leaves_whole_blocks(tmp_path: Path) -> None:
    with killed_when(tmp_path, lambda _: len(list(tmp_path.glob("kv/*/*.kv"))) >= NUM_BLOCKS):
        pass
    assert check_answers(tmp_path, range(6))[0] == 165
    check_clean(tmp_path)

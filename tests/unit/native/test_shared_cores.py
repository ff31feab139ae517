"""Seats for cores that several processes share: never more than there are, in order, and free when their owner dies."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker import _native
from stoker.backends.cores import SHARED_CORES
from stoker.backends.native.threads import plan_threads
from tests.unit.native.tiny import Slots, Tiny, build, token_ids

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="cores are shared on Linux only")

BUILT = build(Tiny(types=("Q4_0", "Q8_0"), num_layers=2))
PROMPT = token_ids(70, BUILT.tiny)
_WAIT_S = 120

HOLDER = """
import sys
from stoker import _native
from stoker.backends.cores import SHARED_CORES
from stoker.backends.native.threads import plan_threads
cores = _native.SharedCores(sys.argv[1], 2)
for _ in range(int(sys.argv[2])):
    assert cores.acquire() is not None
print("has", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def path(tmp_path: Path) -> str:
    file = tmp_path / "cores"
    file.touch()
    return str(file)


@pytest.fixture
def holder(path: str) -> Iterator[subprocess.Popen[str]]:
    """A process that has both of two seats."""
    command = [sys.executable, "-c", HOLDER, path, "2"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "has\n"
        yield process
        process.kill()


def logits(**options: Any) -> np.ndarray[Any, Any]:
    decoder = BUILT.open(**options)
    found = Slots(decoder, BUILT).all_logits(0, PROMPT, (40, 1))
    decoder.close()
    return found


def test_there_are_as_many_seats_as_whoever_came_first_said(path: str) -> None:
    first, second = _native.SharedCores(path, 3), _native.SharedCores(path, 8)
    seats = [first.try_acquire(), second.try_acquire(), first.try_acquire()]
    assert sorted(seat for seat in seats if seat is not None) == [0, 1, 2]
    assert second.try_acquire() is None
    first.release(1)
    assert second.size == 3
    assert second.try_acquire() == 1


def test_a_seat_in_another_process_is_taken(path: str, holder: subprocess.Popen[str]) -> None:
    assert _native.SharedCores(path, 2).try_acquire() is None
    assert holder.poll() is None


def test_the_seats_of_a_killed_process_are_free(path: str, holder: subprocess.Popen[str]) -> None:
    cores = _native.SharedCores(path, 2)
    threading.Timer(0.05, lambda: os.kill(holder.pid, signal.SIGKILL)).start()
    assert cores.acquire() is not None
    assert cores.try_acquire() is not None


def test_who_waits_is_promised_one_seat_and_helpers_get_none(path: str) -> None:
    cores = _native.SharedCores(path, 2)
    mine = [cores.acquire(), cores.acquire()]
    found = list[int | None]()
    waiting = threading.Thread(target=lambda: found.append(cores.acquire()))
    waiting.start()
    while not cores.promise():
        pass
    assert cores.try_acquire() is None
    assert mine[1] is not None
    cores.release(mine[1])
    waiting.join(_WAIT_S)
    assert found == [mine[1]]
    assert not cores.promise(), "nobody waits any more"


def test_nobody_wants_anything_after_a_killed_process_that_waited(path: str, holder: subprocess.Popen[str]) -> None:
    cores = _native.SharedCores(path, 2)
    command = [sys.executable, "-c", HOLDER, path, "1"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as waiting:
        while not cores.promise():
            pass
        waiting.kill()
    holder.kill()
    holder.wait(_WAIT_S)
    assert cores.try_acquire() is not None, "helpers get seats again"
    assert not cores.promise()


def test_a_pool_with_one_seat_computes_on_one_thread(path: str) -> None:
    expected = logits(num_threads=1)
    before = _tasks()
    decoder = BUILT.open(num_threads=3, cores=_native.SharedCores(path, 1))
    helpers = _tasks() - before
    found = Slots(decoder, BUILT).all_logits(0, PROMPT, (40, 1))
    assert len(helpers) == 2
    assert np.array_equal(expected, found)
    assert sum(_ticks(task) for task in helpers) <= 1
    decoder.close()


def test_all_seats_are_free_after_a_pass_and_after_closing(path: str) -> None:
    cores = _native.SharedCores(path, 2)
    assert np.array_equal(logits(num_threads=2, cores=cores), logits(num_threads=2))
    assert None not in [cores.acquire(), cores.acquire()]


def test_a_file_that_is_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"x" * 4096)
    for name in ("text", "nothing"):
        with pytest.raises(RuntimeError, match="cores"):
            _native.SharedCores(str(tmp_path / name), 2)


def test_models_in_two_processes_both_make_progress_on_one_core(path: str) -> None:
    context = multiprocessing.get_context("spawn")
    with context.Pool(2) as processes:
        answers = [processes.apply_async(_many_passes, (path,)) for _ in range(2)]
        found = [answer.get(_WAIT_S) for answer in answers]
    assert np.array_equal(found[0], logits())
    assert np.array_equal(found[1], logits())


def test_a_model_goes_on_when_another_one_is_killed_in_a_pass(path: str) -> None:
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    other = context.Process(target=_endless_passes, args=(path, sender))
    other.start()
    assert receiver.poll(_WAIT_S)
    cores = _native.SharedCores(path, 1)
    decoder = BUILT.open(num_threads=2, cores=cores)
    for round_ in range(40):
        if round_ == 20:
            other.kill()
        Slots(decoder, BUILT).all_logits(0, PROMPT, (40, 1))
    other.join(_WAIT_S)
    assert np.array_equal(Slots(decoder, BUILT).all_logits(0, PROMPT, (40, 1)), logits())
    assert cores.try_acquire() == 0


def _many_passes(path: str) -> np.ndarray[Any, Any]:
    decoder = BUILT.open(num_threads=2, cores=_native.SharedCores(path, 1))
    for _ in range(20):
        Slots(decoder, BUILT).all_logits(0, PROMPT, (40, 1))
    return Slots(decoder, BUILT).all_logits(0, PROMPT, (40, 1))


def _endless_passes(path: str, ready: Any) -> None:
    decoder = BUILT.open(num_threads=2, cores=_native.SharedCores(path, 1))
    while True:
        Slots(decoder, BUILT).all_logits(0, PROMPT, (40, 1))
        ready.send(None) if not ready.closed else None
        ready.close()


def _tasks() -> set[Path]:
    return set(Path("/proc/self/task").iterdir())


def _ticks(task: Path) -> int:
    fields = (task / "stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def test_what_cannot_be_shared_is_done_without(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(SHARED_CORES, path)
    planned = plan_threads(512)
    assert planned.cores is not None
    assert planned.cores.size == 512, "who asks for more threads than cores gets them"
    monkeypatch.setenv(SHARED_CORES, str(tmp_path / "gone"))
    assert plan_threads(2).cores is None
    assert "share" in caplog.text
    monkeypatch.delenv(SHARED_CORES)
    assert plan_threads(2).cores is None

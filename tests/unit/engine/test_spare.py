"""A child that is started before its orders are known: who gets it, and that nobody is left behind."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.core.params import SamplingParams
from stoker.engine import spare
from stoker.engine.client import EngineClient
from stoker.engine.config import EngineConfig
from stoker.engine.orders import EXIT_ORPHANED
from stoker.engine.protocol import Output, Submit
from tests.spawns import record_spawns

BOUND_S = 60.0
ENGINE = (sys.executable, str(Path(__file__).with_name("scripted_child.py")))
ECHO = (sys.executable, "-c", "import sys; sys.exit(int(sys.stdin.readline()))")
"""Exits with the code that it is ordered to."""


@pytest.fixture(autouse=True)
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[spare.Process]]:
    """All processes of a test, in order; they are gone afterwards."""
    processes = record_spawns(monkeypatch)
    yield processes
    spare.discard()
    for process in processes:
        with process:
            process.kill()


def order(process: spare.Process, code: int) -> int:
    assert process.stdin is not None
    process.stdin.write(b"%d\n" % code)
    return process.wait(BOUND_S)


def test_the_spare_is_taken_once(started: list[spare.Process]) -> None:
    spare.start(ECHO)
    first, changed = spare.take(ECHO)
    second, _ = spare.take(ECHO)
    assert started == [first, second]
    assert changed == {}
    spare.discard()  # concerns neither
    assert (order(first, 7), order(second, 8)) == (7, 8)


def test_there_is_at_most_one(started: list[spare.Process]) -> None:
    spare.start(ECHO)
    spare.start(ECHO)
    assert len(started) == 1


def test_who_needs_another_program_gets_a_process_of_that(started: list[spare.Process]) -> None:
    spare.start(ECHO)
    other, _ = spare.take(ENGINE)
    assert started[1] is other
    spare.discard()
    assert started[0].poll() is not None
    assert other.poll() is None


def test_a_spare_that_has_died_is_not_taken(started: list[spare.Process]) -> None:
    spare.start((*ECHO[:2], "pass"))
    started[0].wait(BOUND_S)
    process, _ = spare.take((*ECHO[:2], "pass"))
    assert process is not started[0]


def test_what_is_discarded_is_gone_and_waited_for(started: list[spare.Process]) -> None:
    spare.start(ENGINE)
    spare.discard()
    spare.discard()
    assert started[0].returncode is not None
    assert started[0].stdin is not None
    assert started[0].stdin.closed


def test_one_that_cannot_be_started_is_not_there_and_says_nothing() -> None:
    spare.start(("/no/such/program",))
    with pytest.raises(OSError, match="No such file"):
        spare.take(("/no/such/program",))


def test_what_changes_in_the_environment_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_TEST_KEPT", "same")
    monkeypatch.setenv("STOKER_TEST_CHANGED", "before")
    spare.start(ECHO)
    monkeypatch.setenv("STOKER_TEST_CHANGED", "after")
    monkeypatch.setenv("STOKER_TEST_NEW", "new")
    _, changed = spare.take(ECHO)
    assert changed == {"STOKER_TEST_CHANGED": "after", "STOKER_TEST_NEW": "new"}


def test_the_spare_alone_is_told_what_to_expect_and_once() -> None:
    code = "import sys; assert 'a.gguf' in sys.stdin.readline(); sys.exit(int(sys.stdin.readline()))"
    spare.expect("/nobody.gguf")
    spare.start((*ECHO[:2], code))
    spare.expect("/a.gguf")
    spare.expect("/b.gguf")
    process, _ = spare.take((*ECHO[:2], code))
    spare.expect("/other.gguf")
    assert order(process, 7) == 7


def test_a_spare_that_has_died_is_told_in_vain(started: list[spare.Process]) -> None:
    spare.start((*ECHO[:2], "pass"))
    started[0].wait(BOUND_S)
    spare.expect("/m.gguf")
    process, changed = spare.take((*ECHO[:2], "pass"))
    assert (process is not started[0], changed) == (True, {}), "another one is started in its place"


def test_a_spare_whose_parent_has_gone_goes_too() -> None:
    process = subprocess.Popen(ENGINE, stdin=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(BOUND_S) == EXIT_ORPHANED


def test_no_file_of_the_working_directory_is_run(tmp_path: Path) -> None:
    (tmp_path / "queue.py").write_text("raise SystemExit(9)")
    process = subprocess.Popen(spare.ENGINE_COMMAND, stdin=subprocess.PIPE, cwd=tmp_path)
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(BOUND_S) == EXIT_ORPHANED


def test_a_client_loads_its_model_in_the_spare(started: list[spare.Process]) -> None:
    async def generate() -> str:
        client = EngineClient(EngineConfig(model="scripted", backend="scripted"), command=ENGINE)
        try:
            await client.start()
            assert client.child_pid == started[0].pid
            submit = Submit("a", "hello", SamplingParams(temperature=0, max_tokens=4))
            return "".join([event.text async for event in client.generate(submit) if isinstance(event, Output)])
        finally:
            await client.close()

    spare.start(ENGINE)
    assert asyncio.run(generate()) == "an a"
    assert len(started) == 1
    assert started[0].returncode == 0

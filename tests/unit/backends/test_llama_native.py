"""The way into libllama: log pieces become records, and a missing binding is a clear answer."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading

import pytest

from stoker.backends.llama.native import LogLines, interrupts_held, library, log_lines
from stoker.errors import ModelUnsupported

DEBUG, INFO, WARNING, ERROR, CONTINUES = 1, 2, 3, 4, 5


@pytest.fixture
def lines() -> LogLines:
    return LogLines()


@pytest.fixture(autouse=True)
def record_everything(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(1, logger="stoker.llama")


def records(caplog: pytest.LogCaptureFixture) -> list[tuple[int, str]]:
    return [(record.levelno, record.getMessage()) for record in caplog.records]


def test_levels_are_mapped_and_newlines_cut(lines: LogLines, caplog: pytest.LogCaptureFixture) -> None:
    for level in (DEBUG, INFO, WARNING, ERROR):
        lines.push(level, f"native {level}\n".encode())
    assert records(caplog) == [
        (5, "native 1"),
        (logging.DEBUG, "native 2"),
        (logging.WARNING, "native 3"),
        (logging.ERROR, "native 4"),
    ]


def test_continuations_are_joined_at_the_level_they_continue(lines: LogLines, caplog: pytest.LogCaptureFixture) -> None:
    for level, text in ((WARNING, b"loading"), (CONTINUES, b" ."), (CONTINUES, b"."), (CONTINUES, b"\n")):
        lines.push(level, text)
    assert records(caplog) == [(logging.WARNING, "loading ..")]


def test_an_unfinished_line_ends_where_the_next_begins(lines: LogLines, caplog: pytest.LogCaptureFixture) -> None:
    lines.push(INFO, b"half")
    lines.push(ERROR, b"whole\n")
    assert [text for _, text in records(caplog)] == ["half", "whole"]


def test_empty_and_broken_text_does_no_harm(lines: LogLines, caplog: pytest.LogCaptureFixture) -> None:
    lines.push(INFO, b"")
    lines.push(INFO, b"\n")
    lines.push(77, b"100 %s \xff\n")
    assert records(caplog) == [(logging.INFO, "100 %s �")]


def test_threads_do_not_mix_their_lines(lines: LogLines, caplog: pytest.LogCaptureFixture) -> None:
    lines.push(INFO, b"mine, ")
    thread = threading.Thread(target=lines.push, args=(INFO, b"theirs\n"))
    thread.start()
    thread.join(60)
    lines.push(CONTINUES, b"still mine\n")
    assert [text for _, text in records(caplog)] == ["theirs", "mine, still mine"]


def test_errors_are_captured_and_logged(lines: LogLines, caplog: pytest.LogCaptureFixture) -> None:
    with lines.capture_errors() as errors:
        lines.push(INFO, b"fine\n")
        lines.push(ERROR, b"broken\n")
        lines.push(ERROR, b"unfinished")
    lines.push(ERROR, b"later\n")
    assert errors == ["broken", "unfinished"]
    assert len(caplog.records) == 4


def test_native_lines_arrive(caplog: pytest.LogCaptureFixture) -> None:
    lib = library()
    with log_lines.capture_errors() as errors:
        assert not lib.llama_model_load_from_file(b"/nowhere/model.gguf", lib.llama_model_default_params())
    assert any("/nowhere/model.gguf" in line for line in errors)
    assert {record.name for record in caplog.records} == {"stoker.llama"}


def test_an_interrupt_waits_for_the_end_of_the_block() -> None:
    reached: list[str] = []

    def work() -> None:
        with interrupts_held():
            signal.raise_signal(signal.SIGINT)
            reached.append("end")
        reached.append("behind")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert reached == ["end"]
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_an_interrupt_is_not_lost_in_a_native_callback(monkeypatch: pytest.MonkeyPatch) -> None:
    lib = library()
    monkeypatch.setattr(LogLines, "push", lambda *_: signal.raise_signal(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt), interrupts_held():
        lib.llama_model_load_from_file(b"/nowhere/model.gguf", lib.llama_model_default_params())


def test_other_threads_have_no_interrupts_to_hold() -> None:
    reached: list[str] = []

    def hold() -> None:
        with interrupts_held():
            reached.append("inside")

    thread = threading.Thread(target=hold)
    thread.start()
    thread.join(60)
    assert reached == ["inside"]


def test_without_the_bindings_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    with pytest.raises(ModelUnsupported, match=r"pip install 'stoker\[llama\]'"):
        library()


def test_importing_the_room_does_not_import_the_bindings() -> None:
    code = "import sys, stoker.backends.llama; sys.exit('llama_cpp' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


def test_the_pool_is_not_mistaken_for_one_long_sequence(lines: LogLines, caplog: pytest.LogCaptureFixture) -> None:
    lines.push(
        WARNING, b"llama_context: n_ctx_seq (23552) > n_ctx_train (8192) -- possible training context overflow\n"
    )
    assert [level for level, _ in records(caplog)] == [logging.DEBUG]


@pytest.mark.parametrize(
    ("given", "expected"), [({}, "1000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, None)]
)
def test_threads_spin_briefly_unless_told_otherwise(given: dict[str, str], expected: str | None) -> None:
    script = (
        "import os; from stoker.backends.llama.native import library; library(); "
        "print(os.environ.get('GOMP_SPINCOUNT'))"
    )
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("GOMP", "OMP"))}
    ran = subprocess.run(
        [sys.executable, "-c", script], env=inherited | given, capture_output=True, text=True, timeout=60
    )
    assert ran.stdout.strip() == str(expected)

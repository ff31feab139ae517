"""What `stoker serve` says on a terminal, and that it says nothing more elsewhere."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from stoker.cli.log_files import kept_log, log_files, tail
from stoker.cli.serve_log import request_lines, say_ready, say_stopping

ACCESS = logging.getLogger("stoker.server.access")


def on_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on the standard error of this test says that it is a terminal."""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)


def test_requests_are_shown_on_a_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    on_terminal(monkeypatch)
    with request_lines(None, is_json=False):
        ACCESS.info("GET /health 200")
    assert capsys.readouterr().err.rstrip().endswith("GET /health 200")
    assert not ACCESS.isEnabledFor(logging.INFO)


def test_json_lines_are_for_who_asks_for_them(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    on_terminal(monkeypatch)
    with request_lines(None, is_json=True):
        ACCESS.info("GET /health 200")
    assert capsys.readouterr().err == ""


def test_nothing_is_shown_in_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    with request_lines(None, is_json=False):
        ACCESS.info("GET /health 200")
    assert capsys.readouterr().err == ""


def test_what_is_served_and_how_it_stops(capsys: pytest.CaptureFixture[str]) -> None:
    say_ready(["a"], "http://x")
    say_ready(["a", "b"], "http://x")
    say_ready([], "http://x")
    say_stopping(0)
    say_stopping(2)
    assert capsys.readouterr().err.splitlines() == [
        "ready: a is served at http://x",
        "ready: a, b are served at http://x",
        "ready at http://x, without a model: `stoker pull MODEL` downloads one, which is then served",
        "stopped",
        "",
        "stopping: 2 requests still run (Ctrl-C again to stop at once)",
    ]


def test_a_terminal_is_told_what_to_do_next(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    on_terminal(monkeypatch)
    say_ready(["a"], "http://x")
    told = capsys.readouterr().err
    assert "base URL http://x/v1" in told
    assert "--cache-dir" not in told
    say_ready(["a"], "http://x", keeps_cache=False)
    assert "--cache-dir auto keeps the prefix cache across restarts" in capsys.readouterr().err


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STOKER_STATE_DIR", str(tmp_path))
    return tmp_path


def lines_of(path: Path, count: int = 99) -> list[str]:
    """Without times."""
    return [line.rstrip("\n").split(" ", 2)[2] for line in tail(path, count, follow=False)]


@pytest.mark.parametrize("terminal", [False, True])
def test_requests_and_warnings_are_kept(state: Path, monkeypatch: pytest.MonkeyPatch, terminal: bool) -> None:
    if terminal:
        on_terminal(monkeypatch)
    with kept_log("8080") as kept, request_lines(kept, is_json=False):
        ACCESS.info("GET /health 200")
        logging.getLogger("stoker.other").warning("odd")
        logging.getLogger("stoker.other").debug("unimportant")
    ACCESS.warning("after the end")
    (path,) = log_files()
    assert lines_of(path) == ["INFO stoker.server.access: GET /health 200", "WARNING stoker.other: odd"]
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("is_json", [False, True])
def test_lines_that_the_level_wants_are_kept_once(state: Path, caplog: pytest.LogCaptureFixture, is_json: bool) -> None:
    caplog.set_level(logging.INFO)
    with kept_log("8080") as kept, request_lines(kept, is_json=is_json):
        propagates = ACCESS.propagate
        ACCESS.propagate = propagates and not is_json  # as `bare_lines` of the server has it
        ACCESS.info("one")
    assert len(lines_of(log_files()[0])) == 1


def test_a_log_is_followed_over_a_rotation(state: Path) -> None:
    with kept_log("8080") as kept:
        assert kept is not None
        logging.warning("before")
        lines = tail(log_files()[0], 1, follow=True)
        assert "before" in next(lines)
        kept.doRollover()  # type: ignore[attr-defined]  # pyright: ignore
        logging.warning("behind")
        assert "behind" in next(lines)
        lines.close()  # type: ignore[attr-defined]  # pyright: ignore
        assert lines_of(log_files()[0]) == ["WARNING root: before", "WARNING root: behind"]


def test_old_logs_leave(state: Path) -> None:
    for number in range(12):
        with kept_log(str(number)):
            logging.warning("x")
    assert len(log_files()) == 8


def test_a_folder_that_cannot_be_written_costs_the_log_alone(state: Path, caplog: pytest.LogCaptureFixture) -> None:
    (state / "logs").write_text("a file")
    with kept_log("8080") as kept:
        assert kept is None
    assert "no log is kept" in caplog.text

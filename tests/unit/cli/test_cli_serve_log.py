"""What `stoker serve` says on a terminal, and that it says nothing more elsewhere."""

from __future__ import annotations

import logging

import pytest

from stoker.cli.serve_log import lines_on_terminal, say_ready, say_stopping

ACCESS = logging.getLogger("stoker.server.access")


def on_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on the standard error of this test says that it is a terminal."""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)


def test_requests_are_shown_on_a_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    on_terminal(monkeypatch)
    with lines_on_terminal(is_json=False):
        ACCESS.info("GET /health 200")
    assert capsys.readouterr().err.rstrip().endswith("GET /health 200")
    assert not ACCESS.isEnabledFor(logging.INFO)


def test_json_lines_are_for_who_asks_for_them(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    on_terminal(monkeypatch)
    with lines_on_terminal(is_json=True):
        ACCESS.info("GET /health 200")
    assert capsys.readouterr().err == ""


def test_nothing_is_shown_in_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    with lines_on_terminal(is_json=False):
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
        "ready: no model is here yet; `stoker pull MODEL` brings one, and it is served at http://x",
        "stopped",
        "",
        "stopping: 2 requests still run (Ctrl-C again to stop at once)",
    ]


def test_a_terminal_is_told_what_to_do_next(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    on_terminal(monkeypatch)
    say_ready(["a"], "http://x")
    assert "base URL http://x/v1" in capsys.readouterr().err

"""Downloads are drawn on stderr, and only once they begin."""

from __future__ import annotations

import pytest

from stoker.cli.download_bar import DownloadBar


def test_transfers_are_drawn_one_after_the_other(capsys: pytest.CaptureFixture[str]) -> None:
    bar = DownloadBar()
    bar.start(1000, "first file")
    bar.advance(400)
    bar.start(None, "second file")
    bar.advance(3)
    bar.close()
    bar.close()
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "first file" in shown.err
    assert "second file" in shown.err


def test_nothing_is_drawn_without_a_download(capsys: pytest.CaptureFixture[str]) -> None:
    DownloadBar().close()
    assert capsys.readouterr() == ("", "")


def test_long_download_without_a_terminal_gets_a_line_every_ten_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    times = [0.0, 9.0, 10.0, 10.0, 19.0, 20.0, 20.0, 30.0, 30.0, 40.0, 40.0]
    bar = DownloadBar(clock=lambda: times.pop(0))
    bar.start(500_000_000, "file.gguf")
    for _ in range(4):
        bar.advance(100_000_000)
    assert capsys.readouterr().err == "file.gguf: 200 MB of 500 MB\nfile.gguf: 400 MB of 500 MB\n"
    bar.start(None, "other.gguf")
    bar.advance(1_000_000)
    bar.advance(1_000_000)
    assert capsys.readouterr().err == "other.gguf: 2.0 MB\n"
    bar.close()

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

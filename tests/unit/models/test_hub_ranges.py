"""Large files over several connections: the same bytes in the same order, whatever fails on the way."""

from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from threading import Event

import pytest

from stoker.errors import DownloadFailed
from stoker.models import hub
from stoker.models.catalog import HubFile
from tests.unit.models.conftest import RecordedProgress
from tests.unit.models.fake_hub import FakeHub, send
from tests.waiting import BOUND_S

SOURCE = HubFile("org/repo", "large.gguf")
PIECE = 1000
CONTENT = bytes(i * 7 % 251 for i in range(10 * PIECE + 123))
Behavior = Callable[[BaseHTTPRequestHandler], bool]


@pytest.fixture
def large_hub(fake_hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    monkeypatch.setattr(hub, "PIECE_BYTES", PIECE)
    fake_hub.files["org/repo", "large.gguf"] = CONTENT
    return fake_hub


def asked(hub_: FakeHub) -> list[str | None]:
    return [headers.get("range") for headers in hub_.file_requests]


def test_a_large_file_comes_in_parts(large_hub: FakeHub, tmp_path: Path, progress: RecordedProgress) -> None:
    hub.fetch(SOURCE, tmp_path / "f", progress, within_s=BOUND_S)
    assert (tmp_path / "f").read_bytes() == CONTENT
    spans = [f"bytes={start}-{min(start + PIECE, len(CONTENT)) - 1}" for start in range(0, len(CONTENT), PIECE)]
    assert asked(large_hub)[0] is None
    assert sorted(map(str, asked(large_hub)[1:])) == sorted(spans)
    assert progress.transfers == [["large.gguf", len(CONTENT), len(CONTENT)]]


def test_the_parts_come_side_by_side_and_the_x(large_hub: FakeHub, tmp_path: Path, progress: RecordedProgress) -> None:
    others = Event()

    def first_waits_for_the_fourth(request: BaseHTTPRequestHandler) -> bool:
        if request.headers.get("Range") == f"bytes={3 * PIECE}-{4 * PIECE - 1}":
            others.set()
        if request.headers.get("Range") == f"bytes=0-{PIECE - 1}":
            assert others.wait(BOUND_S)
        return False

    large_hub.behave = first_waits_for_the_fourth
    hub.fetch(SOURCE, tmp_path / "f", progress, within_s=BOUND_S)
    assert (tmp_path / "f").read_bytes() == CONTENT


def cut_one_short(request: BaseHTTPRequestHandler) -> bool:
    if request.headers.get("Range") != f"bytes={5 * PIECE}-{6 * PIECE - 1}":
        return False
    send(request, 206, CONTENT[5 * PIECE : 5 * PIECE + 10], length=PIECE)
    return True


def give_all_instead(request: BaseHTTPRequestHandler) -> bool:
    send(request, 200, CONTENT, {"Accept-Ranges": "bytes"})
    return True


@pytest.mark.parametrize("behavior", [cut_one_short, give_all_instead])
def test_one_connection_brings_what_several_could_not(
    large_hub: FakeHub, tmp_path: Path, progress: RecordedProgress, behavior: Behavior
) -> None:
    large_hub.behave = behavior
    hub.fetch(SOURCE, tmp_path / "f", progress, within_s=BOUND_S)
    assert (tmp_path / "f").read_bytes() == CONTENT


def test_a_file_that_changes_meanwhile_is_not_mixed(large_hub: FakeHub, tmp_path: Path) -> None:
    def other_length(request: BaseHTTPRequestHandler) -> bool:
        first = int((request.headers.get("Range") or "0").removeprefix("bytes=").partition("-")[0])
        if first < 2 * PIECE:
            return False
        send(request, 206, bytes(PIECE), {"Content-Range": f"bytes {first}-{first + PIECE - 1}/99999999"})
        return True

    large_hub.behave = other_length
    with pytest.raises(DownloadFailed, match="the file has changed"):
        hub.fetch(SOURCE, tmp_path / "f", RecordedProgress(), within_s=BOUND_S)


def test_a_part_that_is_there_is_not_asked_for_again(
    large_hub: FakeHub, tmp_path: Path, progress: RecordedProgress
) -> None:
    class Impatient(RecordedProgress):
        def advance(self, num_bytes: int) -> None:
            super().advance(num_bytes)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        hub.fetch(SOURCE, tmp_path / "f", Impatient(), within_s=BOUND_S)
    assert (tmp_path / "f").read_bytes() == CONTENT[:PIECE]
    large_hub.requests.clear()
    hub.fetch(SOURCE, tmp_path / "f", progress, within_s=BOUND_S)
    assert (tmp_path / "f").read_bytes() == CONTENT
    assert f"bytes=0-{PIECE - 1}" not in asked(large_hub)

"""Downloads that were broken off: the next one goes on where they were, and nothing is ever taken for whole."""

import hashlib
import signal
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from stoker.errors import DownloadFailed
from stoker.models import download
from stoker.models.store import list_models, resolve
from tests.unit.models.conftest import RecordedProgress, leftovers, start_child
from tests.unit.models.fake_hub import FakeHub, send


class Impatient(RecordedProgress):
    """Interrupts the first download when its first piece is there."""

    def advance(self, num_bytes: int) -> None:
        raise KeyboardInterrupt


def interrupted(model: str, hub: FakeHub, content: bytes) -> None:
    hub.behave = lambda request: send(request, 200, content[:7000], etag_of(content), len(content)) is None
    progress = Impatient()
    with pytest.raises(KeyboardInterrupt):
        resolve(model, progress=progress)
    assert progress.is_closed
    hub.behave = None


def etag_of(content: bytes) -> dict[str, str]:
    return {"ETag": f'"{hashlib.sha256(content).hexdigest()}"'}


def test_an_interrupted_download_goes_on_where_it_was(
    hub: FakeHub, cache: Path, content: bytes, progress: RecordedProgress
) -> None:
    interrupted("hf:org/tiny:tiny.gguf", hub, content)
    assert list_models() == []
    (part,) = (path for path in cache.rglob("tiny.gguf") if path.is_file())
    begun = part.stat().st_size
    assert 0 < begun <= 7000
    path = resolve("hf:org/tiny:tiny.gguf", progress=progress)
    assert path.read_bytes() == content
    assert hub.file_requests[-1]["range"] == f"bytes={begun}-"
    assert progress.transfers == [["tiny.gguf", len(content), len(content)]]
    assert leftovers(cache) == ["tiny.gguf", "tiny.gguf.json"]


def test_a_part_of_another_content_is_begun_again(hub: FakeHub, cache: Path, content: bytes) -> None:
    interrupted("hf:org/tiny:tiny.gguf", hub, content)
    changed = hub.files["org/tiny", "tiny.gguf"] = content[:-1] + b"\x07"
    assert resolve("hf:org/tiny:tiny.gguf").read_bytes() == changed
    assert "range" not in hub.file_requests[-1]


def test_a_part_that_was_damaged_meanwhile_is_not_kept(hub: FakeHub, cache: Path, content: bytes) -> None:
    interrupted("hf:org/tiny:tiny.gguf", hub, content)
    (part,) = (path for path in cache.rglob("tiny.gguf") if path.is_file())
    part.write_bytes(bytes(part.stat().st_size))
    with pytest.raises(DownloadFailed, match="wrong checksum"):
        resolve("hf:org/tiny:tiny.gguf")
    assert leftovers(cache) == []
    assert resolve("hf:org/tiny:tiny.gguf").read_bytes() == content


def test_a_part_that_nobody_goes_on_with_is_removed_in_the_end(
    hub: FakeHub, cache: Path, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.files["org/other", "other.gguf"] = content
    hub.files["org/third", "third.gguf"] = content
    interrupted("hf:org/tiny:tiny.gguf", hub, content)
    resolve("hf:org/other:other.gguf")
    assert "tiny.gguf" in leftovers(cache)
    monkeypatch.setattr(download, "_KEPT_S", -1.0)
    resolve("hf:org/third:third.gguf")
    assert "tiny.gguf" not in leftovers(cache)


def test_what_a_killed_download_left_is_gone_on_with(hub: FakeHub, cache: Path, content: bytes) -> None:
    def kill_the_asker(request: BaseHTTPRequestHandler) -> bool:
        send(request, 200, content[:5000], etag_of(content), length=len(content))
        while child.poll() is None and not any(path.stat().st_size for path in cache.rglob("*.part/tiny.gguf")):
            pass
        child.send_signal(signal.SIGKILL)
        return True

    hub.behave = kill_the_asker
    child = start_child("hf:org/tiny:tiny.gguf", cache)
    child.communicate(timeout=30)
    assert child.returncode == -signal.SIGKILL
    assert leftovers(cache) == ["tiny.gguf", "tiny.gguf.sha256"]
    hub.behave = None
    assert resolve("hf:org/tiny:tiny.gguf").read_bytes() == content
    assert hub.file_requests[-1]["range"].startswith("bytes=")
    assert leftovers(cache) == ["tiny.gguf", "tiny.gguf.json"]


def test_a_part_without_a_checksum_is_not_kept(hub: FakeHub, cache: Path, content: bytes) -> None:
    hub.behave = lambda request: send(request, 200, content[:5000], length=len(content)) is None
    with pytest.raises(DownloadFailed, match="the transfer broke after 5000 bytes"):
        resolve("hf:org/tiny:tiny.gguf")
    assert leftovers(cache) == []

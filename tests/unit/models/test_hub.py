"""Transfers from a hub on this machine, whole and broken."""

import hashlib
import os
import socket
import sys
import threading
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from stoker.errors import DownloadFailed, ResourceExhausted
from stoker.models import hub
from stoker.models.catalog import HubFile
from stoker.models.progress import NoProgress
from tests.ports import free_port
from tests.unit.models.conftest import RecordedProgress
from tests.unit.models.fake_hub import FakeHub, send
from tests.unit.models.socks_proxy import SocksProxy
from tests.waiting import BOUND_S

CONTENT = bytes(range(256)) * 1000
SHA256 = hashlib.sha256(CONTENT).hexdigest()
SOURCE = HubFile("org/repo", "sub/model.gguf")


@pytest.fixture
def stocked_hub(fake_hub: FakeHub) -> FakeHub:
    fake_hub.files[SOURCE.repo, SOURCE.file] = CONTENT
    return fake_hub


@pytest.fixture
def into(tmp_path: Path) -> Path:
    return tmp_path / "file"


def get(into: Path, *, within_s: float = BOUND_S) -> str | None:
    return hub.fetch(SOURCE, into, NoProgress(), within_s=within_s)


def test_a_file_arrives_with_the_promised_checksum(
    stocked_hub: FakeHub, into: Path, progress: RecordedProgress
) -> None:
    assert hub.fetch(SOURCE, into, progress, within_s=BOUND_S) == SHA256
    assert into.read_bytes() == CONTENT
    assert progress.transfers == [["sub/model.gguf", len(CONTENT), len(CONTENT)]]


def test_the_promise_of_a_redirect_counts_and_the_token_stays_with_the_hub(
    stocked_hub: FakeHub, into: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    with FakeHub(files=stocked_hub.files) as store:

        def redirect(request: BaseHTTPRequestHandler) -> bool:
            promise = {"X-Linked-Etag": '"' + "a" * 64 + '"', "X-Linked-Size": str(len(CONTENT))}
            send(request, 302, b"", {"Location": store.url + request.path} | promise)
            return True

        stocked_hub.behave = redirect
        assert get(into) == "a" * 64
    assert into.read_bytes() == CONTENT
    assert stocked_hub.requests[0][1]["authorization"] == "Bearer hf_secret"
    assert "authorization" not in store.requests[0][1]


def test_a_small_file_has_no_promised_checksum(stocked_hub: FakeHub, into: Path) -> None:
    def answer(request: BaseHTTPRequestHandler) -> bool:
        send(request, 200, b"hello", {"ETag": '"0123abcd"'})
        return True

    stocked_hub.behave = answer
    assert get(into) is None
    assert into.read_bytes() == b"hello"


@pytest.mark.parametrize(
    ("status", "what"),
    [
        (404, "no such repository or file"),
        (401, "HF_TOKEN"),
        (403, "HF_TOKEN"),
        (429, "too many requests"),
        (503, "status 503; try again"),
    ],
)
def test_a_refusal_is_explained(stocked_hub: FakeHub, into: Path, status: int, what: str) -> None:
    def refuse(request: BaseHTTPRequestHandler) -> bool:
        send(request, status, b"go away")
        return True

    stocked_hub.behave = refuse
    with pytest.raises(DownloadFailed, match=what) as caught:
        get(into)
    assert "org/repo/sub/model.gguf" in caught.value.message
    with pytest.raises(DownloadFailed, match=what):
        hub.list_files("org/repo", within_s=BOUND_S)
    assert not into.exists()


def test_a_gated_repository_says_what_to_do(stocked_hub: FakeHub, into: Path) -> None:
    stocked_hub.behave = lambda request: send(request, 403, b"", {"X-Error-Code": "GatedRepo"}) is None
    with pytest.raises(DownloadFailed, match="accept its terms on its page, and set HF_TOKEN"):
        get(into)


def test_a_hub_that_never_answers_costs_no_more_than_allowed(silent_hub: None, into: Path) -> None:
    with pytest.raises(DownloadFailed, match=r"no answer within 0\.2 s|Timeout"):
        get(into, within_s=0.2)
    with pytest.raises(DownloadFailed, match=r"no answer within 0\.2 s|Timeout"):
        hub.list_files("org/repo", within_s=0.2)


def test_a_name_that_is_never_resolved_costs_no_more_than_allowed(
    clean_hub_client: None, into: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolver_gives_up = threading.Event()

    def hang(*_: object, **__: object) -> Any:
        resolver_gives_up.wait(BOUND_S)
        raise socket.gaierror("gave up")

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    monkeypatch.setenv("HF_ENDPOINT", "http://hub.invalid")
    with pytest.raises(DownloadFailed, match=r"no answer within 0\.1 s"):
        get(into, within_s=0.1)
    resolver_gives_up.set()


def test_a_closed_port_fails_at_once(clean_hub_client: None, into: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{port}")
    with pytest.raises(DownloadFailed, match="refused"):
        get(into)


@pytest.mark.parametrize("endpoint", ["nonsense", "http://[", "ftp://127.0.0.1"])
def test_an_impossible_endpoint_is_a_failure_like_others(
    clean_hub_client: None, into: Path, monkeypatch: pytest.MonkeyPatch, endpoint: str
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    with pytest.raises(DownloadFailed, match="org/repo"):
        get(into)


@pytest.fixture
def no_proxy(clean_hub_client: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment names no proxy, and none that must not be used."""
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)


def test_a_hub_is_reached_through_a_socks_proxy(
    stocked_hub: FakeHub, no_proxy: None, into: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with SocksProxy(stocked_hub.address) as proxy:
        monkeypatch.setenv("ALL_PROXY", proxy.url)
        monkeypatch.setenv("HF_ENDPOINT", "http://hub.example")
        assert get(into) == SHA256
        assert proxy.asked == [("hub.example", 80)]
    assert into.read_bytes() == CONTENT


def test_a_client_that_lacks_what_a_proxy_needs_says_so(
    stocked_hub: FakeHub, no_proxy: None, into: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "socksio", None)
    monkeypatch.setenv("ALL_PROXY", "socks5://me:secret@127.0.0.1:1")
    expected = r"the proxy socks5://127\.0\.0\.1:1 needs socksio: pip install 'httpx2\[socks\]'$"
    with pytest.raises(DownloadFailed, match=expected):
        get(into)
    with pytest.raises(DownloadFailed, match=expected):
        hub.list_files("org/repo", within_s=BOUND_S)


@pytest.mark.parametrize(
    ("proxy", "named"),
    [
        ("socks5://me:secret@127.0.0.1:{port}", "socks5://127.0.0.1:{port}"),
        ("http://127.0.0.1:{port}", "http://127.0.0.1:{port}"),
        ("me:secret@127.0.0.1:{port}", "127.0.0.1:{port}"),
    ],
)
def test_a_proxy_that_is_not_there_is_named(
    no_proxy: None, into: Path, monkeypatch: pytest.MonkeyPatch, proxy: str, named: str
) -> None:
    port = free_port()
    monkeypatch.setenv("ALL_PROXY", proxy.format(port=port))
    monkeypatch.setenv("HF_ENDPOINT", "http://hub.example")
    with pytest.raises(DownloadFailed) as caught:
        get(into)
    assert caught.value.message.endswith(f"refused (through the proxy {named.format(port=port)})")


def test_a_proxy_that_is_not_used_is_not_named(no_proxy: None, into: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:1")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{port}")
    with pytest.raises(DownloadFailed, match=r"cannot reach 127.0.0.1: .*refused. Behind a proxy set HTTPS_PROXY;"):
        get(into)


def test_a_fault_of_ours_is_not_the_hubs(stocked_hub: FakeHub, into: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise AssertionError("our own")

    monkeypatch.setattr("stoker.models.hub_http.get_session", fail)
    with pytest.raises(AssertionError, match="our own"):
        get(into)


def test_offline_mode_asks_nobody(stocked_hub: FakeHub, into: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(DownloadFailed, match="offline"):
        get(into)
    assert stocked_hub.requests == []


def test_a_broken_transfer_is_taken_up_again(stocked_hub: FakeHub, into: Path, progress: RecordedProgress) -> None:
    def break_once(request: BaseHTTPRequestHandler) -> bool:
        if len(stocked_hub.file_requests) > 1:
            return False
        send(request, 200, CONTENT[:1000], {"ETag": f'"{SHA256}"'}, length=len(CONTENT))
        return True

    stocked_hub.behave = break_once
    assert hub.fetch(SOURCE, into, progress, within_s=BOUND_S) == SHA256
    assert into.read_bytes() == CONTENT
    assert [headers.get("range") for headers in stocked_hub.file_requests] == [None, "bytes=1000-"]
    assert progress.transfers == [[SOURCE.file, len(CONTENT), len(CONTENT)]]


def test_a_server_that_gives_no_parts_is_asked_for_all_again(
    stocked_hub: FakeHub, into: Path, progress: RecordedProgress
) -> None:
    def whole_at_second(request: BaseHTTPRequestHandler) -> bool:
        body = CONTENT[:1000] if len(stocked_hub.file_requests) == 1 else CONTENT
        send(request, 200, body, length=len(CONTENT))
        return True

    stocked_hub.behave = whole_at_second
    hub.fetch(SOURCE, into, progress, within_s=BOUND_S)
    assert into.read_bytes() == CONTENT
    assert progress.transfers[-1] == [SOURCE.file, len(CONTENT), len(CONTENT)]


@pytest.mark.parametrize("given", ["bytes 0-{last}/{size}", "bytes 1000-{last}/9999999"])
def test_another_part_than_was_asked_for_is_not_taken(stocked_hub: FakeHub, into: Path, given: str) -> None:
    def other_part(request: BaseHTTPRequestHandler) -> bool:
        if request.headers.get("Range"):
            place = given.format(last=len(CONTENT) - 1, size=len(CONTENT))
            send(request, 206, CONTENT[1000:], {"Content-Range": place})
        else:
            send(request, 200, CONTENT[:1000], length=len(CONTENT))
        return True

    stocked_hub.behave = other_part
    with pytest.raises(DownloadFailed, match="another part, or the file has changed"):
        get(into)


def test_a_transfer_that_never_gets_on_is_given_up(stocked_hub: FakeHub, into: Path) -> None:
    def always_break(request: BaseHTTPRequestHandler) -> bool:
        if request.headers.get("Range"):
            send(request, 503, b"")
        else:
            send(request, 200, CONTENT[:1000], length=len(CONTENT))
        return True

    stocked_hub.behave = always_break
    with pytest.raises(DownloadFailed, match="broke after 1000 bytes: the hub answered with status 503"):
        get(into)
    assert len(stocked_hub.file_requests) == 1 + 3


def test_more_than_was_promised_is_refused(stocked_hub: FakeHub, into: Path) -> None:
    def answer(request: BaseHTTPRequestHandler) -> bool:
        send(request, 200, CONTENT, {"X-Linked-Size": "1000"})
        return True

    stocked_hub.behave = answer
    with pytest.raises(DownloadFailed, match="more than the 1000 bytes"):
        get(into)


def test_a_file_that_cannot_fit_is_not_begun(stocked_hub: FakeHub, into: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stoker.models.cache.shutil.disk_usage", lambda _: type("Usage", (), {"free": 10}))
    with pytest.raises(ResourceExhausted) as caught:
        get(into)
    assert caught.value.fields == {"path": str(into), "needed_bytes": len(CONTENT), "free_bytes": 10}
    assert not into.exists()


def test_names_of_a_repository(stocked_hub: FakeHub) -> None:
    stocked_hub.files["org/repo", "README.md"] = b""
    assert sorted(hub.list_files("org/repo", within_s=BOUND_S)) == ["README.md", "sub/model.gguf"]


def test_an_answer_without_sense_is_a_failure(stocked_hub: FakeHub) -> None:
    for body in (b"<html>login</html>", b"[]", b"{}"):

        def answer(request: BaseHTTPRequestHandler, body: bytes = body) -> bool:
            send(request, 200, body, {"Content-Type": "application/json"})
            return True

        stocked_hub.behave = answer
        with pytest.raises(DownloadFailed, match="org/repo"):
            hub.list_files("org/repo", within_s=BOUND_S)

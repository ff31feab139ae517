"""Files are fetched from public addresses only, whatever a name resolves to, and within bounds of size and time."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, cast

import pytest

from stoker.errors import InvalidInput
from stoker.server.config import ServerConfig
from stoker.server.remote_files.fetch import Rules, fetch, is_public
from stoker.server.remote_files.messages import fetch_files
from stoker.text.media_parts import media_of_parts
from stoker.text.messages import message_from_dict
from tests.projector_files import picture

PUBLIC = "93.184.216.34"
WAV = b"RIFF\0\0\0\0WAVEfmt "
Reply = Callable[[socket.socket, bytes], None]


def answer(body: bytes, *headers: str, status: str = "200 OK") -> Reply:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""]
    return lambda sock, _: sock.sendall("\r\n".join(lines).encode() + body)


@contextmanager
def serving(reply: Reply) -> Generator[tuple[Rules, list[bytes], list[str]]]:
    """A server on this machine that the rules reach under a public address; the requests, and the addresses asked."""
    requests: list[bytes] = []
    addresses: list[str] = []
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with suppress(OSError):
            while True:
                sock, _ = listener.accept()
                with sock, suppress(OSError):
                    requests.append(sock.recv(65536))
                    reply(sock, requests[-1])

    def connect(address: str, port: int, wait_s: float) -> socket.socket:
        addresses.append(address)
        return socket.create_connection(listener.getsockname(), timeout=wait_s)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        names = {"internal.example": "10.0.0.7", "127.0.0.1": "127.0.0.1"}
        yield Rules(resolve=lambda host, _: [names.get(host, PUBLIC)], connect=connect), requests, addresses
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(10)


def got(url: str, rules: Rules, max_bytes: int = 1000) -> bytes:
    return fetch(url, max_bytes, rules, "url")


def test_a_file_of_a_public_address_is_fetched_under_its_own_name():
    with serving(answer(b"file")) as (rules, requests, addresses):
        assert got("http://example.com/a.png?b=c", rules) == b"file"
    assert requests[0].startswith(b"GET /a.png?b=c HTTP/1.1\r\nHost: example.com\r\n")
    assert addresses == [PUBLIC]


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "127.9.9.9",
        "0.0.0.0",
        "10.1.2.3",
        "172.16.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",
        "224.0.0.1",
        "255.255.255.255",
        "::1",
        "::",
        "fe80::1%eth0",
        "fc00::1",
        "ff02::1",
        "::ffff:127.0.0.1",
        "::ffff:169.254.169.254",
        "2002:7f00:1::",
        "64:ff9b::7f00:1",
        "64:ff9b:1::a00:1",
    ],
)
def test_no_other_address_is_asked(address: str):
    assert not is_public(address)
    with serving(answer(b"secret")) as (rules, requests, _):
        rules = Rules(resolve=lambda host, port: [PUBLIC, address], connect=rules.connect)
        with pytest.raises(InvalidInput, match="cannot be fetched"):
            got("http://example.com/", rules)
    assert not requests


@pytest.mark.parametrize("address", [PUBLIC, "2606:2800:220:1:248:1893:25c8:1946", "::ffff:93.184.216.34"])
def test_public_addresses_are_public(address: str):
    assert is_public(address)


@pytest.mark.parametrize(
    "url", ["http://2130706433/", "http://0x7f.1/", "http://127.1/", "http://localhost/", "http://[::ffff:127.0.0.1]/"]
)
def test_other_spellings_of_this_machine_are_not_asked(url: str):
    def connect(address: str, port: int, wait_s: float) -> socket.socket:
        raise AssertionError(f"{address} was asked")

    with pytest.raises(InvalidInput, match="cannot be fetched"):
        got(url, Rules(connect=connect))


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("file:///etc/passwd", "http or https"),
        ("ftp://example.com/", "http or https"),
        ("http:///nothing", "http or https"),
        ("http://user:secret@example.com/", "user"),
        ("http://example.com:22/", "port"),
        ("http://example.com/\r\nHost: other", "http or https"),
        ("http://example.com/" + "a" * 9000, "http or https"),
    ],
)
def test_what_is_no_plain_url_is_refused_with_the_rule(url: str, message: str):
    with pytest.raises(InvalidInput, match=message):
        got(url, Rules())


def test_only_some_domains_may_be_allowed():
    with serving(answer(b"file")) as (rules, requests, _):
        rules = Rules(domains=("example.com",), resolve=rules.resolve, connect=rules.connect)
        assert got("http://img.example.com/", rules) == b"file"
        for host in ("example.org", "notexample.com", "example.com.evil.org"):
            with pytest.raises(InvalidInput, match="not fetched here"):
                got(f"http://{host}/", rules)
    assert len(requests) == 1


def test_redirects_are_followed_a_few_times_and_checked_anew():
    def reply(sock: socket.socket, request: bytes) -> None:
        hops = {b"/1": "/2", b"/2": "http://other.example/3", b"/in": "http://internal.example/", b"/round": "/round"}
        path = request.split()[1]
        target = hops.get(path)
        if target is None:
            answer(b"file")(sock, request)
        else:
            answer(b"", f"Location: {target}", status="302 Found")(sock, request)

    with serving(reply) as (rules, requests, _):
        assert got("http://example.com/1", rules) == b"file"
        for path, count in (("/in", 1), ("/round", 4)):
            requests.clear()
            with pytest.raises(InvalidInput, match="cannot be fetched"):
                got(f"http://example.com{path}", rules)
            assert len(requests) == count
        for target in ("http://127.0.0.1/", "file:///etc/passwd", "http://example.com:22/"):
            requests.clear()
            moved = answer(b"", f"Location: {target}", status="302 Found")
            with serving(moved) as (others, _, asked), pytest.raises(InvalidInput):
                got("http://example.com/", others)
            assert asked == [PUBLIC]


def test_a_name_that_resolves_differently_the_next_time_gains_nothing():
    answers = iter([[PUBLIC], ["127.0.0.1"]])
    with serving(answer(b"file")) as (rules, _, addresses):
        rules = Rules(resolve=lambda host, port: next(answers), connect=rules.connect)
        assert got("http://rebinding.example/", rules) == b"file"
        assert addresses == [PUBLIC], "the address that was checked, and no other"


def test_a_file_that_is_too_large_is_not_read():
    def endless(sock: socket.socket, _: bytes) -> None:
        sock.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            sock.sendall(b"400\r\n" + bytes(1024) + b"\r\n")

    for reply in (endless, answer(bytes(2000)), lambda sock, _: sock.sendall(b"HTTP/1.1 200 OK\r\n\r\n" + bytes(2000))):
        with serving(cast("Reply", reply)) as (rules, _, _), pytest.raises(InvalidInput, match="cannot be fetched"):
            got("http://example.com/", rules)


def test_a_server_that_is_slow_is_given_up():
    """Each piece comes soon enough, but all of them together do not, neither of the head nor of the body."""
    is_over = threading.Event()

    def slow(first: bytes) -> Reply:
        def reply(sock: socket.socket, _: bytes) -> None:
            sock.sendall(first)
            while not is_over.wait(0.05):
                sock.sendall(b"a")

        return reply

    for first in (b"HTTP/1.1 200 OK\r\nX: ", b"HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n", b""):
        is_over.clear()
        with serving(slow(first)) as (rules, _, _):
            rules = Rules(resolve=rules.resolve, connect=rules.connect, wait_s=0.3)
            with pytest.raises(InvalidInput, match="cannot be fetched"):
                got("http://example.com/", rules)
            is_over.set()


def test_what_is_cut_off_packed_or_missing_is_no_file():
    cut = b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n12345"
    packed = answer(b"file", "Content-Encoding: gzip")
    for reply in (lambda sock, _: sock.sendall(cut), packed, answer(b"no", status="404 Not Found"), lambda *_: None):
        with serving(cast("Reply", reply)) as (rules, _, _), pytest.raises(InvalidInput, match="cannot be fetched"):
            got("http://example.com/", rules)


def fetched(messages: Any, rules: Rules, config: ServerConfig | None = None, *media: str) -> Any:
    asyncio.run(fetch_files(messages, media or ("image",), config or ServerConfig(), "messages", rules))
    return messages


def test_urls_of_every_dialect_become_files():
    url = "https://example.com/red.png".replace("https", "http")
    parts = [
        {"type": "image_url", "image_url": {"url": url, "detail": "low"}},
        {"type": "input_image", "image_url": url},
        {"type": "image", "source": {"type": "url", "url": url}},
        {"type": "tool_result", "content": [{"type": "image", "source": {"type": "url", "url": url}}]},
        {"type": "text", "text": url},
    ]
    with serving(answer(picture("red"))) as (rules, requests, _):
        found = fetched([{"role": "user", "content": parts}], rules, None)[0]["content"]
    assert len(requests) == 1
    assert found[0]["image_url"]["url"].startswith("data:;base64,")
    assert found[0]["image_url"]["detail"] == "low"
    assert found[1]["image_url"] == found[0]["image_url"]["url"]
    assert found[2]["source"]["type"] == found[3]["content"][0]["source"]["type"] == "base64"
    assert found[4]["text"] == url


def test_urls_of_recordings_are_fetched_if_the_model_takes_audio():
    url = "http://example.com/call.wav"
    sent = json.dumps([{"content": [{"type": "audio_url", "audio_url": {"url": url}}]}])
    short = json.dumps([{"content": [{"type": "audio_url", "audio_url": url}]}])
    with serving(answer(WAV)) as (rules, requests, _):
        assert fetched(json.loads(sent), rules, None, "image") == json.loads(sent)
        assert not requests
        for messages in (sent, short):
            part = message_from_dict({"role": "user", **fetched(json.loads(messages), rules, None, "audio")[0]}, "m")
            assert [media.kind for media in media_of_parts(cast("Sequence[Any]", part.content))] == ["audio"]
    assert len(requests) == 2


def test_what_a_url_gives_is_no_image_because_its_server_says_so():
    """The first bytes decide, as for files that clients send; the declared type counts for nothing."""
    part: dict[str, Any] = {"type": "image_url", "image_url": {"url": "http://example.com/red.png"}}
    page = answer(b"<!doctype html><html></html>", "Content-Type: image/png")
    with serving(page) as (rules, _, _):
        found = fetched([{"role": "user", "content": [part]}], rules)
    with pytest.raises(InvalidInput, match=r"is an HTML page, .* send PNG, JPEG, WebP or GIF"):
        message_from_dict(found[0], "messages[0]")


def test_nothing_is_fetched_if_the_settings_forbid_it_or_the_model_takes_no_images():
    part = {"type": "image_url", "image_url": {"url": "http://example.com/"}}
    with serving(answer(b"file")) as (rules, requests, _):
        fetched([{"content": [part]}], rules, ServerConfig(media_urls="off"))
        fetched([{"content": [part]}], rules, None, "audio")
        with pytest.raises(InvalidInput, match="may have 64"):
            fetched([{"content": [part] * 65}], rules)
    assert not requests

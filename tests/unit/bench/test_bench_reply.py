"""A reply means the same wherever the network cuts it."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.bench.reply import MalformedReply, ReplyParser

STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
EVENTS = b'data: {"a": 1}\n\n: a comment\n\nevent: x\r\ndata:{"b": 2}\r\n\r\ndata: [DONE]\n\n'
PAYLOADS = [b'{"a": 1}', b'{"b": 2}', b"[DONE]"]
CHUNKED = (
    STREAM
    + b"Transfer-Encoding: chunked\r\n\r\n"
    + b"".join(b"%x;ext=1\r\n%s\r\n" % (len(part), part) for part in (EVENTS[:5], EVENTS[5:20], EVENTS[20:]))
)
FRAMINGS = {
    "chunked": CHUNKED + b"0\r\n\r\n",
    "length": STREAM + b"Content-Length: %d\r\n\r\n" % len(EVENTS) + EVENTS,
    "until the end": STREAM + b"\r\n" + EVENTS,
}


@pytest.mark.parametrize("framing", FRAMINGS)
@given(cuts=st.sets(st.integers(1, 300)))
def test_every_framing_gives_the_same_payloads_however_it_is_cut(framing: str, cuts: set[int]) -> None:
    data = FRAMINGS[framing]
    at = [0, *sorted(cut for cut in cuts if cut < len(data)), len(data)]
    parser = ReplyParser()
    found = [payload for start, end in pairwise(at) for payload in parser.push(data[start:end])]
    parser.end()
    assert found == PAYLOADS
    assert (parser.status, parser.is_stream, parser.is_whole) == (200, True, True)


def test_a_chunked_reply_that_breaks_off_is_not_whole() -> None:
    parser = ReplyParser()
    assert parser.push(CHUNKED) == PAYLOADS
    parser.end()
    assert not parser.is_whole


def test_a_body_that_is_too_short_is_not_whole() -> None:
    parser = ReplyParser()
    parser.push(b"HTTP/1.1 500 X\r\nContent-Length: 9\r\n\r\nabc")
    parser.end()
    assert (parser.status, bytes(parser.body), parser.is_whole) == (500, b"abc", False)


def test_an_error_s_body_is_kept_and_no_event_is_seen_in_it() -> None:
    parser = ReplyParser()
    assert parser.push(b"HTTP/1.1 404 X\r\nContent-Type: text/event-stream\r\n\r\ndata: x\n\n") == []
    assert bytes(parser.body) == b"data: x\n\n"


def test_an_empty_body_is_whole() -> None:
    parser = ReplyParser()
    parser.push(b"HTTP/1.1 204 X\r\nContent-Length: 0\r\n\r\n")
    assert parser.is_whole


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n",
        b"x" * 70_000,
    ],
)
def test_broken_framing_is_an_error(data: bytes) -> None:
    with pytest.raises(MalformedReply):
        ReplyParser().push(data)

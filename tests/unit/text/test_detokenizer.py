"""Characters come out whole, and bytes that are none come out as U+FFFD."""

from __future__ import annotations

from stoker.text.detokenizer import Detokenizer

TOKENS = [b"Hi", b"", " ü"[:1].encode() + "ü".encode()[:1], "ü".encode()[1:], *(bytes([b]) for b in "😀".encode())]


def test_a_character_waits_for_its_last_byte() -> None:
    detokenizer = Detokenizer(TOKENS.__getitem__)
    assert [detokenizer.push(t) for t in range(len(TOKENS))] == ["Hi", "", " ", "ü", "", "", "", "😀"]
    assert detokenizer.flush() == ""


def test_the_rest_comes_out_when_flushed() -> None:
    detokenizer = Detokenizer(TOKENS.__getitem__)
    assert [detokenizer.push(4), detokenizer.push(5), detokenizer.flush()] == ["", "", "\ufffd"]
    assert detokenizer.push(0) == "Hi"


def test_bytes_that_are_no_text_come_out_at_once() -> None:
    detokenizer = Detokenizer([b"\xff", b"\xc3", b"a"].__getitem__)
    assert [detokenizer.push(t) for t in range(3)] == ["\ufffd", "", "\ufffda"]

"""The stop matcher equals a slow search over the whole text, wherever the text is cut."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.text.stop import StopMatcher
from tests.brief import examples

ALPHABET = "ab"
STOPS = st.lists(st.text(ALPHABET, min_size=1, max_size=5), max_size=5)
PIECES = st.lists(st.text(ALPHABET + "c", max_size=6), max_size=12)


def slow_search(stops: list[str], text: str) -> tuple[str, str | None]:
    """The text before the match that ends first (the longest of those), and the match."""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            matched = max(complete, key=len)
            return text[: end - len(matched)], matched
    return text, None


def longest_open_tail(stops: list[str], text: str) -> int:
    beginnings = {stop[:n] for stop in stops for n in range(1, len(stop))}
    return max((n for n in range(1, len(text) + 1) if text[-n:] in beginnings), default=0)


@settings(max_examples=examples(400))
@given(STOPS, PIECES)
def test_equals_a_search_over_the_whole_text(stops: list[str], pieces: list[str]) -> None:
    matcher = StopMatcher(stops)
    output = "".join(matcher.push(piece) for piece in pieces) + matcher.flush()
    assert (output, matcher.matched) == slow_search(stops, "".join(pieces))


@settings(max_examples=examples(400))
@given(STOPS, PIECES)
def test_holds_back_exactly_what_may_still_become_a_stop_string(stops: list[str], pieces: list[str]) -> None:
    matcher = StopMatcher(stops)
    text = output = ""
    for piece in pieces:
        text += piece
        output += matcher.push(piece)
        before, matched = slow_search(stops, text)
        assert matcher.matched == matched
        if matched is not None:
            assert output == before
            return
        assert output == text[: len(text) - longest_open_tail(stops, text)]

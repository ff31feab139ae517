"""What is let through, what is held back, and which stop string wins."""

from __future__ import annotations

import tracemalloc

import pytest

from stoker.text.stop import StopMatcher


def run(stops: list[str], *texts: str) -> tuple[list[str], str | None]:
    matcher = StopMatcher(stops)
    return [*(matcher.push(text) for text in texts), matcher.flush()], matcher.matched


def test_without_stop_strings_text_passes() -> None:
    assert run([], "a", "", "b") == (["a", "", "b", ""], None)


def test_a_stop_string_over_several_pieces() -> None:
    assert run(["</end>"], "hello <", "/e", "nd> more", "even more") == (["hello ", "", "", "", ""], "</end>")


def test_what_does_not_become_a_stop_string_is_released() -> None:
    assert run(["</end>"], "a </e", "lse", "b") == (["a ", "</else", "b", ""], None)


def test_what_is_still_held_back_at_the_end_is_flushed() -> None:
    assert run(["stop"], "do not st", "o") == (["do not ", "", "sto"], None)


def test_only_the_longest_possible_beginning_is_held_back() -> None:
    assert run(["aab"], "a", "a", "a", "a") == (["", "", "a", "a", "aa"], None)


@pytest.mark.parametrize(
    ("stops", "text", "before", "matched"),
    [
        (["abcd", "bc"], "xabcd", "xa", "bc"),  # complete first
        (["b", "ab"], "xab", "x", "ab"),  # complete together: the longest
        (["ab", "b"], "xab", "x", "ab"),
        (["abc", "bd"], "abd", "a", "bd"),  # the match begins inside a failed one
        (["a", "ab"], "ab", "", "a"),
        (["aa"], "baaa", "b", "aa"),
        (["\n\n", "\n"], "x\n\n", "x", "\n"),
        (["same", "same"], "the same", "the ", "same"),
        (["ü😀"], "aü😀", "a", "ü😀"),
        (["ababc"], "abababc", "ab", "ababc"),
    ],
)
def test_which_stop_string_wins(stops: list[str], text: str, before: str, matched: str) -> None:
    for pieces in ([text], list(text)):
        outputs, found = run(stops, *pieces)
        assert ("".join(outputs), found) == (before, matched)


def test_nothing_comes_after_a_match() -> None:
    matcher = StopMatcher(["x"])
    assert [matcher.push("axb"), matcher.push("c"), matcher.flush()] == ["a", "", ""]


def test_a_long_near_miss_comes_out_a_character_at_a_time() -> None:
    matcher = StopMatcher(["a" * 50 + "b"])
    outputs = [matcher.push("a") for _ in range(200)]
    assert outputs == [""] * 50 + ["a"] * 150
    assert (matcher.push("b"), matcher.matched) == ("", "a" * 50 + "b")


def test_a_long_stop_string_takes_little_memory() -> None:
    StopMatcher(["warm-up"])
    stop = "x" * 10_000
    tracemalloc.start()
    try:
        matcher = StopMatcher([stop])
        num_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert num_bytes < 50 * len(stop)
    assert [matcher.push(stop[1:]), matcher.push("yx"), matcher.push(stop)] == ["", stop[1:] + "y", ""]
    assert matcher.matched == stop

from __future__ import annotations

import pytest

from stoker.errors import ConfigError
from stoker.text.messages import Message, TextPart
from stoker.text.volatile import VolatileHeaders

BILLING = r"x-anthropic-billing-header: .*"
HEADER = "x-anthropic-billing-header: cc_version=2.1; cch=f00ba"
USER = Message(role="user", content=HEADER)


def system(content: str | tuple[TextPart, ...] | None) -> Message:
    return Message(role="system", content=content)


def dropped(content: str | tuple[TextPart, ...] | None, *patterns: str) -> object:
    first, second = VolatileHeaders(patterns or (BILLING,)).drop([system(content), USER])
    assert second is USER
    return first.content


def test_without_patterns_nothing_changes() -> None:
    messages = [system(f"{HEADER}\nBe kind."), USER]
    assert VolatileHeaders(()).drop(messages) is messages


def test_matching_lines_at_the_head_are_dropped() -> None:
    assert dropped(f"{HEADER}\nBe kind.\n{HEADER}") == f"Be kind.\n{HEADER}"
    assert dropped(f"{HEADER}\r\n{HEADER}\nBe kind.") == "Be kind."
    assert dropped("Date: today\n" + HEADER + "\nBe kind.", r"Date: \w+", BILLING) == "Be kind."
    assert dropped(HEADER) == ""


def test_two_requests_that_differ_in_the_header_become_one_prompt() -> None:
    assert dropped(f"{HEADER}1\nBe kind.") == dropped(f"{HEADER}2\nBe kind.")


@pytest.mark.parametrize("content", ["Be kind.", f"Be kind.\n{HEADER}", f" {HEADER}", "", None])
def test_anything_else_is_left_alone(content: str | None) -> None:
    messages = [system(content), USER]
    assert VolatileHeaders([BILLING]).drop(messages) is messages


def test_a_line_must_match_whole() -> None:
    assert dropped("Date: today. Be kind.", "Date: today") == "Date: today. Be kind."


def test_a_part_that_is_only_a_header_goes() -> None:
    """As agents send it: the header is a text block of its own."""
    assert dropped((TextPart(HEADER), TextPart("Be kind."))) == (TextPart("Be kind."),)
    assert dropped((TextPart(f"{HEADER}\nBe"), TextPart("kind."))) == (TextPart("Be"), TextPart("kind."))
    assert dropped((TextPart("Be"), TextPart(HEADER))) == (TextPart("Be"), TextPart(HEADER))
    assert dropped((TextPart(HEADER),)) == ()


def test_only_a_system_prompt_has_headers() -> None:
    messages = [USER, system(HEADER)]
    assert VolatileHeaders([BILLING]).drop(messages) is messages
    assert VolatileHeaders([BILLING]).drop([]) == []
    first = VolatileHeaders([BILLING]).drop([Message(role="developer", content=f"{HEADER}\nBe kind.")])[0]
    assert first.content == "Be kind."


def test_a_very_long_line_is_no_header() -> None:
    long = "x" * 5000
    assert dropped(f"{long}\nrest", "x*") == f"{long}\nrest"


def test_a_bad_pattern_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"volatile-header '\('") as caught:
        VolatileHeaders(["fine", "("])
    assert caught.value.fields["key"] == "volatile_headers"

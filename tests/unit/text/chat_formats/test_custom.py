"""The text of a custom tool, out of the arguments of its call."""

import json

import pytest

from stoker.text.chat_formats.custom import CustomInput
from stoker.text.chat_formats.events import CallEnd, Content, Reasoning
from stoker.text.chat_formats.reader import _joined

TEXT = 'a "quoted"\n\\n\t🙂 Zürich \u2028 end'


def cut(arguments: str, size: int) -> str:
    custom = CustomInput()
    pieces = [custom.push(arguments[at : at + size]) for at in range(0, len(arguments), size)]
    return "".join([*pieces, custom.end()])


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize("is_ascii", [True, False])
def test_the_text_is_the_same_for_every_cut(size: int, is_ascii: bool) -> None:
    arguments = json.dumps({"input": TEXT}, ensure_ascii=is_ascii, indent=1)
    assert cut(arguments, size) == TEXT


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ('{"input": ""}', ""),
        ('{"note": 1, "input": "x"}', "x"),
        ('{"code": "x"}', '{"code": "x"}'),
        ('{"input": 3}', '{"input": 3}'),
        ("{}", "{}"),
        ('{"input": "half', "half"),
        (r'{"input": "\ud83d!"}', "?!"),
        (r'{"input": "\ud83d"}', "?"),
    ],
)
def test_other_arguments(arguments: str, text: str) -> None:
    assert cut(arguments, 1) == cut(arguments, 1000) == text


class Counted(str):
    """A piece that counts the characters that are copied when it is added to a text."""

    num_copied = 0
    __slots__ = ()

    def __radd__(self, before: str) -> str:
        Counted.num_copied += len(before) + len(self)
        return before + str(self)

    def __add__(self, after: str) -> str:
        Counted.num_copied += len(self) + len(after)
        return str(self) + after


def test_long_arguments_of_another_shape_are_copied_a_few_times_only() -> None:
    arguments = json.dumps({"code": "x" * 20_000})
    Counted.num_copied = 0
    custom = CustomInput()
    for character in arguments:
        assert custom.push(Counted(character)) == ""
    assert custom.end() == arguments
    assert Counted.num_copied < 10 * len(arguments)


def test_a_late_opening_is_found_at_the_end() -> None:
    arguments = " " * 1000 + json.dumps({"input": TEXT})
    assert cut(arguments, 1) == cut(arguments, 10_000) == TEXT


def test_many_pieces_of_an_answer_are_joined_at_once() -> None:
    events = [Content(Counted("a")) for _ in range(1000)] + [CallEnd()] + [Reasoning("b"), Reasoning("c")]
    Counted.num_copied = 0
    assert _joined(events) == [Content("a" * 1000), CallEnd(), Reasoning("bc")]
    assert Counted.num_copied == 0

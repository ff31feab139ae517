"""The text of a custom tool, out of the arguments of its call."""

import json

import pytest

from stoker.text.chat_formats.custom import CustomInput

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

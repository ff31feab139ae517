from __future__ import annotations

import re

import stoker.errors
from stoker.errors import ContextLengthExceeded, StokerError, error_from_code


def family(root: type[StokerError]) -> list[type[StokerError]]:
    return [root, *(c for child in root.__subclasses__() for c in family(child))]


def test_the_tree_in_the_docstring_is_the_tree_of_the_code() -> None:
    block = (stoker.errors.__doc__ or "").split("```")[1]
    drawn = re.findall(r"^[│├└─ ]*([A-Z]\w+) +(\w+)", block, re.MULTILINE)
    assert drawn == [(cls.__name__, cls.code) for cls in sorted(family(StokerError), key=drawn_order(drawn))]


def drawn_order(drawn: list[tuple[str, str]]):
    names = [name for name, _ in drawn]
    return lambda cls: names.index(cls.__name__)


def test_codes_are_unique() -> None:
    codes = [cls.code for cls in family(StokerError)]
    assert len(codes) == len(set(codes))


def test_an_error_survives_a_process_border() -> None:
    error = ContextLengthExceeded("too long", num_prompt_tokens=9, context_size=8)
    again = error_from_code(error.code, error.message, error.fields)
    assert type(again) is ContextLengthExceeded
    assert (str(again), again.fields) == ("too long", {"num_prompt_tokens": 9, "context_size": 8})
    assert type(error_from_code("from_the_future", "?", {})) is StokerError

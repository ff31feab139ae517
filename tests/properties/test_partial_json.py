"""The strings of a JSON value are read the same, however its text is cut into pieces."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from stoker.server.dialects.responses.partial_json import JSONStrings, StringPiece

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=12,
)


def strings_of(value: Any, path: tuple[str | int, ...] = ()) -> list[tuple[tuple[str | int, ...], str]]:
    if isinstance(value, str):
        return [(path, value)]
    members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [found for key, member in members for found in strings_of(member, (*path, key))]


def joined(pieces: list[StringPiece]) -> list[tuple[tuple[str | int, ...], str]]:
    """The strings of the pieces; the last may have no end."""
    found: list[tuple[tuple[str | int, ...], str]] = []
    text = ""
    for piece in pieces:
        text += piece.text
        if piece.is_end:
            found.append((piece.path, text))
            text = ""
    assert not text
    return found


@given(VALUES, st.booleans(), st.lists(st.integers(1, 9), max_size=40), st.sampled_from([None, 1]))
def test_pieces_make_the_strings(value: Any, is_ascii: bool, sizes: list[int], indent: int | None):
    text = json.dumps(value, ensure_ascii=is_ascii, indent=indent)
    reader, pieces = JSONStrings(), list[StringPiece]()
    for size in sizes:
        pieces += reader.push(text[:size])
        text = text[size:]
    pieces += reader.push(text)
    assert joined(pieces) == strings_of(value)


@given(st.text(st.sampled_from('{}[],:"\\ud8a 1é'), max_size=40), st.integers(1, 5))
def test_what_is_not_json_is_read_to_its_end(text: str, size: int):
    reader = JSONStrings()
    for at in range(0, len(text), size):
        for piece in reader.push(text[at : at + size]):
            piece.text.encode()

r"""A model may spell the characters of JSON as it likes: `é`, `\u00e9`, `\u00E9`, and `/` as `\/`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from stoker.backends.scripted import EOS
from stoker.core.outline import GrammarText
from stoker.grammars.matcher import GrammarConstraint
from stoker.grammars.vocabulary import Vocabulary
from stoker.models.gguf import read_gguf
from stoker.models.vocabulary import read_vocabulary
from stoker.text.vocabulary import build_tokenizer
from tests.brief import examples
from tests.grammars import BYTES, Answers

TEXT = {"type": "string"}
CHARACTERS = st.sampled_from('aé中😀/"\\\n\t ñ<u0\u2028')


def schema_of(schema: Any) -> GrammarText:
    return GrammarText(kind="json_schema", text=json.dumps(schema))


def spelled(text: str, rng: Random) -> str:
    """A string of JSON in which any character may be an escape sequence."""
    parts: list[str] = []
    for char in text:
        escaped = json.dumps(char)[1:-1]
        numeric = escaped if escaped.startswith("\\u") else f"\\u{ord(char):04x}"
        plain = json.dumps(char, ensure_ascii=False)[1:-1]
        found = rng.choice([plain, numeric, re.sub(r"[a-f]", lambda digit: digit[0].upper(), numeric)])
        parts.append("\\/" if char == "/" and rng.random() < 0.5 else found)
    return f'"{"".join(parts)}"'


@settings(max_examples=60, deadline=None)
@example("\\u00e9\\\\u/", 0)
@example("\\\\u00e9", 1)
@given(text=st.text(CHARACTERS, max_size=6), seed=st.integers(0, 99))
def test_each_spelling_of_a_text_is_as_good_as_any_other(answers: Answers, text: str, seed: int) -> None:
    written = spelled(text, Random(seed))
    assert json.loads(written) == text
    for schema in (TEXT, {**TEXT, "maxLength": 4}, {**TEXT, "pattern": r"^[^ñ\n]*$"}):
        plain = json.dumps(text, ensure_ascii=False)
        assert answers.accept(schema_of(schema), written) == answers.accept(schema_of(schema), plain), schema


@pytest.mark.parametrize(
    "text", [r'"\ud83d"', r'"\ude00"', r'"\ud83dA"', r'"\u00g9"', r'"\u00e"', r'"\u0000"', r'"\x41"', r'"\a"']
)
def test_what_is_no_character_is_refused(answers: Answers, text: str) -> None:
    assert not answers.accept(schema_of(TEXT), text)


def test_a_key_cannot_be_written_twice_or_in_disguise(answers: Answers) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": TEXT}
    assert answers.accept(schema_of(schema), r'{"a": 1, "b\u00e9": "x"}')
    assert not answers.accept(schema_of(schema), r'{"\u0061": "x"}')
    assert not answers.accept(schema_of(schema), r'{"a": 1, "\u0061": 2}')
    assert not answers.accept(schema_of({**schema, "additionalProperties": False}), r'{"\u0062": "x"}')


@pytest.mark.parametrize("text", ["Genève", "Zürich", "Bern"])
def test_names_that_a_schema_lists_may_be_written_so_too(answers: Answers, text: str) -> None:
    cities: Any = {"type": "object", "properties": {"städte": {"enum": ["Genève", "Zürich", "Bern", 7]}}}
    cities["required"] = ["städte"]
    assert answers.accept(schema_of(cities), json.dumps({"städte": text}))
    assert answers.accept(schema_of({**TEXT, "pattern": "^[a-zA-Zà-ü]{4,6}$"}), json.dumps(text))
    assert not answers.accept(schema_of(cities), json.dumps({"städte": "Bérn"}))
    assert not answers.accept(schema_of({"enum": ["Bern", 7]}), r'"\u0042ern"')
    assert not answers.accept(schema_of({"enum": [1.5, 0, "é"]}), r"\u0030")


def test_escape_sequences_are_texts_where_any_text_may_stand(answers: Answers) -> None:
    for text in (r"\u00zz", r"\ud83d", r"a\/b\\u"):
        assert answers.accept(GrammarText(kind="regex", text="(?s:.*)"), text)
    assert not answers.accept(GrammarText(kind="regex", text=r"[^u]*"), r"\u00e9")


def allowed(constraint: GrammarConstraint) -> list[int]:
    words = constraint.mask()
    assert words is not None
    return np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little")).tolist()


PATTERNS = [
    r"^[^ñ\n]*$",
    r"^(?:[\n中]|é{2})*$",
    r"^[\u00f0-\u0100\\]*$",
    r"^[😀-😄\t]*$",
    r"^[^\x00-\x7f]*\n$",
    r"^.{0,5}$",
]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_every_walk_through_the_masks_is_a_text_that_matches(answers: Answers, pattern: str) -> None:
    rng = Random(pattern)
    for _ in range(examples(12)):
        constraint = answers.open(schema_of({**TEXT, "pattern": pattern}))
        token_ids: list[int] = []
        while len(token_ids) < 60 and not constraint.is_complete:
            found = allowed(constraint)
            assert found, bytes(token_ids)
            assert found == allowed(constraint.copy())
            assert found == [each for each in range(BYTES.tokenizer.vocab_size) if constraint.allows(each)]
            chosen = rng.choice([each for each in found if each in b"\\u/0123456789abcdefABCDEF"] or found)
            if rng.random() < 0.25:
                chosen = rng.choice(found)
            if len(token_ids) > 30 and ord('"') in found:
                chosen = ord('"')
            assert constraint.copy().validate([chosen]) == 1
            forced = constraint.forced_text()
            assert not forced or constraint.allows(forced[0])
            constraint = constraint.copy()
            constraint.push(chosen)
            assert constraint.error is None
            token_ids.append(chosen)
        text = bytes(each for each in token_ids if each != EOS)
        if constraint.can_end:
            assert re.search(pattern, json.loads(text)), text


@pytest.fixture(scope="module")
def smollm2(smollm2_path: Path) -> Iterator[Answers]:
    with read_gguf(smollm2_path) as gguf:
        tokenizer = build_tokenizer(read_vocabulary(gguf))
    answers = Answers(Vocabulary(tokenizer, frozenset({2}), frozenset({0, 1, 2})))
    yield answers
    answers.compiler.close()


@pytest.mark.parametrize("pattern", ["^[a-zç-ü]*\n?$", "^.{0,9}$", "^[a-z一-鿿]*\n?$"])
def test_masks_in_the_tokens_of_a_model(smollm2: Answers, pattern: str) -> None:
    rng = Random(pattern)
    tokenizer = smollm2.vocabulary.tokenizer
    pieces = [tokenizer.token_bytes(each) for each in range(tokenizer.vocab_size)]
    spelling = {each for each, piece in enumerate(pieces) if re.search(rb"\\u|^u|^[0-9a-f]{1,2}[a-z]?$", piece)}
    for _ in range(examples(6)):
        constraint = smollm2.open(schema_of({**TEXT, "pattern": pattern}))
        text = b""
        while not constraint.is_complete and len(text) < 80:
            found = allowed(constraint)
            likely = [each for each in found if each in spelling]
            chosen = rng.choice(likely if likely and rng.random() < 0.7 else found)
            assert all(map(constraint.allows, found[:: len(found) // 40 + 1]))
            constraint.push(chosen)
            assert constraint.error is None
            text += tokenizer.token_bytes(chosen)
        if constraint.can_end:
            assert re.search(pattern, json.loads(text)), text


@pytest.mark.parametrize(
    "text",
    [
        "Jalapeño",
        "5 € in Zürich",
        "中文 in a/b",
        'a "😀" \\ b\n',
        "C:\\u",
        "München",
        "García",
        "forêt naïve",
        "中abc",
        "\\",
        "œ\u2028",
    ],
)
def test_what_a_real_model_writes_is_followed(smollm2: Answers, text: str) -> None:
    schema = {"type": "object", "properties": {"text": {**TEXT, "maxLength": 40}}, "required": ["text"]}
    for written in (json.dumps({"text": text}), json.dumps({"text": text}).replace("/", "\\/")):
        assert json.loads(written) == {"text": text}
        constraint = smollm2.open(schema_of(schema))
        for token_id in smollm2.vocabulary.tokenizer.encode(written, parse_special=False):
            assert token_id in allowed(constraint), written
            constraint.push(token_id)
        assert constraint.can_end

"""Whatever schema is lowered: what its grammar lets through, an independent validator finds valid."""

from __future__ import annotations

import decimal
import json
from collections.abc import Iterator
from random import Random
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from stoker.core.outline import GrammarText
from stoker.errors import GrammarTooComplex, UnsupportedSchema
from tests.brief import examples
from tests.grammars import BYTES, Answers, accepts, random_text, read_json

DIGITS = 20_000
"""The validator divides numbers as large as 7E+57, which the usual precision of decimals does not allow."""
NAMES = ("a", "b", "c")
SCALARS: list[Any] = [None, True, False, 0, 1, 2, 1.5, -3, "", "a", "b", "ab", "a\nb", "é"]
VALUES: list[Any] = [
    *SCALARS,
    *([], [1], ["a", "b"], [1, 1], [1, "a", None], [[]]),
    *({}, {"a": 1}, {"a": "a", "b": 2}, {"b": None}, {"c": {"a": 1}}, {"a": [1], "c": "ab", "d": 0}, {"ab": 1}),
]
TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")


def schemas() -> SearchStrategy[Any]:
    return st.recursive(leaves(), branches, max_leaves=6)


def leaves() -> SearchStrategy[Any]:
    small = st.integers(0, 3)
    keywords: dict[str, SearchStrategy[Any]] = {
        "type": st.sampled_from(TYPES) | st.lists(st.sampled_from(TYPES), min_size=1, max_size=3, unique=True),
        "const": st.sampled_from(VALUES),
        "enum": st.lists(st.sampled_from(VALUES), min_size=1, max_size=4),
        "minimum": st.integers(-3, 3) | st.sampled_from([0.5, 2**60 + 1]),
        "exclusiveMinimum": small,
        "maximum": st.integers(-3, 3) | st.sampled_from([2.5, 2**70]),
        "exclusiveMaximum": small,
        "multipleOf": st.sampled_from([1, 2, 0.5, 3, 0.1]),
        "minLength": small,
        "maxLength": small,
        "pattern": st.sampled_from(["^a", "b$", "^[^a]*$", r"\s", r"^\S+$", "a.b", "^(a|b)+$", "(?=a)", r"\d{2,}"]),
        "format": st.sampled_from(["date", "time", "ipv4", "uuid", "email", "unheard-of"]),
        "required": st.lists(st.sampled_from(NAMES), max_size=2, unique=True),
        "minProperties": small,
        "maxProperties": small,
        "minItems": small,
        "maxItems": small,
        "uniqueItems": st.booleans(),
        "dependentRequired": st.dictionaries(
            st.sampled_from(NAMES), st.lists(st.sampled_from(NAMES), max_size=2, unique=True), max_size=2
        ),
    }
    return st.booleans() | objects(keywords, 3)


def branches(inner: SearchStrategy[Any]) -> SearchStrategy[Any]:
    several = st.lists(inner, min_size=1, max_size=3)
    # Only for parts of a value: no draft says what a schema means that refers to itself for the same value.
    part = inner | st.sampled_from([{"$ref": to} for to in ("#", "#/$defs/a", "#/$defs/b")])
    keywords: dict[str, SearchStrategy[Any]] = {
        **dict.fromkeys(("not", "if", "then", "else", "propertyNames"), inner),
        **dict.fromkeys(("additionalProperties", "items"), part),
        **dict.fromkeys(("anyOf", "oneOf", "allOf"), several),
        "prefixItems": st.lists(part, min_size=1, max_size=3),
        "dependentSchemas": st.dictionaries(st.sampled_from(NAMES), inner, max_size=3),
        "properties": st.dictionaries(st.sampled_from(NAMES), part, max_size=3),
        "patternProperties": st.dictionaries(st.sampled_from(["^a", "b$", "^c"]), part, max_size=2),
        "unevaluatedProperties": st.booleans(),
        "type": st.sampled_from(TYPES),
        "required": st.lists(st.sampled_from(NAMES), max_size=2, unique=True),
        "minProperties": st.integers(0, 3),
        "uniqueItems": st.booleans(),
        "contains": inner,
    }
    return objects(keywords, 4)


def objects(keywords: dict[str, SearchStrategy[Any]], most: int) -> SearchStrategy[Any]:
    return st.lists(st.sampled_from(sorted(keywords)), max_size=most, unique=True).flatmap(
        lambda chosen: st.fixed_dictionaries({keyword: keywords[keyword] for keyword in chosen})
    )


@pytest.fixture(scope="module")
def answers() -> Iterator[Answers]:
    answers = Answers()
    yield answers
    answers.compiler.close()


@settings(max_examples=examples(250), suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.data_too_large])
@given(schemas(), schemas(), schemas(), st.integers(0, 2**32))
def test_what_the_grammar_of_a_schema_lets_through_is_valid(
    answers: Answers, schema: Any, one: Any, other: Any, seed: int
) -> None:
    whole = {**schema, "$defs": {"a": one, "b": other}} if isinstance(schema, dict) else schema
    grammar = GrammarText(kind="json_schema", text=json.dumps(whole))
    try:
        constraint = answers.open(grammar)
    except (UnsupportedSchema, GrammarTooComplex):
        return
    validator = jsonschema.Draft202012Validator(
        read_json(grammar.text), format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
    )
    for value in VALUES:
        text = json.dumps(value, ensure_ascii=False)
        if accepts(constraint.copy(), list(text.encode())):
            assert validator.is_valid(read_json(text)), value
    random = Random(seed)
    for _ in range(4):
        text = random_text(constraint.copy(), BYTES, random)
        if text is not None:
            with decimal.localcontext(prec=DIGITS):
                assert validator.is_valid(read_json(text)), text

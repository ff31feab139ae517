"""What keywords become, shown by what the grammar then accepts."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from stoker.core.outline import GrammarText
from stoker.errors import GrammarInvalid, GrammarTooComplex, UnsupportedSchema
from stoker.grammars.schemas import Lowered, lower_schema, parse_json
from tests.grammars import Answers
from tests.waiting import BOUND_S


def lower(text: str, *, is_strict: bool = True) -> Lowered:
    return lower_schema(parse_json(text), is_strict=is_strict)


TREE = {"type": "object", "properties": {"v": {"type": "integer"}, "next": {"$ref": "#/$defs/tree"}}, "required": ["v"]}
KINDS = {
    "oneOf": [
        {"properties": {"kind": {"const": "a"}, "n": {"type": "integer"}}, "required": ["kind", "n"]},
        {"properties": {"kind": {"const": "b"}}, "required": ["kind"]},
    ],
    "type": "object",
}
AB = {"a": {"type": "integer"}, "b": {"type": "integer"}}
CLOSED = {"type": "object", "properties": {**AB, "c": {"type": "null"}}, "additionalProperties": False}

CASES: list[tuple[Any, list[str], list[str]]] = [
    ({"format": "phone", "type": "string"}, ['"x"'], ["1"]),
    ({"format": "date", "type": "string"}, ['"2023-02-28"'], ['"2023-02-30"', '"x"']),
    ({"not": {"type": "string"}}, ["1", "null", "[]"], ['"x"']),
    ({"type": "object", "not": {"required": ["a"]}}, ['{"b": 1}', "{}"], ['{"a": 1}']),
    ({"enum": ["a", "b", 1], "not": {"enum": ["b", 1]}}, ['"a"'], ['"b"', "1"]),
    ({"type": "string", "not": {"const": "no"}}, ['"n"', '"nob"', '""'], ['"no"']),
    ({"type": "integer", "not": {"enum": [3, 5]}}, ["2", "4", "6"], ["3", "5"]),
    (KINDS, ['{"kind": "a", "n": 1}', '{"kind": "b"}'], ['{"kind": "a"}', '{"kind": "c"}']),
    (
        {"oneOf": [{"required": ["a"]}, {"required": ["b"]}], **CLOSED},
        ['{"a": 1}', '{"b": 1}'],
        ['{"a": 1, "b": 1}', "{}"],
    ),
    ({"oneOf": [{"enum": [1, 2]}, {"enum": [2, 3]}]}, ["1", "3"], ["2"]),
    ({"oneOf": [{"type": "integer"}, {"type": "string"}]}, ["1", '"x"'], ["null"]),
    ({"oneOf": [{"type": "integer", "maximum": 5}, {"type": "integer", "minimum": 3}]}, ["2", "6"], ["3", "5"]),
    ({"dependentRequired": {"a": ["b"]}, **CLOSED}, ['{"b": 1}', '{"a": 1, "b": 1}'], ['{"a": 1}']),
    ({"dependencies": {"a": ["b"]}, **CLOSED}, ['{"b": 1}', '{"a": 1, "b": 1}'], ['{"a": 1}']),
    (
        {"dependentSchemas": {"a": {"properties": {"b": {"minimum": 5}}}}, **CLOSED},
        ['{"b": 1}', '{"a": 1, "b": 5}'],
        ['{"a": 1, "b": 4}'],
    ),
    (
        {"if": {"properties": {"a": {"const": 1}}, "required": ["a"]}, "then": {"required": ["b"]}, **CLOSED},
        ['{"a": 1, "b": 2}', '{"a": 2}', "{}"],
        ['{"a": 1}'],
    ),
    (
        {"if": {"properties": {"k": {"const": "x"}}}, "then": {"required": ["n"]}, "else": {"required": ["m"]}}
        | {"type": "object", "properties": {"k": {"type": "string"}, "n": True, "m": True}},
        ['{"k": "x", "n": 1}', '{"k": "y", "m": 1}', '{"n": 1}'],
        ['{"k": "x", "m": 1}', '{"k": "y", "n": 1}', '{"m": 1}'],
    ),
    (
        {"type": "string", "pattern": r"^(?=.*[0-9])(?=.*[)|])[a-z0-9|)]{3,4}$"},
        ['"a1|"', '"2)bc"', '"|||1"'],
        ['"a1b"', '"a|b"', '"1|"', '"1|234"'],
    ),
    ({"type": "array", "prefixItems": {"type": "string"}, "items": {}}, ['["a", "b"]', "[]"], ['["a", 1]', "[1]"]),
    ({"type": "object", "propertyNames": {"pattern": "^a"}}, ['{"ab": 1}', "{}"], ['{"ba": 1}']),
    (
        {"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": {"type": "number"}},
        ['{"a": 1}', "{}"],
        ['{"a": "b"}'],
    ),
    ({"type": "object", "propertyNames": {"enum": ["x", "y"]}}, ['{"x": 1}'], ['{"z": 1}']),
    ({"type": "object", "propertyNames": {"maxLength": 2}}, ['{"xx": 1}'], ['{"xxx": 1}']),
    (
        {"type": "array", "items": {"enum": ["x", "y", "z"]}, "uniqueItems": True, "minItems": 1},
        ['["x"]', '["x", "z"]'],
        ['["x", "x"]', "[]"],
    ),
    ({"type": "array", "uniqueItems": True, "maxItems": 1}, ["[]", "[1]"], ["[1, 1]"]),
    ({"minProperties": 2, **CLOSED}, ['{"a": 1, "c": null}'], ['{"a": 1}', "{}"]),
    ({"maxProperties": 1, **CLOSED}, ['{"c": null}', "{}"], ['{"a": 1, "b": 1}']),
    (
        {"minProperties": 2, "maxProperties": 2, **CLOSED},
        ['{"a": 1, "b": 1}'],
        ['{"a": 1}', '{"a": 1, "b": 1, "c": null}'],
    ),
    ({"type": "object", "minProperties": 1}, ['{"a": 1}'], ["{}"]),
    ({"type": "object", "properties": AB, "unevaluatedProperties": False}, ['{"a": 1}'], ['{"c": 1}']),
    ({"type": "string", "nullable": True}, ['"x"', "null"], ["1"]),
    ({"type": "integer", "minimum": 1, "exclusiveMinimum": True}, ["2"], ["1"]),
    ({"type": "number", "multipleOf": 0.01}, ["0.07", "3"], ["0.075"]),
    ({"allOf": [{"type": "integer", "multipleOf": 4}, {"multipleOf": 6}]}, ["12"], ["4", "6"]),
    (
        {"allOf": [{"properties": AB}, {"required": ["b"]}, {"properties": {"b": {"maximum": 3}}}]},
        ['{"b": 3}'],
        ['{"b": 4}'],
    ),
    ({"type": "array", "items": [{"type": "null"}], "additionalItems": False}, ["[null]", "[]"], ["[1]", "[null, 1]"]),
    ({"prefixItems": [{"type": "null"}], "items": {"type": "string"}}, ['[null, "x"]'], ["[null, 1]"]),
    ({"$ref": "#/$defs/tree", "$defs": {"tree": TREE}}, ['{"v": 1, "next": {"v": 2}}'], ['{"v": 1, "next": {}}']),
    ({"$ref": "#tree", "$defs": {"t": {**TREE, "$anchor": "tree"}, "tree": TREE}}, ['{"v": 1}'], ["{}"]),
    (
        {"$ref": "item.json", "$id": "http://x/a.json", "$defs": {"i": {"$id": "item.json", "type": "null"}}},
        ["null"],
        ["1"],
    ),
    ({"$ref": "#/definitions/a~1b", "definitions": {"a/b": {"type": "null"}}, "maxLength": 1}, ["null"], ["1"]),
    (
        {"properties": AB, "type": "object", "additionalProperties": {"type": "string"}},
        ['{"c": "x"}'],
        [r'{"\u0061": "x"}'],
    ),
    ({"const": 2**53 + 2}, [str(2**53 + 2)], [str(2**53 + 1), str(2**53)]),
    ({"type": "integer", "maximum": 2**64 - 1}, ["5"], [str(2**64)]),
    ({"enum": [True, 1.0]}, ["true", "1"], ["false", "0"]),
    ({"type": "object", "properties": {"n": {"$ref": "#/$defs/no"}}, "$defs": {"no": False}}, ["{}"], ['{"n": 1}']),
    (
        {"format": "duration", "type": "string"},
        ['"P1Y2M3DT4H5M6S"', '"PT36H"', '"P2W"', '"P1M2D"'],
        ['"P"', '"PT"', '"P1Y2W"', '"P1Y2D"', '"PT1H2S"', '"P123456789D"'],
    ),
]


def test_members_stand_in_the_order_of_the_schema_and_those_without_a_schema_after_them(answers: Answers) -> None:
    schema = {"type": "object", "properties": {"z": {}, "a": {}, "m": {}}, "required": ["k", "b", "m", "z"]}
    grammar = GrammarText(kind="json_schema", text=json.dumps(schema))
    assert answers.accept(grammar, '{"z": 1, "a": 2, "m": 3, "k": 4, "b": 5}')
    assert answers.accept(grammar, '{"z": 1, "m": 3, "k": 4, "b": 5, "more": 6}')
    for names in ("amzkb", "kbzam", "zambk", "zmakb", "zamk"):
        text = json.dumps(dict.fromkeys(names, 1))
        assert not answers.accept(grammar, text), text


@pytest.mark.parametrize(("schema", "good", "bad"), CASES)
def test_a_keyword_is_enforced(answers: Answers, schema: Any, good: list[str], bad: list[str]) -> None:
    grammar = GrammarText(kind="json_schema", text=json.dumps(schema))
    assert [text for text in (*good, *bad) if answers.accept(grammar, text)] == good


REFUSED: list[tuple[Any, str, str]] = [
    ({"properties": {"a/b": {"contains": {}}}}, "/properties/a~1b", "contains"),
    ({"type": "string", "not": {"pattern": "x"}}, "", "not"),
    ({"items": {"type": "array", "uniqueItems": True}}, "/items", "uniqueItems"),
    ({"$ref": "http://elsewhere/x"}, "", "$ref"),
    ({"$ref": "#/nowhere"}, "", "$ref"),
    ({"$ref": "#"}, "", "$ref"),
    ({"allOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": {"$ref": "#/$defs/a"}}}, "/$defs/a", "$ref"),
    ({"$dynamicRef": "#x"}, "", "$dynamicRef"),
    ({"allOf": [{"type": "strng"}]}, "/allOf/0", "type"),
    ({"minimum": "5"}, "", "minimum"),
    ({"required": True}, "", "required"),
    ({"oneOf": [{"type": "string", "pattern": "a"}, {"type": "string", "pattern": "b"}]}, "", "oneOf"),
    ({"unevaluatedProperties": False, "anyOf": [{"properties": AB}]}, "", "unevaluatedProperties"),
    ({"if": {"pattern": "x"}, "then": False}, "", "if"),
    ({"not": {"minimum": "5"}}, "", "not"),
    ({"not": {"allOf": 5}}, "", "not"),
    ({"not": {"required": True}}, "", "not"),
    ({"properties": {"a": {"type": "string", "pattern": "(?=x)"}}}, "/properties/a", "pattern"),
    ({"items": {"type": "object", "minProperties": 3}}, "/items", "minProperties"),
    ({"properties": {"a": {"patternProperties": {"(?=x)": True}}}}, "/properties/a", "patternProperties"),
]


@pytest.mark.parametrize(("schema", "pointer", "keyword"), REFUSED)
def test_what_cannot_be_enforced_is_refused_by_name(schema: Any, pointer: str, keyword: str) -> None:
    with pytest.raises(UnsupportedSchema) as error:
        lower(json.dumps(schema))
    assert (error.value.fields["pointer"], error.value.fields["keyword"]) == (pointer, keyword)
    assert str(error.value.fields["reason"]) in error.value.message


@pytest.mark.parametrize(("schema", "pointer", "keyword"), REFUSED)
def test_or_dropped_and_listed(schema: Any, pointer: str, keyword: str) -> None:
    lowered = lower(json.dumps(schema), is_strict=False)
    assert any(f"`{keyword}` at `{pointer or '/'}`" in dropped for dropped in lowered.dropped)


def test_what_is_dropped_leaves_the_rest_in_force(answers: Answers) -> None:
    schema = {"type": "array", "items": {"type": "integer"}, "contains": {"const": 5}}
    grammar = GrammarText(kind="json_schema", text=json.dumps(schema), is_strict=False)
    assert answers.compiler.open(grammar).result(BOUND_S).dropped == ("`contains` at `/`: it is not supported",)
    assert answers.accept(grammar, "[4]")
    assert not answers.accept(grammar, '["x"]')


@pytest.mark.parametrize(
    "schema", [False, {"not": {}}, {"enum": []}, {"allOf": [{"type": "null"}, {"type": "string"}]}]
)
def test_a_schema_that_nothing_satisfies_is_refused(schema: Any) -> None:
    with pytest.raises(UnsupportedSchema, match="nothing satisfies"):
        lower(json.dumps(schema))


def test_so_is_one_whose_values_never_end() -> None:
    endless = {"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"]}
    with pytest.raises(UnsupportedSchema, match="nothing satisfies"):
        lower(json.dumps(endless))


@pytest.mark.parametrize("text", ["", "{", "3", '{"minimum": NaN}', "[]"])
def test_what_is_no_schema_is_refused(text: str) -> None:
    with pytest.raises(GrammarInvalid):
        lower(text)


def nested(depth: int) -> Any:
    return {} if not depth else {"properties": {"a": nested(depth - 1)}}


@pytest.mark.parametrize(
    "schema",
    [
        nested(70),
        {"properties": {f"p{i}": {} for i in range(1001)}, "type": "object"},
        {"enum": list(range(50_001))},
        {"allOf": [{"anyOf": [{"required": [f"{i}{j}"]} for j in range(5)]} for i in range(6)], "type": "object"},
        {"description": "x" * (1 << 20)},
    ],
)
def test_a_schema_over_a_limit_is_refused(schema: Any) -> None:
    with pytest.raises(GrammarTooComplex):
        lower(json.dumps(schema))


def test_json_that_is_nested_without_end_is_refused() -> None:
    with pytest.raises(GrammarTooComplex):
        lower("[" * 100_000)


NAMED = {"type": "object", "properties": {"a": {"type": "integer"}}}
PARTS = {"type": "object", "allOf": [NAMED, {"properties": {"b": {"type": "integer"}}}]}


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        (NAMED, ['{"a": 1}', "{}"], ['{"b": 1}']),
        ({"type": "array", "items": NAMED}, ['[{"a": 1}]'], ['[{"b": 1}]']),
        ({"$ref": "#/$defs/x", "$defs": {"x": {"anyOf": [NAMED, {"type": "null"}]}}}, ["null"], ['{"b": 1}']),
        ({**NAMED, "additionalProperties": True}, ['{"a": 1}', '{"b": 1}'], []),
        ({**NAMED, "additionalProperties": {"type": "null"}}, ['{"b": null}'], ['{"b": 1}']),
        ({"type": "object"}, ['{"b": 1}'], []),
        ({**NAMED, "required": ["b"]}, ['{"a": 1, "b": 1}'], ["{}"]),
        (PARTS, ['{"a": 1, "b": 1}'], []),
    ],
)
def test_a_closed_schema_has_no_members_but_those_that_it_names(
    answers: Answers, schema: Any, good: list[str], bad: list[str]
) -> None:
    grammar = GrammarText(kind="json_schema", text=json.dumps(schema), closes=True)
    assert [text for text in (*good, *bad) if answers.accept(grammar, text)] == good
    assert all(answers.accept(replace(grammar, closes=False), text) for text in good)


def test_a_closed_schema_that_is_too_deep_is_refused(answers: Answers) -> None:
    deep = '{"properties": {"a": ' * 400 + "{}" + "}}" * 400
    with pytest.raises(GrammarTooComplex, match="nested"):
        answers.accept(GrammarText(kind="json_schema", text=deep, closes=True), "1")

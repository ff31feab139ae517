"""The tests of grammars and readers notice bugs: each of these is put in, and must be caught."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import jsonschema
import pytest

from stoker.core.outline import GrammarText
from stoker.engine.spans import SpanFollower, SpannedConstraint
from stoker.errors import StokerError
from stoker.grammars import compiler, flat, negation, objects, patterns, raw_text, schemas
from stoker.grammars.matcher import GrammarConstraint
from stoker.text.chat_formats import calls as call_parts
from stoker.text.chat_formats.calls import Calls, JSONText, NotACall
from stoker.text.chat_formats.custom import CustomInput
from stoker.text.chat_formats.reader import Marks, Reader
from stoker.text.chat_formats.scanner import Markers, Scanner
from tests.grammars import Answers
from tests.unit.engine import test_outlines as outlines
from tests.unit.grammars import test_matcher as matcher
from tests.unit.text.chat_formats import test_custom as custom
from tests.unit.text.chat_formats import test_readers as readers

Patch = Callable[[pytest.MonkeyPatch], None]
Check = Callable[[], None]
BUGS: dict[str, tuple[Check, Patch]] = {}


def bug(check: Check) -> Callable[[Patch], Patch]:
    def noted(patch: Patch) -> Patch:
        BUGS[patch.__name__] = check, patch
        return patch

    return noted


def check_matcher() -> None:
    answers = Answers()
    try:
        for name, test in vars(matcher).items():
            if name.startswith("test_"):
                test(answers)
    finally:
        answers.compiler.close()


def check_engine() -> None:
    outlines.test_any_model_writes_json_of_the_schema(5, 0)
    outlines.test_any_model_writes_json_of_the_schema(0, 1)
    outlines.test_an_answer_ends_when_nothing_can_follow()
    outlines.test_neighbors_do_not_notice()
    engine = outlines.make_engine()
    schema = outlines.grammar("json_schema", json.dumps(outlines.SCHEMA))
    for request_id in ("one", "other"):
        outlines.ask(engine, schema, request_id, temperature=5.0, seed=len(request_id), max_tokens=300)
    for answer in outlines.run(engine).values():
        jsonschema.validate(json.loads(outlines.text(answer)), outlines.SCHEMA)


def check_spans() -> None:
    outlines.test_reasoning_is_counted_and_the_grammar_begins_after_it()
    outlines.test_reasoning_whose_marker_is_text_may_stand_before_the_grammar("<think>so 12</think>34")
    outlines.test_content_that_begins_like_the_marker_of_reasoning_follows_the_grammar()
    outlines.test_the_marker_of_a_call_ends_open_reasoning_and_belongs_to_the_grammar("<|im_start|>")
    outlines.test_a_spent_budget_ends_the_reasoning(1)
    outlines.test_a_budget_does_not_cut_a_character()
    outlines.test_stop_strings_do_not_count_in_reasoning()


def check_readers() -> None:
    for turn in readers.TURNS:
        readers.test_what_a_template_writes_is_read_back(turn)
        whole = readers.read_in([turn["turn"]], turn, set())
        assert readers.read_in(list(turn["turn"]), turn, set()) == whole
    readers.test_white_space_before_a_call_is_no_content()
    readers.test_content_after_a_call_stays_content()
    readers.test_a_call_may_end_open_reasoning()
    readers.test_a_marker_that_is_a_token_is_not_read_from_text()
    readers.test_an_end_marker_in_a_json_string_is_text()
    readers.test_what_is_no_call_is_content_as_it_was_written(
        '<tool_call>{"name": "unknown", "arguments": {}}</tool_call>'
    )


def check_custom_tools() -> None:
    for size in (1, 3, 1000):
        for is_ascii in (True, False):
            custom.test_the_text_is_the_same_for_every_cut(size, is_ascii)


VALUES: list[Any] = [
    None,
    True,
    0,
    3,
    7,
    2.5,
    "",
    "ab",
    "abc",
    "xyz-1",
    [],
    [1],
    [1, 1],
    [1, "a"],
    {},
    {"a": 1},
    {"a": "x"},
    {"b": 2},
    {"a": 1, "b": 2},
    {"a": 1, "b": 2, "c": 3},
]
SCHEMAS: list[Any] = [
    {"type": "integer", "minimum": 1, "maximum": 5},
    {"type": "string", "minLength": 1, "maxLength": 2},
    {"type": "string", "pattern": "^[a-c]+$"},
    {"type": "string", "not": {"enum": ["ab", ""]}},
    {"not": {"type": ["object", "string"]}},
    {"type": "object", "not": {"required": ["b"]}, "properties": {"a": {"type": "integer"}}},
    {
        "type": "object",
        "minProperties": 1,
        "maxProperties": 2,
        "properties": {"a": {}, "b": {}, "c": {}},
        "additionalProperties": False,
    },
    {"type": "object", "propertyNames": {"pattern": "^a$"}},
    {"type": "object", "dependentRequired": {"a": ["b"]}, "properties": {"a": {}, "b": {}}},
    {"allOf": [{"minimum": 3}, {"maximum": 5}, {"type": "integer"}]},
    {"oneOf": [{"type": "integer"}, {"type": "object", "required": ["a"]}]},
    {"type": "array", "items": {"type": "integer"}, "maxItems": 1},
    {"type": "array", "items": {"enum": [1, 2]}, "uniqueItems": True},
    {
        "type": "object",
        "properties": {"a": {"type": "integer"}},
        "required": ["a"],
        "additionalProperties": {"const": 2},
    },
]


def check_lowering() -> None:
    """No invalid instance is accepted, and of each schema some valid one is."""
    answers = Answers()
    try:
        for schema in SCHEMAS:
            grammar = GrammarText(kind="json_schema", text=json.dumps(schema))
            accepted = [value for value in VALUES if answers.accept(grammar, json.dumps(value))]
            assert accepted, schema
            for value in accepted:
                jsonschema.validate(value, schema)
    finally:
        answers.compiler.close()


@bug(check_matcher)
def shares_the_matcher_with_its_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GrammarConstraint, "copy", lambda self: self)


@bug(check_matcher)
def ends_an_answer_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GrammarConstraint, "can_end", property(lambda self: True))


@bug(check_matcher)
def takes_an_error_for_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    def push(self: Any, token_id: int) -> None:
        self._matcher.consume_token(token_id)

    monkeypatch.setattr(GrammarConstraint, "push", push)


@bug(check_matcher)
def never_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GrammarConstraint, "mask", lambda self: None)


@bug(check_matcher)
def allows_one_token_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    original = GrammarConstraint.mask

    def mask(self: GrammarConstraint):
        words = original(self)
        if words is not None:
            words[0] |= words[0] + 1
        return words

    monkeypatch.setattr(GrammarConstraint, "mask", mask)


@bug(check_engine)
def keeps_any_greedy_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GrammarConstraint, "allows", lambda self, token_id: True)


@bug(check_matcher)
def never_says_that_an_answer_is_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GrammarConstraint, "is_complete", property(lambda self: False))


@bug(check_engine)
def masks_for_the_place_before(monkeypatch: pytest.MonkeyPatch) -> None:
    original = GrammarConstraint.mask

    def mask(self: GrammarConstraint):
        if self._words is None:
            return original(self)
        return self._words

    monkeypatch.setattr(GrammarConstraint, "mask", mask)


@bug(check_engine)
def gives_every_request_the_same_matcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in (compiler.GrammarConstraint, compiler.JsonConstraint):
        monkeypatch.setattr(kind, "copy", lambda self: self)


@bug(check_lowering)
def loses_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schemas, "_picked", lambda limits, *names: {})


@bug(check_lowering)
def finds_patterns_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    original = patterns.rust_pattern
    monkeypatch.setattr(schemas, "rust_pattern", lambda pattern: original(pattern.strip("^$")))


@bug(check_lowering)
def negates_no_types(monkeypatch: pytest.MonkeyPatch) -> None:
    original = negation._not_types
    monkeypatch.setattr(negation, "_not_types", lambda value: original(["null"]))


@bug(check_lowering)
def negates_no_required_members(monkeypatch: pytest.MonkeyPatch) -> None:
    original = negation._not_required
    monkeypatch.setattr(negation, "_not_required", lambda value: original(["other"]))


@bug(check_lowering)
def counts_members_wrongly(monkeypatch: pytest.MonkeyPatch) -> None:
    original = objects._ways
    monkeypatch.setattr(objects, "_ways", lambda members, optional, low, high: original(members, optional, 0, high))


@bug(check_lowering)
def lets_any_name_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "_name_pattern", lambda ways: None)


@bug(check_lowering)
def excludes_one_value_only(monkeypatch: pytest.MonkeyPatch) -> None:
    original = patterns.other_than

    def other_than(words: Any) -> str:
        return original(sorted(words)[:1])

    for module in (patterns, flat, negation, objects, raw_text, schemas):
        if hasattr(module, "other_than"):
            monkeypatch.setattr(module, "other_than", other_than)


@bug(check_spans)
def counts_the_grammar_in_reasoning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SpannedConstraint, "_in_content", property(lambda self: True))


@bug(check_spans)
def never_spends_a_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SpannedConstraint, "_is_spent", property(lambda self: False))


@bug(check_spans)
def cuts_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SpanFollower, "is_whole_text", lambda self: True)


@bug(check_spans)
def does_not_know_that_a_call_ends_reasoning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SpanFollower, "_implicit_end", lambda self, token_id: None)


@bug(check_readers)
def holds_nothing_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Markers, "pending", lambda self, text, start: len(text))


@bug(check_readers)
def takes_the_last_marker_of_a_text(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Markers.find

    def find(self: Markers, text: str, start: int):
        found = original(self, text, start)
        return found and (original(self, text, found[0] + 1) or found)

    monkeypatch.setattr(Markers, "find", find)


@bug(check_readers)
def forgets_what_was_no_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Scanner, "recorded", lambda self: "")


@bug(check_readers)
def takes_any_name_for_a_tool(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Calls.begin

    def begin(self: Calls, name: str) -> None:
        try:
            original(self, name)
        except NotACall:
            self._tools = None
            original(self, name)

    monkeypatch.setattr(Calls, "begin", begin)


@bug(check_readers)
def keeps_the_line_break_of_a_tag(monkeypatch: pytest.MonkeyPatch) -> None:
    original = JSONText.__init__

    def init(self: JSONText, emit: Any, *, trims_newline: bool) -> None:
        original(self, emit, trims_newline=False)

    monkeypatch.setattr(JSONText, "__init__", init)


@bug(check_readers)
def does_not_escape_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_parts, "encode_text", lambda text: f'"{text}"')


@bug(check_readers)
def reads_tokens_from_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Marks, "joined", lambda self, text, marks: self.encode(text))
    monkeypatch.setattr(Marks, "encode", lambda self, marker: marker)


@bug(check_readers)
def writes_white_space_around_reasoning(monkeypatch: pytest.MonkeyPatch) -> None:
    def write(self: Any, kind: Any, text: str) -> bool:
        self._events.append(kind(text))
        return bool(text.strip())

    monkeypatch.setattr(Reader, "_write", write)


@bug(check_custom_tools)
def decodes_half_an_escape(monkeypatch: pytest.MonkeyPatch) -> None:
    original = CustomInput.push

    def push(self: CustomInput, arguments: str) -> str:
        found = original(self, arguments)
        held, self._held = (self._held, "") if self._has_begun else ("", self._held)
        return found + held.rstrip('"}')

    monkeypatch.setattr(CustomInput, "push", push)


@pytest.fixture(scope="module", autouse=True)
def unharmed() -> Iterator[None]:
    """Without a bug, nothing is found."""
    for check in (check_matcher, check_engine, check_spans, check_readers, check_custom_tools, check_lowering):
        check()
    yield
    patterns.rust_pattern.cache_clear()


@pytest.mark.parametrize("name", BUGS)
def test_each_bug_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check, patch = BUGS[name]
    patch(monkeypatch)
    with pytest.raises((AssertionError, StokerError, jsonschema.ValidationError, ValueError, KeyError, IndexError)):
        check()

"""Grammars of answers that may call tools, for all rows: what they allow is read back as calls with valid arguments."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import cache
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import jsonschema
import pytest

from stoker.backends.scripted import EOS, IM_END, NUM_BYTES, SPECIAL_TEXT, ScriptedTokenizer
from stoker.core.outline import GrammarText
from stoker.errors import InvalidInput, UnsupportedSchema
from stoker.grammars.vocabulary import Vocabulary, cut
from stoker.models.gguf import read_gguf
from stoker.models.vocabulary import read_vocabulary
from stoker.text.chat_formats.conversation import written
from stoker.text.chat_formats.events import CallArguments, CallBegin, CallEnd, Content, Event
from stoker.text.chat_formats.grammar import Tool, ToolChoice, call_grammar
from stoker.text.chat_formats.reader import Reader
from stoker.text.chat_formats.shapes import JSONCalls, NamedCalls, PythonCalls
from stoker.text.chat_formats.table import FORMATS, GENERIC, Format
from stoker.text.messages import Json
from stoker.text.vocabulary import build_tokenizer
from tests.brief import every, examples
from tests.grammars import Answers, random_text
from tests.waiting import BOUND_S

ROWS = {row.name: row for row in (*FORMATS, GENERIC)}
TURNS: list[dict[str, Any]] = json.loads(Path("tests/golden/chat_turns.json").read_text())
PARAMETERS: dict[str, Any] = {
    "find": {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "code": {"type": "string", "pattern": "^[A-Z]{3}$"},
            "unit": {"enum": ["c", "f"]},
            "days": {"type": "integer", "minimum": 0, "maximum": 9},
            "day": {"type": "string", "format": "date"},
            "note": {"type": ["string", "null"]},
            "flag": {"type": "boolean"},
            "tags": {"type": "array", "items": {"type": "string", "maxLength": 4}, "minItems": 1, "maxItems": 3},
            "options": {
                "type": "object",
                "properties": {"x": {"type": "number"}, "y": {"anyOf": [{"type": "null"}, {"enum": ["a", "b c"]}]}},
                "required": ["x"],
                "additionalProperties": False,
            },
        },
        "required": ["city", "days"],
        "additionalProperties": False,
    },
    "ping": {"type": "object", "properties": {}},
    "set.name-2": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "minLength": 2, "maxLength": 5},
            "any": {"type": ["string", "integer", "boolean"]},
            "tree": {"$ref": "#/$defs/tree"},
            "pair": {"prefixItems": [{"type": "integer"}, {"type": "boolean"}], "items": False, "minItems": 2},
        },
        "required": ["name"],
        "$defs": {"tree": {"type": "array", "items": {"$ref": "#/$defs/tree"}, "maxItems": 2}},
    },
}
VALIDATORS = {
    name: jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker())
    for name, schema in PARAMETERS.items()
}
TOOLS = [Tool(name=name, parameters=parameters) for name, parameters in PARAMETERS.items()]
PROBE_ARGUMENTS: Json = {"city": 'New "York" é\nX', "days": 3, "opts": {"a": [1, None]}, "ok": True}
PROBES = [
    Tool(
        name="probe_weather",
        parameters={
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "days": {"type": "integer"},
                "opts": {"type": "object"},
                "ok": {"type": "boolean"},
            },
            "required": ["city"],
        },
    ),
    Tool(name="probe_ping", parameters={"type": "object", "properties": {}}),
]
REQUIRED = ToolChoice(mode="required")
SINGLE = ToolChoice(mode="required", max_calls=1)
NAMED = ToolChoice(mode="required", names=frozenset({"find"}))
JSON_ANSWER = GrammarText(
    kind="json_schema",
    text=json.dumps({"type": "object", "properties": {"answer": {"type": "integer"}}, "required": ["answer"]}),
)

rows = pytest.mark.parametrize("row", ROWS.values(), ids=lambda row: row.name)


class Tokens(ScriptedTokenizer):
    """Bytes, and markers that are tokens."""

    def __init__(self, markers: Sequence[str]) -> None:
        self.texts = [*SPECIAL_TEXT.values(), *markers]
        self.vocab_size = NUM_BYTES + len(self.texts)
        self.ids = {text: NUM_BYTES + index for index, text in enumerate(self.texts)}

    def encode(self, text: str, *, parse_special: bool = True) -> list[int]:
        pieces = cut(text, self.ids) if parse_special else [text]
        return [i for piece in pieces for i in ([piece] if isinstance(piece, int) else piece.encode())]

    def token_bytes(self, token_id: int, *, render_special: bool = False) -> bytes:
        if token_id < NUM_BYTES:
            return bytes([token_id])
        return self.texts[token_id - NUM_BYTES].encode()


@cache
def with_tokens(row: Format) -> tuple[Answers, list[str]]:
    """Grammars over a vocabulary in which the row's markers are tokens, as far as they look like that."""
    texts = [*row.wrappers, *(str(getattr(row.calls, each.name)) for each in fields(row.calls or row))]
    markers = sorted({found for text in texts for found in re.findall(r"<[｜|/]?[\w:▁｜|.]+>|\[[A-Z_]+\]", text)})
    tokenizer = Tokens(markers)
    special = frozenset(range(NUM_BYTES, tokenizer.vocab_size))
    return Answers(Vocabulary(tokenizer, frozenset({EOS, IM_END}), special)), markers


def accepts(answers: Answers, grammar: GrammarText | None, text: str, *, parse_special: bool = False) -> bool | str:
    """Whether the grammar allows a text; what of it, if it is stopped on the way."""
    assert grammar is not None
    constraint = answers.open(grammar)
    token_ids = answers.vocabulary.tokenizer.encode(text, parse_special=parse_special)
    for at, token_id in enumerate(token_ids):
        if not constraint.allows(token_id):
            return b"".join(map(answers.vocabulary.tokenizer.token_bytes, token_ids[:at])).decode("utf-8", "replace")
        constraint.push(token_id)
    return constraint.can_end


def calls_of(events: Iterable[Event]) -> list[tuple[str, Any]]:
    calls: list[tuple[str, Any]] = []
    name = arguments = ""
    for event in events:
        if isinstance(event, CallBegin):
            name, arguments = event.name, ""
        elif isinstance(event, CallArguments):
            arguments += event.text
        elif isinstance(event, CallEnd):
            calls.append((name, json.loads(arguments)))
    return calls


def read(text: str, row: Format, tools: Mapping[str, Any] = PARAMETERS, tokens: Sequence[str] = ()) -> list[Event]:
    reader = Reader(row, tools, tokens=tokens)
    return [*reader.push(reader.marks.encode(text)), *reader.flush()]


def check(text: str, row: Format, choice: ToolChoice, tokens: Sequence[str] = ()) -> None:
    events = read(text, row, tokens=tokens)
    calls = calls_of(events)
    assert calls, text
    assert len(calls) == sum(isinstance(event, CallBegin) for event in events), text
    assert choice.max_calls != 1 or len(calls) == 1
    assert not [event for event in events if isinstance(event, Content) and event.text.strip()], text
    for name, arguments in calls:
        assert choice.names is None or name in choice.names
        VALIDATORS[name].validate(arguments)


def walks(answers: Answers, row: Format, choice: ToolChoice, seeds: Iterable[int]) -> Iterator[str]:
    """Random answers. Markers are tried now and then, since chance does not write one into free text."""
    grammar = call_grammar(row, TOOLS, choice)
    assert grammar is not None
    ends = [str(getattr(row.calls, name, "")) for name in ("value_end", "quote", "end", "key_start")]
    tokenizer = answers.vocabulary.tokenizer
    markers = [ids for end in ends if len(end) > 1 and (ids := tokenizer.encode(end, parse_special=True))]
    for seed in seeds:
        text = random_text(answers.open(grammar), answers.vocabulary, Random(seed), most=1500, pieces=markers)
        if text is not None:
            yield text


@rows
@pytest.mark.parametrize("choice", [REQUIRED, SINGLE, NAMED], ids=["required", "single", "named"])
def test_random_answers_are_calls(row: Format, choice: ToolChoice, answers: Answers) -> None:
    found = list(islice(walks(answers, row, choice, range(6)), examples(6)))
    assert found
    for text in found:
        check(text, row, choice)


@rows
def test_random_answers_with_markers_that_are_tokens(row: Format) -> None:
    answers, markers = with_tokens(row)
    for text in islice(walks(answers, row, REQUIRED, range(4)), examples(4)):
        check(text, row, REQUIRED, markers)


@pytest.mark.parametrize(
    "name", every(3, ["hermes", "mistral11", "qwen_xml", "glm45", "lfm2", "gemma4", "llama3", "generic"])
)
def test_random_answers_in_the_tokens_of_a_model(name: str, smollm2: Answers) -> None:
    found = list(islice(walks(smollm2, ROWS[name], REQUIRED, range(12)), examples(12)))
    assert found
    for text in found:
        check(text, ROWS[name], REQUIRED)


@pytest.fixture(scope="module")
def smollm2(smollm2_path: Path) -> Iterator[Answers]:
    with read_gguf(smollm2_path) as gguf:
        tokenizer = build_tokenizer(read_vocabulary(gguf))
    special = frozenset(i for i in range(tokenizer.vocab_size) if not tokenizer.token_bytes(i))
    answers = Answers(Vocabulary(tokenizer, frozenset({2}), special))
    yield answers
    answers.compiler.close()


_PYTHON_IN_TAGS = ("seed", "minicpm5")
"""Their templates write objects as Python does; a model may only write JSON."""


@pytest.mark.parametrize("turn", TURNS, ids=lambda turn: f"{turn['format']}-{turn['num_calls']}")
def test_what_templates_write_is_allowed(turn: dict[str, Any], answers: Answers) -> None:
    row = ROWS[turn["format"]]
    text: str = turn["turn"]
    text = text.split(turn["thinking"][1], 1)[-1]
    if turn["format"] in _PYTHON_IN_TAGS:
        text = text.replace("{'a': [1, None]}", '{"a": [1, null]}')
    grammar = call_grammar(row, PROBES, opening=turn["opening"])
    allowed = accepts(answers, grammar, text)
    if isinstance(allowed, str):  # what follows ends the turn, or begins the next one
        opening = "" if row.name != "functionary32" else ">>>"
        calls = calls_of(read(opening + allowed, row, {tool.name: tool.parameters for tool in PROBES}))
        limit = 1 if row.name == "muse" else row.max_calls or turn["num_calls"]
        assert calls == [("probe_weather", PROBE_ARGUMENTS), ("probe_ping", {})][:limit]


def test_escape_sequences_of_json_are_none_of_python(answers: Answers) -> None:
    cities = {"type": "object", "properties": {"city": {"enum": ["a/é", "😀"]}}, "required": ["city"]}
    offered = [Tool(name="go", parameters=cities)]
    grammar = call_grammar(ROWS["pythonic"], offered, REQUIRED)
    assert accepts(answers, grammar, "[go(city='a/é')]") is True
    for arguments in (r"[go(city='a\/é')]", r"[go(city='\ud83d\ude00')]"):
        assert accepts(answers, grammar, arguments) is not True
    in_json = call_grammar(ROWS["hermes"], offered, REQUIRED)
    call = '<tool_call>\n{"name": "go", "arguments": {"city": "%s"}}\n</tool_call>'
    for arguments in ("a/é", r"a/\u00e9", r"\ud83d\ude00"):
        assert accepts(answers, in_json, call % arguments) is True


@rows
def test_calls_of_the_conversation_are_allowed(row: Format, answers: Answers) -> None:
    """Those that Stoker writes itself, where a template writes none."""
    if not isinstance(row.calls, JSONCalls | NamedCalls | PythonCalls) or row.calls == JSONCalls():
        return
    if (isinstance(row.calls, JSONCalls) and row.calls.name_is_key) or not (all(row.calls.starts) or row is GENERIC):
        return
    calls: list[tuple[str, Json]] = [("probe_weather", PROBE_ARGUMENTS), ("probe_ping", {})]
    text = written(calls[: row.max_calls], row)
    assert accepts(answers, call_grammar(row, PROBES), text) is True


CALLS = {
    "hermes": '<tool_call>{"name": "find", "arguments": ARGUMENTS',
    "qwen_xml": "<tool_call>\n<function=find>ARGUMENTS",
    "lfm2": "<|tool_call_start|>[find(ARGUMENTS",
}
"""A call that is cut off in its arguments."""
CALL = '<tool_call>\n{"name": "ping", "arguments": {}}\n</tool_call>'


def hermes(choice: ToolChoice | None = None, tools: Sequence[Tool] = TOOLS, **options: Any) -> GrammarText | None:
    return call_grammar(ROWS["hermes"], tools, choice, **options)


def test_content_is_free_until_a_call_begins(answers: Answers) -> None:
    assert accepts(answers, hermes(), "") is True
    assert accepts(answers, hermes(), 'Some {"text"} </tool_call> <tool_cal') is True
    assert accepts(answers, hermes(), f"Some text.\n\n{CALL}\n{CALL}") is True
    assert accepts(answers, hermes(), f"{CALL} more") == f"{CALL} "
    assert accepts(answers, hermes(), "text <tool_call>text") == "text <tool_call>"
    wrong = '<tool_call>{"name": "'
    assert accepts(answers, hermes(), wrong + "other") == wrong
    assert accepts(answers, hermes(), '<tool_call>{"name": "find", "arguments": {"city": 1') is not True


def test_a_marker_that_is_a_token_is_no_text() -> None:
    answers, _ = with_tokens(ROWS["hermes"])
    grammar = hermes()
    assert accepts(answers, grammar, "the text <tool_call> is content", parse_special=False) is True
    assert accepts(answers, grammar, "a token <tool_call> is none", parse_special=True) == "a token <tool_call> "
    assert accepts(answers, grammar, CALL, parse_special=True) is True
    none = hermes(ToolChoice(mode="none"))
    assert accepts(answers, none, "<tool_call>", parse_special=True) == ""
    assert accepts(answers, none, CALL, parse_special=False) is True


def test_a_token_that_ends_the_answer_is_left_to_the_model() -> None:
    answers = Answers(Vocabulary(Tokens(["<|call|>"]), frozenset({EOS, 260}), frozenset({260})))
    grammar = call_grammar(ROWS["harmony"], TOOLS, REQUIRED)
    text = "<|channel|>commentary to=functions.ping <|constrain|>json<|message|>{}"
    assert accepts(answers, grammar, text) is True


def test_calls_that_must_be(answers: Answers) -> None:
    assert accepts(answers, hermes(REQUIRED), "") is False
    assert accepts(answers, hermes(REQUIRED), "text") == ""
    assert accepts(answers, hermes(REQUIRED), f"\n{CALL}{CALL}") is True
    assert accepts(answers, hermes(NAMED), CALL) == '<tool_call>\n{"name": "'
    assert accepts(answers, hermes(SINGLE), CALL + CALL) == CALL
    constraint = answers.open(hermes(SINGLE) or JSON_ANSWER)
    for token_id in answers.vocabulary.tokenizer.encode(CALL, parse_special=False):
        assert not constraint.is_complete
        constraint.push(token_id)
    assert constraint.is_complete


def test_calls_that_need_no_marker(answers: Answers) -> None:
    llama = call_grammar(ROWS["llama3"], TOOLS)
    for text in ('{"x": 1}', "{name", ' {"name": "ping", "parameters": {}}', "[1] Some text"):
        assert accepts(answers, llama, text) is True
    assert accepts(answers, llama, '{"name": "other"') == '{"name": "'
    python = call_grammar(ROWS["pythonic"], TOOLS)
    for text in ("[1] Some text", "[ping(), find(days=2, city='x')]", '[find(city="x", days=2)]'):
        assert accepts(answers, python, text) is True
    assert accepts(answers, python, "[find()]") == "[find("
    assert accepts(answers, python, "[find(city='x', city='y')]") == "[find(city='x', c"


def test_a_call_that_the_prompt_has_begun(answers: Answers) -> None:
    row = ROWS["functionary32"]
    assert accepts(answers, call_grammar(row, TOOLS, opening="\n>>>"), "all\nSome text.>>>ping\n{}") is True
    assert accepts(answers, call_grammar(row, TOOLS, REQUIRED, opening="\n>>>"), "ping\n{}") is True
    assert accepts(answers, call_grammar(row, TOOLS, REQUIRED, opening="\n>>>"), "all") == ""


@pytest.mark.parametrize("name", ["hermes", "llama3", "generic", "qwen_xml", "pythonic"])
def test_content_of_a_schema_beside_calls(name: str, answers: Answers) -> None:
    calls = {
        "hermes": CALL,
        "llama3": '{"name": "ping", "parameters": {}}',
        "generic": '{"tool_calls": [{"name": "ping", "arguments": {}}]}',
        "qwen_xml": "<tool_call>\n<function=ping>\n</function>\n</tool_call>",
        "pythonic": "[ping()]",
    }
    grammar = call_grammar(ROWS[name], TOOLS, content=JSON_ANSWER)
    assert accepts(answers, grammar, '{"answer": 3}') is True
    assert accepts(answers, grammar, calls[name]) is True
    assert accepts(answers, grammar, "text") == ""
    assert accepts(answers, grammar, '{"answer": "3"}') == '{"answer": '
    assert call_grammar(ROWS[name], [], content=JSON_ANSWER) is JSON_ANSWER
    required = call_grammar(ROWS[name], TOOLS, REQUIRED, content=JSON_ANSWER)
    assert accepts(answers, required, calls[name]) is True
    assert accepts(answers, required, '{"answer": 3}') is not True


def tagged(value: str) -> str:
    """A call with one argument."""
    return f"<tool_call>\n<function=f>\n<parameter=k>{value}</parameter>\n</function>\n</tool_call>"


@pytest.mark.parametrize(
    ("schema", "allowed", "refused"),
    [
        ({"type": "string"}, ["", "3", "\na\nb\n", "a </b> c"], []),
        ({"enum": ["a b", "c"]}, ["a b", "\nc\n"], ["d", "\n\nc\n\n"]),
        ({"const": "x"}, ["x"], ["xx"]),
        ({"type": "string", "pattern": "^a+$|b"}, ["aaa", "xbx"], ["xa"]),
        ({"type": "string", "minLength": 2, "maxLength": 3}, ["ab", "\nabc\n"], ["a", "\n", "abcd"]),
        ({"type": "integer"}, ["3", "\n-3\n"], ["x", '"3"', "3.5"]),
        ({"type": "boolean"}, ["true", "True"], ["yes"]),
        ({"type": ["string", "null"]}, ["null", "None", '"3"', "some text"], ["3", "[x"]),
        ({"type": "array", "items": {"type": "integer"}}, ["[1, 2]"], ["['a']"]),
    ],
)
def test_values_between_tags(schema: Any, allowed: list[str], refused: list[str], answers: Answers) -> None:
    parameters = {"type": "object", "properties": {"k": schema}, "required": ["k"]}
    grammar = call_grammar(ROWS["qwen_xml"], [Tool(name="f", parameters=parameters)])
    for value in allowed:
        assert accepts(answers, grammar, tagged(value)) is True, value
        ((_, arguments),) = calls_of(read(tagged(value), ROWS["qwen_xml"], {"f": parameters}))
        jsonschema.validate(arguments, parameters)
    for value in refused:
        assert accepts(answers, grammar, tagged(value)) is not True, value


_X = {"x": {"type": "integer"}}
_XY: dict[str, Any] = {"type": "object", "properties": {"o": {"type": "object", "properties": _X}, **_X}}


@pytest.mark.parametrize(
    ("parameters", "allowed", "refused"),
    [
        ({"type": "object", "properties": {}}, ["{}"], ['{"y": 1}']),
        (_XY, ["{}", '{"o": {"x": 1}, "x": 2}'], ['{"y": 1}', '{"o": {"y": 1}}']),
        ({**_XY, "additionalProperties": True}, ['{"o": {"x": 1}, "y": 1}'], ['{"o": {"y": 1}}']),
        ({**_XY, "additionalProperties": {"type": "null"}}, ['{"y": null}'], ['{"y": 1}']),
        ({"type": "object"}, ['{"y": 1}'], []),
        ({**_XY, "required": ["y"]}, ['{"x": 1, "y": 1}'], ['{"x": 1}']),
        ({**_XY, "allOf": [{"properties": {"y": {}}, "required": ["y"]}]}, ['{"y": 1}'], ["{}"]),
        ({**_XY, "anyOf": [{"required": ["y"], "properties": {"y": _XY}}]}, ['{"y": {"z": 1}}'], ["{}"]),
        (
            {"anyOf": [{"$ref": "#/$defs/a"}, {"properties": {"y": {}}}], "$defs": {"a": {"properties": _X}}},
            ['{"x": 1}', '{"y": 1}'],
            ['{"x": 1, "y": 1}', '{"z": 1}'],
        ),
    ],
)
def test_no_parameters_are_invented(parameters: Any, allowed: list[str], refused: list[str], answers: Answers) -> None:
    grammar = call_grammar(ROWS["hermes"], [Tool(name="f", parameters=parameters)], SINGLE)
    calls = {text: f'<tool_call>{{"name": "f", "arguments": {text}}}</tool_call>' for text in (*allowed, *refused)}
    assert [text for text, call in calls.items() if accepts(answers, grammar, call) is True] == allowed


def test_parameters_that_are_nested_too_deeply_are_any_object(answers: Answers) -> None:
    deep: Any = {"type": "object", "properties": {}}
    for _ in range(100):
        deep = {"type": "object", "properties": {"x": deep}}
    grammar = call_grammar(ROWS["hermes"], [Tool(name="f", parameters=deep)], SINGLE)
    assert accepts(answers, grammar, '<tool_call>{"name": "f", "arguments": {"y": 1}}</tool_call>') is True


def many(number: int) -> dict[str, Any]:
    names = [f"p{index}" for index in range(number)]
    return {
        "type": "object",
        "properties": {name: {"type": "integer"} for name in names},
        "required": ["p1"],
        "additionalProperties": False,
    }


@pytest.mark.parametrize("name", ["qwen_xml", "lfm2"])
@pytest.mark.parametrize(("number", "in_any_order"), [(64, True), (65, False)])
def test_arguments_in_any_order(name: str, number: int, in_any_order: bool, answers: Answers) -> None:
    grammar = call_grammar(ROWS[name], [Tool(name="f", parameters=many(number))])

    def call(*indexes: int) -> str:
        if name == "lfm2":
            return f"<|tool_call_start|>[f({', '.join(f'p{index}=1' for index in indexes)})]<|tool_call_end|>"
        values = "".join(f"<parameter=p{index}>1</parameter>\n" for index in indexes)
        return f"<tool_call>\n<function=f>\n{values}</function>\n</tool_call>"

    assert accepts(answers, grammar, call(1)) is True
    assert accepts(answers, grammar, call(0, 1, number - 1)) is True
    assert (accepts(answers, grammar, call(number - 1, 1)) is True) is in_any_order
    assert accepts(answers, grammar, call(0)) is not True
    assert accepts(answers, grammar, call(1, 1)) is not True


def test_a_key_cannot_be_spelled_in_two_ways(answers: Answers) -> None:
    tool = Tool(name="f", parameters={"type": "object", "properties": {"k": {"type": "integer"}}})
    text = '<tool_call>{"name": "f", "arguments": {"\\u006b": "x"}}</tool_call>'
    assert accepts(answers, hermes(tools=[tool]), text) is not True


BAD: dict[str, Any] = {
    "look-around": {"type": "object", "properties": {"k": {"type": "string", "pattern": "(?=a)b"}}, "required": ["k"]},
    "engine": {
        "type": "object",
        "properties": {"k": {"type": "string", "pattern": "^a$", "minLength": 2}},
        "required": ["k"],
    },
    "no object": {"type": "array"},
}


@pytest.mark.parametrize("name", ["hermes", "qwen_xml", "lfm2"])
@pytest.mark.parametrize("bad", BAD)
def test_a_tool_that_cannot_be_enforced_is_relaxed_alone(name: str, bad: str, answers: Answers) -> None:
    tools = [Tool(name="bad", parameters=BAD[bad]), TOOLS[0]]
    grammar = call_grammar(ROWS[name], tools, REQUIRED)
    assert grammar is not None
    compiled = answers.compiler.open(grammar).result(BOUND_S)
    assert len(compiled.dropped) == 1
    assert "bad" in compiled.dropped[0] or "pattern" in compiled.dropped[0]
    wrong = {"hermes": '{"city": 1', "qwen_xml": "\n<parameter=name>", "lfm2": "name="}[name]
    assert isinstance(accepts(answers, grammar, CALLS[name].replace("ARGUMENTS", wrong)), str)


@pytest.mark.parametrize("bad", BAD)
def test_a_strict_tool_that_cannot_be_enforced_is_refused(bad: str, answers: Answers) -> None:
    grammar = hermes(REQUIRED, [Tool(name="bad", parameters=BAD[bad], is_strict=True)])
    with pytest.raises(InvalidInput):
        answers.open(grammar or JSON_ANSWER)


def test_a_pattern_that_raw_text_cannot_obey(answers: Answers) -> None:
    schema = {"type": "object", "properties": {"k": {"type": "string", "pattern": "(^a|b)c"}}}
    grammar = call_grammar(ROWS["qwen_xml"], [Tool(name="f", parameters=schema)])
    assert grammar is not None
    assert "`f`" in answers.compiler.open(grammar).result(BOUND_S).dropped[0]
    strict = call_grammar(ROWS["qwen_xml"], [Tool(name="f", parameters=schema, is_strict=True)])
    with pytest.raises(UnsupportedSchema, match="`f`"):
        answers.open(strict or grammar)


def test_many_tools_in_one_grammar(answers: Answers) -> None:
    tools = [Tool(name=f"tool_{index}", parameters=PARAMETERS["find"]) for index in range(200)]
    for index in (0, 20, 199):
        text = f'<tool_call>{{"name": "tool_{index}", "arguments": {{"city": "x", "days": 1}}}}</tool_call>'
        assert accepts(answers, hermes(tools=tools), text) is True
    assert accepts(answers, hermes(tools=[replace(tools[0], name="a"), replace(tools[0], name="ab")]), "x") is True


def test_without_a_marker_at_the_end_several_calls_are_a_list(answers: Answers) -> None:
    """The reader takes the bracket of the next marker, where it is text, for a part of the list."""
    call = '{"name": "ping", "arguments": {}}'
    grammar = call_grammar(ROWS["mistral3"], TOOLS)
    assert accepts(answers, grammar, f"[TOOL_CALLS][{call}, {call}]") is True
    assert accepts(answers, grammar, f"[TOOL_CALLS]{call}") == "[TOOL_CALLS]"
    assert accepts(answers, call_grammar(ROWS["mistral3"], TOOLS, SINGLE), f"[TOOL_CALLS]{call}") is True


_INPUT = {"type": "string", "pattern": "^(?:run [a-z]{1,8}(?:\\n\\+[^\\n]{0,6}){0,3})$"}
_CUSTOM = [
    Tool(
        name="patch",
        parameters={
            "type": "object",
            "properties": {"input": _INPUT},
            "required": ["input"],
            "additionalProperties": False,
        },
        is_strict=True,
    )
]


@rows
def test_the_text_of_a_custom_tool_follows_its_expression(row: Format, answers: Answers) -> None:
    grammar = call_grammar(row, _CUSTOM, REQUIRED)
    assert grammar is not None
    tools: dict[str, dict[str, Json]] = {
        tool.name: {"type": "object", "properties": {"input": {"type": "string"}}} for tool in _CUSTOM
    }
    num_found = 0
    for seed in range(6):
        text = random_text(answers.open(grammar), answers.vocabulary, Random(seed), most=1500)
        if text is None:
            continue
        reader = Reader(row, tools, custom={"patch"})
        events = [event for piece in text for event in reader.push(piece)] + reader.flush()
        written = "".join(event.text for event in events if isinstance(event, CallArguments))
        begun = [event for event in events if isinstance(event, CallBegin)]
        assert begun
        assert all(event.is_custom for event in begun)
        assert re.fullmatch(f"(?:{_INPUT['pattern'][1:-1]})+", written), (text, written)
        num_found += 1
    assert num_found

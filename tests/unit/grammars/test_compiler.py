from __future__ import annotations

import json
import os
import sys
from concurrent.futures import CancelledError
from pathlib import Path
from random import Random
from threading import Event
from typing import Any

import jsonschema
import pytest

from stoker.backends.scripted import EOS, IM_END, ScriptedTokenizer
from stoker.core.outline import GrammarText
from stoker.errors import GrammarInvalid, GrammarTooComplex, InvalidInput, Overloaded, UnsupportedParameter
from stoker.grammars.compiler import GrammarCompiler, Limits
from stoker.grammars.vocabulary import Vocabulary
from stoker.models.gguf import read_gguf
from stoker.models.vocabulary import read_vocabulary
from stoker.text.vocabulary import build_tokenizer
from stoker.text.vocabulary.special_tokens import Attribute
from tests.grammars import BYTES, Answers, random_text, read_json
from tests.waiting import BOUND_S

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer", "minimum": 0},
        "email": {"type": "string", "format": "email"},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 40}, "maxItems": 5},
        "born": {"type": "string", "format": "date"},
        "kind": {"enum": ["poet", "scientist"]},
    },
    "required": ["name", "age", "tags", "kind"],
    "additionalProperties": False,
}


def schema(value: Any, **options: Any) -> GrammarText:
    return GrammarText(kind="json_schema", text=json.dumps(value), **options)


def choice(*texts: str) -> GrammarText:
    return GrammarText(kind="choice", text=json.dumps(texts))


@pytest.fixture(scope="module")
def smollm2(smollm2_path: Path) -> Vocabulary:
    with read_gguf(smollm2_path) as gguf:
        tokenizer = build_tokenizer(read_vocabulary(gguf))
    attributes = tokenizer.special.attributes
    hidden = frozenset(i for i in range(tokenizer.vocab_size) if attributes[i] & Attribute.HIDDEN)
    return Vocabulary(tokenizer, tokenizer.eog_token_ids(), hidden)


def test_answers_of_random_tokens_are_valid(smollm2: Vocabulary) -> None:
    answers = Answers(smollm2)
    random = Random(7)
    validator = jsonschema.Draft202012Validator(PERSON, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)
    whole = 0
    for _ in range(25):
        text = random_text(answers.open(schema(PERSON)), smollm2, random)
        if text is not None:
            whole += 1
            validator.validate(read_json(text))
    answers.compiler.close()
    assert whole >= 5


def test_special_tokens_are_no_text(smollm2: Vocabulary) -> None:
    answers = Answers(smollm2)
    constraint = answers.open(GrammarText(kind="regex", text=r"[\s\S]+"))
    assert not any(constraint.allows(token_id) for token_id in smollm2.special_token_ids)
    words = constraint.mask()
    assert words is not None
    assert not any(int(words[token_id // 32]) >> token_id % 32 & 1 for token_id in smollm2.special_token_ids)
    answers.compiler.close()


@pytest.mark.parametrize(
    ("grammar", "good", "bad"),
    [
        (
            GrammarText(kind="json_object"),
            ["{}", '{"a": [1, {"b": null}]}', '{\n    "a": 1\n}'],
            ["[]", "1", '{"a":  1}'],
        ),
        (GrammarText(kind="regex", text=r"a/b\/c\d{2,3}"), ["a/b/c12", "a/b/c123"], ["a/b/c1", "xa/b/c12"]),
        (GrammarText(kind="regex", text="a|b\n"), ["a", "b\n"], ["b"]),
        (choice("a", "ab", "", "x/y", 'é\n"'), ["a", "ab", "", "x/y", 'é\n"'], ["b", "x"]),
        (GrammarText(kind="lark", text='start: "a" NUM\nNUM: /[0-9]+/'), ["a12"], ["a"]),
        (schema({"type": "array"}, whitespace=r" {2}"), ["[1,  2]", "[1,2]"], ["[1, 2]"]),
        (schema({}), ["1", "[]", '"x"'], ["x"]),
    ],
)
def test_each_kind_of_constraint(answers: Answers, grammar: GrammarText, good: list[str], bad: list[str]) -> None:
    assert [text for text in (*good, *bad) if answers.accept(grammar, text)] == good


@pytest.mark.parametrize(
    ("grammar", "error", "message"),
    [
        (GrammarText(kind="regex", text="ab(?=x)"), GrammarInvalid, "at character 3: look-around"),
        (GrammarText(kind="regex", text=r"(a)\1"), GrammarInvalid, "at character 4: backreferences"),
        (GrammarText(kind="regex", text="a" * 70_000), GrammarTooComplex, "over 65536 characters"),
        (GrammarText(kind="choice", text="[]"), GrammarInvalid, "at least one string"),
        (GrammarText(kind="choice", text="yes"), GrammarInvalid, "not valid JSON"),
        (GrammarText(kind="choice", text='["a", 1]'), GrammarInvalid, "at least one string"),
        (GrammarText(kind="lark", text="start: nothing"), GrammarInvalid, "unknown name"),
        (GrammarText(kind="lark", text="start: /a/ {"), GrammarInvalid, "cannot be followed"),
        (GrammarText(kind="lark", text="x" * (1 << 20 | 1)), GrammarTooComplex, "characters"),
        (GrammarText(kind="gbnf", text="root ::= []"), GrammarInvalid, "no text matches it"),
        (schema({"type": "array", "minItems": 10_000_000}), GrammarTooComplex, "at most 2000"),
    ],
)
def test_what_is_wrong_is_an_error_of_its_request(
    answers: Answers, grammar: GrammarText, error: type[InvalidInput], message: str
) -> None:
    with pytest.raises(error, match=message):
        answers.open(grammar)
    assert answers.accept(choice("still"), "still")


def test_a_known_grammar_is_not_compiled_again(answers: Answers) -> None:
    grammar = choice("once")
    assert not answers.compiler.open(grammar).result(BOUND_S).was_known
    again = answers.compiler.open(grammar)
    assert again.done()
    assert again.result().was_known


def test_two_answers_of_one_grammar_do_not_meet(answers: Answers) -> None:
    one, other = answers.open(choice("ab", "ba")), answers.open(choice("ab", "ba"))
    one.push(ord("a"))
    assert one.allows(ord("b"))
    assert not one.allows(ord("a"))
    assert other.allows(ord("a"))


def test_grammars_that_were_not_used_leave_the_cache() -> None:
    compiler = GrammarCompiler(BYTES, Limits(cache_bytes=200_000))
    for text in ("a", "b", "a", "c", "d"):
        compiler.open(choice(text)).result(BOUND_S)
    known = [compiler.open(choice(text)).result(BOUND_S).was_known for text in ("d", "b")]
    compiler.close()
    assert known == [True, False]


class Blocking(ScriptedTokenizer):
    """Its bytes come when they may."""

    def __init__(self) -> None:
        self.started, self.may_go_on = Event(), Event()

    def token_bytes(self, token_id: int, *, render_special: bool = False) -> bytes:
        self.started.set()
        assert self.may_go_on.wait(60)
        return super().token_bytes(token_id, render_special=render_special)


def test_only_so_many_grammars_wait() -> None:
    tokenizer = Blocking()
    vocabulary = Vocabulary(tokenizer, frozenset({EOS, IM_END}), frozenset())
    compiler = GrammarCompiler(vocabulary, Limits(max_waiting=2))
    first, second = compiler.open(choice("a")), compiler.open(choice("b"))
    assert tokenizer.started.wait(60)
    with pytest.raises(Overloaded):
        compiler.open(choice("c"))
    tokenizer.may_go_on.set()
    assert first.result(BOUND_S).constraint.allows(ord("a"))
    assert second.result(BOUND_S).constraint.allows(ord("b"))
    assert compiler.open(choice("c")).result(BOUND_S).constraint.allows(ord("c"))
    compiler.close()


def test_what_waits_when_the_compiler_is_closed_is_cancelled() -> None:
    tokenizer = Blocking()
    compiler = GrammarCompiler(Vocabulary(tokenizer, frozenset({EOS, IM_END}), frozenset()))
    first, second = compiler.open(choice("a")), compiler.open(choice("b"))
    assert tokenizer.started.wait(60)
    second.add_done_callback(lambda _: tokenizer.may_go_on.set())
    compiler.close()
    assert first.result(BOUND_S).constraint.allows(ord("a"))
    with pytest.raises(CancelledError):
        second.result(BOUND_S)
    with pytest.raises(InvalidInput, match="closed"):
        compiler.open(choice("c"))


@pytest.mark.skipif(sys.platform != "linux", reason="threads have no priorities of their own")
def test_threads_that_compute_go_before_the_one_that_compiles() -> None:
    before, found = os.getpriority(os.PRIO_PROCESS, 0), list[int]()
    compiler = GrammarCompiler(BYTES, observe=lambda _: found.append(os.getpriority(os.PRIO_PROCESS, 0)))
    assert compiler.open(choice("a")).result(BOUND_S).constraint.allows(ord("a"))
    compiler.close()
    assert found[0] > before
    assert os.getpriority(os.PRIO_PROCESS, 0) == before


def test_without_the_engine_the_reason_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "llguidance", None)
    compiler = GrammarCompiler(BYTES)
    with pytest.raises(UnsupportedParameter, match="needs the package llguidance"):
        compiler.open(choice("a")).result(BOUND_S)
    compiler.close()

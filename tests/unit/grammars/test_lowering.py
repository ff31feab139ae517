from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from stoker.assembly import build_engine
from stoker.core.outline import GrammarText, Outline
from stoker.core.params import SamplingParams
from stoker.engine.config import EngineConfig
from stoker.engine.protocol import Submit
from stoker.errors import GrammarTooComplex, InvalidInput, StokerError
from stoker.grammars import compiler as compilers
from stoker.grammars.compiler import GrammarCompiler
from stoker.grammars.lowering import Lowering
from stoker.grammars.sources import Order, source_of
from stoker.text.chat_formats.grammar import Tool, ToolChoice, call_grammar
from stoker.text.chat_formats.table import HERMES
from tests.grammars import BYTES
from tests.waiting import BOUND_S

TOOLS = [
    Tool(name="strict", parameters={"type": "object", "properties": {"a": {"enum": ["ä", 1]}}}, is_strict=True),
    Tool(name="loose", parameters={"type": "object", "contains": {}}),
]
PLAN = call_grammar(HERMES, TOOLS, ToolChoice())
assert PLAN is not None
ORDERS = [
    Order(GrammarText(kind="json_object")),
    Order(GrammarText(kind="json_schema", text='{"enum": ["\\u00e4", "\\ud83d\\ude00"]}', whitespace="[ ]")),
    Order(GrammarText(kind="json_schema", text='{"type": "array", "contains": {}}', is_strict=False)),
    Order(GrammarText(kind="regex", text="[a-z]{3}|ß")),
    Order(GrammarText(kind="choice", text='["yes", "", "no"]')),
    Order(GrammarText(kind="gbnf", text='root ::= <[10]> "a" | <s>')),
    Order(GrammarText(kind="lark", text='start: "a"')),
    Order(PLAN),
    Order(PLAN, alone=1),
    Order(PLAN, relaxed={0: "the first"}),
]
WRONG = [
    Order(GrammarText(kind="json_schema", text='{"type": "array", "contains": {}}')),
    Order(GrammarText(kind="json_schema", text='{"type')),
    Order(GrammarText(kind="regex", text="x" * 70_000)),
    Order(GrammarText(kind="gbnf", text='root ::= <more than one> "a')),
    Order(GrammarText(kind="choice", text="[]")),
]


def program(code: str) -> tuple[str, ...]:
    return (sys.executable, "-I", "-S", "-c", code)


@pytest.fixture(scope="module")
def lowering() -> Iterator[Lowering]:
    process = Lowering(BYTES)
    yield process
    process.close()


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: order.grammar.kind)
def test_a_source_is_the_same_from_another_process(lowering: Lowering, order: Order) -> None:
    assert lowering.source(order) == source_of(order, BYTES)


@pytest.mark.parametrize("order", WRONG, ids=lambda order: order.grammar.kind)
def test_an_error_is_the_same_from_another_process(lowering: Lowering, order: Order) -> None:
    with pytest.raises(StokerError) as expected:
        source_of(order, BYTES)
    with pytest.raises(StokerError) as found:
        lowering.source(order)
    assert type(found.value) is type(expected.value)
    assert (found.value.message, found.value.fields) == (expected.value.message, expected.value.fields)


def test_a_process_that_was_ended_is_started_again(lowering: Lowering) -> None:
    before = lowering.pid
    assert before is not None
    os.kill(before, signal.SIGTERM)
    os.waitid(os.P_PID, before, os.WEXITED | os.WNOWAIT)  # else it may end while it is asked
    assert lowering.source(ORDERS[0]) == source_of(ORDERS[0], BYTES)
    assert lowering.pid != before


def test_a_constraint_that_ends_the_process_is_too_complex() -> None:
    process = Lowering(BYTES, program("import sys; sys.stdin.readline(); sys.stdin.readline()"))
    with pytest.raises(GrammarTooComplex):
        process.source(ORDERS[0])
    process.close()


def test_a_constraint_that_takes_too_long_is_too_complex_and_its_process_ends() -> None:
    process = Lowering(BYTES, program("while True: pass"), max_s=0.1)
    with pytest.raises(GrammarTooComplex):
        process.source(ORDERS[0])
    assert process.pid is None
    process.close()


def test_without_a_process_the_work_is_done_here() -> None:
    process = Lowering(BYTES, ("/no/such/program",))
    assert process.source(ORDERS[0]) == source_of(ORDERS[0], BYTES)
    process.close()


def test_after_its_end_nothing_is_started() -> None:
    process = Lowering(BYTES)
    process.start()
    process.close()
    process.close()
    with pytest.raises(InvalidInput):
        process.source(ORDERS[0])
    assert process.pid is None


def test_a_compiler_leaves_texts_to_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compilers, "source_of", lambda *_: pytest.fail("lowered in the process of the engine"))
    compiler = GrammarCompiler(BYTES, is_apart=True)
    try:
        for grammar in (GrammarText(kind="json_object"), PLAN):
            assert grammar is not None
            assert compiler.open(grammar).result(BOUND_S).constraint.error is None
    finally:
        compiler.close()


def test_an_engine_leaves_texts_to_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compilers, "source_of", lambda *_: pytest.fail("lowered in the process of the engine"))
    engine, _ = build_engine(EngineConfig(model="scripted"))
    try:
        grammar = GrammarText(kind="json_schema", text=json.dumps({"enum": ["a", "b"]}))
        engine.admit(Submit("one", "Hi.", SamplingParams(max_tokens=4), outline=Outline(grammar=grammar)))
    finally:
        engine.close()


@pytest.mark.slow
def test_grammars_are_compiled_while_all_cores_are_busy() -> None:
    busy = [subprocess.Popen(program("while True: pass")) for _ in range(4 * (os.cpu_count() or 1))]
    compiler = GrammarCompiler(BYTES, is_apart=True)
    try:
        for order in ORDERS:
            assert compiler.open(order.grammar).result(BOUND_S).constraint.error is None
    finally:
        compiler.close()
        for process in busy:
            process.kill()
            process.wait()

"""Drafts of rows that follow a grammar: what is certain is drafted, and the answers are those without drafts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from stoker.backends.scripted import EOS, NextToken
from stoker.core.batch import Entry
from stoker.core.outline import GrammarText, Outline, ReasoningSpan
from stoker.core.params import SamplingParams
from stoker.engine.engine import Engine
from stoker.engine.protocol import Submit
from tests.unit.engine.test_drafts import NUM_PROMPT, answers, make_engine, run

SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {
            "temperature_in_celsius": {"type": "integer", "minimum": 0, "maximum": 9},
            "description_of_the_weather": {"enum": ["sunny and warm", "sunny and cold", "rainy"]},
        },
        "required": ["temperature_in_celsius", "description_of_the_weather"],
        "additionalProperties": False,
    }
)
JSON = '{"temperature_in_celsius": 7, "description_of_the_weather": "sunny and cold"}'
THOUGHT = "<think>row, row, row, row, row</think>"
THINK = ReasoningSpan(start_text="<think>", end_text="</think>")
GRAMMAR = GrammarText(kind="json_schema", text=SCHEMA)


def saying(text: str) -> NextToken:
    said = text.encode()

    def next_token(entries: Sequence[Entry]) -> int:
        position = len(entries) - NUM_PROMPT
        return said[position] if position < len(said) else EOS

    return next_token


def add(engine: Engine, request_id: str, outline: Outline, params: dict[str, Any]) -> None:
    engine.add(engine.admit(Submit(request_id, "ab", SamplingParams(**params), outline=outline)))


@pytest.mark.parametrize(
    ("said", "outline"),
    [
        (JSON, Outline(grammar=GRAMMAR)),
        (THOUGHT + JSON, Outline(grammar=GRAMMAR, reasoning=THINK)),
        (THOUGHT + "\n\n" + JSON, Outline(grammar=GRAMMAR, reasoning=THINK)),
        (f"{THOUGHT} {THOUGHT}", Outline(grammar=GRAMMAR, reasoning=THINK)),
        (THOUGHT + JSON, Outline(grammar=GRAMMAR, reasoning=ReasoningSpan(
            start_text="<think>", end_text="</think>", budget=20, closing_text=" row, row, so: "))),
        (JSON + " " + JSON, Outline(grammar=GrammarText(kind="regex", text=r"(\{[^}]*\} ?){2}"))),
        ("x" + JSON, Outline(grammar=GrammarText(kind="choice", text='["xylophone", "xylem"]'))),
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 0},
        {"temperature": 0, "logprobs": 2, "max_tokens": 60},
        {"temperature": 1.5, "seed": 3},
        {"temperature": 0, "stop": "cold"},
        {"temperature": 3, "seed": 8, "frequency_penalty": 0.4, "max_tokens": 70},
    ],
)
def test_answers_are_the_same_with_and_without_drafts(said: str, outline: Outline, params: dict[str, Any]) -> None:
    plain, drafting = make_engine(0, next_token=saying(said)), make_engine(15, next_token=saying(said))
    for engine in (plain, drafting):
        add(engine, "r", outline, params)
    expected, found = run(plain), run(drafting)
    assert answers(found) == answers(expected)
    assert len(found) == len(expected), "one output a token"


def test_certain_text_takes_few_steps() -> None:
    """Nothing in it stood before, so the text alone gives no guess."""
    plain, drafting = make_engine(0, next_token=saying(JSON)), make_engine(15, next_token=saying(JSON))
    for engine in (plain, drafting):
        add(engine, "r", Outline(grammar=GRAMMAR), {"temperature": 0})
    assert answers(run(drafting)) == answers(run(plain))
    assert drafting.stats().accepted_tokens > 40
    assert drafting.stats().num_steps < 0.6 * plain.stats().num_steps

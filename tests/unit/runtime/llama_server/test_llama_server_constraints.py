"""What llama-server is asked to constrain, and what is refused because it cannot."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from stoker.core.outline import GrammarText, Outline, ReasoningSpan
from stoker.errors import InvalidInput, UnsupportedParameter
from stoker.runtime.llama_server.completion import constraint_fields
from stoker.runtime.vllm.completion import constraint_fields as vllm_fields


def outline(kind: Any, text: str = "") -> Outline:
    return Outline(grammar=GrammarText(kind=kind, text=text))


@pytest.mark.parametrize(
    ("asked", "fields"),
    [
        (None, {}),
        (Outline(), {}),
        (outline("json_object"), {"json_schema": {"type": "object"}}),
        (outline("json_schema", '{"type": "string"}'), {"json_schema": {"type": "string"}}),
        (outline("gbnf", 'root ::= "a"'), {"grammar": 'root ::= "a"'}),
    ],
)
def test_what_llama_server_can_do_is_passed_on(asked: Outline | None, fields: dict[str, object]) -> None:
    assert constraint_fields(asked) == fields


@pytest.mark.parametrize("kind", ["regex", "choice", "lark"])
def test_other_constraints_are_refused(kind: str) -> None:
    with pytest.raises(UnsupportedParameter, match="llama-server does not support them"):
        constraint_fields(outline(kind, "a"))


def test_budgets_of_reasoning_are_refused() -> None:
    with pytest.raises(UnsupportedParameter, match="budget"):
        constraint_fields(Outline(reasoning=ReasoningSpan(budget=5)))


def test_a_schema_that_is_no_json_is_refused() -> None:
    with pytest.raises(InvalidInput, match="not valid JSON"):
        constraint_fields(outline("json_schema", "{"))


@pytest.mark.parametrize("fields_for", [constraint_fields, vllm_fields])
def test_a_constraint_on_an_answer_that_is_continued_is_refused(fields_for: Callable[[Outline], object]) -> None:
    assert fields_for(Outline(begun="{")) == {}
    with pytest.raises(UnsupportedParameter, match="cannot be continued"):
        fields_for(replace(outline("json_object"), begun="{"))

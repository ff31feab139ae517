"""The schemas and grammars of llama.cpp's own tests and folders can be followed here."""

from __future__ import annotations

import re

import pytest

from stoker.core.outline import GrammarText
from stoker.errors import GrammarInvalid, UnsupportedSchema
from tests.brief import every
from tests.grammars import Answers
from tests.llama_cpp_sources import grammars, source_of_tests

_CASE = re.compile(r'test\(\{\s*(SUCCESS|FAILURE),\s*"((?:[^"\\]|\\.)*)",(.*?)\n    \}\);', re.DOTALL)
_RAW = re.compile(r'R"""\((.*?)\)"""', re.DOTALL)
NUM_PARTS = 4
PARTS = pytest.mark.parametrize("part", every(NUM_PARTS, range(NUM_PARTS)))
"""Of what llama.cpp has, `make test` takes the first quarter."""


@pytest.fixture(scope="module")
def answers() -> Answers:
    return Answers()


def schemas() -> list[tuple[str, str, list[str]]]:
    """Of each case: what is expected, its name, and the schema before the grammar that it becomes."""
    text = source_of_tests("test-json-schema-to-grammar.cpp")
    return [(status, name, _RAW.findall(rest)) for status, name, rest in _CASE.findall(text)]


@PARTS
def test_schemas_that_llama_cpp_takes_are_taken(part: int, answers: Answers) -> None:
    cases = [(name, raw) for status, name, raw in schemas() if status == "SUCCESS"]
    assert len(cases) > 70
    for name, raw in cases[part::NUM_PARTS]:
        schema = raw[0] if raw[0].lstrip()[:1] in ("{", "[") else "{}"  # one is written as "" and means any value
        constraint = answers.open(GrammarText(kind="json_schema", text=schema))
        assert constraint.error is None, name


def test_schemas_that_llama_cpp_refuses_are_refused(answers: Answers) -> None:
    found = [raw[0] for status, _, raw in schemas() if status == "FAILURE"]
    assert found
    for text in found:
        with pytest.raises(UnsupportedSchema):
            answers.open(GrammarText(kind="json_schema", text=text))


@PARTS
def test_grammars_of_llama_cpp_are_followed(part: int, answers: Answers) -> None:
    found = [*grammars().values(), *(raw[1] for status, _, raw in schemas() if status == "SUCCESS" and len(raw) > 1)]
    assert len(found) > 70
    for text in found[part::NUM_PARTS]:
        assert answers.open(GrammarText(kind="gbnf", text=text)).error is None


def test_grammars_of_llama_cpps_tests_are_followed_but_three_that_lack_a_rule(answers: Answers) -> None:
    texts = [text for text in _RAW.findall(source_of_tests("test-grammar-integration.cpp")) if "::=" in text]
    assert len(texts) > 20
    problems = [problem for text in texts if (problem := problem_of(answers, text)) is not None]
    assert len(problems) == 3
    assert all("has no rule" in problem for problem in problems)


def problem_of(answers: Answers, text: str) -> str | None:
    try:
        answers.open(GrammarText(kind="gbnf", text=text))
    except GrammarInvalid as error:
        return error.message
    return None

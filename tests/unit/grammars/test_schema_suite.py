"""The JSON-Schema-Test-Suite: what is invalid is never accepted, and most of what is valid is."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from stoker.core.outline import GrammarText
from stoker.errors import GrammarTooComplex, UnsupportedSchema
from tests.grammars import Answers, Group, accepts, read_suite


def test_every_schema_of_the_suite_is_refused_or_enforced(answers: Answers, schema_suite: Path) -> None:
    counts: Counter[str] = Counter()
    newest: Counter[str] = Counter()
    """Of the draft of 2020-12, whose suite has 1,906 tests."""
    wrong: list[str] = []
    for group in read_suite(schema_suite):
        found = outcomes(answers, group)
        counts.update(found.values())
        if group.where.startswith("draft2020-12/"):
            newest.update(found.values())
        wrong += [f"{group.where}: {name}" for name, outcome in found.items() if outcome == "invalid accepted"]
    assert wrong == []
    assert counts["invalid rejected"] > 2000
    assert counts["valid accepted"] > 2850
    assert newest["valid accepted"] + newest["invalid rejected"] >= 1210
    assert counts["valid rejected"] < 200, "these are spelled otherwise, or narrowed"
    assert counts["refused"] < 330, "of 1508; most load other documents, or want `contains` or `$dynamicRef`"


def outcomes(answers: Answers, group: Group) -> dict[str, str]:
    """By the descriptions of the instances."""
    try:
        constraint = answers.open(GrammarText(kind="json_schema", text=json.dumps(group.schema)))
    except (UnsupportedSchema, GrammarTooComplex):
        return {"": "refused"}
    return {
        test["description"]: ("valid " if test["valid"] else "invalid ")
        + ("accepted" if accepts(constraint.copy(), spelled(test["data"])) else "rejected")
        for test in group.tests
    }


def spelled(value: object) -> list[int]:
    return list(json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass"))

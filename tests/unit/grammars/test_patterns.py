from __future__ import annotations

import json

import pytest

from stoker.core.outline import GrammarText
from stoker.grammars.patterns import PatternError, conjuncts, finds, literal, other_than, rust_pattern
from tests.grammars import Answers, short_texts

CASES = [
    ("^a|b$", ["ax", "xb"], ["xa", "bx"]),
    (r"^\d{3}-\w+\/$", ["123-ab/"], ["12-ab/", "123-é/", "٣٣٣-a/"]),
    (r"[\s-]x[^\]]", ["-xq", "\txq", "\u3000xq"], ["-x]", "\u0085xq", "\ufeffxq"]),
    (r"^\S$", ["a", "é"], [" ", "\u0085", "\ufeff"]),
    (r"^[^\s]$", ["a"], ["\u0085", "\ufeff", "\u3000"]),
    ("^a.{1,2}?b$", ["axb", "axxb"], ["ab", "a\nb", "a\rb", "a\u2028b"]),
    (r"^\ud83d\ude00\u{1f600}\x41\cJ$", ["😀😀A\n"], ["😀A\n"]),
    ("^[a-c&&b[]{2}$", ["&[", "ab"], ["d["]),
    ("^x{,2}]}$", ["x{,2}]}"], ["x]}"]),
    ("^(?<year>19|20)(?:x)$", ["19x"], ["21x"]),
    (r"^[\d-x]$", ["5", "-", "x"], ["a"]),
    (r"^[a\-z]$", ["a", "-", "z"], ["b"]),
    ("^[^]$", ["a", "\n"], [""]),
    (r"^a$", ["a"], ["a\n", "ab"]),
]


@pytest.mark.parametrize(("pattern", "good", "bad"), CASES)
def test_python_and_the_engine_find_the_same(answers: Answers, pattern: str, good: list[str], bad: list[str]) -> None:
    schema = GrammarText(kind="json_schema", text=json.dumps({"type": "string", "pattern": pattern}))
    for text in (*good, *bad):
        assert finds(pattern, text) == (text in good), text
        assert answers.accept(schema, json.dumps(text, ensure_ascii=False)) == (text in good), text


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("(?=a)", "look-around"),
        ("(?<!a)b", "look-around"),
        (r"(a)\1", "back-reference"),
        (r"(?<x>a)\k<x>", "back-reference"),
        (r"\bx", r"`\\b` is not supported"),
        (r"\Ax", r"`\\A` is not supported"),
        ("[z-a]", "from a higher"),
        ("[a", "ends too early"),
        ("a\\", "ends too early"),
        ("[]", "an empty class"),
        (r"\ud83d", "surrogate"),
    ],
)
def test_what_cannot_be_followed_is_refused(pattern: str, message: str) -> None:
    with pytest.raises(PatternError, match=message):
        rust_pattern(pattern)


@pytest.mark.parametrize(
    ("pattern", "parts"),
    [
        (r"^(?=.*[0-9])(?=a|b)x$", ["^(?:.*[0-9])", "^(?:a|b)", "^x$"]),
        (r"^(?=(a[)(]\)))b(c|d)", [r"^(?:(a[)(]\)))", "^b(c|d)"]),
        ("^(?=a)b|c", ["^(?=a)b|c"]),
        ("^(?=a)*b", ["^(?=a)*b"]),
        ("^(?=a", ["^(?=a"]),
        ("(?=a)b", ["(?=a)b"]),
        ("^(?!a)b", ["^(?!a)b"]),
        ("^a(?=b)b", ["^a(?=b)b"]),
    ],
)
def test_what_is_looked_for_at_the_beginning_becomes_expressions_of_its_own(pattern: str, parts: list[str]) -> None:
    assert conjuncts(pattern) == parts


def test_other_than_finds_all_other_texts() -> None:
    words = ["a", "ab", "b", ""]
    for text in short_texts("ab\n", 3):
        assert finds(other_than(words), text) == (text not in words), text
    assert finds(other_than(["."]), "x")


def test_a_literal_is_found_alone() -> None:
    text = "a.b*[é]\n$"
    assert finds(f"^{literal(text)}$", text)
    assert not finds(f"^{literal(text)}$", "axb*[é]\n$")

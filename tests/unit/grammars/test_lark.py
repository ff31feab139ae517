"""Lark grammars as regular expressions: what they match, and what is refused."""

from __future__ import annotations

import json

import pytest

from stoker.core.outline import GrammarText
from stoker.errors import GrammarInvalid, GrammarTooComplex, InvalidInput
from stoker.grammars.lark import regex_of_lark
from stoker.grammars.raw_text import whole_pattern
from tests.grammars import Answers

SUM = """
// A calculator
?start: sum
?sum: product | sum "+" product -> add
?product: atom | product "*" atom
?atom: NUMBER | "-" atom | "(" sum ")"
%import common.NUMBER
%import common.WS_INLINE
%ignore WS_INLINE
"""
PATCH = r"""
start: begin_patch hunk+ end_patch
begin_patch: "*** Begin Patch" LF
end_patch: "*** End Patch" LF?

hunk: add_hunk | delete_hunk
add_hunk: "*** Add File: " filename LF add_line+
delete_hunk: "*** Delete File: " filename LF
filename: /(.+)/
add_line: "+" /(.*)/ LF -> line

%import common.LF
"""
QUERY = 'start: "select"i " " columns\ncolumns: NAME | columns "," NAME\nNAME.2: "a".."z" ("_" | /[a-z]/)~0..3'


def as_json(grammar: str) -> GrammarText:
    schema = {"type": "string", "pattern": whole_pattern(regex_of_lark(grammar))}
    return GrammarText(kind="json_schema", text=json.dumps(schema))


@pytest.mark.parametrize(
    ("grammar", "text"),
    [
        (SUM, "1"),
        (SUM, " 1+2 * ( 3 + -(4) )+5+6+7+8+9+10"),
        (PATCH, '*** Begin Patch\n*** Add File: a.py\n+x = "1"\n+\n*** Delete File: b\n*** End Patch'),
        (QUERY, "SeLECT a,b_c,c,d,e,f,g,h,i,j,k,l"),
        ('start: [x] "b"{2,}\nx: "a" | ', "bbb"),
        ("start: /a.c/s X?\n%import common (INT, WS)\nX: INT WS", "a\nc12 "),
        ('start: b "\\x41\\n"\nb: "(" b ")" |', "(())A\n"),
    ],
)
def test_texts_of_a_grammar(grammar: str, text: str, answers: Answers) -> None:
    assert answers.accept(as_json(grammar), json.dumps(text))


@pytest.mark.parametrize(
    ("grammar", "text"),
    [
        (SUM, "1+"),
        (SUM, "(1"),
        (SUM, "1 2"),
        (SUM, ""),
        (PATCH, "*** Begin Patch\n*** End Patch"),
        (PATCH, "text\n*** Begin Patch\n*** Delete File: b\n*** End Patch"),
        (QUERY, "select a,"),
        (QUERY, "select a_bcde"),
        (QUERY, "select A"),
    ],
)
def test_other_texts(grammar: str, text: str, answers: Answers) -> None:
    assert not answers.accept(as_json(grammar), json.dumps(text))


@pytest.mark.parametrize(
    ("grammar", "said"),
    [
        ("begin: /a/", "no rule `start`"),
        ("start: other", "no rule `other`"),
        ("start: <[12]>", "line 1, column 8"),
        ('start: "a"\n%import common.NOTHING', "no NOTHING"),
        ("start: /a/i", "flag 'i'"),
        ('start: "b".."a"', "from a lower to a higher"),
        ('start: ("a"', "expected `)`"),
        ("start: %json {}", "line 1, column 8"),
        ("start: start", "no text matches"),
        ('start: "a" start "b"', "no text matches"),
        ('start: "a"~3..1', "a repetition"),
        ('start: "\\q"', "escape"),
    ],
)
def test_what_is_refused_and_where(grammar: str, said: str) -> None:
    with pytest.raises(GrammarInvalid, match=said.replace("(", r"\(").replace(")", r"\)")):
        regex_of_lark(grammar)


def test_large_grammars_are_refused() -> None:
    doubling = "\n".join(f"r{level}: r{level + 1} r{level + 1}" for level in range(40))
    for grammar in (
        f'start: r0\n{doubling}\nr40: "a"',
        "start: " + "(" * 100 + '"a"' + ")" * 100,
        'start: "a"' + " " * 70_000,
    ):
        with pytest.raises(GrammarTooComplex):
            regex_of_lark(grammar)


def test_what_looks_around_is_refused_when_it_is_compiled(answers: Answers) -> None:
    with pytest.raises(InvalidInput):
        answers.open(as_json("start: /a(?=b)/"))


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("a|b", "^(?:a|b)$"),
        ("^a$|^b", "^(?:a|b)$"),
        (r"a\$", r"^(?:a\$)$"),
        (r"a\\$", r"^(?:a\\)$"),
        ("[|$]$", "^(?:[|$])$"),
    ],
)
def test_a_pattern_is_tied_to_both_ends(pattern: str, found: str) -> None:
    assert whole_pattern(pattern) == found

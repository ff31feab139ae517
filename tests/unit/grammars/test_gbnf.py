"""GBNF keeps its meaning: the cases of llama.cpp's grammar tests, and a slow and obvious recogniser."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from stoker.backends.scripted import BOS, EOS
from stoker.chat.constraints import written_grammar
from stoker.core.outline import GrammarText
from stoker.errors import GrammarInvalid
from stoker.grammars.gbnf import lark_of_gbnf
from tests.grammars import Answers, accepts, short_texts

JSON = r"""
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws ( string ":" ws value ("," ws string ":" ws value)* )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
ws     ::= | " " | "\n" [ \t]{0,20}
"""

CASES = [
    ('root ::= a_b\na_b ::= [a_] | _c\n_c ::= "c"', ["a", "_", "c"], ["b"]),
    ('root ::= "word" | "words" "x"', ["word", "wordsx"], ["words", "wordx", ""]),
    ('root ::= [a-z]+ "x"', ["ax", "xx", "abcx"], ["x", "ab"]),
    ('root ::= item+ "end"\nitem ::= [a-z]', ["aend", "endend"], ["end", "a"]),
    ('root ::= "a" "b" "c" | "ab" "d"', ["abc", "abd"], ["ab", "abcd"]),
    ('root ::= "x"{2,3} "x"', ["xxx", "xxxx"], ["xx", "xxxxx"]),
    ('root ::= "a"{0} "b"{2} "c"{1,} "d"?', ["bbc", "bbccd"], ["abbc", "bb", "bc"]),
    ('root ::= ("a" | "b"){2}', ["ab", "bb"], ["a", "aba"]),
    ('root ::= () "a" ("" | "b")', ["a", "ab"], ["b"]),
    ('root ::= [] "a"', [], ["a", ""]),
    ("root ::= [^] .", ["ab", "\n\n"], ["a"]),
    (r'root ::= [\x41-\x43] "\u00e9" "\U0001F600"', ["Aé😀", "Cé😀"], ["Dé😀", "Ae😀"]),
    (r'root ::= "\"\\\n\t" [\]\[-]', ['"\\\n\t]', '"\\\n\t-'], ['"\\\n\t\\']),
    (r'root ::= [a\-z] "\-"', ["a-", "--", "z-"], ["b-", "\\-"]),
    ('root ::= [a-] "b"', ["ab", "-b"], ["bb"]),
    ('root ::= expr\nexpr ::= expr "+" expr | [0-9]+ | "(" expr ")"', ["1+2", "(1+22)+3"], ["1+", "()", ""]),
    ('root ::= "(" root ")" | "x"', ["x", "((x))"], ["(x", "x)"]),
    ('root ::= [a-z]+ tail | "."\ntail ::= "x" root', ["ax.", "xxbx."], ["x.", "a."]),
    ('root ::= "ab" tail | "abcd" | "."\ntail ::= "c" root', ["abc.", "abcd", "abcabcd"], ["abd"]),
    ('root ::= w tail | "."\nw ::= "é"+\ntail ::= "è" root', ["éè.", "ééèéè."], ["éé.", "è."]),
    ('root ::= "a" root | ""?', ["", "aa"], ["b"]),
    ('root ::= ("a" root "b")?', ["", "ab", "aabb"], ["aab", "a"]),
    ('root ::= a-1 # a comment\na-1 ::= "a" |\n  "b"\n\n\n', ["a", "b"], ["#"]),
    ('root ::= ( "a"\n  | "b" )\n', ["a", "b"], []),
    ('a ::= "1"\nroot ::= a\na ::= "2"', ["2"], ["1"]),
    (JSON, ['{"a": [1, -2.5e3, "x\\u00e9"], "b": {}}', "{}"], ['{"a": 01}', '{"a"}', "[]"]),
]


def test_what_is_not_recursive_is_read_in_lexemes() -> None:
    lines = lark_of_gbnf(JSON, {}.get).splitlines()
    assert not [line for line in lines if line.startswith("r") and "/" in line]
    assert any(line.startswith("r") for line in lines)


def test_a_large_grammar_is_written_character_by_character() -> None:
    rules = [f'r-{index} ::= [a-m]+ "x" (r-{index + 1} | root) [n-z]*' for index in range(300)]
    lark = lark_of_gbnf("\n".join(['root ::= r-0 | ""', *rules, 'r-300 ::= "y"']), {}.get)
    assert all(line.startswith("r") for line in lark.splitlines()[1:])


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("%llguidance {}\nroot: /a/", "lark"),
        ("start: item+\nitem: /a/", "lark"),
        ("\n    // SQL\n    ?start: item\n    ?item: /a/", "lark"),
        ('root ::= "start:"', "gbnf"),
        ("root ::= a\n# start: b\na ::= [a]", "gbnf"),
        ("restart: a", "gbnf"),
    ],
)
def test_a_grammar_is_known_by_its_rules(text: str, kind: str) -> None:
    assert written_grammar(text).kind == kind


@pytest.mark.parametrize(("grammar", "good", "bad"), CASES)
def test_a_grammar_accepts_what_it_says(answers: Answers, grammar: str, good: list[str], bad: list[str]) -> None:
    text = GrammarText(kind="gbnf", text=grammar)
    for each in (*good, *bad):
        try:
            is_accepted = answers.accept(text, each)
        except GrammarInvalid:
            is_accepted = False
        assert is_accepted == (each in good), each


@pytest.mark.parametrize(
    ("grammar", "message"),
    [
        ('root ::= "a', "line 1, column 12 of the grammar: expected more"),
        ('root ::= "a"\n| "b"', "line 2, column 1 of the grammar: expected the name of a rule"),
        ("root := x", "line 1, column 6 of the grammar: expected `::=`"),
        ("root ::= x", "no rule `x`"),
        ('main ::= "x"', "no rule `root`"),
        ('root ::= ("a"', "expected `\\)`"),
        ('root ::= "a"{3,2}', "a repetition of up to"),
        ('root ::= "a"{1,99999}', "a repetition of up to"),
        ("root ::= [z-a]", "a range from a lower to a higher character"),
        (r'root ::= "\q"', "an escape sequence"),
        (r'root ::= "\uD800"', "a character of Unicode"),
        ("root ::= " + "(" * 100, "at most 64 nested groups"),
        ("root ::= <[1]> <no such token>", "a token, as"),
    ],
)
def test_a_malformed_grammar_is_refused_with_its_place(grammar: str, message: str) -> None:
    with pytest.raises(GrammarInvalid, match=message):
        lark_of_gbnf(grammar, lambda _: None)


def test_tokens_are_named_by_number_or_text(answers: Answers) -> None:
    constraint = answers.open(GrammarText(kind="gbnf", text='root ::= <s> !<[97]> "b" <[99]>'))
    assert [constraint.allows(token) for token in (BOS, EOS, 60)] == [True, False, False]
    constraint.push(BOS)
    assert [constraint.allows(token) for token in (97, 98, BOS)] == [False, True, True]
    for token in b"xbc":
        constraint.push(token)
    assert constraint.error is None
    assert constraint.is_complete


def test_a_text_of_several_tokens_is_no_token(answers: Answers) -> None:
    with pytest.raises(GrammarInvalid, match="`<think>` is not one token"):
        answers.open(GrammarText(kind="gbnf", text="root ::= <think>"))


def trees() -> SearchStrategy[object]:
    leaf = st.sampled_from(
        [("text", ""), ("text", "a"), ("text", "ab"), ("class", "ab"), ("class", "b"), ("rule", "r")]
    )
    return st.recursive(
        leaf,
        lambda inner: st.one_of(
            st.tuples(st.just("or"), st.lists(inner, min_size=1, max_size=3)),
            st.tuples(st.just("then"), st.lists(inner, min_size=1, max_size=3)),
            st.tuples(st.sampled_from(["{0,2}", "{2}", "*", "?"]), inner),
        ),
        max_leaves=6,
    )


def written(tree: object) -> str:
    match tree:
        case ("text", str(text)):
            return f'"{text}"'
        case ("class", str(text)):
            return f"[{text}]"
        case ("rule", str(name)):
            return name
        case ("or", list(parts)):
            return f"({' | '.join(map(written, parts))})"
        case ("then", list(parts)):
            return f"({' '.join(map(written, parts))})"
        case (str(sign), inner):
            return f"({written(inner)}){sign}"
        case _:
            raise AssertionError(tree)


def language(tree: object, rule: frozenset[str], most: int) -> frozenset[str]:
    """Every text of at most so many characters, where the rule `r` stands for some texts."""
    match tree:
        case ("text", str(text)):
            return frozenset([text])
        case ("class", str(text)):
            return frozenset(text)
        case ("rule", _):
            return rule
        case ("or", list(parts)):
            return frozenset().union(*(language(part, rule, most) for part in parts))
        case ("then", list(parts)):
            found = frozenset([""])
            for part in parts:
                found = joined(found, language(part, rule, most), most)
            return found
        case (str(sign), inner):
            low, high = {"{0,2}": (0, 2), "{2}": (2, 2), "*": (0, most), "?": (0, 1)}[sign]
            each, power, found = language(inner, rule, most), frozenset([""]), frozenset[str]()
            for count in range(high + 1):
                found |= power if count >= low else frozenset()
                power = joined(power, each, most)
            return found
        case _:
            raise AssertionError(tree)


def joined(left: frozenset[str], right: frozenset[str], most: int) -> frozenset[str]:
    return frozenset(a + b for a in left for b in right if len(a) + len(b) <= most)


@settings(max_examples=80)
@given(trees(), trees())
def test_a_grammar_is_the_language_that_a_slow_recogniser_finds(answers: Answers, root: object, rule: object) -> None:
    most = 4
    known: frozenset[str] = frozenset()
    while (more := language(rule, known, most)) != known:
        known = more
    expected = {text for text in language(root, known, most) if len(text) <= most}
    grammar = GrammarText(kind="gbnf", text=f"root ::= {written(root)}\nr ::= {written(rule)}")
    try:
        constraint = answers.open(grammar)
    except GrammarInvalid:
        assert not expected
    else:
        found = {text for text in short_texts("ab", most) if accepts(constraint.copy(), list(text.encode()))}
        assert found == expected

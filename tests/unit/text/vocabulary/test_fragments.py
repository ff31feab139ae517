"""Special tokens in a text are found as a plain, slow search finds them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stoker.text.vocabulary.fragments import Fragment, FragmentSplitter, ParsedToken


def slowly(tokens: list[ParsedToken], text: str) -> list[Fragment]:
    """Every token is tried on every fragment, the longest first."""
    fragments: list[Fragment] = [text] if text else []
    for token in sorted(tokens, key=lambda token: -len(token.text.encode())):
        cut: list[Fragment] = []
        for fragment in fragments:
            rest = fragment
            while isinstance(rest, str) and token.text in rest:
                left, _, rest = rest.partition(token.text)
                cut += [piece for piece in (left.rstrip() if token.strips_left else left,) if piece]
                cut.append(token.token_id)
                rest = rest.lstrip() if token.strips_right else rest
            if rest or isinstance(rest, int):
                cut.append(rest)
        fragments = cut
    return fragments


tokens = st.lists(
    st.tuples(st.text("<|ab> é", min_size=1, max_size=5), st.booleans(), st.booleans()),
    max_size=8,
    unique_by=lambda token: token[0],
).map(lambda found: [ParsedToken(number, *token) for number, token in enumerate(found)])


@given(tokens=tokens, text=st.text("<|ab> é\n", max_size=40))
def test_fragments_are_those_of_a_plain_search(tokens: list[ParsedToken], text: str) -> None:
    by_length = {len(token.text.encode()) for token in tokens}
    if len(by_length) == len(tokens):  # of two as long, either may come first
        assert FragmentSplitter(tokens).split(text) == slowly(tokens, text)


def test_the_longest_token_wins_even_behind_a_shorter_one() -> None:
    splitter = FragmentSplitter([ParsedToken(0, "ab"), ParsedToken(1, "bcd")])
    assert splitter.split("abcd ab") == ["a", 1, " ", 0]


def test_runs_are_taken_in_the_longest_pieces() -> None:
    splitter = FragmentSplitter([ParsedToken(n, "\n" * n) for n in (1, 2, 5)])
    assert splitter.split("a" + "\n" * 13 + "b") == ["a", 5, 5, 2, 1, "b"]


def test_spaces_go_with_the_tokens_that_strip_them() -> None:
    splitter = FragmentSplitter(
        [
            ParsedToken(0, "<l>", strips_left=True),
            ParsedToken(1, "<right>", strips_right=True),
            ParsedToken(2, "<none>"),
        ]
    )
    assert splitter.split("a \t<l> b") == ["a", 0, " b"]
    assert splitter.split("a <right> \r\n b") == ["a ", 1, "b"]
    assert splitter.split("a <none> b <right>\u00a0") == ["a ", 2, " b ", 1, "\u00a0"]


def test_an_empty_text_has_no_fragments() -> None:
    assert FragmentSplitter([]).split("") == []
    assert FragmentSplitter([]).split("a") == ["a"]

"""The detokenizer equals decoding everything at once, wherever the token borders fall."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stoker.text.detokenizer import Detokenizer

ALMOST_TEXT = st.lists(
    st.one_of(
        st.text(max_size=4).map(str.encode),
        st.binary(max_size=4),
        st.sampled_from(
            ["é".encode()[:1], "€".encode()[:2], "😀".encode()[:3], b"\xed\xa0\x80", b"\xf4\x90", b"\xc0\xaf"]
        ),
    ),
    max_size=12,
).map(b"".join)


@st.composite
def split_bytes(draw: st.DrawFn) -> list[bytes]:
    whole = draw(ALMOST_TEXT)
    cuts = sorted(draw(st.lists(st.integers(0, len(whole)), max_size=len(whole) + 2)))
    return [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]


@given(split_bytes())
def test_equals_decoding_everything(tokens: list[bytes]) -> None:
    detokenizer = Detokenizer(tokens.__getitem__)
    texts = [detokenizer.push(token_id) for token_id in range(len(tokens))]
    assert "".join(texts) + detokenizer.flush() == b"".join(tokens).decode("utf-8", "replace")


@given(st.text())
def test_one_byte_at_a_time_no_text_is_late(text: str) -> None:
    detokenizer = Detokenizer(lambda token_id: bytes([token_id]))
    for char in text:
        assert [out for out in map(detokenizer.push, char.encode()) if out] == [char]

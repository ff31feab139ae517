"""A tokenizer from the content of Hugging Face's `tokenizer.json`, based on the library `tokenizers`. Reads no file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, TypeAlias, cast

import msgspec
from tokenizers import AddedToken, Tokenizer

from stoker.errors import InvalidInput, ModelFileInvalid, ModelUnsupported
from stoker.text.vocabulary.pieces import token_piece
from stoker.text.vocabulary.special_tokens import ENDS_GENERATION, Attribute

_MAX_DEPTH = 8
_Spelling: TypeAlias = Literal["bytes", "spaces", "words"]
"""How tokens are spelled: with GPT-2's letters for bytes, with `▁` for a space, or as WordPiece with `##`."""
_SPACED = {"Metaspace", "ByteFallback", "Replace"}
"""Types of decoders for vocabularies that spell a space as `▁`, and bytes as `<0x0A>`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerHints:
    """Facts about special tokens from other files of the model. `None` = not specified there."""

    bos_token: str | None = None
    bos_token_id: int | None = None
    eos_token: str | None = None
    adds_bos: bool | None = None
    eos_token_ids: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Around:
    """The tokens that a tokenizer adds after and between texts; its BOS is not included."""

    behind: tuple[int, ...]
    """Token ids after every text, and after the second one of a pair."""
    between: tuple[int, ...]
    """Token ids between the two texts of a pair."""


class _DecoderPart(msgspec.Struct):
    """The part of the file that `tokenizers` does not expose. Decoding skips the rest, which can be large."""

    decoder: Any = None


class JSONTokenizer:
    """A tokenizer from `tokenizer.json`. Satisfies `stoker.text.tokenizer.Tokenizer`. Safe to use from several threads.

    Args:
        text: the content of `tokenizer.json`.
        hints: facts from the model's other files.

    Raises:
        ModelFileInvalid: the text is not a valid `tokenizer.json`.
        ModelUnsupported: the decoder from tokens to bytes is not supported; the message names it.
    """

    def __init__(self, text: str, hints: TokenizerHints) -> None:
        self._tokenizer = _parse(text)
        self._spelling = _spelling(text)
        self._added = self._tokenizer.get_added_tokens_decoder()
        self.vocab_size = 1 + max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
        self.num_words = 1 + max(self._tokenizer.get_vocab(with_added_tokens=False).values(), default=-1)
        """Size of the vocabulary without added tokens."""
        self._pieces: list[bytes | None] = [None] * self.vocab_size
        front = self._front()
        self.adds_bos = front is not None if hints.adds_bos is None else hints.adds_bos
        self.bos_token_id = _first_known(front, self._id_of(hints.bos_token), self._checked(hints.bos_token_id))
        self._ends = self._find_ends(hints)
        self.eos_token_id = _first_known(self._id_of(hints.eos_token), min(self._ends, default=None))

    def eog_token_ids(self) -> frozenset[int]:
        """All end-of-generation tokens."""
        return self._ends

    def encode(self, text: str, *, parse_special: bool = True) -> list[int]:
        """See `Tokenizer.encode`.

        Raises:
            InvalidInput: the text has a lone surrogate, which cannot be encoded as UTF-8.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidInput(f"The text is not valid Unicode: {error.reason}.", position=error.start) from error
        tokenizer = self._tokenizer if parse_special else self._plain
        return tokenizer.encode(text, add_special_tokens=False).ids

    def fewest_tokens(self, text: str) -> int:
        """Always 0: no bound is known, because the file may define any normalization of texts."""
        return 0

    def token_bytes(self, token_id: int, *, render_special: bool = False) -> bytes:
        """See `Tokenizer.token_bytes`. Ids without a token have no bytes.

        Raises:
            InvalidInput: the id is negative.
        """
        if token_id < 0:
            raise InvalidInput(f"token id {token_id} is outside the vocabulary of {self.vocab_size}")
        added = self._added.get(token_id)
        if token_id >= self.vocab_size or (added is not None and added.special and not render_special):
            return b""
        piece = self._pieces[token_id]
        if piece is None:
            piece = self._pieces[token_id] = self._piece(token_id, added)
        return piece

    @cached_property
    def _plain(self) -> Tokenizer:
        """A tokenizer that treats special tokens as text. Made on demand, since some take 100 MB."""
        found = _parse(self._tokenizer.to_str())
        found.encode_special_tokens = True
        return found

    def _piece(self, token_id: int, added: AddedToken | None) -> bytes:
        if added is not None:
            return added.content.encode()
        text = self._tokenizer.id_to_token(token_id)
        if text is None:
            return b""
        is_byte_level = self._spelling == "bytes"
        if self._spelling == "words":
            text = text[2:] if text.startswith("##") else f"▁{text}"
        is_byte = not is_byte_level and len(text) == 6 and text.startswith("<0x") and text.endswith(">")
        return token_piece(text, Attribute.BYTE if is_byte else Attribute.NORMAL, is_byte_level=is_byte_level)

    def around(self) -> Around:
        """The tokens that the post-processor of the file adds after texts, and between two texts."""
        bare = self._tokenizer.encode("a", add_special_tokens=False).ids
        full = self._tokenizer.encode("a", add_special_tokens=True).ids
        pair = self._tokenizer.encode("a", "a", add_special_tokens=True).ids
        first = next((at for at in range(len(full)) if full[at : at + len(bare)] == bare), 0) + len(bare)
        behind = tuple(full[first:])
        return Around(behind, tuple(pair[first : len(pair) - len(behind) - len(bare)]))

    def _front(self) -> int | None:
        """The token that the post-processor of the file adds in front of every text; None = none."""
        bare = self._tokenizer.encode("a", add_special_tokens=False).ids
        full = self._tokenizer.encode("a", add_special_tokens=True).ids
        return full[0] if len(full) > len(bare) and full[:1] != bare[:1] else None

    def _find_ends(self, hints: TokenizerHints) -> frozenset[int]:
        named = [self._id_of(hints.eos_token), *(self._checked(token_id) for token_id in hints.eos_token_ids)]
        known = {token_id for token_id, added in self._added.items() if added.content in ENDS_GENERATION}
        return frozenset(token_id for token_id in named if token_id is not None) | known - {self.bos_token_id}

    def _id_of(self, text: str | None) -> int | None:
        return None if text is None else self._tokenizer.token_to_id(text)

    def _checked(self, token_id: int | None) -> int | None:
        return token_id if token_id is not None and 0 <= token_id < self.vocab_size else None


def read_hints(
    config: Mapping[str, Any], *, bos_token_id: int | None = None, eos_token_ids: frozenset[int] = frozenset()
) -> TokenizerHints:
    """The hints in the content of `tokenizer_config.json`, combined with ids from other files."""
    adds_bos = config.get("add_bos_token")
    return TokenizerHints(
        bos_token=_token_text(config.get("bos_token")),
        bos_token_id=bos_token_id,
        eos_token=_token_text(config.get("eos_token")),
        adds_bos=adds_bos if isinstance(adds_bos, bool) else None,
        eos_token_ids=eos_token_ids,
    )


def _token_text(value: object) -> str | None:
    if isinstance(value, dict):
        value = cast(Mapping[str, object], value).get("content")
    return value if isinstance(value, str) else None


def _parse(text: str) -> Tokenizer:
    try:
        found = Tokenizer.from_str(text)
    except Exception as error:  # `tokenizers` raises no more specific error
        raise ModelFileInvalid(f"tokenizer.json cannot be used: {error}") from error
    found.no_truncation()  # some files silently truncate texts to the length of the author's examples
    found.no_padding()
    return found


def _spelling(text: str) -> _Spelling:
    """How the file's tokens are spelled, according to its decoder."""
    kinds = set(_kinds(msgspec.json.decode(text, type=_DecoderPart).decoder, 0))
    if "ByteLevel" in kinds:
        return "bytes"
    if kinds & _SPACED:
        return "spaces"
    if "WordPiece" in kinds:
        return "words"
    names = ", ".join(sorted(kinds)) or "none"
    raise ModelUnsupported(f"the decoder of tokenizer.json ({names}) is not known here", decoder=names)


def _kinds(decoder: object, depth: int) -> Iterator[str]:
    if not isinstance(decoder, dict) or depth > _MAX_DEPTH:
        return
    decoder = cast(Mapping[str, Any], decoder)
    yield str(decoder.get("type"))
    for part in cast(list[object], decoder.get("decoders") or []):
        yield from _kinds(part, depth + 1)


def _first_known(*token_ids: int | None) -> int | None:
    return next((token_id for token_id in token_ids if token_id is not None), None)

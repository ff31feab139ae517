"""What a model's file says about its vocabulary, as plain values. Nothing is decided or defaulted here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum


class TokenType(IntEnum):
    """The types of tokens by their numbers in GGUF files."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Vocabulary:
    """The tokenizer part of a model's file. `None` and missing keys mean: the file does not say."""

    model: str
    """The kind of tokenizer: `gpt2` (byte-level BPE), `llama` (SentencePiece), `bert` (WordPiece), ..."""
    pre_tokenizer: str = ""
    """The name of the rule that cuts a text into words, such as `llama-bpe`; only BPE has one."""
    architecture: str = ""
    model_name: str = ""
    tokens: Sequence[str] = field(repr=False)
    """By token id. Bytes that are no UTF-8 stand as lone surrogates (`surrogateescape`)."""
    types: Sequence[int] = field(repr=False)
    """A `TokenType` for each token; unknown numbers are possible."""
    scores: Sequence[float] = field(default=(), repr=False)
    """One finite number for each token, or none at all."""
    merges: Sequence[str] | None = field(default=None, repr=False)
    """BPE: `left right`, the most important one first."""
    special_ids: Mapping[str, int] = field(default_factory=dict[str, int])
    """Token ids by role: `bos`, `eos`, `eot`, `eom`, `unk`, `sep`, `pad`, `mask`, `fim_pre`, ... Not yet checked."""
    add_bos: bool | None = None
    add_eos: bool | None = None
    add_sep: bool | None = None
    add_space_prefix: bool | None = None
    lowercase: bool | None = None
    strip_accents: bool | None = None
    merges_spaces: bool | None = None
    """Several spaces count as one, and those around a text as none."""
    character_map: bytes = field(default=b"", repr=False)
    """SentencePiece's table of what characters become before a text is cut, as it is compiled."""

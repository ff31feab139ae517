"""Determines the special tokens of a vocabulary as libllama does: defaults, search by name, and corrections of files.

Follows `llama_vocab::impl::load` in <https://github.com/ggml-org/llama.cpp/blob/master/src/llama-vocab.cpp>; where
libllama takes the one of several names that its hash table lists first, the first of the lists below is taken here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from stoker.core.vocabulary import TokenType, Vocabulary
from stoker.errors import ModelFileInvalid
from stoker.text.vocabulary.word_rules import WordRule


class Attribute:
    """Attributes of a token, as bits that can be combined."""

    NORMAL: Final = 1
    UNKNOWN: Final = 2
    CONTROL: Final = 4
    USER_DEFINED: Final = 8
    BYTE: Final = 16
    STRIPS_LEFT: Final = 32
    """White space before the token is stripped; `STRIPS_RIGHT` strips white space after it."""
    STRIPS_RIGHT: Final = 64

    HIDDEN: Final = UNKNOWN | CONTROL
    """The token adds nothing to a text."""
    PARSED: Final = HIDDEN | USER_DEFINED
    """The token is searched for in a text before the text is split into words."""


_OF_TYPE: dict[int, int] = {
    TokenType.NORMAL: Attribute.NORMAL,
    TokenType.UNKNOWN: Attribute.UNKNOWN,
    TokenType.CONTROL: Attribute.CONTROL,
    TokenType.USER_DEFINED: Attribute.USER_DEFINED,
    TokenType.BYTE: Attribute.BYTE,
}

_DEFAULT_IDS: dict[str, dict[str, int]] = {
    "llama": {"bos": 1, "eos": 2, "unk": 0},
    "bert": {"bos": 101, "unk": 100, "sep": 102, "pad": 0, "mask": 103},
    "gpt2": {"bos": 11, "eos": 11},
    "gemma4": {},
    "t5": {"eos": 1, "unk": 2, "pad": 0},
}

_NAMES: dict[str, tuple[str, ...]] = {
    "eot": (
        "<|eot_id|>",
        "<|im_end|>",
        "<|end|>",
        "<end_of_turn>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<EOT>",
        "_<EOT>",
        "[EOT]",
        "<｜end▁of▁sentence｜>",
        "<end_of_utterance>",
    ),
    "eom": ("<|eom_id|>",),
    "fim_pre": (
        "<|fim_prefix|>",
        "<fim-prefix>",
        "<fim_prefix>",
        "<｜fim▁begin｜>",
        "<PRE>",
        "▁<PRE>",
        "<|code_prefix|>",
        "<|prefix|>",
    ),
    "fim_suf": (
        "<|fim_suffix|>",
        "<fim-suffix>",
        "<fim_suffix>",
        "<｜fim▁hole｜>",
        "<SUF>",
        "▁<SUF>",
        "<|code_suffix|>",
        "<|suffix|>",
    ),
    "fim_mid": (
        "<|fim_middle|>",
        "<fim-middle>",
        "<fim_middle>",
        "<｜fim▁end｜>",
        "<MID>",
        "▁<MID>",
        "<|code_middle|>",
        "<|middle|>",
    ),
    "fim_pad": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
    "fim_rep": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    "fim_sep": ("<|file_sep|>",),
}
"""Roles that a file may omit, with token texts: the first that the vocabulary has gets the role as a control token."""

ENDS_GENERATION = (
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
)
_ALWAYS_SHOWN = ("<|channel|>", "<|message|>", "<|start|>", "<|constrain|>")
"""Tokens in the answers of gpt-oss that stay visible because a parser needs them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecialTokens:
    """The special tokens of one vocabulary."""

    attributes: Sequence[int]
    """Bits of `Attribute`, by token id."""
    ids: Mapping[str, int]
    """Token ids by role, as in `Vocabulary.special_ids`; roles without a token are missing."""
    eog_ids: frozenset[int]
    """All end-of-generation tokens."""
    adds_bos: bool
    adds_eos: bool
    adds_sep: bool

    @property
    def parsed_ids(self) -> list[int]:
        """The tokens that are searched for in a text before the text is split into words."""
        parsed = Attribute.PARSED
        return [token_id for token_id, attribute in enumerate(self.attributes) if attribute & parsed]


def find_special_tokens(vocabulary: Vocabulary, token_ids: Mapping[str, int], rule: WordRule | None) -> SpecialTokens:
    """The special tokens of a vocabulary, determined as libllama does.

    Args:
        vocabulary: the vocabulary.
        token_ids: token ids by text.
        rule: the word rule of a BPE vocabulary; None = another kind of vocabulary.

    Raises:
        ModelFileInvalid: a token (BOS, EOS or SEP) is to be added to every prompt, but the vocabulary lacks it.
    """
    attributes = [_OF_TYPE.get(kind, 0) for kind in vocabulary.types]
    ids = _ids(vocabulary, rule)
    for role, names in _NAMES.items():
        named = next((token_ids[name] for name in names if name in token_ids), None)
        if role not in ids and named is not None:
            ids[role] = named
            attributes[named] |= Attribute.CONTROL
    eog_ids = _end_of_generation(token_ids, ids, attributes)
    _set_stripping(vocabulary, token_ids, attributes)
    return SpecialTokens(
        attributes=attributes, ids=ids, eog_ids=frozenset(eog_ids), **_added_tokens(vocabulary, ids, rule)
    )


def _ids(vocabulary: Vocabulary, rule: WordRule | None) -> dict[str, int]:
    size = len(vocabulary.tokens)
    defaults = {role: number for role, number in _DEFAULT_IDS[vocabulary.model].items() if number < size}
    if rule is not None and not rule.has_default_bos:
        defaults.pop("bos", None)
    return defaults | {role: number for role, number in vocabulary.special_ids.items() if 0 <= number < size}


def _added_tokens(vocabulary: Vocabulary, ids: Mapping[str, int], rule: WordRule | None) -> dict[str, bool]:
    is_unigram = vocabulary.model == "t5"
    defaults = {
        "bos": rule.adds_bos if rule else not is_unigram,
        "eos": is_unigram,
        "sep": rule.adds_sep if rule else vocabulary.model == "bert",
    }
    given = {"bos": vocabulary.add_bos, "eos": vocabulary.add_eos, "sep": vocabulary.add_sep}
    adds = {role: default if given[role] is None else bool(given[role]) for role, default in defaults.items()}
    if rule is not None and rule.keeps_newline_runs:
        adds["bos"] = True  # files of Gemma 4 say otherwise, which is wrong
    for role, is_added in adds.items():
        if is_added and role not in ids:
            raise ModelFileInvalid(f"the vocabulary adds `{role}` to every prompt, but has no such token")
    return {f"adds_{role}": is_added for role, is_added in adds.items()}


def _end_of_generation(token_ids: Mapping[str, int], ids: Mapping[str, int], attributes: list[int]) -> set[int]:
    found = {ids[role] for role in ("fim_pad", "fim_rep", "fim_sep", "eos", "eot", "eom") if role in ids}
    for name in ENDS_GENERATION:
        if name in token_ids:
            found.add(token_ids[name])
            attributes[token_ids[name]] |= Attribute.CONTROL
    for name in _ALWAYS_SHOWN:
        if name in token_ids:
            attributes[token_ids[name]] = Attribute.USER_DEFINED

    def has(name: str) -> bool:
        return token_ids.get(name) in found

    if has("<|end|>") and (has("<|call|>") or has("<|calls|>")) and (has("<|return|>") or has("<|flush|>")):
        found.remove(token_ids["<|end|>"])  # in this format, it ends only a part of an answer
        attributes[token_ids["<|end|>"]] = Attribute.USER_DEFINED
    if has("<|tool_response>") and has("</s>"):
        found.remove(token_ids["</s>"])
        attributes[token_ids["</s>"]] = Attribute.NORMAL
    return found


def _set_stripping(vocabulary: Vocabulary, token_ids: Mapping[str, int], attributes: list[int]) -> None:
    """Sets which tokens strip white space beside them. Files do not specify it, so it depends on names in the file."""
    name = vocabulary.model_name.lower()
    masks_strip = any(part in vocabulary.pre_tokenizer for part in ("jina-v2-de", "jina-v2-es", "jina-v2-code"))
    if masks_strip or any(part in vocabulary.architecture for part in ("nomic-bert-moe", "jina-bert-v3")):
        _add(attributes, token_ids.get("<mask>"), Attribute.STRIPS_LEFT)
    elif "phi-3" in name or "phi3" in name:
        exempt = {token_ids.get(text) for text in ("<unk>", "<s>", "<|endoftext|>")}
        end = token_ids.get("</s>")
        for token_id, attribute in enumerate(attributes):
            if (attribute & Attribute.PARSED or token_id == end) and token_id not in exempt:
                attributes[token_id] |= Attribute.STRIPS_RIGHT
    elif "modern-bert" in name:
        _add(attributes, token_ids.get("[MASK]"), Attribute.STRIPS_LEFT)


def _add(attributes: list[int], token_id: int | None, attribute: int) -> None:
    if token_id is not None:
        attributes[token_id] |= attribute

"""Converts a vocabulary to Hugging Face's `tokenizer.json`, which `tokenizers` and everything built on it reads.

It gives the same tokens as `text.vocabulary`, with exceptions that the format cannot express: characters that only the
newest Unicode defines may be split differently; bytes without a token are dropped before words are merged, not after;
merges whose parts are not tokens are left out; and of two merges with the same score, that of the token with the
smaller id comes first, not the leftmost one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeAlias

from stoker.core.vocabulary import Vocabulary
from stoker.errors import ModelUnsupported
from stoker.text.vocabulary.special_tokens import Attribute, SpecialTokens
from stoker.text.vocabulary.unicode_classes import plain_pattern
from stoker.text.vocabulary.word_rules import WordRule, word_rule

_SPELLINGS = {
    r"'(?:[sStTmMdD]|[rR][eE]|[vV][eE]|[lL][lL])": "(?i:'s|'t|'re|'ve|'m|'ll|'d)",
    "'(?:[stmd]|re|ve|ll)": "'s|'t|'re|'ve|'m|'ll|'d",
}
"""Pattern -> equivalent in usual spelling: onnxruntime-genai recognizes patterns by spelling, and runs no others."""

JSON: TypeAlias = Mapping[str, "JSON"] | list["JSON"] | str | int | float | bool | None


def tokenizer_json(vocabulary: Vocabulary, special: SpecialTokens) -> JSON:
    """The content of the whole file.

    Args:
        vocabulary: the vocabulary of the model's file.
        special: special tokens and attributes of tokens.

    Raises:
        ModelUnsupported: the vocabulary consists of word pieces (WordPiece), which no decoder uses.
    """
    if vocabulary.model == "bert":
        raise ModelUnsupported("vocabularies of word pieces cannot be exported")
    token_ids = {text: token_id for token_id, text in enumerate(vocabulary.tokens) if _is_unicode(text)}
    rule = None if vocabulary.model == "llama" else _rule(vocabulary)
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [added_token(vocabulary, special, token_id) for token_id in special.parsed_ids],
        **(_scored(vocabulary, special, token_ids) if rule is None else _byte_pairs(vocabulary, token_ids, rule)),
        "post_processor": _post_processor(vocabulary, special, rule),
    }


def added_token(vocabulary: Vocabulary, special: SpecialTokens, token_id: int) -> Mapping[str, JSON]:
    """The entry of a token that is found in a text before the text is split into words."""
    attribute = special.attributes[token_id]
    return {
        "id": token_id,
        "content": vocabulary.tokens[token_id],
        "single_word": False,
        "lstrip": bool(attribute & Attribute.STRIPS_LEFT),
        "rstrip": bool(attribute & Attribute.STRIPS_RIGHT),
        "normalized": False,
        "special": bool(attribute & Attribute.HIDDEN),
    }


def _rule(vocabulary: Vocabulary) -> WordRule:
    rule = word_rule("gemma4" if vocabulary.model == "gemma4" else vocabulary.pre_tokenizer)
    assert rule is not None, "the tokenizer has been built before"
    return rule


def _byte_pairs(vocabulary: Vocabulary, token_ids: Mapping[str, int], rule: WordRule) -> Mapping[str, JSON]:
    cutters: list[JSON] = [_split(pattern) for pattern in rule.patterns]
    if rule.is_byte_level:
        cutters.append(_byte_level(add_prefix_space=False))
    merges = [merge for merge in vocabulary.merges or () if _can_merge(merge, token_ids)]
    return {
        "normalizer": None if rule.is_byte_level else _replace(" ", "▁"),
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": cutters},
        "decoder": _byte_level(add_prefix_space=True) if rule.is_byte_level else _spaces_back(strips_first=False),
        "model": _model(
            token_ids, merges, ignore_merges=rule.ignores_merges, byte_fallback=not rule.is_byte_level, unknown=None
        ),
    }


def _can_merge(merge: str, token_ids: Mapping[str, int]) -> bool:
    left, _, right = merge.partition(" ")
    return " " not in right and left in token_ids and right in token_ids and left + right in token_ids


def _scored(vocabulary: Vocabulary, special: SpecialTokens, token_ids: Mapping[str, int]) -> Mapping[str, JSON]:
    has_prefix = vocabulary.add_space_prefix is None or vocabulary.add_space_prefix
    prefix: list[JSON] = [{"type": "Prepend", "prepend": "▁"}] if has_prefix else []
    unknown = special.ids.get("unk")
    return {
        "normalizer": {"type": "Sequence", "normalizers": [*prefix, _replace(" ", "▁")]},
        "pre_tokenizer": None,
        "decoder": _spaces_back(strips_first=has_prefix),
        "model": _model(
            token_ids,
            [f"{left} {right}" for left, right in _scored_merges(vocabulary, token_ids)],
            ignore_merges=False,
            byte_fallback=True,
            unknown=None if unknown is None else vocabulary.tokens[unknown],
        ),
    }


def _scored_merges(vocabulary: Vocabulary, token_ids: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    """All ways to merge two tokens into a third one, the token with the best score first."""
    scores = vocabulary.scores or [0.0] * len(vocabulary.tokens)
    for text in sorted(token_ids, key=lambda text: -scores[token_ids[text]]):
        if " " in text:
            continue
        for middle in range(len(text) - 1, 0, -1):
            if text[:middle] in token_ids and text[middle:] in token_ids:
                yield text[:middle], text[middle:]


def _model(
    token_ids: Mapping[str, int], merges: list[str], *, ignore_merges: bool, byte_fallback: bool, unknown: str | None
) -> JSON:
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": unknown,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": byte_fallback,
        "byte_fallback": byte_fallback,
        "ignore_merges": ignore_merges,
        "vocab": token_ids,
        "merges": [*merges],
    }


def _split(pattern: str) -> JSON:
    spelled = plain_pattern(pattern)
    for ours, usual in _SPELLINGS.items():
        spelled = spelled.replace(ours, usual)
    return {"type": "Split", "pattern": {"Regex": spelled}, "behavior": "Isolated", "invert": False}


def _byte_level(*, add_prefix_space: bool) -> JSON:
    return {"type": "ByteLevel", "add_prefix_space": add_prefix_space, "trim_offsets": True, "use_regex": False}


def _replace(old: str, new: str) -> JSON:
    return {"type": "Replace", "pattern": {"String": old}, "content": new}


def _spaces_back(*, strips_first: bool) -> JSON:
    strip: list[JSON] = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if strips_first else []
    return {"type": "Sequence", "decoders": [_replace("▁", " "), {"type": "ByteFallback"}, {"type": "Fuse"}, *strip]}


def _post_processor(vocabulary: Vocabulary, special: SpecialTokens, rule: WordRule | None) -> JSON:
    """Adds BOS at the beginning and EOS at the end, if the model needs them."""
    front = [special.ids["bos"]] if special.adds_bos else []
    back = [special.ids["eos"]] if special.adds_eos else []
    if not front and not back:
        return _byte_level(add_prefix_space=True) if rule is not None and rule.is_byte_level else None

    def around(*sequences: tuple[str, int]) -> list[JSON]:
        found: list[JSON] = []
        for name, kind in sequences:
            found += [_special(vocabulary, token_id, kind) for token_id in front]
            found.append({"Sequence": {"id": name, "type_id": kind}})
            found += [_special(vocabulary, token_id, kind) for token_id in back]
        return found

    return {
        "type": "TemplateProcessing",
        "single": around(("A", 0)),
        "pair": around(("A", 0), ("B", 1)),
        "special_tokens": {
            vocabulary.tokens[i]: {"id": vocabulary.tokens[i], "ids": [i], "tokens": [vocabulary.tokens[i]]}
            for i in (*front, *back)
        },
    }


def _special(vocabulary: Vocabulary, token_id: int, kind: int) -> JSON:
    return {"SpecialToken": {"id": vocabulary.tokens[token_id], "type_id": kind}}


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True

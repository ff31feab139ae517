"""Reads the vocabulary out of a GGUF file's metadata and checks it; what it means is for `text.vocabulary` to say."""

from __future__ import annotations

from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from stoker.core.vocabulary import TokenType, Vocabulary
from stoker.errors import ConfigError, ModelFileInvalid
from stoker.models.gguf import GGUFArray, GGUFFile

_MAX_TOKENS = 1 << 22
_MAX_MERGES = 1 << 23
_MAX_TOKEN_BYTES = 1 << 16
"""Real vocabularies stay far below: 262,144 tokens, 500,000 merges, a few hundred bytes."""
_MAX_FILLING = 128
"""Tokens by which the vocabularies of two models of one family differ: none of them has a meaning."""

_TOKENS = "tokenizer.ggml.tokens"
_ID_KEYS = {
    "bos_token_id": "bos",
    "eos_token_id": "eos",
    "eot_token_id": "eot",
    "eom_token_id": "eom",
    "unknown_token_id": "unk",
    "seperator_token_id": "sep",
    "padding_token_id": "pad",
    "mask_token_id": "mask",
    "fim_pre_token_id": "fim_pre",
    "fim_suf_token_id": "fim_suf",
    "fim_mid_token_id": "fim_mid",
    "fim_pad_token_id": "fim_pad",
    "fim_rep_token_id": "fim_rep",
    "fim_sep_token_id": "fim_sep",
    # Older names, which win over the newer ones as they do in libllama.
    "prefix_token_id": "fim_pre",
    "suffix_token_id": "fim_suf",
    "middle_token_id": "fim_mid",
}


def read_vocabulary(gguf: GGUFFile) -> Vocabulary:
    """The vocabulary of a model; it stays valid when the file is closed.

    Raises:
        ModelFileInvalid: there is none, or it contradicts itself; the message names the key.
    """
    tokens = _tokens(gguf)
    model, pre_tokenizer = vocabulary_kind(gguf)
    return Vocabulary(
        model=model,
        pre_tokenizer=pre_tokenizer,
        architecture=gguf.architecture,
        model_name=gguf.get_str("general.name") or "",
        tokens=tokens,
        types=_types(gguf, len(tokens)),
        scores=_scores(gguf, len(tokens)),
        merges=_merges(gguf),
        special_ids=_special_ids(gguf, len(tokens)),
        add_bos=gguf.get_bool("tokenizer.ggml.add_bos_token"),
        add_eos=gguf.get_bool("tokenizer.ggml.add_eos_token"),
        add_sep=gguf.get_bool("tokenizer.ggml.add_sep_token"),
        add_space_prefix=gguf.get_bool("tokenizer.ggml.add_space_prefix"),
        lowercase=gguf.get_bool("tokenizer.ggml.normalizer.lowercase"),
        strip_accents=gguf.get_bool("tokenizer.ggml.normalizer.strip_accents"),
        merges_spaces=gguf.get_bool("tokenizer.ggml.remove_extra_whitespaces"),
        character_map=_character_map(gguf),
    )


def vocabulary_kind(gguf: GGUFFile) -> tuple[str, str]:
    """The names of the kind of vocabulary and of the pre-tokenizer; the second is empty if the file has none.

    Raises:
        ModelFileInvalid: there is no vocabulary.
    """
    _token_array(gguf)
    model = gguf.get_str("tokenizer.ggml.model") or _fail(gguf, "`tokenizer.ggml.model` is missing")
    return model, gguf.get_str("tokenizer.ggml.pre") or ""


def check_same_tokens(model: GGUFFile, draft: GGUFFile) -> None:
    """Two models can exchange token ids. One of them may have a few more, with which files are filled up.

    Raises:
        ConfigError: they cannot.
        ModelFileInvalid: one of them has no vocabulary.
    """
    first, second = (_token_array(gguf).byte_strings() for gguf in (model, draft))
    common = min(len(first), len(second))
    differing = next((index for index in range(common) if first[index] != second[index]), None)
    if differing is not None:
        texts = (text[differing].decode("utf-8", "replace") for text in (first, second))
        reason = "token {} is {!r} in one and {!r} in the other".format(differing, *texts)
    elif abs(len(first) - len(second)) > _MAX_FILLING:
        reason = f"one has {len(first)} tokens, the other {len(second)}"
    else:
        return
    raise ConfigError(
        f"--draft-model: {draft.path.name} cannot draft for {model.path.name}, because their vocabularies differ: "
        f"{reason}; use a smaller model of the same family",
        key="draft_model",
    )


def _token_array(gguf: GGUFFile) -> GGUFArray:
    array = gguf.get_array(_TOKENS)
    return array if array else _fail(gguf, f"`{_TOKENS}` is missing or empty: the file has no vocabulary")


def _tokens(gguf: GGUFFile) -> list[str]:
    tokens = _strings(gguf, _token_array(gguf), _TOKENS, _MAX_TOKENS)
    named = [text or f"[EMPTY_{token_id}]" for token_id, text in enumerate(tokens)]
    if len(set(named)) < len(named):
        seen: dict[str, int] = {}
        for token_id, text in enumerate(named):
            if seen.setdefault(text, token_id) != token_id:
                _fail(gguf, f"the tokens {seen[text]} and {token_id} are both {text!r}")
    return named


def _merges(gguf: GGUFFile) -> list[str] | None:
    key = "tokenizer.ggml.merges"
    array = gguf.get_array(key)
    return None if array is None else _strings(gguf, array, key, _MAX_MERGES)


def _strings(gguf: GGUFFile, array: GGUFArray, key: str, limit: int) -> list[str]:
    if len(array) > limit:
        _fail(gguf, f"`{key}` has {len(array)} elements, and {limit} are allowed")
    raw = array.byte_strings()
    longest = max(map(len, raw), default=0)
    if longest > _MAX_TOKEN_BYTES:
        _fail(gguf, f"`{key}` holds a text of {longest} bytes, and {_MAX_TOKEN_BYTES} are allowed")
    if b"\0" in b"".join(raw):
        # libllama takes the texts for C strings; NUL never stands in a text that a model was trained on.
        raw = [text.partition(b"\0")[0] for text in raw]
    return [text.decode("utf-8", "surrogateescape") for text in raw]


def _types(gguf: GGUFFile, num_tokens: int) -> list[int]:
    types = _numbers(gguf, "tokenizer.ggml.token_type", num_tokens, kinds="iu")
    return [TokenType.NORMAL] * num_tokens if types is None else types.tolist()


def _scores(gguf: GGUFFile, num_tokens: int) -> list[float]:
    key = "tokenizer.ggml.scores"
    scores = _numbers(gguf, key, num_tokens, kinds="iuf")
    if scores is None:
        return []
    single = scores.astype(np.float32)  # libllama compares them in this precision
    if not np.isfinite(single).all():
        _fail(gguf, f"`{key}` holds numbers that are not finite")
    return single.tolist()


def _character_map(gguf: GGUFFile) -> bytes:
    key = "tokenizer.ggml.precompiled_charsmap"
    array = gguf.get_array(key)
    if array is None:
        return b""
    numbers = array.numbers()
    if numbers.dtype.itemsize != 1:
        _fail(gguf, f"`{key}` holds numbers of the wrong kind")
    return numbers.tobytes()


def _numbers(gguf: GGUFFile, key: str, num_tokens: int, *, kinds: str) -> NDArray[np.generic] | None:
    array = gguf.get_array(key)
    if array is None:
        return None
    if len(array) < num_tokens:
        _fail(gguf, f"`{key}` has {len(array)} elements for {num_tokens} tokens")
    numbers = array.numbers()[:num_tokens]
    return numbers if numbers.dtype.kind in kinds else _fail(gguf, f"`{key}` holds numbers of the wrong kind")


def _special_ids(gguf: GGUFFile, num_tokens: int) -> dict[str, int]:
    """Ids that name no token are left out: then the default of the kind holds, as in libllama."""
    found: dict[str, int] = {}
    for suffix, role in _ID_KEYS.items():
        token_id = gguf.get_int(f"tokenizer.ggml.{suffix}")
        if token_id is not None and 0 <= token_id < num_tokens:
            found[role] = token_id
    return found


def _fail(gguf: GGUFFile, what: str) -> NoReturn:
    raise ModelFileInvalid(f"{gguf.path} cannot be used: {what}", path=str(gguf.path))

"""Converts the sampling fields of a request, with the names and conventions of all APIs, to `SamplingParams`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields, replace
from math import inf
from typing import Any

from stoker.core.params import MAX_TOKEN_IDS, SamplingParams, check_num_chars
from stoker.errors import InvalidInput
from stoker.server.request.fields import Bias, SamplingFields, StreamedFields

_TRANSLATED = frozenset(
    (
        *("repetition_penalty", "max_tokens", "stop", "stop_token_ids", "banned_token_ids", "seed", "logit_bias"),
        *("temperature", "dry_base"),
    )
)
"""Fields of `SamplingParams` that are not copied from the request's field of the same name."""
_SAME_NAME = tuple(
    field.name
    for field in fields(SamplingParams)
    if field.name in SamplingFields.__struct_fields__ and field.name not in _TRANSLATED
)

_MAX_TOKENS = ("max_completion_tokens", "max_output_tokens", "max_tokens", "n_predict", "num_predict", "max_new_tokens")

_PENALTY = ("repetition_penalty", "repeat_penalty")

_STOP_IDS = ("stop_token_ids", "stop_ids")

_BANNED = ("banned_token_ids", "banned_tokens")

_SYNONYMS: Mapping[str, tuple[str, ...]] = {
    "max_tokens": _MAX_TOKENS,
    "repetition_penalty": _PENALTY,
    "penalty_last_n": ("repeat_last_n",),
    "stop_token_ids": _STOP_IDS,
    "banned_token_ids": (*_BANNED, "custom_token_bans"),
}
"""Fields of requests that set a field of `SamplingParams`, by the name of the field in `SamplingParams`."""

_SAME_WORDS: Mapping[str, str] = {}

_MAX_ID_DIGITS = 18
"""Maximum number of digits of a token id, so that it fits into 64 bits."""

_MAX_BIAS_CHARS = 2**16
"""Maximum length of all texts with a bias together, in characters, because each text is tokenized."""


def sampling_params(
    fields: SamplingFields, logprobs: int | None = None, words: Mapping[str, str] = _SAME_WORDS
) -> SamplingParams:
    """The sampling parameters that a request sets, without any defaults.

    Args:
        fields: the fields as the client sent them.
        logprobs: see `SamplingParams.logprobs`; each API has its own field for it.
        words: the API's names of fields, where they differ from the names here.

    Raises:
        InvalidInput: a value is out of range, or two fields contradict each other; the error has the client's name of
            the field.
    """
    try:
        return _sampling_params(fields, logprobs, words)
    except InvalidInput as error:
        raise _reworded(error, fields, words) from None


def reported_sampling(
    fields: StreamedFields, logprobs: int | None = None, words: Mapping[str, str] = _SAME_WORDS
) -> SamplingParams:
    """`sampling_params` for requests that may have `n_probs`, which replaces `logprobs`, and `post_sampling_probs`."""
    if fields.n_probs:
        logprobs, words = fields.n_probs, {**words, "logprobs": "n_probs"}
    params = sampling_params(fields, logprobs, words)
    if fields.post_sampling_probs is None:
        return params
    return replace(params, post_sampling_probs=fields.post_sampling_probs)


def _sampling_params(fields: SamplingFields, logprobs: int | None, words: Mapping[str, str]) -> SamplingParams:
    values: dict[str, Any] = {name: getattr(fields, name) for name in _SAME_NAME}
    if fields.mirostat:
        values["samplers"] = None  # Mirostat has stages of its own; llama-server ignores the list, too
    return SamplingParams(
        **values,
        # As in llama-server: below 0, a temperature is greedy, and a base of DRY below 1 is not given.
        temperature=None if fields.temperature is None else max(fields.temperature, 0),
        dry_base=None if fields.dry_base is None or fields.dry_base < 1 else fields.dry_base,
        repetition_penalty=_one_of(fields, *_PENALTY),
        penalty_last_n=fields.repeat_last_n,
        max_tokens=_one_of(fields, *_MAX_TOKENS),
        stop_token_ids=_one_of(fields, *_STOP_IDS),
        banned_token_ids=_banned(fields),
        seed=_seed(fields.seed),
        stop=fields.stop if "stop" in words else without_empty(fields.stop),
        logit_bias={int(key): bias for key, bias in _biases(fields) if _is_token_id(key)} or None,
        logprobs=logprobs,
    )


def sampling_fields(params: SamplingParams) -> dict[str, Any]:
    """The values of `params` that are set, by the names of the fields of requests."""
    names = {name: name for name in _SAME_NAME if name != "allowed_token_ids"}
    names |= {"repeat_penalty": "repetition_penalty", "repeat_last_n": "penalty_last_n"}
    names |= {name: name for name in ("max_tokens", "seed", "temperature", "dry_base")}
    found = {field: getattr(params, name) for field, name in names.items()}
    return {field: value for field, value in found.items() if value is not None}


def text_bias(fields: SamplingFields) -> dict[str, float]:
    """The biases of `logit_bias` for texts, which apply to all tokens of a text, as in llama-server.

    Raises:
        InvalidInput: a bias is `true`, NaN or positive infinity; or the texts are too long.
    """
    texts = {str(key): bias for key, bias in _biases(fields) if not _is_token_id(key)}
    check_num_chars("logit_bias", texts, _MAX_BIAS_CHARS)
    for text, bias in texts.items():
        if bias != bias or bias == inf:
            raise InvalidInput(f"`logit_bias` of {text!r} is {bias}", parameter="logit_bias")
    return texts


def _reworded(error: InvalidInput, fields: SamplingFields, words: Mapping[str, str]) -> InvalidInput:
    own = str(error.fields.get("parameter"))
    given = next((name for name in _SYNONYMS.get(own, ()) if getattr(fields, name) is not None), own)
    name = words.get(given, given)
    return InvalidInput(error.message.replace(f"`{own}`", f"`{name}`"), parameter=name)


def without_empty(stop: str | list[str] | None) -> str | list[str] | None:
    """Drops empty stop strings, as llama-server does. Anthropic's API refuses them, so it does not use this."""
    if isinstance(stop, list):
        return [text for text in stop if text]
    return stop or None


def _banned(fields: SamplingFields) -> list[int] | None:
    banned, further = _one_of(fields, *_BANNED), fields.custom_token_bans
    if not further:
        return banned
    if isinstance(further, str) and further.count(",") >= MAX_TOKEN_IDS:
        message = f"`custom_token_bans` has over {MAX_TOKEN_IDS} token ids"
        raise InvalidInput(message, parameter="custom_token_bans")
    texts = further.split(",") if isinstance(further, str) else map(str, further)
    ids = [text.strip() for text in texts if text.strip()]
    if wrong := [text for text in ids if not re.fullmatch("[0-9]{1,18}", text)]:
        message = f"`custom_token_bans`: {wrong[0][:40]!r} is not a token id"
        raise InvalidInput(message, parameter="custom_token_bans")
    return [*(banned or ()), *map(int, ids)]


def _one_of(fields: SamplingFields, *names: str) -> Any:
    """The value of equivalent fields; raises InvalidInput if the given ones differ."""
    given = {name: getattr(fields, name) for name in names if getattr(fields, name) is not None}
    if any(value != next(iter(given.values())) for value in given.values()):
        said = ", ".join(f"`{name}` = {value}" for name, value in given.items())
        raise InvalidInput(f"conflicting values of equivalent fields: {said}", parameter=next(iter(given)))
    return next(iter(given.values()), None)


def _seed(seed: int | None) -> int | None:
    """The seed as an unsigned integer: -1 means "random" in llama.cpp; OpenAI's API permits other negative seeds."""
    if seed is None or seed == -1:
        return None
    if not -(2**63) <= seed < 2**64:
        raise InvalidInput("`seed` must fit into 64 bits", parameter="seed")
    return seed % 2**64


def _biases(fields: SamplingFields) -> list[tuple[int | str, float]]:
    """`logit_bias` as pairs, from llama-server's forms: an object or a list of pairs, by token id or by text.

    `false` (never) becomes minus infinity.
    """
    raw = fields.logit_bias or {}
    return [(key, _bias(key, bias)) for key, bias in (raw.items() if isinstance(raw, dict) else raw)]


def _is_token_id(key: int | str) -> bool:
    """Whether a key means a token id. Keys of a JSON object are texts, so a text of digits means an id too."""
    if isinstance(key, int) or not (key.isascii() and key.isdecimal()):
        return isinstance(key, int)
    if len(key) > _MAX_ID_DIGITS:
        raise InvalidInput(f"`logit_bias`: {key[:40]} is not a token id", parameter="logit_bias")
    return True


def _bias(key: int | str, bias: Bias) -> float:
    if bias is True:
        raise InvalidInput(f"`logit_bias` of {key} is true: use a number, or false to ban", parameter="logit_bias")
    return -inf if bias is False else float(bias)

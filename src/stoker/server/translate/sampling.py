"""The sampling fields of an OpenAI request, with the names and habits of its dialects, as `SamplingParams`."""

from __future__ import annotations

from math import inf
from typing import Any

from stoker.core.params import SamplingParams
from stoker.errors import InvalidInput
from stoker.server.wire.openai import Bias, ChatCompletionRequest, CompletionRequest, GenerationRequest

_SAME_NAME = (
    "temperature",
    "dynatemp_range",
    "dynatemp_exponent",
    "top_k",
    "top_p",
    "min_p",
    "typical_p",
    "top_n_sigma",
    "xtc_probability",
    "xtc_threshold",
    "dry_multiplier",
    "dry_base",
    "dry_allowed_length",
    "dry_penalty_last_n",
    "dry_sequence_breakers",
    "presence_penalty",
    "frequency_penalty",
    "mirostat",
    "mirostat_tau",
    "mirostat_eta",
    "min_tokens",
    "ignore_eos",
    "stop",
    "stop_token_ids",
    "allowed_token_ids",
)

_MAX_TOP_LOGPROBS = 20

_MAX_ID_DIGITS = 18
"""More may not fit into 64 bits."""


def chat_sampling(wire: ChatCompletionRequest) -> SamplingParams:
    """The sampling of a chat request: what it says, and nothing else.

    Raises:
        InvalidInput: a value is out of range, or two fields contradict each other.
    """
    return _sampling(wire, _chat_logprobs(wire))


def completion_sampling(wire: CompletionRequest) -> SamplingParams:
    """The sampling of a completions request. See `chat_sampling`."""
    return _sampling(wire, wire.logprobs)


def seed_of_choice(sampling: SamplingParams, choice: int) -> int | None:
    """Choice k of one prompt draws with seed + k: without this, all of them would be the same (as in vLLM)."""
    return None if sampling.seed is None else (sampling.seed + choice) % 2**64


def _sampling(wire: GenerationRequest, logprobs: int | None) -> SamplingParams:
    values: dict[str, Any] = {name: getattr(wire, name) for name in _SAME_NAME}
    return SamplingParams(
        **values,
        repetition_penalty=_one_of(wire, "repetition_penalty", "repeat_penalty"),
        penalty_last_n=wire.repeat_last_n,
        max_tokens=_max_tokens(wire),
        seed=_seed(wire.seed),
        logit_bias=_logit_bias(wire.logit_bias),
        logprobs=logprobs,
    )


def _max_tokens(wire: GenerationRequest) -> int | None:
    limit = _one_of(wire, "max_completion_tokens", "max_tokens", "n_predict")
    return None if limit == -1 else limit


def _one_of(wire: GenerationRequest, *names: str) -> Any:
    """The value of fields that mean the same: all that are given must agree."""
    given = {name: getattr(wire, name) for name in names if getattr(wire, name) is not None}
    if len(set(given.values())) > 1:
        said = ", ".join(f"`{name}` = {value}" for name, value in given.items())
        raise InvalidInput(f"these fields mean the same but differ: {said}", parameter=next(iter(given)))
    return next(iter(given.values()), None)


def _seed(seed: int | None) -> int | None:
    """-1 is llama.cpp's word for "random"; other negative seeds are those of OpenAI's signed range."""
    if seed is None or seed == -1:
        return None
    if not -(2**63) <= seed < 2**64:
        raise InvalidInput("`seed` must fit into 64 bits", parameter="seed")
    return seed % 2**64


def _logit_bias(raw: dict[str, Bias] | list[tuple[int | str, Bias]] | None) -> dict[int, float] | None:
    """All three of llama-server's forms: an object, a list of pairs, and `false` for "never"."""
    if not raw:
        return None
    pairs = raw.items() if isinstance(raw, dict) else raw
    return {_token_id(key): _bias(key, bias) for key, bias in pairs}


def _token_id(key: int | str) -> int:
    if isinstance(key, str) and not (key.isascii() and key.isdecimal() and len(key) <= _MAX_ID_DIGITS):
        raise InvalidInput(f"`logit_bias`: {key!r} is no token id; texts are not supported", parameter="logit_bias")
    return int(key)


def _bias(key: int | str, bias: Bias) -> float:
    if bias is True:
        raise InvalidInput(f"`logit_bias` of {key} is true: use a number, or false to ban", parameter="logit_bias")
    return -inf if bias is False else float(bias)


def _chat_logprobs(wire: ChatCompletionRequest) -> int | None:
    top = wire.top_logprobs
    if top is not None and not 0 <= top <= _MAX_TOP_LOGPROBS:
        raise InvalidInput(f"`top_logprobs` must be between 0 and {_MAX_TOP_LOGPROBS}", parameter="top_logprobs")
    if wire.logprobs:
        return top or 0
    if top:
        raise InvalidInput("`top_logprobs` needs `logprobs` to be true", parameter="top_logprobs")
    return None

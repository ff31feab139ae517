"""The sampling parameters of one request. This module does not sample.

`None` always means "not given". Missing values are filled in by the next layer:
request > the model's own recommendation > configuration > `BUILT_IN`. Zero and the empty tuple are values.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from math import inf
from typing import Any, SupportsFloat, SupportsIndex, TypeAlias, cast

from stoker.core.keywords import suggests_keywords
from stoker.core.samplers import sampler_names
from stoker.errors import InvalidInput

Checked: TypeAlias = Callable[[str, object], Any]
"""From the name and the value of a field to plain Python; raises InvalidInput."""

MAX_TEXTS = 256
MAX_TEXT_CHARS = 2**14
"""Maximum total length of the strings of a list, in characters; each string costs time for every token."""
MAX_TOKEN_IDS = 2**20
"""Maximum number of token ids in a list; larger than any vocabulary."""

DEFAULT_MAX_TOKENS = 16384
"""Default of `max_tokens`, in tokens, if the context is at least a third longer."""
NO_LIMIT = -1
"""Value of `max_tokens` for no limit: until the model stops or the context is full."""

_MAX_INT = 2**31 - 1
_MAX_SEED = 2**64 - 1


@suggests_keywords
@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Sampling parameters and stop conditions of one request. None = not given.

    Numbers may have any numeric type, and lists may be any collection, such as NumPy arrays; they are converted to
    plain Python types. A list can have 256 strings with 16384 characters in total, or 1048576 token ids.

    Raises:
        InvalidInput: a value is of a wrong type, outside its range, or too long; `fields["parameter"]` names it.
    """

    temperature: float | None = None
    """Sampling temperature, 0 to 100; 0 = greedy, larger is more random."""
    dynatemp_range: float | None = None
    """Dynamic temperature: range above and below `temperature`, selected by the entropy of the logits. 0 = off."""
    dynatemp_exponent: float | None = None
    top_k: int | None = None
    """Sample from the k most likely tokens; 0 or -1 = all."""
    top_p: float | None = None
    """Nucleus sampling: sample from the smallest set of tokens whose probability reaches p; 1 = all."""
    min_p: float | None = None
    """Minimum probability relative to the most likely token; 0 = off."""
    typical_p: float | None = None
    """Locally typical sampling (arXiv:2202.00666). 1 = off."""
    top_n_sigma: float | None = None
    """Keep logits within n standard deviations of the largest (arXiv:2411.07641). 0 or -1 = off."""
    xtc_probability: float | None = None
    """XTC sampling: probability of dropping the most likely tokens above `xtc_threshold`. 0 = off."""
    xtc_threshold: float | None = None
    """XTC sampling: minimum probability of the tokens to drop; values above 0.5 have no effect."""
    infill: bool | None = None
    """End the answer if no continuation is likely, for filling in the middle. Mirostat replaces it."""
    dry_multiplier: float | None = None
    """DRY penalty against repeated token sequences. 0 = off."""
    dry_base: float | None = None
    dry_allowed_length: int | None = None
    """DRY: maximum length of a repetition without a penalty, in tokens."""
    dry_penalty_last_n: int | None = None
    """DRY: number of last tokens to consider. -1 = all, 0 = off."""
    dry_sequence_breakers: Sequence[str] | None = None
    """DRY: strings that interrupt a repetition."""
    repetition_penalty: float | None = None
    """Divides the logits of seen tokens (multiplies negative ones). 1 = off."""
    presence_penalty: float | None = None
    """Subtracted once from the logit of each seen token. The HTTP APIs allow -2 to 2; the library allows more."""
    frequency_penalty: float | None = None
    """Subtracted once per occurrence from the logit of each seen token."""
    penalty_last_n: int | None = None
    """Number of last tokens (prompt and completion) for the three penalties. -1 = all, 0 = off."""
    mirostat: int | None = None
    """0 = off, 1 or 2 = Mirostat (arXiv:2007.14966) of this version, which replaces all truncation stages such as top
    k."""
    mirostat_tau: float | None = None
    mirostat_eta: float | None = None
    adaptive_target: float | None = None
    """Adaptive-p sampling: prefer tokens near this probability, 0 to 1, if `samplers` names `adaptive_p`. Below 0 =
    off."""
    adaptive_decay: float | None = None
    """Adaptive-p sampling: weight of earlier tokens in the mean probability that steers it, 0 to 0.99."""
    min_keep: int | None = None
    """Minimum number of tokens that top p, min p, typical p and XTC each leave."""
    samplers: str | Sequence[str] | None = None
    """Sampling stages in the order in which they apply, by llama-server's names, or by their letters in one string;
    stages that are not named are off. None = penalties, dry, top_n_sigma, top_k, typ_p, top_p, min_p, xtc,
    temperature."""
    logit_bias: Mapping[int, float] | None = None
    """Added to the logits of these token ids; -inf bans."""
    allowed_token_ids: Sequence[int] | None = None
    """If given, no other token can be chosen."""
    banned_token_ids: Sequence[int] | None = None
    """Token ids that are never chosen. The lists of the request, the model and the configuration are combined."""
    seed: int | None = None
    """Random seed; the same seed and request give the same answer in any batch. Default: random."""
    max_tokens: int | None = None
    """Maximum number of tokens to generate; 0 = process the prompt only, -1 = until the model stops or the context is
    full. Default: 16384, but no more than three quarters of the context."""
    min_tokens: int | None = None
    """Minimum number of completion tokens before the end of generation."""
    ignore_eos: bool | None = None
    """Continue after an end-of-generation token, up to `max_tokens`."""
    stop: str | Sequence[str] | None = None
    """Stop sequence: text that ends the answer and is not part of it; may be repeated."""
    stop_token_ids: Sequence[int] | None = None
    """Token ids that end the answer, in addition to the model's own."""
    logprobs: int | None = None
    """Report the log-probability of each chosen token and of this many alternatives. 0 = chosen token only."""
    post_sampling_probs: bool | None = None
    """Report probabilities after all sampling stages instead of those of the model."""

    def __post_init__(self) -> None:
        for name, checked in _CHECKED.items():
            value = getattr(self, name)
            if value is not None and (plain := checked(name, value)) is not value:
                object.__setattr__(self, name, plain)
        if self.allowed_token_ids is not None and not self.allowed_token_ids:
            raise InvalidInput("`allowed_token_ids` is empty: no token could be chosen", parameter="allowed_token_ids")
        if "" in self.stop_strings:
            raise InvalidInput("`stop` contains an empty string", parameter="stop")
        for token_id, bias in (self.logit_bias or {}).items():
            if bias != bias or bias == inf:
                raise InvalidInput(f"`logit_bias` of token {token_id} is {bias}", parameter="logit_bias")

    @property
    def stop_strings(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def longest(self) -> int | None:
        """`max_tokens` where it is a bound; None = nothing is said, or there is none."""
        return None if self.max_tokens == NO_LIMIT else self.max_tokens

    def filled_from(self, *layers: SamplingParams) -> SamplingParams:
        """These params, with everything not given taken from the first layer that gives it; bans add up."""
        return SamplingParams(**self._values(layers))

    def _values(self, layers: Sequence[SamplingParams]) -> dict[str, Any]:
        values = {name: getattr(self, name) for name in self.__slots__}
        for layer in layers:
            values |= {name: getattr(layer, name) for name, value in values.items() if value is None}
        bans = [params.banned_token_ids for params in (self, *layers) if params.banned_token_ids]
        if bans:
            # What a model must never write stays banned, whatever else a request bans.
            values["banned_token_ids"] = bans[0] if len(bans) == 1 else tuple(sorted(set(chain.from_iterable(bans))))
        return values

    def completed(self, defaults: SamplingParams, context_size: int, seed: int | None = None) -> SamplingParams:
        """What these, a model's `defaults` and `BUILT_IN` give, with `seed` where they give none.

        `max_tokens` is at most `context_size` tokens.
        """
        values = self._values((defaults, BUILT_IN))
        is_usual = self.max_tokens is None and defaults.max_tokens is None
        most = (context_size * 3 // 4 or 1) if is_usual else context_size  # it may never end
        values["max_tokens"] = most if values["max_tokens"] == NO_LIMIT else min(values["max_tokens"], most)
        values["seed"] = seed if values["seed"] is None else values["seed"]
        return SamplingParams(**values)


def whole_number(name: str, value: object) -> int:
    """The same number as an `int`, of whatever integer type it is.

    Raises:
        InvalidInput: it is none; names the parameter.
    """
    if type(value) is int:
        return value
    if not isinstance(value, bool):
        try:
            return operator.index(cast("SupportsIndex", value))
        except TypeError:
            pass
    raise InvalidInput(f"`{name}` must be a whole number, not {value!r}", parameter=name)


def real_number(name: str, value: object) -> float:
    """The same number as an `int` or a `float`, of whatever type it is. A text is none.

    Raises:
        InvalidInput: it is none; names the parameter.
    """
    if type(value) is float or type(value) is int:
        return value
    if hasattr(value, "__float__") and not isinstance(value, bool):
        try:
            return float(cast("SupportsFloat", value))
        except (TypeError, ValueError, OverflowError):
            pass
    raise InvalidInput(f"`{name}` must be a number, not {value!r}", parameter=name)


def _truth(name: str, value: object) -> bool:
    try:
        return value if isinstance(value, bool) else (False, True).index(cast("bool", value)) == 1
    except (TypeError, ValueError):  # neither; or an array, which does not say
        raise InvalidInput(f"`{name}` must be true or false, not {value!r}", parameter=name) from None


def _token_ids(name: str, values: object) -> Sequence[int]:
    ids = _collection(name, values, "a list of token ids", MAX_TOKEN_IDS)
    if isinstance(ids, list | tuple) and set(map(type, ids)) <= {int}:
        return cast("Sequence[int]", ids)
    return tuple(whole_number(name, token_id) for token_id in ids)


def _texts(name: str, values: object) -> Sequence[str]:
    texts = _collection(name, values, "a list of strings", MAX_TEXTS)
    if not all(isinstance(text, str) for text in texts):
        raise InvalidInput(f"`{name}` must be a list of strings", parameter=name)
    _check_texts(name, cast("Collection[str]", texts))
    return cast("Sequence[str]", texts if isinstance(texts, list | tuple) else tuple(texts))


def _text_or_texts(name: str, value: object) -> str | Sequence[str]:
    if not isinstance(value, str):
        return _texts(name, value)
    _check_texts(name, [value])
    return value


def _check_texts(name: str, texts: Collection[str]) -> None:
    check_num_chars(name, texts, MAX_TEXT_CHARS)
    try:
        "".join(texts).encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(f"`{name}` is not valid Unicode: it has a lone surrogate", parameter=name) from error


def check_num_chars(name: str, texts: Collection[str], limit: int) -> None:
    """Raises InvalidInput, which names the parameter, if texts have more characters together."""
    num_chars = sum(map(len, texts))
    if num_chars > limit:
        raise InvalidInput(f"`{name}` has {num_chars} characters, more than {limit}", parameter=name)


def _biases(name: str, value: object) -> Mapping[int, float]:
    if not isinstance(value, Mapping):
        raise InvalidInput(f"`{name}` must map token ids to numbers, not be {type(value).__name__}", parameter=name)
    biases = cast("Mapping[object, object]", value)
    _check_count(name, len(biases), MAX_TOKEN_IDS)
    if set(map(type, biases)) <= {int} and set(map(type, biases.values())) <= {int, float}:
        return cast("Mapping[int, float]", biases)
    return {whole_number(name, token_id): real_number(name, bias) for token_id, bias in biases.items()}


def _collection(name: str, values: object, wanted: str, limit: int) -> Collection[object]:
    kind = type(values)
    if not issubclass(kind, Collection) or issubclass(kind, str | bytes | bytearray | Mapping):
        raise InvalidInput(f"`{name}` must be {wanted}, not {kind.__name__}", parameter=name)
    items = cast("Collection[object]", values)
    try:
        _check_count(name, len(items), limit)
    except TypeError:  # an array of no dimensions
        raise InvalidInput(f"`{name}` must be {wanted}, not {items!r}", parameter=name) from None
    return items


def _check_count(name: str, count: int, limit: int) -> None:
    if count > limit:
        raise InvalidInput(f"`{name}` has {count} entries, more than {limit}", parameter=name)


def _whole(low: int, high: int) -> Checked:
    return lambda name, value: _in_range(name, whole_number(name, value), low, high)


def _real(low: float, high: float) -> Checked:
    return lambda name, value: _in_range(name, real_number(name, value), low, high)


def _in_range(name: str, value: float, low: float, high: float) -> float:
    if not low <= value <= high:
        raise InvalidInput(f"`{name}` must be between {low} and {high}, not {value}", parameter=name)
    return value


_CHECKED: dict[str, Checked] = {
    "temperature": _real(0, 100),
    "dynatemp_range": _real(0, 100),
    "dynatemp_exponent": _real(0, 100),
    "top_k": _whole(-1, _MAX_INT),
    "top_p": _real(0, 1),
    "min_p": _real(0, 1),
    "typical_p": _real(0, 1),
    "top_n_sigma": _real(-1, 1000),
    "xtc_probability": _real(0, 1),
    "xtc_threshold": _real(0, 1),
    "infill": _truth,
    "dry_multiplier": _real(0, 1000),
    "dry_base": _real(0, 1000),
    "dry_allowed_length": _whole(0, _MAX_INT),
    "dry_penalty_last_n": _whole(-1, _MAX_INT),
    "dry_sequence_breakers": _texts,
    "repetition_penalty": _real(1e-3, 1000),
    "presence_penalty": _real(-100, 100),
    "frequency_penalty": _real(-100, 100),
    "penalty_last_n": _whole(-1, _MAX_INT),
    "mirostat": _whole(0, 2),
    "mirostat_tau": _real(0, 1000),
    "mirostat_eta": _real(0, 1000),
    "adaptive_target": lambda name, value: _in_range(name, max(real_number(name, value), -1), -1, 1),
    "adaptive_decay": _real(0, 0.99),
    "min_keep": _whole(0, _MAX_INT),
    "samplers": sampler_names,
    "logit_bias": _biases,
    "allowed_token_ids": _token_ids,
    "banned_token_ids": _token_ids,
    "seed": _whole(0, _MAX_SEED),
    "max_tokens": _whole(NO_LIMIT, _MAX_INT),
    "min_tokens": _whole(0, _MAX_INT),
    "ignore_eos": _truth,
    "stop": _text_or_texts,
    "stop_token_ids": _token_ids,
    "logprobs": _whole(0, 100),
    "post_sampling_probs": _truth,
}


BUILT_IN = SamplingParams(
    temperature=0.7,
    top_p=0.9,
    top_k=40,
    max_tokens=DEFAULT_MAX_TOKENS,
    repetition_penalty=1.0,
    penalty_last_n=64,
    dynatemp_exponent=1.0,
    xtc_threshold=0.1,
    dry_base=1.75,
    dry_allowed_length=2,
    dry_penalty_last_n=-1,
    dry_sequence_breakers=("\n", ":", '"', "*"),
    mirostat_tau=5.0,
    mirostat_eta=0.1,
    adaptive_decay=0.9,
)
"""Sampling parameters that apply where no layer sets them."""

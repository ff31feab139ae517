"""Every sampling number that one request can carry; nothing here samples.

`None` always means "not given", so that a later layer may fill it in:
request > the model's own recommendation > configuration > `BUILT_IN`. Zero and the empty tuple are values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import chain
from math import inf
from typing import TypeAlias

from stoker.errors import InvalidInput

Bounds: TypeAlias = tuple[float, float]

_MAX_INT = 2**31 - 1
_MAX_SEED = 2**64 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How to choose tokens and when to stop, for one request.

    Raises:
        InvalidInput: a value is outside its range; `fields["parameter"]` names it.
    """

    temperature: float | None = None
    """0 = greedy; larger is more random. Range 0 … 100."""
    dynatemp_range: float | None = None
    """Dynamic temperature: temperature ± this, by the entropy of the row. 0 = off."""
    dynatemp_exponent: float | None = None
    top_k: int | None = None
    """Keep the k most likely tokens. 0 or -1 = all."""
    top_p: float | None = None
    """Keep the smallest set of tokens whose probability reaches p. 1 = all."""
    min_p: float | None = None
    """Drop tokens less likely than p times the most likely one. 0 = off."""
    typical_p: float | None = None
    """Locally typical sampling (arXiv:2202.00666). 1 = off."""
    top_n_sigma: float | None = None
    """Keep logits within n standard deviations of the largest (arXiv:2411.07641). 0 or -1 = off."""
    xtc_probability: float | None = None
    """Chance that the most likely tokens above `xtc_threshold` are dropped. 0 = off."""
    xtc_threshold: float | None = None
    """Above 0.5 it has no effect."""
    dry_multiplier: float | None = None
    """DRY penalty against repeated token sequences. 0 = off."""
    dry_base: float | None = None
    dry_allowed_length: int | None = None
    """Repetitions up to this many tokens are not penalised."""
    dry_penalty_last_n: int | None = None
    """How many tokens DRY looks back. -1 = all, 0 = off."""
    dry_sequence_breakers: Sequence[str] | None = None
    """Strings over which a repetition does not continue."""
    repetition_penalty: float | None = None
    """Divides the logits of seen tokens (multiplies negative ones). 1 = off."""
    presence_penalty: float | None = None
    """Subtracted once from the logit of each seen token. Range -2 … 2 on the wire; wider here."""
    frequency_penalty: float | None = None
    """Subtracted once per occurrence from the logit of each seen token."""
    penalty_last_n: int | None = None
    """How many tokens (prompt and completion) the three penalties look back. -1 = all, 0 = off."""
    mirostat: int | None = None
    """0 = off, 2 = Mirostat 2 (arXiv:2007.14966), which replaces all truncation."""
    mirostat_tau: float | None = None
    mirostat_eta: float | None = None
    logit_bias: Mapping[int, float] | None = None
    """Added to the logits of these token ids; -inf bans."""
    allowed_token_ids: Sequence[int] | None = None
    """If given, no other token can be chosen."""
    banned_token_ids: Sequence[int] | None = None
    """Can never be chosen. Those of the request, the model and the configuration add up."""
    seed: int | None = None
    """The same seed and request give the same answer whatever else runs. Not given = random. 0 is a seed."""
    max_tokens: int | None = None
    """Most completion tokens; 0 = compute the prompt only. Not given = until the model stops or the context is full."""
    min_tokens: int | None = None
    """No end of generation before this many completion tokens."""
    ignore_eos: bool | None = None
    """Go on after an end-of-generation token, up to `max_tokens`."""
    stop: str | Sequence[str] | None = None
    """Strings that end the answer; they are never part of it."""
    stop_token_ids: Sequence[int] | None = None
    """Token ids that end the answer, beside the model's own."""
    logprobs: int | None = None
    """Report the log-probability of each chosen token and of this many alternatives. 0 = chosen token only."""

    def __post_init__(self) -> None:
        for name, bounds in _BOUNDS.items():
            _check_number(name, getattr(self, name), bounds)
        if self.mirostat not in (None, 0, 2):
            raise InvalidInput(f"`mirostat` must be 0 (off) or 2, not {self.mirostat}", parameter="mirostat")
        if self.allowed_token_ids is not None and not self.allowed_token_ids:
            raise InvalidInput("`allowed_token_ids` is empty: no token could be chosen", parameter="allowed_token_ids")
        if any(not text for text in self.stop_strings):
            raise InvalidInput("`stop` contains an empty string", parameter="stop")
        for token_id, bias in (self.logit_bias or {}).items():
            if bias != bias or bias == inf:
                raise InvalidInput(f"`logit_bias` of token {token_id} is {bias}", parameter="logit_bias")

    @property
    def stop_strings(self) -> tuple[str, ...]:
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0

    def filled_from(self, *layers: SamplingParams) -> SamplingParams:
        """These params, with everything not given taken from the first layer that gives it; bans add up."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        for layer in layers:
            values = {name: getattr(layer, name) if value is None else value for name, value in values.items()}
        bans = [params.banned_token_ids for params in (self, *layers) if params.banned_token_ids]
        if bans:
            # What a model must never write stays banned, whatever else somebody bans.
            values["banned_token_ids"] = bans[0] if len(bans) == 1 else tuple(sorted(set(chain.from_iterable(bans))))
        return SamplingParams(**values)


_BOUNDS: dict[str, Bounds] = {
    "temperature": (0, 100),
    "dynatemp_range": (0, 100),
    "dynatemp_exponent": (0, 100),
    "top_k": (-1, _MAX_INT),
    "top_p": (0, 1),
    "min_p": (0, 1),
    "typical_p": (0, 1),
    "top_n_sigma": (-1, 1000),
    "xtc_probability": (0, 1),
    "xtc_threshold": (0, 1),
    "dry_multiplier": (0, 1000),
    "dry_base": (0, 1000),
    "dry_allowed_length": (0, _MAX_INT),
    "dry_penalty_last_n": (-1, _MAX_INT),
    "repetition_penalty": (1e-3, 1000),
    "presence_penalty": (-100, 100),
    "frequency_penalty": (-100, 100),
    "penalty_last_n": (-1, _MAX_INT),
    "mirostat_tau": (0, 1000),
    "mirostat_eta": (0, 1000),
    "seed": (0, _MAX_SEED),
    "max_tokens": (0, _MAX_INT),
    "min_tokens": (0, _MAX_INT),
    "logprobs": (0, 100),
}


def _check_number(name: str, value: float | None, bounds: Bounds) -> None:
    if value is None:
        return
    low, high = bounds
    if isinstance(value, bool) or not low <= value <= high:
        raise InvalidInput(f"`{name}` must be between {low} and {high}, not {value}", parameter=name)


BUILT_IN = SamplingParams(
    temperature=0.7,
    top_p=0.9,
    top_k=40,
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
)
"""What holds when nobody says otherwise."""

"""The last sampling stage of a row: picks one token, by argmax, by chance, with Mirostat or near a target probability.

The semantics are those of llama.cpp (`src/llama-sampler.cpp`), computed in float64.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, expm1, inf, log
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from stoker.core.params import SamplingParams
from stoker.sampling.candidates import Candidates
from stoker.sampling.draws import Draws, Purpose

_MOST_FITTED = 100
_WIDTH, _PEAK, _SHARPNESS = 0.3, 5.0, 10.0
"""Adaptive-p: width of the peak in probability, its logit, and how steeply logits fall beside it."""


class Picker(Protocol):
    """A function that picks one of the candidates and returns its token id."""

    def __call__(self, candidates: Candidates, draws: Draws) -> int: ...


def drawn_from(pick: Picker, candidates: Candidates) -> Candidates:
    """The candidates that the picker really draws from: it may change them first."""
    if pick is pick_largest:
        return candidates.largest(1)
    return pick.prepared(candidates) if isinstance(pick, Mirostat1 | Mirostat2 | AdaptiveP) else candidates


def pick_largest(candidates: Candidates, draws: Draws) -> int:
    """Picks the largest logit; if several are equal, the one with the lowest token id."""
    return int(candidates.token_ids[candidates.logits.argmax()])


def pick_randomly(candidates: Candidates, draws: Draws) -> int:
    """Draws by probability (inverse of the cumulative distribution)."""
    return int(candidates.token_ids[_draw(candidates.weights(), draws)])


def _draw(weights: NDArray[np.float64], draws: Draws) -> int:
    cumulative = np.cumsum(weights)
    # u < 1 keeps u * total below total, so the position found exists and its weight is not 0.
    target = draws.uniform(Purpose.TOKEN) * float(cumulative[-1])
    return int(np.searchsorted(cumulative, target, side="right"))


@dataclass(slots=True)
class _Mirostat:
    """Mirostat (arXiv:2007.14966): drops surprising tokens, and adapts the limit `mu` to reach `tau`.

    Attributes:
        tau: target surprise, in bits.
        eta: learning rate of `mu`.
        mu: maximum surprise, in bits; it changes with every token of one sequence.
    """

    tau: float
    eta: float
    mu: float

    def draw(self, kept: Candidates, draws: Draws) -> int:
        """Draws one of the candidates that are not too surprising, and adapts the limit."""
        weights = kept.weights()
        position = _draw(weights, draws)
        surprise = -float(np.log2(weights[position] / weights.sum()))
        self.mu -= self.eta * (surprise - self.tau)
        return int(kept.token_ids[position])


@dataclass(slots=True)
class Mirostat1(_Mirostat):
    """Mirostat of version 1: keeps the k largest logits, where k follows from Zipf's law, fitted to the likeliest 100.

    Attributes:
        vocab_size: number of tokens of the model.
    """

    vocab_size: int

    def __call__(self, candidates: Candidates, draws: Draws) -> int:
        return self.draw(self.prepared(candidates), draws)

    def prepared(self, candidates: Candidates) -> Candidates:
        """The k largest candidates."""
        possible = candidates.without_impossible()
        return possible.largest(self._count(possible))

    def _count(self, candidates: Candidates) -> int:
        logits = candidates.largest(_MOST_FITTED).logits.astype(np.float64)
        if logits.size < 2:
            return 1
        ranks = np.arange(1, logits.size)
        steps = np.log((ranks + 1) / ranks)
        exponent = float((steps * (logits[:-1] - logits[1:])).sum() / (steps * steps).sum())
        excess = exponent - 1
        # The sum of rank^-exponent over the vocabulary, as an integral.
        spread = -expm1(-excess * log(self.vocab_size)) / excess if excess else log(self.vocab_size)
        log_count = self.mu * log(2) - log(spread)
        if exponent <= 0 or log_count >= exponent * log(len(candidates)):
            return len(candidates) if log_count > 0 else 1
        return max(1, int(exp(log_count / exponent)))


@dataclass(slots=True)
class Mirostat2(_Mirostat):
    """Mirostat of version 2: drops tokens with more than `mu` bits of surprise."""

    def __call__(self, candidates: Candidates, draws: Draws) -> int:
        return self.draw(self.prepared(candidates), draws)

    def prepared(self, candidates: Candidates) -> Candidates:
        """The candidates with at most `mu` bits of surprise; the likeliest one if there are none."""
        within = candidates.within(self.mu * log(2) - log(candidates.total_weight()))
        return candidates.keep(within if within.size else np.array([candidates.logits.argmax()]))


Mirostat: TypeAlias = Mirostat1 | Mirostat2


def compile_mirostat(params: SamplingParams, vocab_size: int) -> Mirostat | None:
    """The Mirostat that the params ask for; None = none."""
    tau, eta = params.mirostat_tau, params.mirostat_eta
    assert tau is not None, "the params are complete"
    assert eta is not None, "the params are complete"
    if params.mirostat == 1:
        return Mirostat1(tau, eta, 2 * tau, vocab_size)
    return Mirostat2(tau, eta, 2 * tau) if params.mirostat else None


@dataclass(slots=True)
class AdaptiveP:
    """Prefers candidates whose probability is near `target` (https://github.com/ggml-org/llama.cpp/pull/17927).

    The mean probability of the tokens so far, with weights that decay, moves the target of the next token, so that the
    mean approaches `target`.

    Attributes:
        target: probability to approach.
        decay: weight of a token in relation to the token after it.
        sum: weighted sum of the probabilities of the tokens so far.
        weight: sum of the weights.
    """

    target: float
    decay: float
    sum: float
    weight: float

    @classmethod
    def compile(cls, params: SamplingParams) -> AdaptiveP | None:
        target, decay = params.adaptive_target, params.adaptive_decay
        assert decay is not None, "the params are complete"
        if target is None or target < 0:
            return None
        return cls(target, decay, target / (1 - decay), 1 / (1 - decay))

    def __call__(self, candidates: Candidates, draws: Draws) -> int:
        candidates = candidates.by_token_id()
        weights = candidates.weights()
        position = _draw(self.prepared(candidates).weights(), draws)
        self.sum = float(weights[position] / weights.sum()) + self.decay * self.sum
        self.weight = 1 + self.decay * self.weight
        return int(candidates.token_ids[position])

    def prepared(self, candidates: Candidates) -> Candidates:
        """The candidates with logits that fall with the distance of their probability from the target."""
        candidates = candidates.by_token_id()
        weights = candidates.weights()
        target = min(max(2 * self.target - self.sum / self.weight, 0.0), 1.0)
        distance = np.abs(weights / weights.sum() - target) / _WIDTH
        logits = _PEAK - _SHARPNESS * distance * distance / (1 + distance)
        return Candidates(candidates.token_ids, np.where(np.isneginf(candidates.logits), -inf, logits))

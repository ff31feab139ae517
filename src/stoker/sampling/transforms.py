"""Sampling stages that narrow or rescale the candidates of one row: truncation (top-k, top-p, …), XTC, temperature.

Each is a frozen value with one signature, `(candidates, draws) -> candidates`, and a `compile` that returns `None`
where the parameters turn it off. Their order is decided in `sampler`. The semantics are those of llama.cpp
(`src/llama-sampler.cpp`, samplers `llama_sampler_init_*`), computed in float64.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, log
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from stoker.core.params import SamplingParams
from stoker.sampling.candidates import Candidates, largest_positions
from stoker.sampling.draws import Draws, Purpose
from stoker.sampling.exponential import exp_sum

_FIRST_GUESS = 256
"""Number of candidates to sort first, when the number that reaches a probability mass is not known."""


class Transform(Protocol):
    """One sampling stage. It is a pure function that keeps the order of the candidates; its result is never empty."""

    def __call__(self, candidates: Candidates, draws: Draws) -> Candidates: ...


@dataclass(frozen=True, slots=True)
class TopNSigma:
    """Keeps logits within `n` standard deviations of the largest (arXiv:2411.07641). Logits of -inf are ignored."""

    n: float

    @classmethod
    def compile(cls, params: SamplingParams) -> TopNSigma | None:
        n = params.top_n_sigma or 0
        return cls(n) if n > 0 else None

    def __call__(self, candidates: Candidates, draws: Draws) -> Candidates:
        possible = candidates.without_impossible()
        return possible.keep(possible.within(self.n * float(np.std(possible.logits, dtype=np.float64))))


@dataclass(frozen=True, slots=True)
class TopK:
    """Keeps the `k` largest logits."""

    k: int

    @classmethod
    def compile(cls, params: SamplingParams) -> TopK | None:
        k = params.top_k or 0
        return cls(k) if k > 0 else None

    def __call__(self, candidates: Candidates, draws: Draws) -> Candidates:
        return candidates if self.k >= len(candidates) else candidates.largest(self.k)


@dataclass(frozen=True, slots=True)
class TypicalP:
    """Keeps the tokens of surprise nearest to the entropy, up to a total probability above `p` (arXiv:2202.00666)."""

    p: float

    @classmethod
    def compile(cls, params: SamplingParams) -> TypicalP | None:
        return None if params.typical_p is None or params.typical_p >= 1 else cls(params.typical_p)

    def __call__(self, candidates: Candidates, draws: Draws) -> Candidates:
        possible = candidates.without_impossible()
        logprobs = possible.shifted()
        logprobs -= np.log(np.exp(logprobs).sum())
        probabilities = np.exp(logprobs)
        distance = np.abs(logprobs - (probabilities * logprobs).sum())
        return possible.keep(np.sort(_typical_positions(distance, probabilities, self.p)))


def _typical_positions(distance: NDArray[np.float64], probabilities: NDArray[np.float64], p: float) -> NDArray[np.intp]:
    guess = _FIRST_GUESS
    while True:
        positions = largest_positions(-distance, guess)
        cumulative = probabilities[positions].cumsum()
        if cumulative[-1] > p or positions.size == distance.size:
            return positions[: int(np.searchsorted(cumulative, p, side="right")) + 1]
        guess *= 8


@dataclass(frozen=True, slots=True)
class TopP:
    """Keeps the smallest set of most likely tokens whose total probability reaches `p` (arXiv:1904.09751)."""

    p: float

    @classmethod
    def compile(cls, params: SamplingParams) -> TopP | None:
        return None if params.top_p is None or params.top_p >= 1 else cls(params.top_p)

    def __call__(self, candidates: Candidates, draws: Draws) -> Candidates:
        if candidates.is_sorted:
            cumulative = candidates.weights().cumsum()
            return self._prefix(candidates, cumulative, float(cumulative[-1]))
        return self._grow(candidates, exp_sum(candidates.logits, candidates.peak))

    def _grow(self, candidates: Candidates, total: float) -> Candidates:
        guess = _FIRST_GUESS
        while True:
            head = candidates.largest(guess)
            cumulative = head.weights().cumsum()
            if cumulative[-1] >= self.p * total or len(head) == len(candidates):
                return self._prefix(head, cumulative, total)
            guess *= 8

    def _prefix(self, head: Candidates, cumulative: NDArray[np.float64], total: float) -> Candidates:
        return head.keep(slice(0, int(np.searchsorted(cumulative, self.p * total, side="left")) + 1))


@dataclass(frozen=True, slots=True)
class MinP:
    """Drops tokens less likely than `p` times the most likely one (arXiv:2407.01082)."""

    p: float

    @classmethod
    def compile(cls, params: SamplingParams) -> MinP | None:
        return cls(params.min_p) if params.min_p else None

    def __call__(self, candidates: Candidates, draws: Draws) -> Candidates:
        return candidates.keep(candidates.within(-log(self.p)))


@dataclass(frozen=True, slots=True)
class XTC:
    """Exclude top choices: with `probability`, drops all tokens above `threshold` except the least likely of them.

    It is off if either number is 0, or if the threshold is above 0.5, which at most one token can reach.
    Source: https://github.com/oobabooga/text-generation-webui/pull/6335
    """

    probability: float
    threshold: float

    @classmethod
    def compile(cls, params: SamplingParams) -> XTC | None:
        probability, threshold = params.xtc_probability or 0, params.xtc_threshold or 0
        return cls(probability, threshold) if probability > 0 and 0 < threshold <= 0.5 else None

    def __call__(self, candidates: Candidates, draws: Draws) -> Candidates:
        if draws.uniform(Purpose.XTC) >= self.probability:
            return candidates
        above = candidates.within(-log(self.threshold * candidates.total_weight()))
        if above.size < 2:
            return candidates
        least = above[largest_positions(candidates.logits[above], above.size)[-1]]
        return candidates.keep(np.delete(np.arange(len(candidates)), above[above != least]))


@dataclass(frozen=True, slots=True)
class Temperature:
    """Divides the logits by the temperature; with `spread`, by a dynamic one in temperature ± spread.

    The dynamic temperature rises with the entropy relative to that of equally likely candidates: the ratio, to the
    power of `exponent`, selects a point in the range. Source: https://github.com/ggml-org/llama.cpp/pull/4972
    """

    temperature: float
    spread: float
    exponent: float

    @classmethod
    def compile(cls, params: SamplingParams) -> Temperature | None:
        assert params.temperature is not None, "the params are complete"
        exponent = 1.0 if params.dynatemp_exponent is None else params.dynatemp_exponent
        compiled = cls(params.temperature, params.dynatemp_range or 0, exponent)
        return None if compiled.temperature == 1 and not compiled.spread else compiled

    def __call__(self, candidates: Candidates, draws: Draws) -> Candidates:
        if self.spread and len(candidates) == 1:
            return candidates
        shifted = candidates.shifted()
        temperature = self._dynamic(shifted) if self.spread else self.temperature
        if temperature <= 0:
            return candidates.keep(slice(int(shifted.argmax()), int(shifted.argmax()) + 1))
        # Logits shifted to at most 0 cannot become NaN by division, however small the temperature is.
        shifted /= temperature
        return Candidates(candidates.token_ids, shifted, candidates.is_sorted)

    def _dynamic(self, shifted: NDArray[np.float64]) -> float:
        low, high = max(0.0, self.temperature - self.spread), self.temperature + self.spread
        relative = max(0.0, _entropy(shifted)) / log(shifted.size)
        return low + (high - low) * relative**self.exponent


def _entropy(shifted: NDArray[np.float64]) -> float:
    logprobs = shifted[shifted > -inf]
    logprobs -= np.log(np.exp(logprobs).sum())
    return -float((np.exp(logprobs) * logprobs).sum())

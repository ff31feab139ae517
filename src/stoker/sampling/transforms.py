"""Sampling stages that narrow or rescale the candidates of one row: truncation (top-k, top-p, …), XTC, temperature.

Each is a frozen value with one signature, `(candidates, draws) -> candidates`, and a `compile` that returns `None`
where the parameters turn it off. Their order is decided in `stages`. The semantics are those of llama.cpp
(`src/llama-sampler.cpp`, samplers `llama_sampler_init_*`), computed in float64. `min_keep` is the minimum number of
candidates that a stage leaves, if there are so many.
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
from stoker.sampling.edits import LARGEST
from stoker.sampling.exponential import exp_sum

_FIRST_GUESS = 256
"""Number of candidates to sort first, when the number that reaches a probability mass is not known."""


class Transform(Protocol):
    """One sampling stage. It is a pure function that keeps the order of the candidates; its result is never empty."""

    def __call__(self, candidates: Candidates, draws: Draws) -> Candidates: ...


@dataclass(frozen=True, slots=True)
class TopNSigma:
    """Keeps logits within `n` standard deviations of the largest (arXiv:2411.07641). Logits of -inf are ignored.

    With `keeps_count`, the other candidates stay, with logits of -inf: later stages depend on their number.
    """

    n: float
    keeps_count: bool = False

    @classmethod
    def compile(cls, params: SamplingParams) -> TopNSigma | None:
        n = params.top_n_sigma or 0
        counts = (params.dynatemp_range, _min_keep(params) > 1, params.infill, "infill" in (params.samplers or ()))
        return cls(n, any(counts)) if n > 0 else None

    def __call__(self, candidates: Candidates, draws: Draws) -> Candidates:
        possible = candidates.without_impossible()
        distance = self.n * float(np.std(possible.logits, dtype=np.float64))
        if not self.keeps_count:
            return possible.keep(possible.within(distance))
        logits = np.where(candidates.logits >= np.float64(candidates.peak - distance), candidates.logits, -inf)
        return Candidates(candidates.token_ids, logits, candidates.is_sorted)


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
    min_keep: int = 0

    @classmethod
    def compile(cls, params: SamplingParams) -> TypicalP | None:
        p = params.typical_p
        return None if p is None or p >= 1 else cls(p, _min_keep(params))

    def __call__(self, candidates: Candidates, draws: Draws) -> Candidates:
        possible = candidates.without_impossible()
        logprobs = possible.shifted()
        logprobs -= np.log(np.exp(logprobs).sum())
        probabilities = np.exp(logprobs)
        distance = np.abs(logprobs - (probabilities * logprobs).sum())
        return possible.keep(np.sort(self._positions(distance, probabilities)))

    def _positions(self, distance: NDArray[np.float64], probabilities: NDArray[np.float64]) -> NDArray[np.intp]:
        guess = max(_FIRST_GUESS, self.min_keep)
        while True:
            positions = largest_positions(-distance, guess)
            cumulative = probabilities[positions].cumsum()
            if cumulative[-1] > self.p or positions.size == distance.size:
                count = int(np.searchsorted(cumulative, self.p, side="right")) + 1
                return positions[: max(count, self.min_keep)]
            guess *= 8


@dataclass(frozen=True, slots=True)
class TopP:
    """Keeps the smallest set of most likely tokens whose total probability reaches `p` (arXiv:1904.09751)."""

    p: float
    min_keep: int = 0

    @classmethod
    def compile(cls, params: SamplingParams) -> TopP | None:
        p = params.top_p
        return None if p is None or p >= 1 else cls(p, _min_keep(params))

    def __call__(self, candidates: Candidates, draws: Draws) -> Candidates:
        if candidates.is_sorted:
            cumulative = candidates.weights().cumsum()
            return self._prefix(candidates, cumulative, float(cumulative[-1]))
        return self._grow(candidates, exp_sum(candidates.logits, candidates.peak))

    def _grow(self, candidates: Candidates, total: float) -> Candidates:
        guess = max(_FIRST_GUESS, self.min_keep)
        while True:
            head = candidates.largest(guess)
            cumulative = head.weights().cumsum()
            if cumulative[-1] >= self.p * total or len(head) == len(candidates):
                return self._prefix(head, cumulative, total)
            guess *= 8

    def _prefix(self, head: Candidates, cumulative: NDArray[np.float64], total: float) -> Candidates:
        count = int(np.searchsorted(cumulative, self.p * total, side="left")) + 1
        return head.keep(slice(0, max(count, self.min_keep)))


@dataclass(frozen=True, slots=True)
class MinP:
    """Drops tokens less likely than `p` times the most likely one (arXiv:2407.01082)."""

    p: float
    min_keep: int = 0

    @classmethod
    def compile(cls, params: SamplingParams) -> MinP | None:
        return cls(params.min_p, _min_keep(params)) if params.min_p else None

    def __call__(self, candidates: Candidates, draws: Draws) -> Candidates:
        within = candidates.within(-log(self.p))
        return candidates.keep(within) if within.size >= self.min_keep else candidates.largest(self.min_keep)


@dataclass(frozen=True, slots=True)
class XTC:
    """Exclude top choices: with `probability`, drops all tokens above `threshold` except the least likely of them.

    It is off if either number is 0, or if the threshold is above 0.5, which at most one token can reach. It drops none
    if it would leave fewer than `min_keep`. Source: https://github.com/oobabooga/text-generation-webui/pull/6335
    """

    probability: float
    threshold: float
    min_keep: int = 0

    @classmethod
    def compile(cls, params: SamplingParams) -> XTC | None:
        probability, threshold = params.xtc_probability or 0, params.xtc_threshold or 0
        is_on = probability > 0 and 0 < threshold <= 0.5
        return cls(probability, threshold, _min_keep(params)) if is_on else None

    def __call__(self, candidates: Candidates, draws: Draws) -> Candidates:
        if draws.uniform(Purpose.XTC) >= self.probability:
            return candidates
        above = candidates.within(-log(self.threshold * candidates.total_weight()))
        if above.size < 2 or len(candidates) - above.size + 1 < self.min_keep:
            return candidates
        least = above[largest_positions(candidates.logits[above], above.size)[-1]]
        return candidates.keep(np.delete(np.arange(len(candidates)), above[above != least]))


@dataclass(frozen=True, slots=True)
class Temperature:
    """Divides the logits by the temperature; with `spread`, by a dynamic one in temperature ± spread.

    The dynamic temperature rises with the entropy relative to that of equally likely candidates: the ratio, to the
    power of `exponent`, selects a point in the range. Source: https://github.com/ggml-org/llama.cpp/pull/4972

    The result is shifted so that the largest logit is 0, unless `keeps_level`: penalties depend on the sign of a logit.
    """

    temperature: float
    spread: float
    exponent: float
    keeps_level: bool = False

    @classmethod
    def compile(cls, params: SamplingParams) -> Temperature | None:
        assert params.temperature is not None, "the params are complete"
        exponent = 1.0 if params.dynatemp_exponent is None else params.dynatemp_exponent
        # As in llama.cpp, Mirostat has a fixed temperature.
        spread = 0 if params.mirostat else params.dynatemp_range or 0
        compiled = cls(params.temperature, spread, exponent)
        return None if compiled.temperature == 1 and not compiled.spread else compiled

    @property
    def is_greedy(self) -> bool:
        """Whether only the largest logit stays."""
        return self.temperature == 0 and not self.spread

    def __call__(self, candidates: Candidates, draws: Draws) -> Candidates:
        if self.spread and len(candidates) == 1:
            return candidates
        shifted = candidates.shifted()
        temperature = self._dynamic(shifted) if self.spread else self.temperature
        if temperature <= 0:
            return candidates.keep(slice(int(shifted.argmax()), int(shifted.argmax()) + 1))
        # Logits shifted to at most 0 cannot become NaN by division, however small the temperature is.
        shifted /= temperature
        if self.keeps_level:
            shifted += min(max(candidates.peak / temperature, -LARGEST), LARGEST)
        return Candidates(candidates.token_ids, shifted, candidates.is_sorted)

    def _dynamic(self, shifted: NDArray[np.float64]) -> float:
        low, high = max(0.0, self.temperature - self.spread), self.temperature + self.spread
        relative = max(0.0, _entropy(shifted)) / log(shifted.size)
        return low + (high - low) * relative**self.exponent


def _min_keep(params: SamplingParams) -> int:
    return params.min_keep or 0


def _entropy(shifted: NDArray[np.float64]) -> float:
    logprobs = shifted[shifted > -inf]
    logprobs -= np.log(np.exp(logprobs).sum())
    return -float((np.exp(logprobs) * logprobs).sum())

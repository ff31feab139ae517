"""The last sampling stage of a row: picks one token from its candidates, by argmax, by chance or with Mirostat 2."""

from __future__ import annotations

from dataclasses import dataclass
from math import log
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from stoker.core.params import SamplingParams
from stoker.sampling.candidates import Candidates
from stoker.sampling.draws import Draws, Purpose


class Picker(Protocol):
    """A function that picks one of the candidates and returns its token id."""

    def __call__(self, candidates: Candidates, draws: Draws) -> int: ...


def drawn_from(pick: Picker, candidates: Candidates) -> Candidates:
    """The candidates that the picker really draws from: it may truncate them first."""
    if pick is pick_largest:
        return candidates.largest(1)
    return pick.truncate(candidates) if isinstance(pick, Mirostat2) else candidates


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
class Mirostat2:
    """Mirostat 2 (arXiv:2007.14966): drops tokens with more than `mu` bits of surprise, and adapts `mu` to reach `tau`.

    Attributes:
        tau: target surprise, in bits.
        eta: learning rate of `mu`.
        mu: maximum surprise, in bits; it changes with every token of one sequence.
    """

    tau: float
    eta: float
    mu: float

    @classmethod
    def compile(cls, params: SamplingParams) -> Mirostat2 | None:
        if not params.mirostat:
            return None
        assert params.mirostat_tau is not None, "the params are complete"
        assert params.mirostat_eta is not None, "the params are complete"
        return cls(params.mirostat_tau, params.mirostat_eta, mu=2 * params.mirostat_tau)

    def __call__(self, candidates: Candidates, draws: Draws) -> int:
        kept = self.truncate(candidates)
        weights = kept.weights()
        position = _draw(weights, draws)
        surprise = -float(np.log2(weights[position] / weights.sum()))
        self.mu -= self.eta * (surprise - self.tau)
        return int(kept.token_ids[position])

    def truncate(self, candidates: Candidates) -> Candidates:
        """The candidates with at most `mu` bits of surprise; the likeliest one if there are none."""
        within = candidates.within(self.mu * log(2) - log(candidates.total_weight()))
        return candidates.keep(within if within.size else np.array([candidates.logits.argmax()]))

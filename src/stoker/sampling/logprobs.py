"""Log-probabilities of tokens: from the model's raw logits, or from the candidates that a token was drawn from."""

from __future__ import annotations

from math import exp, inf, log

import numpy as np

from stoker.sampling.candidates import Candidates, Row, largest_positions
from stoker.sampling.exponential import exp_sum
from stoker.sampling.row_kernels import RowKernels


def token_logprobs(
    row: Row, token_id: int, num_top: int, kernels: RowKernels | None = None
) -> tuple[float, tuple[tuple[int, float], ...]]:
    """The log-probability of `token_id`, and the `num_top` most likely tokens with theirs, most likely first.

    Log-probabilities are the natural log-softmax of the raw row, before any sampling stage.

    Args:
        row: raw logits; the largest is finite, none is NaN.
        token_id: the chosen token.
        num_top: 0 to vocab_size; tokens with probability 0 are left out.
        kernels: compiled code; None = numpy is used.
    """
    peak = float(row.max())
    log_total = log(exp_sum(row, peak) if kernels is None else kernels.exp_sum(row, peak))

    def logprob(token_id: int) -> float:
        return float(row[token_id]) - peak - log_total

    return logprob(token_id), tuple((i, logprob(i)) for i in _largest(row, num_top, kernels) if row[i] > -inf)


def drawn_logprobs(candidates: Candidates, token_id: int, num_top: int) -> tuple[float, tuple[tuple[int, float], ...]]:
    """Log-probabilities, as of `token_logprobs`, among the candidates that a token was drawn from, after all stages.

    Args:
        candidates: the candidates, including `token_id`.
        token_id: the chosen token.
        num_top: 0 or more; tokens with probability 0 are left out.
    """
    log_total = log(candidates.total_weight())
    [chosen] = candidates.keep(np.flatnonzero(candidates.token_ids == token_id)).logits
    top = candidates.largest(num_top) if num_top else candidates.keep(slice(0, 0))
    pairs = zip(top.token_ids.tolist(), top.logits.tolist(), strict=True)
    found = ((i, min(logit - candidates.peak - log_total, 0.0)) for i, logit in pairs)
    logprob = min(float(chosen) - candidates.peak - log_total, 0.0)
    return logprob, tuple((i, logprob) for i, logprob in found if exp(logprob) > 0)


def _largest(row: Row, num_top: int, kernels: RowKernels | None) -> list[int]:
    if not num_top:
        return []
    return largest_positions(row, num_top).tolist() if kernels is None else kernels.largest(row, num_top)

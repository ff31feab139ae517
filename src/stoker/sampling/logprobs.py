"""Log-probabilities as the model gave them: natural log-softmax of a raw row, before any transform."""

from __future__ import annotations

from math import inf, log

from stoker.sampling.candidates import Row, largest_positions
from stoker.sampling.exponential import exp_sum
from stoker.sampling.row_kernels import RowKernels


def token_logprobs(
    row: Row, token_id: int, num_top: int, kernels: RowKernels | None = None
) -> tuple[float, tuple[tuple[int, float], ...]]:
    """The log-probability of `token_id`, and the `num_top` most likely tokens with theirs, most likely first.

    Args:
        row: raw logits; the largest is finite, none is NaN.
        token_id: the chosen token.
        num_top: 0 … vocab_size. Tokens of probability 0 are left out.
        kernels: compiled code; not given: numpy.
    """
    peak = float(row.max())
    log_total = log(exp_sum(row, peak) if kernels is None else kernels.exp_sum(row, peak))

    def logprob(token_id: int) -> float:
        return float(row[token_id]) - peak - log_total

    return logprob(token_id), tuple((i, logprob(i)) for i in _largest(row, num_top, kernels) if row[i] > -inf)


def _largest(row: Row, num_top: int, kernels: RowKernels | None) -> list[int]:
    if not num_top:
        return []
    return largest_positions(row, num_top).tolist() if kernels is None else kernels.largest(row, num_top)

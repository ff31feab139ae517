"""What compiled code may do for a sampler, and which requests it can do it for. The numpy code says what is right."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, log
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from stoker.core.params import SamplingParams
from stoker.sampling.candidates import Row, TokenIds
from stoker.sampling.edits import Edit, LogitBias, MinTokens
from stoker.sampling.penalties import Penalties
from stoker.sampling.pickers import Picker, pick_largest, pick_randomly
from stoker.sampling.transforms import MinP, Temperature, TopK, TopP, Transform

Chain: TypeAlias = tuple[float, int, float, float]
"""Temperature (0 = greedy), top_k (0 = off, with a top_p below 1), top_p (1 = off), and how far below the largest logit
min_p ends (inf = off)."""

PenaltyNumbers: TypeAlias = tuple[int, float, float, float]
"""Window (0 = the whole history), repetition, presence, frequency."""


class CompiledRow(Protocol):
    """How to choose the next token of one request, in compiled code, with the history that it needs."""

    @property
    def num_completion(self) -> int:
        """Tokens chosen so far."""
        ...


class AskedRow(Protocol):
    """The methods of a `Constraint` that say which tokens a row may take. A mask takes as long as ten tokens."""

    def allows(self, token_id: int, /) -> bool: ...
    def mask(self) -> NDArray[np.uint32] | None: ...


RowMask: TypeAlias = NDArray[np.uint32] | AskedRow


class RowKernels(Protocol):
    """Compiled passes over rows of logits. Every answer is that of the numpy code, to the bit."""

    def open(
        self,
        vocab_size: int,
        chain: Chain,
        seed: int,
        *,
        biases: Sequence[tuple[int, float]],
        ends: Sequence[int],
        min_tokens: int,
        penalties: PenaltyNumbers | None,
        history: Sequence[int],
    ) -> CompiledRow:
        """Compiles a request.

        Args:
            vocab_size: the width of its rows.
            chain: what comes behind the edits.
            seed: of its random numbers.
            biases: see `LogitBias`.
            ends: see `MinTokens`, and
            min_tokens: how many tokens are still missing.
            penalties: see `Penalties`; None = none.
            history: the tokens in their window so far.
        """
        ...

    def choose(
        self,
        logits: NDArray[np.float32],
        rows: Sequence[CompiledRow | None],
        maxima: NDArray[np.float32] | None,
        masks: Sequence[RowMask | None] | None = None,
        /,
    ) -> list[int]:
        """A token id per row, noted in its history; -1 where nothing can be chosen: NaN, +inf, or all -inf.

        Args:
            logits: one row for each token that is wanted; changed meanwhile.
            rows: as many; None = nothing is chosen, -1.
            maxima: see `Sampler.sample`.
            masks: see `Constraint.mask`, one for each row, or what finds it out; None = every token is allowed.
        """
        ...

    def guess(
        self, logits: NDArray[np.float32], rows: Sequence[CompiledRow | None], aheads: Sequence[int], /
    ) -> list[int]:
        """As `choose`, what each request would choose so many tokens after its next one; nothing is noted."""
        ...

    def renew(self, row: Row, maxima: NDArray[np.float32], token_ids: TokenIds, /) -> None:
        """Takes the maxima of a row again, of the blocks that these tokens are in."""
        ...

    def exp_sum(self, row: Row, peak: float, /) -> float:
        """See `exponential.exp_sum`."""
        ...

    def largest(self, row: Row, count: int, maxima: Row | None = None, /) -> list[int]:
        """The ids of the `count` largest possible logits, descending, of equal ones the lowest first. `count` > 0.

        There are none in a row that holds NaN or +inf. `maxima` are those of the row.
        """
        ...


def compile_chain(
    params: SamplingParams, transforms: Sequence[Transform], pick: Picker, vocab_size: int
) -> Chain | None:
    """What `RowKernels.choose` needs to know of a request; None: numpy does it.

    Args:
        params: complete.
        transforms: what the params were compiled to, and
        pick: what comes behind them.
    """
    if pick is pick_largest:
        return (0.0, 1, 1.0, inf)
    if pick is not pick_randomly or not all(_is_known(transform) for transform in transforms):
        return None
    assert params.temperature is not None, "the params are complete"
    top_k = params.top_k or 0
    top_k = top_k if 0 < top_k < vocab_size else 0
    top_p = 1.0 if params.top_p is None else params.top_p
    if not top_k and top_p >= 1:
        return None  # nothing is ranked
    return (params.temperature, top_k, top_p, -log(params.min_p) if params.min_p else inf)


def compile_row(
    kernels: RowKernels, chain: Chain, edits: tuple[Edit, ...], vocab_size: int, prompt: Sequence[int], seed: int
) -> tuple[CompiledRow, tuple[Edit, ...]]:
    """A request for compiled code, and the edits that numpy makes before: all, if not every one is known there."""
    if not all(isinstance(edit, (LogitBias, MinTokens, Penalties)) for edit in edits):
        return _open(kernels, chain, (), vocab_size, prompt, seed), edits
    return _open(kernels, chain, edits, vocab_size, prompt, seed), ()


def _open(
    kernels: RowKernels, chain: Chain, edits: tuple[Edit, ...], vocab_size: int, prompt: Sequence[int], seed: int
) -> CompiledRow:
    biases: list[tuple[int, float]] = []
    ends: list[int] = []
    min_tokens = 0
    penalties: PenaltyNumbers | None = None
    history: Sequence[int] = ()
    for edit in edits:
        match edit:
            case LogitBias():
                biases = list(zip(edit.token_ids.tolist(), edit.biases.tolist(), strict=True))
            case MinTokens():
                ends, min_tokens = edit.token_ids.tolist(), edit.num_left
            case Penalties():
                window = edit.window or 0
                penalties = (window, float(edit.repetition), float(edit.presence), float(edit.frequency))
                history = prompt[-window:]
            case _:
                raise AssertionError("it is not known to compiled code")
    return kernels.open(
        vocab_size,
        chain,
        seed,
        biases=biases,
        ends=ends,
        min_tokens=min_tokens,
        penalties=penalties,
        history=history,
    )


def _is_known(transform: Transform) -> bool:
    match transform:
        case TopK() | TopP() | MinP():
            return True
        case Temperature():
            return not transform.spread
        case _:
            return False

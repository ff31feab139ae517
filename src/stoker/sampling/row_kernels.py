"""The interface to compiled sampling code, and which requests it supports. The numpy code is the reference."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, log
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from stoker.sampling.candidates import Row, TokenIds
from stoker.sampling.edits import Edit, LogitBias, MinTokens
from stoker.sampling.penalties import Penalties
from stoker.sampling.pickers import Picker, pick_largest, pick_randomly
from stoker.sampling.transforms import MinP, Temperature, TopK, TopP, Transform

Chain: TypeAlias = tuple[float, int, float, float]
"""Sampling parameters: temperature (0 = greedy), top_k (0 = off, only with a top_p below 1), top_p (1 = off), and the
distance below the largest logit at which min_p ends (inf = off)."""

PenaltyNumbers: TypeAlias = tuple[int, float, float, float]
"""Penalty parameters: window in tokens (0 = the whole history), repetition, presence, frequency."""


_KINDS = (TopK, TopP, MinP, Temperature)
"""The stages of compiled code, in its order."""


class CompiledRow(Protocol):
    """Sampling state of one request in compiled code: its parameters and the token history that they need."""

    @property
    def num_completion(self) -> int:
        """Number of tokens chosen so far."""
        ...


class AskedRow(Protocol):
    """The `Constraint` methods that tell which tokens a row may take. `mask` costs as much as ten calls of `allows`."""

    def allows(self, token_id: int, /) -> bool: ...
    def mask(self) -> NDArray[np.uint32] | None: ...


RowMask: TypeAlias = NDArray[np.uint32] | AskedRow


class RowKernels(Protocol):
    """Compiled code that samples from rows of logits. Every result equals that of the numpy code, bit for bit."""

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
            vocab_size: number of logits in a row.
            chain: parameters of the stages after the edits.
            seed: seed of the request's random numbers.
            biases: pairs of token id and bias, see `LogitBias`.
            ends: tokens that end an answer, banned during the first `min_tokens`; see `MinTokens`.
            min_tokens: number of tokens for which the ban of `ends` still lasts.
            penalties: see `Penalties`; None = no penalties.
            history: the tokens in the window of the penalties so far.
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
        """Chooses a token id per row and adds it to the row's history; -1 for a row with NaN, with +inf, or all -inf.

        Args:
            logits: one row for each token to choose; changed meanwhile, and restored.
            rows: the state of each row; None = no token is chosen, and the result is -1.
            maxima: see `Sampler.sample`.
            masks: for each row a mask as of `Constraint.mask`, or an object to ask; None = every token is allowed.
        """
        ...

    def guess(
        self, logits: NDArray[np.float32], rows: Sequence[CompiledRow | None], aheads: Sequence[int], /
    ) -> list[int]:
        """As `choose`, the tokens that requests would choose `aheads` tokens after their next one. Changes no state."""
        ...

    def renew(self, row: Row, maxima: NDArray[np.float32], token_ids: TokenIds, /) -> None:
        """Computes `maxima` of a row again, for the blocks that contain these tokens."""
        ...

    def exp_sum(self, row: Row, peak: float, /) -> float:
        """See `exponential.exp_sum`."""
        ...

    def largest(self, row: Row, count: int, maxima: Row | None = None, /) -> list[int]:
        """The ids of the `count` (above 0) largest logits that are not -inf, descending; ties have the lowest id first.

        The result is empty for a row that holds NaN or +inf. `maxima` are the maxima of the row's blocks.
        """
        ...


def compile_chain(transforms: Sequence[Transform], pick: Picker, vocab_size: int) -> Chain | None:
    """The parameters of a request for `RowKernels.choose`; None = compiled code does not support it.

    Args:
        transforms: the stages of the request after the edits.
        pick: the last stage, after the transforms.
        vocab_size: number of logits in a row.
    """
    if pick is pick_largest:
        return (0.0, 1, 1.0, inf)
    if pick is not pick_randomly or not _are_known(transforms):
        return None
    temperature, top_k, top_p, distance = 1.0, 0, 1.0, inf
    for stage in transforms:
        match stage:
            case TopK():
                top_k = stage.k if stage.k < vocab_size else 0
            case TopP():
                top_p = stage.p
            case MinP():
                distance = -log(stage.p)
            case Temperature():
                temperature = stage.temperature
            case _:
                raise AssertionError("it is not known to compiled code")
    # Without top-k and top-p, compiled code has no ranked candidates to draw from.
    return (temperature, top_k, top_p, distance) if top_k or top_p < 1 else None


def _are_known(transforms: Sequence[Transform]) -> bool:
    """Whether compiled code has these stages in this order, each at most once."""
    kinds = [type(stage) for stage in transforms]
    return kinds == [kind for kind in _KINDS if kind in kinds] and all(map(_is_known, transforms))


def compile_row(
    kernels: RowKernels, chain: Chain, edits: tuple[Edit, ...], vocab_size: int, prompt: Sequence[int], seed: int
) -> tuple[CompiledRow, tuple[Edit, ...]]:
    """The compiled state of a request, and the edits left to numpy: all of them if compiled code lacks one of them."""
    kinds = [type(edit) for edit in edits]
    if kinds != [kind for kind in (LogitBias, MinTokens, Penalties) if kind in kinds]:
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
        case TopP() | MinP():
            return transform.min_keep <= 1
        case Temperature():
            return not transform.spread
        case _:
            return True

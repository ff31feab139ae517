"""Chooses one token from each row of logits. Rows are independent; text and scheduling are handled elsewhere.

The stages have llama.cpp's order: logit bias and bans, penalties, DRY, top-n-sigma, top-k, typical-p, top-p, min-p,
XTC, infill (which may end a fill-in-the-middle answer), temperature, random draw; or that of the request, see `stages`.
Mirostat replaces the truncation. Temperature 0 replaces everything after DRY by argmax, unless another stage may drop
the largest logit: typical-p, XTC and infill.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf, isfinite
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stoker.core.params import SamplingParams
from stoker.core.stages import Mark, no_mark
from stoker.errors import InvalidInput
from stoker.sampling.candidates import Candidates, Row, TokenIds
from stoker.sampling.constraint import Constraint
from stoker.sampling.draws import Draws
from stoker.sampling.edited_row import EditedRow
from stoker.sampling.edits import Edit, LogitBias, MinTokens, Vocabulary, as_token_ids
from stoker.sampling.logprobs import drawn_logprobs, token_logprobs
from stoker.sampling.pickers import Picker, drawn_from, pick_largest
from stoker.sampling.row_kernels import CompiledRow, RowKernels, RowMask, compile_chain, compile_row
from stoker.sampling.stages import compile_stages
from stoker.sampling.transforms import Transform


class Choice(NamedTuple):
    """The token chosen for one row.

    Attributes:
        token_id: `None` if no token can be chosen: the row holds NaN or +inf, or every token is impossible.
        logprob: natural log-probability of `token_id`, if requested: from the softmax of the raw row, or, with
            `post_sampling_probs`, of the candidates that the token was drawn from.
        top: the most likely tokens with their log-probabilities, from the same distribution; as many as requested.
    """

    token_id: int | None
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


_NOTHING = Choice(token_id=None)
_NO_TOKENS = np.zeros(1, dtype=np.uint32)
"""A mask that forbids every token."""


@dataclass(slots=True)
class RowState:
    """Sampling state of one request: its stages, compiled once from its params, and the token history that they need.

    Attributes:
        edits: logit edits that numpy makes.
        late: edits that are among `transforms`, see `Late`.
        compiled: the other stages, for compiled code; None = numpy runs them.
        constraint: grammar or other constraint on the tokens; None = none.
        reports_drawn: report log-probabilities of the candidates that a token was drawn from, not of the raw row.
        drawn: the last choice with its log-probabilities, if `reports_drawn`; None = there was one candidate only.
        is_whole: compiled code runs all stages: no log-probabilities, numpy edits or constraint.
    """

    seed: int
    edits: tuple[Edit, ...]
    transforms: tuple[Transform, ...]
    pick: Picker
    late: tuple[Edit, ...] = ()
    allowed: TokenIds | None = None
    num_logprobs: int | None = None
    compiled: CompiledRow | None = None
    constraint: Constraint | None = None
    reports_drawn: bool = False
    drawn: Choice | None = None
    is_whole: bool = field(init=False)
    completes_at: int | None = field(default=None, init=False)
    """Number of tokens after which the constraint is complete and the answer must end; None = not yet known."""
    _num_pushed: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        has_more = self.num_logprobs is not None or bool(self.edits) or self.constraint is not None
        self.is_whole = self.compiled is not None and not has_more

    @property
    def num_completion(self) -> int:
        """Number of tokens chosen so far. It is also the index of the next random draw."""
        return self._num_pushed if self.compiled is None else self.compiled.num_completion

    @property
    def is_plain_greedy(self) -> bool:
        """The choice is the row's largest logit, unless an edit changes that."""
        return self.pick is pick_largest and self.allowed is None

    @property
    def edits_before(self) -> list[Edit]:
        """The edits that numpy must make to a row before compiled code chooses from it."""
        return [] if self.compiled is None else [edit for edit in self.edits if not edit.is_idle]

    def push(self, token_id: int) -> None:
        """Adds the next token of the completion to the history."""
        for edit in (*self.edits, *self.late):
            edit.push(token_id)
        self._num_pushed += 1
        if self.constraint is not None:
            self.constraint.push(token_id)
            if self.completes_at is None and self.constraint.is_complete:
                self.completes_at = self._num_pushed


class Sampler:
    """Chooses tokens for one model. Not for use from several threads at once.

    Args:
        vocab_size: number of logits in a row.
        eog_token_ids: all end-of-generation tokens of the model.
        token_bytes: returns the text of a token, special tokens spelled out; DRY looks for sequence breakers in it.
        mark: called when edits of a row begin and end, to measure stages.
        kernels: compiled code for the requests that it supports; None = numpy does everything.
    """

    def __init__(
        self,
        *,
        vocab_size: int,
        eog_token_ids: frozenset[int],
        token_bytes: Callable[[int], bytes],
        mark: Mark = no_mark,
        kernels: RowKernels | None = None,
    ) -> None:
        self._mark = mark
        self._kernels = kernels
        self._usual: NDArray[np.float32] | None = None
        """Last logits array that passed the check of its layout: backends return the same view again and again."""
        self._vocabulary = Vocabulary(vocab_size, eog_token_ids, token_bytes)
        self._all_token_ids = np.arange(vocab_size, dtype=np.intp)
        self.num_constrained = 0
        """Number of rows that were sampled under a constraint."""
        self.mask_s = 0.0
        """Seconds spent on computing masks of constraints."""

    def open(
        self, params: SamplingParams, prompt: Sequence[int], seed: int, constraint: Constraint | None = None
    ) -> RowState:
        """Compiles the params of one request.

        Args:
            params: complete (every default is filled in, from `BUILT_IN` last), token ids inside the vocabulary.
            prompt: the tokens before the first one to be chosen.
            seed: 0 to 2**64 - 1; replaces `params.seed`.
            constraint: grammar or other constraint on the tokens; None = none.

        Raises:
            InvalidInput: the parameters exclude every token, or a sequence breaker is empty.
        """
        stages = compile_stages(params, self._vocabulary, prompt)
        edits = stages.edits
        allowed = self._allowed(params, edits)
        reports_drawn = bool(params.post_sampling_probs) and params.logprobs is not None
        is_known = allowed is None and not reports_drawn
        chain = compile_chain(stages.transforms, stages.pick, self._vocabulary.size) if is_known else None
        compiled: CompiledRow | None = None
        if chain is not None and self._kernels is not None:
            compiled, edits = compile_row(self._kernels, chain, edits, self._vocabulary.size, prompt, seed)
        return RowState(
            seed=seed,
            edits=edits,
            transforms=stages.transforms,
            pick=stages.pick,
            late=stages.late,
            allowed=allowed,
            num_logprobs=params.logprobs,
            compiled=compiled,
            constraint=constraint,
            reports_drawn=reports_drawn,
        )

    def sample(
        self, logits: NDArray[np.float32], rows: Sequence[RowState], maxima: NDArray[np.float32] | None = None
    ) -> list[Choice]:
        """Chooses one token per row and adds it to the row's state.

        A choice depends on its own row only, bit for bit: other rows, their number and their order have no effect.

        Args:
            logits: `(len(rows), vocab_size)`; changed meanwhile, and restored when this returns.
            rows: the state of each row. The state of a row without a choice does not change.
            maxima: `(len(rows), blocks)`, see `MaximaPort`: saves reading whole rows again. Restored like `logits`.
        """
        if logits is not self._usual:
            assert logits.shape == (len(rows), self._vocabulary.size), "one row of logits per state"
            if not logits.flags.carray or logits.dtype != np.float32:
                logits = np.array(logits, dtype=np.float32, order="C")
            self._usual = logits
        if self._kernels is not None:
            return self._choose_together(self._kernels, logits, rows, maxima)
        # Row by row, not all maxima first: a wide row is then still in the CPU cache for the later stages.
        return [self._choose(row, state) for row, state in zip(logits, rows, strict=True)]

    def guess(self, logits: NDArray[np.float32], rows: Sequence[RowState], aheads: Sequence[int]) -> list[int]:
        """Drafts a token for each request, from a draft model's logits and the request's own random numbers.

        Two models that agree about the next token thus draw the same one. A request that compiled code does not support
        gets the most likely token, as do all if the draft model has another vocabulary size. No state is changed.

        Args:
            logits: `(len(rows), tokens)`, of the draft model.
            rows: the state of each row.
            aheads: for each row, the number of drafted tokens before this one.
        """
        likely = logits.argmax(axis=1).tolist()
        if self._kernels is None or logits.shape[1] != self._vocabulary.size:
            return likely
        found = self._kernels.guess(np.ascontiguousarray(logits), [state.compiled for state in rows], aheads)
        return [token_id if token_id >= 0 else other for token_id, other in zip(found, likely, strict=True)]

    def _choose_together(
        self,
        kernels: RowKernels,
        logits: NDArray[np.float32],
        rows: Sequence[RowState],
        maxima: NDArray[np.float32] | None,
    ) -> list[Choice]:
        whole = [state.compiled for state in rows if state.is_whole]
        if len(whole) == len(rows):
            return [Choice(i) if i >= 0 else _NOTHING for i in kernels.choose(logits, whole, maxima)]
        edited = [
            EditedRow(logits[i], edits, None if maxima is None else maxima[i], kernels)
            for i, state in enumerate(rows)
            if state.edits and (edits := state.edits_before)
        ]
        if edited:
            self._mark("sample")
        try:
            for row in edited:
                row.apply()
            if edited:
                self._mark("mask")
            masks = self._masks(rows)
            token_ids = kernels.choose(logits, [state.compiled for state in rows], maxima, masks)
        finally:
            for row in edited:
                row.undo()
        return [
            (_NOTHING if token_id < 0 else Choice(token_id))
            if state.is_whole
            else self._conclude(logits[i], token_id, state)
            for i, (token_id, state) in enumerate(zip(token_ids, rows, strict=True))
        ]

    def _masks(self, rows: Sequence[RowState]) -> list[RowMask | None] | None:
        """The mask of allowed tokens of each row, for compiled code; None for a row that may take all tokens."""
        if all(state.constraint is None for state in rows):
            return None
        return [None if state.compiled is None else self._mask_of(state.constraint) for state in rows]

    def _mask_of(self, constraint: Constraint | None) -> RowMask | None:
        if constraint is None:
            return None
        self.num_constrained += 1
        forced = constraint.forced()
        return _Asked(self, constraint) if forced is None else _only(forced)

    def _conclude(self, row: Row, token_id: int, state: RowState) -> Choice:
        if state.compiled is None:
            return self._choose(row, state)
        return _NOTHING if token_id < 0 else self._note(row, token_id, state)

    def _choose(self, row: Row, state: RowState) -> Choice:
        largest = int(row.argmax())
        # `argmax` finds a NaN if there is one, so this one number tells whether the whole row can be used.
        if not isfinite(row[largest]):
            return _NOTHING
        edits = [edit for edit in state.edits if not edit.is_idle]
        with np.errstate(over="ignore"):
            if state.constraint is not None:
                token_id = self._pick_constrained(row, edits, state, state.constraint)
            elif edits:
                token_id = self._pick_edited(row, largest, edits, state)
            else:
                token_id = largest if state.is_plain_greedy else self._pick(row, largest, state)
        return _NOTHING if token_id is None else self._note(row, token_id, state)

    def _note(self, row: Row, token_id: int, state: RowState) -> Choice:
        state.push(token_id)
        if state.num_logprobs is None:
            return Choice(token_id)
        if state.reports_drawn:
            drawn, state.drawn = state.drawn, None
            return drawn or Choice(token_id, 0.0, ((token_id, 0.0),) if state.num_logprobs else ())
        return Choice(token_id, *token_logprobs(row, token_id, state.num_logprobs, self._kernels))

    def _pick_constrained(self, row: Row, edits: Sequence[Edit], state: RowState, constraint: Constraint) -> int | None:
        possible = self._possible(row, constraint)
        largest = int(possible.argmax())
        if not isfinite(possible[largest]):
            return None
        if edits:
            return self._pick_edited(possible.copy(), largest, edits, state)
        return self._pick(possible, largest, state)

    def _possible(self, row: Row, constraint: Constraint) -> Row:
        """A copy of the row in which forbidden tokens have logit -inf, so that the truncation sees allowed tokens only.

        If every token is allowed, the row itself is returned.
        """
        self.num_constrained += 1
        forced = constraint.forced()
        if forced is not None:
            masked = np.full_like(row, -inf)
            masked[forced] = row[forced]
            return masked
        words = _Asked(self, constraint).mask()
        if words is None:
            return row
        bits = np.unpackbits(words.view(np.uint8), bitorder="little", count=min(len(row), 32 * len(words)))
        masked = np.full_like(row, -inf)
        np.copyto(masked[: len(bits)], row[: len(bits)], where=bits.astype(bool))
        return masked

    def _pick_edited(self, row: Row, largest: int, edits: Sequence[Edit], state: RowState) -> int | None:
        """Edits a few logits in place, picks, and restores them: copying a wide row costs more than all the rest."""
        token_ids = np.concatenate([edit.token_ids for edit in edits])
        before = row[token_ids]
        self._mark("sample")
        try:
            for edit in edits:
                edit.apply(row)
            self._mark("mask")
            if state.is_plain_greedy and row[token_ids].max() < row[largest]:
                return largest
            return self._pick(row, largest, state)
        finally:
            row[token_ids] = before

    def _pick(self, row: Row, largest: int, state: RowState) -> int | None:
        """Picks from a row without NaN or +inf; `largest` is the index of its largest logit before it was edited."""
        if state.allowed is None:
            candidates = Candidates(self._all_token_ids, row)
            is_possible = isfinite(row[largest]) or isfinite(row.max())
        else:
            candidates = Candidates(state.allowed, row[state.allowed])
            is_possible = isfinite(candidates.logits.max())
        if not is_possible:
            return None
        draws = Draws(state.seed, state.num_completion)
        for transform in state.transforms:
            candidates = transform(candidates, draws)
        return self._draw(candidates, draws, state) if state.reports_drawn else state.pick(candidates, draws)

    def _draw(self, candidates: Candidates, draws: Draws, state: RowState) -> int:
        """Picks a token, and keeps the log-probabilities of the candidates that it was drawn from."""
        left = drawn_from(state.pick, candidates)
        token_id = state.pick(candidates, draws)
        state.drawn = Choice(token_id, *drawn_logprobs(left, token_id, state.num_logprobs or 0))
        return token_id

    def _allowed(self, params: SamplingParams, edits: tuple[Edit, ...]) -> TokenIds | None:
        allowed = params.allowed_token_ids
        token_ids = None if allowed is None else as_token_ids(allowed, self._vocabulary.size)
        banned = _banned_at_first(edits)
        if len(banned) == self._vocabulary.size or (token_ids is not None and banned.issuperset(token_ids.tolist())):
            message = "bans, `min_tokens` and `allowed_token_ids` leave no token to choose"
            raise InvalidInput(message, parameter="allowed_token_ids")
        return token_ids


class _Asked:
    """Gives compiled code access to a constraint, and measures the time of its masks. See `AskedRow`."""

    __slots__ = ("_constraint", "_sampler", "allows")

    def __init__(self, sampler: Sampler, constraint: Constraint) -> None:
        self._sampler = sampler
        self._constraint = constraint
        self.allows = constraint.allows

    def mask(self) -> NDArray[np.uint32] | None:
        begun_s = time.perf_counter()
        words = self._constraint.mask()
        self._sampler.mask_s += time.perf_counter() - begun_s
        return _NO_TOKENS if self._constraint.error is not None else words


def _only(token_id: int) -> NDArray[np.uint32]:
    """A mask that allows one token only."""
    words = np.zeros(token_id // 32 + 1, dtype=np.uint32)
    words[-1] = 1 << token_id % 32
    return words


def _banned_at_first(edits: tuple[Edit, ...]) -> set[int]:
    """The tokens that are banned as the first token of the completion."""
    banned: set[int] = set()
    for edit in edits:
        if isinstance(edit, LogitBias):
            banned.update(edit.banned_token_ids.tolist())
        elif isinstance(edit, MinTokens):
            banned.update(edit.token_ids.tolist())
    return banned

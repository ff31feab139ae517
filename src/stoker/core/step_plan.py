"""Plans one step: how many entries each running sequence computes, and which KV is restored from the tiers.

It does not start or end sequences: `SlotAdmission` picks those that get a slot, `Population` opens and closes slots.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from stoker.core.adapter_rotation import AdapterRotation, Lane
from stoker.core.batch import Chunk, Transfer
from stoker.core.kv_cache import KVCache
from stoker.core.media import PlacedSpan
from stoker.core.media_rows import MediaRows
from stoker.core.model_info import ModelInfo
from stoker.core.population import RANK, Population
from stoker.core.sequence import Sequence
from stoker.core.slot_admission import SlotAdmission
from stoker.core.tiering import Tiering
from stoker.core.token_budget import TokenBudget

P = TypeVar("P", bound="Prompt")
MAX_SCORED_LOGITS = 2**24
"""Maximum number of prompt logits in one step: each row has one per vocabulary entry, and all rows are kept."""


@dataclass(slots=True)
class StepPlan:
    """A step that is being planned: chunks and imports by slot."""

    chunks: dict[int, Chunk] = field(default_factory=dict[int, Chunk])
    imports: dict[int, list[Transfer]] = field(default_factory=dict[int, list[Transfer]])
    num_decodes: int = 0
    num_scored: int = 0
    """Rows of logits that score prompt entries."""

    @property
    def num_tokens(self) -> int:
        return sum(len(chunk.entries) for chunk in self.chunks.values())

    def __contains__(self, slot: object) -> bool:
        """Whether this step computes entries in the slot, or imports KV into it."""
        return slot in self.chunks or slot in self.imports


class StepPlanner:
    """Adds the work of one lane (set of adapters) after the other to a plan: decodes first, then prompts.

    Args:
        info: sizes and limits of the backend.
        kv: its ledger sets the cells of this step aside.
        population: the running sequences, including those that are admitted during the planning.
        media: knows which image rows have arrived. Entries after missing rows cannot be computed yet.
    """

    def __init__(
        self,
        info: ModelInfo,
        kv: KVCache,
        tiering: Tiering,
        admission: SlotAdmission,
        budget: TokenBudget,
        rotation: AdapterRotation,
        population: Population,
        media: MediaRows,
    ) -> None:
        self._info = info
        self._kv = kv
        self._ledger = kv.ledger
        self._tiering = tiering
        self._admission = admission
        self._budget = budget
        self._rotation = rotation
        self._population = population
        self._media = media
        self._owed = 0
        """The oldest prompt's share of earlier steps, in entries, that was too small for a chunk."""

    def fill(self, plan: StepPlan, lane: Lane) -> None:
        """Adds the decodes and prompts of this lane, and the KV imports of all lanes."""
        ready = [s for s in self._rotation.of(lane, self._population.running.values()) if s.num_pending == 1]
        self._plan_decodes(plan, [sequence for sequence in ready if sequence.num_completion])
        self._plan_prompts(plan, lane, [sequence for sequence in ready if not sequence.num_completion])

    def _plan_decodes(self, plan: StepPlan, decodes: list[Sequence]) -> None:
        # One check for all decodes: nearly always there is room for all of them.
        has_room = self._kv.make_room(len(decodes)) >= len(decodes)
        for sequence in sorted(decodes, key=RANK):
            # A sequence of higher rank may have preempted this one.
            if sequence.slot is not None and self._plan_chunk(plan, sequence, 1, has_room=has_room):
                plan.num_decodes += 1

    def _plan_prompts(self, plan: StepPlan, lane: Lane, ends: list[Sequence]) -> None:
        """`ends`: prompts of which only the last entry is left."""
        prompts = [s for s in self._population.running.values() if s.num_pending > 1]
        if not prompts and not self._admission.can_admit:
            self._plan_decodes(plan, ends)
            return
        num_decodes = plan.num_decodes + len(ends)
        has_streams = num_decodes > 0 or len(prompts) < len(self._population.running)
        num_sharing = len({lane, *map(self._rotation.lane_of, prompts)})

        def num_tokens() -> int:
            return self._budget.prompt_tokens(
                num_decodes,
                has_others=has_streams,
                num_sharing=num_sharing,
                position=max((max(s.num_computed, s.num_restorable) for s in prompts), default=0),
            )

        while (admitted := self._admission.admit_next(prompts, num_tokens())) is not None:
            prompts.append(admitted)
        # A sequence that was preempted for a decode may have been admitted again: then it is among the prompts.
        ends = [sequence for sequence in ends if sequence not in prompts]
        seconds = self._budget.limit_s(num_decodes, has_others=has_streams, num_sharing=num_sharing)
        self._plan_imports(plan, prompts, seconds)
        if plan.imports and not plan.num_decodes and not any(_is_behind(plan, sequence) for sequence in prompts):
            return  # results would wait for the imports anyway: the next step computes all prompts together
        self._plan_decodes(plan, ends)
        beside = [s for s in self._rotation.of(lane, prompts) if not s.is_restoring and self._media.can_go_on(s)]
        shares = self._shares(beside, num_tokens(), self._info.max_batch_tokens - plan.num_decodes)
        for sequence, share in sorted(shares, key=_begins_whole):
            if sequence.slot is not None:  # an image with bidirectional attention may take more than its share
                self._plan_chunk(plan, sequence, min(share, self._info.max_batch_tokens - plan.num_tokens))

    def _shares(self, prompts: list[Sequence], budget: int, most: int) -> list[tuple[Sequence, int]]:
        """See `share_budget`. The oldest prompt's share is saved up over steps until it is worth a chunk."""
        if budget == 0:
            return []
        least = min(self._budget.least_chunk, budget)
        owed = self._owed - (-budget // 4)
        self._owed = owed if owed < least and prompts else 0
        return share_budget(prompts, budget, for_oldest=0 if self._owed else owed, least=least, most=most)

    def _plan_imports(self, plan: StepPlan, prompts: list[Sequence], seconds: float) -> None:
        left = self._tiering.num_importable(seconds)
        for sequence in prompts:
            if left > 0 and sequence.is_restoring and sequence.slot not in plan.imports:
                left -= self._plan_import(plan, sequence, left)

    def _plan_import(self, plan: StepPlan, sequence: Sequence, num_entries: int) -> int:
        """Plans to restore about `num_entries` entries; returns their number. If none can be, they are computed."""
        assert sequence.slot is not None
        start = sequence.num_computed
        transfers = self._tiering.imports(sequence, num_entries)
        room = self._room_for(plan, sequence, transfers[-1].end - start) if transfers else 0
        fitting = [transfer for transfer in transfers if transfer.end - start <= room]
        transfers = [] if self._tiering.restores_whole and len(fitting) < len(transfers) else fitting
        if not transfers:
            sequence.num_restorable = 0
            return 0
        end = transfers[-1].end
        self._ledger.promise(sequence.slot, sequence.entries[start:end], is_import=True)
        plan.imports[sequence.slot] = transfers
        return end - start

    def _plan_chunk(self, plan: StepPlan, sequence: Sequence, num_tokens: int, *, has_room: bool = False) -> int:
        """Gives a sequence up to `num_tokens` entries of this step; returns how many it got."""
        is_scoring = _is_scoring(sequence)
        if is_scoring:
            num_tokens = min(num_tokens, self._num_scorable(plan, sequence))
        stop = self._next_stop(sequence)
        if stop is not None:
            num_tokens = min(num_tokens, stop - sequence.num_computed)
        if sequence.request.spans:
            num_tokens = self._fit_to_spans(plan, sequence, num_tokens)
        if num_tokens and not has_room:
            whole = _whole_within(sequence, sequence.num_computed + num_tokens)
            least = 1 if whole is None or whole.start > sequence.num_computed else whole.end - sequence.num_computed
            room = self._room_for(plan, sequence, num_tokens, least=least)
            num_tokens = num_tokens if room >= num_tokens else _before_whole(sequence, room)
        if num_tokens == 0:
            return 0
        slot = sequence.slot
        assert slot is not None
        start, end = sequence.num_computed, sequence.num_computed + num_tokens
        num_logits = int(end == len(sequence.entries))
        if is_scoring:
            num_scored = end - max(start, sequence.num_scored)
            num_logits = max(num_scored, num_logits)
            plan.num_scored += num_scored
        entries = tuple(sequence.entries[start:end])
        self._ledger.promise(slot, entries)
        rows = sequence.row_pieces(start, end) if sequence.request.spans else ()
        shift = sequence.shift_at(start) if sequence.request.spans else 0
        plan.chunks[slot] = Chunk(slot, start, entries, num_logits, sequence.request.adapters, rows, shift)
        return num_tokens

    def _next_stop(self, sequence: Sequence) -> int | None:
        """The length at which the next chunk must end, for a checkpoint or an export; leaves a checkpoint due now."""
        for_tiers = self._tiering.next_stop(sequence)
        if not sequence.checkpoints:
            return for_tiers
        if sequence.num_computed in sequence.checkpoints:
            assert sequence.slot is not None
            self._kv.leave_checkpoint(sequence.slot)
        sequence.checkpoints = left = [length for length in sequence.checkpoints if length > sequence.num_computed]
        return min((stop for stop in (for_tiers, *left[:1]) if stop is not None), default=None)

    def _fit_to_spans(self, plan: StepPlan, sequence: Sequence, num_tokens: int) -> int:
        """Limits a chunk to entries before missing image rows. A bidirectional span is computed whole, or not begun."""
        start = sequence.num_computed
        num_tokens = max(0, min(num_tokens, self._media.limit(sequence) - start))
        whole = _cut_by(sequence, start + num_tokens) if num_tokens else None
        if whole is None:
            return num_tokens
        fits = whole.end - start <= self._info.max_batch_tokens - plan.num_tokens
        return whole.end - start if fits else max(0, whole.start - start)

    def _num_scorable(self, plan: StepPlan, sequence: Sequence) -> int:
        """Maximum number of entries in a chunk that keeps the step within `MAX_SCORED_LOGITS`."""
        num_rows = max(1, MAX_SCORED_LOGITS // self._info.vocab_size) - plan.num_scored
        return max(0, num_rows) + max(0, sequence.num_scored - sequence.num_computed)

    def _room_for(self, plan: StepPlan, sequence: Sequence, num_cells: int, *, least: int = 1) -> int:
        """Number of free cells. To get `least` of them, evicts retained KV, then preempts running sequences of a lower
        rank than this one; the result is smaller than `least` if that is not enough.
        """
        while (room := self._kv.make_room(num_cells)) < least:
            if not self._population.make_way(sequence, spared=plan):
                return room
        return room


class Prompt(Protocol):
    """What `share_budget` reads of a sequence."""

    rank: tuple[int, int]

    @property
    def num_pending(self) -> int: ...


def share_budget(
    prompts: list[P], budget: int, *, for_oldest: int | None = None, least: int = 1, most: int | None = None
) -> list[tuple[P, int]]:
    """Divides a step's prompt tokens: shortest remaining prompt first, but a quarter always goes to the oldest.

    Shortest first keeps the mean time to first token (TTFT) low; the quarter keeps a long prompt from starving.

    Args:
        prompts: sequences with prompt entries to compute.
        budget: tokens to divide.
        for_oldest: tokens for the oldest prompt instead of the quarter.
        least: minimum share, except for the first prompt and for the end of a prompt. If a share would leave at most
            a quarter of this, the rest of the prompt is computed, too.
        most: upper bound on the sum of the shares; None = the budget.
    """
    if not prompts:
        return []
    oldest = min(prompts, key=lambda prompt: prompt.rank)
    quarter = -(-budget // 4) if for_oldest is None else min(for_oldest, budget)
    shares = {oldest.rank: min(oldest.num_pending, quarter)}
    left, room = (limit - shares[oldest.rank] for limit in (budget, budget if most is None else most))
    by_need = sorted(prompts, key=lambda prompt: (prompt.rank[0], prompt.num_pending, prompt.rank[1]))
    for prompt in by_need:
        has = shares.get(prompt.rank, 0)
        rest = prompt.num_pending - has
        more = min(rest, left)
        if rest - more <= least // 4:
            more = min(rest, room) if left > 0 else 0
        if has == 0 and more < min(rest, least) and any(shares.values()):
            continue
        shares[prompt.rank] = has + more
        left, room = max(0, left - more), room - more
    return [(prompt, shares[prompt.rank]) for prompt in by_need if shares.get(prompt.rank, 0) > 0]


def _is_behind(plan: StepPlan, sequence: Sequence) -> bool:
    """Whether entries of a sequence remain to be restored after this step."""
    if sequence.slot is None:
        return False  # it was preempted meanwhile
    transfers = plan.imports.get(sequence.slot)
    return (transfers[-1].end if transfers else sequence.num_computed) < sequence.num_restorable


def _cut_by(sequence: Sequence, end: int) -> PlacedSpan | None:
    """The span with bidirectional attention (`Span.is_whole`) that a chunk with this end would cut."""
    spans = sequence.request.spans
    return next((placed for placed in spans if placed.span.is_whole and placed.start < end < placed.end), None)


def _whole_within(sequence: Sequence, end: int) -> PlacedSpan | None:
    """The first span with bidirectional attention that overlaps a chunk with this end."""
    spans, start = sequence.request.spans, sequence.num_computed
    return next(
        (placed for placed in spans if placed.span.is_whole and placed.start < end and placed.end > start), None
    )


def _before_whole(sequence: Sequence, num_tokens: int) -> int:
    """The largest chunk of at most `num_tokens` entries that does not cut a span with bidirectional attention."""
    whole = _cut_by(sequence, sequence.num_computed + num_tokens)
    return num_tokens if whole is None else max(0, whole.start - sequence.num_computed)


def _begins_whole(share: tuple[Sequence, int]) -> int:
    """Sort key: first the shares that end within a bidirectional span, oldest first, since they may need more room."""
    sequence, num_tokens = share
    return sys.maxsize if _cut_by(sequence, sequence.num_computed + num_tokens) is None else sequence.arrival


def _is_scoring(sequence: Sequence) -> bool:
    """Whether logits of prompt entries have still to be delivered."""
    return sequence.request.scores_prompt and sequence.num_scored < sequence.num_prompt

"""Decides, step by step, which entries of which sequences are computed; it neither computes nor waits.

There is no prefill phase and no decode phase: every sequence has entries, some of them computed, and a step takes
each a little further. The idea, and most of the words, are those of vLLM's v1 scheduler.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field

from stoker.core.admission import Admission
from stoker.core.batch import Batch, Chunk, Entry, Transfer
from stoker.core.kv_cache import KVCache
from stoker.core.model_info import ModelInfo
from stoker.core.request import Request
from stoker.core.sequence import FinishReason, Sequence, TokenEvent
from stoker.core.slot_state import SlotState
from stoker.core.tiering import Tiering
from stoker.core.tiers import Tiers
from stoker.core.token_budget import TokenBudget
from stoker.core.waiting import WaitingQueue
from stoker.errors import InvalidInput, Overloaded

_EXPORT_SHARE = 0.02
"""Part of a step's aim that may be spent on exporting KV, while anybody waits for the step."""
_IDLE_EXPORT_S = 0.05
"""The same when nobody does: a new request should not wait long."""

MAX_SCORED_LOGITS = 2**24
"""Most logits of prompt entries in one step: every row is as wide as the vocabulary, and all of them are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """Limits and aims of the scheduler. Durations are in seconds."""

    max_running: int = 8
    """Most sequences in one batch."""
    max_waiting: int = 256
    """Most requests in the queue; one more is refused."""
    target_step_s: float = 0.2
    """How long a step may take while streams run, so that a long prompt slows them by a bounded amount."""
    idle_step_s: float = 1.0
    """How long a step may take when only prompts are computed."""


@dataclass(slots=True)
class _Plan:
    """One step in the making."""

    chunks: dict[int, Chunk] = field(default_factory=dict[int, Chunk])
    imports: dict[int, list[Transfer]] = field(default_factory=dict[int, list[Transfer]])
    num_decodes: int = 0
    num_scored: int = 0
    """Rows of logits that are not sampled from."""

    def __contains__(self, slot: object) -> bool:
        """The slot has its part in this step."""
        return slot in self.chunks or slot in self.imports


class Scheduler:
    """Owns every sequence from `add` to its last event. One thread uses it.

    Args:
        info: of the backend that computes the batches.
        config: how many run and wait, and how long a step may take.
        tiers: where KV is kept that the pool has no room for; None = nowhere.
    """

    def __init__(self, info: ModelInfo, config: SchedulerConfig, tiers: Tiers | None = None) -> None:
        assert 0 < config.max_running <= min(info.num_slots, info.max_batch_tokens)
        self.kv = KVCache(info)
        self._info = info
        self._config = config
        self._budget = TokenBudget(
            max_tokens=info.max_batch_tokens, target_step_s=config.target_step_s, idle_step_s=config.idle_step_s
        )
        self.tiering = Tiering(info, self.kv, self._budget, tiers)
        self._waiting = WaitingQueue()
        self._running: dict[int, Sequence] = {}
        """By slot."""
        self._alive: dict[str, Sequence] = {}
        self._finished: dict[str, Sequence] = {}
        """Those that ended since the last `schedule`."""
        self._admission = Admission(self.kv, self.tiering, self._waiting, self._running, config.max_running)
        self.num_prompt_tokens = 0
        """Of all requests that have begun."""
        self.num_cached_tokens = 0
        """Those of them that were not computed."""
        self.num_resident_tokens = 0
        """Those of these that were in the pool."""
        self.num_preemptions = 0
        self._num_arrivals = 0
        self._num_steps = 0

    @property
    def has_work(self) -> bool:
        return bool(self._alive)

    @property
    def awaits_tiers(self) -> bool:
        """Somebody was put off by the last `schedule` until something has been read from disk."""
        return any(sequence.fetched_keys for sequence in self._waiting)

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def kv_used(self) -> int:
        """Cells that running sequences hold or were promised."""
        return self.kv.used - self.kv.held_by_retained

    @property
    def kv_retained(self) -> int:
        """Cells that only finished conversations hold; they leave when somebody needs the room."""
        return self.kv.held_by_retained

    @property
    def kv_capacity(self) -> int:
        return self.kv.capacity

    def sequence(self, request_id: str) -> Sequence:
        """A sequence that is alive, or that ended in the current step."""
        return self._alive.get(request_id) or self._finished[request_id]

    def sequences(self, batch: Batch) -> list[Sequence]:
        """Who gets a token of a batch, in the order of their rows."""
        return [sequence for sequence, entry in self.rows(batch) if entry is None]

    def rows(self, batch: Batch) -> list[tuple[Sequence, Entry | None]]:
        """What the rows of a batch are for: whose they are, and the prompt entry to score; None = one to sample."""
        return [row for chunk in batch.chunks for row in self._rows_of(self._running[chunk.slot], chunk)]

    def _rows_of(self, sequence: Sequence, chunk: Chunk) -> list[tuple[Sequence, Entry | None]]:
        following: list[Entry | None] = [*sequence.entries[chunk.end - chunk.num_logits + 1 : chunk.end + 1]]
        return [(sequence, entry) for entry in [*following, None][: chunk.num_logits]]

    def add(self, request: Request) -> None:
        """Queues a request that has passed every check.

        Raises:
            Overloaded: the queue is full.
            InvalidInput: a request of this id is alive.
        """
        if request.request_id in self._alive:
            raise InvalidInput(f"request id {request.request_id!r} is already in use", parameter="request_id")
        if len(self._waiting) >= self._config.max_waiting:
            raise Overloaded(f"the queue is full: {len(self._waiting)} requests are waiting", retry_after_s=1.0)
        self._num_arrivals += 1
        sequence = Sequence(request, arrival=self._num_arrivals)
        self._alive[request.request_id] = sequence
        self.tiering.open(sequence)
        self._waiting.push(sequence)
        self._admission.reconsider()

    def abort(self, request_id: str) -> TokenEvent | None:
        """Ends a request between two steps; what was computed of its prompt stays resident."""
        sequence = self._alive.get(request_id)
        if sequence is None:
            return None
        return self._end(sequence, FinishReason.CANCELLED)

    def finish(self, request_id: str, reason: FinishReason) -> None:
        """Ends a running request for a reason that only its text shows, such as a stop string."""
        self._end(self._alive[request_id], reason)

    def exports(self) -> list[Transfer]:
        """What is to be exported now. Asked before `schedule`: what the ledger says of a slot is then really in it."""
        seconds = self._config.target_step_s * _EXPORT_SHARE if self._alive else _IDLE_EXPORT_S
        return self.tiering.exports(self._running.values(), seconds)

    def schedule(self) -> Batch | None:
        """The next step: decodes first, then prompts within the budget, those of whoever can be admitted too.

        None: there is nothing to do before something has been read from disk or a request comes.
        """
        self._finished.clear()
        plan = _Plan()
        self._displace()
        self._plan_decodes(plan)
        self._plan_prompts(plan)
        if not plan.chunks and not plan.imports:
            return None
        self._num_steps += 1
        imports = tuple(transfer for transfers in plan.imports.values() for transfer in transfers)
        return Batch(self._num_steps, tuple(plan.chunks.values()), self.kv.take_ops(), imports)

    def withdraw(self, transfer: Transfer) -> None:
        """An import of this step failed: from there on its sequence is computed."""
        self.kv.withdraw(transfer.slot, transfer.start)
        self._running[transfer.slot].num_restorable = 0

    def update(self, batch: Batch, token_ids: list[int | None]) -> list[TokenEvent]:
        """Takes what the step gave: one token id for each of `sequences`, or None where its row was unusable."""
        self.kv.commit()
        for slot in {transfer.slot for transfer in batch.imports}:
            self._note_import(self._running[slot], self.kv.tree.length(slot))
        for chunk in batch.chunks:
            sequence = self._running[chunk.slot]
            sequence.num_computed = chunk.end
            sequence.num_scored = max(sequence.num_scored, min(chunk.end, sequence.num_prompt))
        return [self._accept(*pair) for pair in zip(self.sequences(batch), token_ids, strict=True)]

    def fail(self, batch: Batch) -> list[TokenEvent]:
        """The forward pass of this batch failed: everybody else goes on, and those without a token try once more."""
        self.kv.abandon()
        sequences = [self._running[chunk.slot] for chunk in batch.chunks]
        for slot in self.kv.repeat_ops(batch.ops):
            if slot in self._running and self._running[slot] not in sequences:
                self._preempt(self._running[slot], retain=False)
        return [event for sequence in sequences if (event := self._end_or_retry(sequence)) is not None]

    def observe(self, num_tokens: int, step_s: float) -> None:
        """Learns how long a step of `num_tokens` entries took."""
        self._budget.observe(num_tokens, step_s)

    def slots(self) -> list[SlotState]:
        """What every slot holds now, in the order of their numbers."""
        return [self._slot_state(slot, length) for slot, length in sorted(self.kv.lengths().items())]

    def erase(self, slot: int) -> int:
        """Forgets what finished conversations left in a slot; returns how many tokens that were.

        Raises:
            InvalidInput: there is no such slot, or a request runs in it.
        """
        if slot not in self.kv.lengths():
            raise InvalidInput(f"there is no slot {slot}: they are 0 … {self._info.num_slots - 1}", parameter="slot")
        if slot in self._running:
            raise InvalidInput(f"slot {slot} is running a request; erase it when that has ended", parameter="slot")
        return self.kv.erase(slot)

    def check_integrity(self) -> None:
        """Asserts that sequences, slots and cells agree. Cheap enough for every step under test."""
        self.kv.check_integrity()
        assert len(self._running) + len(self._waiting) == len(self._alive)
        assert self.kv.running_slots == self._running.keys()
        for slot, sequence in self._running.items():
            assert sequence.slot == slot
            assert self.kv.tree.entries(slot) == sequence.entries[: sequence.num_computed]
        for sequence in self._waiting:
            assert sequence.slot is None
            assert sequence.num_computed == 0

    def _displace(self) -> None:
        """A request of higher priority does not wait for a running one of lower priority."""
        for candidate in self._waiting.candidates(1):
            while (victim := self._lowest(())) is not None:
                is_outranked = victim.request.priority < candidate.request.priority
                if not is_outranked or not self._admission.lacks_place(candidate):
                    return
                self._preempt(victim)

    def _plan_decodes(self, plan: _Plan) -> None:
        for sequence in sorted(self._running.values(), key=_rank):
            if sequence.slot is not None and sequence.num_pending == 1 and self._plan_chunk(plan, sequence, 1):
                plan.num_decodes += 1

    def _plan_prompts(self, plan: _Plan) -> None:
        prompts = [s for s in self._running.values() if s.num_pending > 1]
        budget = self._budget.prompt_tokens(plan.num_decodes)
        while (admitted := self._admission.admit_next(prompts, budget)) is not None:
            prompts.append(admitted)
        self._plan_imports(plan, prompts)
        for sequence, num_tokens in share_budget([s for s in prompts if not s.is_restoring], budget):
            if sequence.slot is not None:
                self._plan_chunk(plan, sequence, num_tokens)

    def _plan_imports(self, plan: _Plan, prompts: list[Sequence]) -> None:
        left = self.tiering.num_importable(self._config.target_step_s if plan.num_decodes else self._config.idle_step_s)
        for sequence in prompts:
            if left > 0 and sequence.is_restoring:
                left -= self._plan_import(plan, sequence, left)

    def _plan_import(self, plan: _Plan, sequence: Sequence, num_entries: int) -> int:
        """Gives a sequence about so many entries out of the tiers; if that is impossible now, it is computed."""
        assert sequence.slot is not None
        start = sequence.num_computed
        transfers = self.tiering.imports(sequence, num_entries)
        room = self._room_for(plan, sequence, transfers[-1].end - start) if transfers else 0
        transfers = [transfer for transfer in transfers if transfer.end - start <= room]
        if not transfers:
            sequence.num_restorable = 0
            return 0
        end = transfers[-1].end
        self.kv.promise(sequence.slot, sequence.entries[start:end])
        plan.imports[sequence.slot] = transfers
        return end - start

    def _plan_chunk(self, plan: _Plan, sequence: Sequence, num_tokens: int) -> int:
        """Gives a sequence up to `num_tokens` entries of this step; returns how many it got."""
        num_tokens = min(num_tokens, self._num_scorable(plan, sequence))
        stop = self.tiering.next_stop(sequence)
        if stop is not None:
            num_tokens = min(num_tokens, stop - sequence.num_computed)
        num_tokens = min(num_tokens, self._room_for(plan, sequence, num_tokens)) if num_tokens else 0
        if num_tokens == 0:
            return 0
        assert sequence.slot is not None
        start, end = sequence.num_computed, sequence.num_computed + num_tokens
        num_scored = end - max(start, sequence.num_scored) if _is_scoring(sequence) else 0
        num_logits = max(num_scored, int(end == len(sequence.entries)))
        plan.num_scored += num_scored
        chunk = Chunk(sequence.slot, start, tuple(sequence.entries[start:end]), num_logits)
        self.kv.promise(chunk.slot, chunk.entries)
        plan.chunks[chunk.slot] = chunk
        if not sequence.has_begun:
            self._begin(sequence)
        self._waiting.charge(sequence.request.client_key, num_tokens)
        return num_tokens

    def _begin(self, sequence: Sequence) -> None:
        sequence.has_begun = True
        self.num_prompt_tokens += sequence.num_prompt
        self.num_cached_tokens += min(sequence.num_cached, sequence.num_prompt)
        self.num_resident_tokens += min(sequence.num_resident, sequence.num_prompt)

    def _num_scorable(self, plan: _Plan, sequence: Sequence) -> int:
        """Entries that this step may take without giving away more rows than `MAX_SCORED_LOGITS` allows."""
        if not _is_scoring(sequence):
            return sequence.num_pending
        num_rows = max(1, MAX_SCORED_LOGITS // self._info.vocab_size) - plan.num_scored
        return max(0, num_rows) + max(0, sequence.num_scored - sequence.num_computed)

    def _room_for(self, plan: _Plan, sequence: Sequence, num_cells: int) -> int:
        """Free cells for a sequence: evicts what is retained, then preempts running sequences that rank below it."""
        while (room := self.kv.make_room(num_cells)) == 0:
            victim = self._lowest(plan)
            if victim is None or _rank(victim) <= _rank(sequence):
                return 0
            self._preempt(victim)
        return room

    def _lowest(self, planned: Container[int]) -> Sequence | None:
        """The running sequence to preempt first: lowest priority, then newest, and not yet part of this step."""
        return max((s for slot, s in self._running.items() if slot not in planned), key=_rank, default=None)

    def _preempt(self, sequence: Sequence, *, retain: bool = True) -> None:
        """Back to the queue with all its tokens; its cells may be evicted."""
        self._vacate(sequence, retain=retain and sequence.is_shared)
        sequence.num_preempted += 1
        self.num_preemptions += 1
        self._waiting.push_front(sequence)

    def _end_or_retry(self, sequence: Sequence) -> TokenEvent | None:
        """Nothing was said yet, so nobody notices that a prompt is computed twice; a second failure is its own."""
        if sequence.num_completion or sequence.is_isolated:
            return self._end(sequence, FinishReason.ERROR)
        self._vacate(sequence, retain=False)
        sequence.is_isolated, sequence.has_begun, sequence.chain = True, False, None
        self._waiting.push_front(sequence)
        return None

    def _note_import(self, sequence: Sequence, length: int) -> None:
        sequence.num_computed = length
        if not sequence.has_begun:
            sequence.num_cached = length

    def _accept(self, sequence: Sequence, token_id: int | None) -> TokenEvent:
        if token_id is None:
            return self._end(sequence, FinishReason.ERROR)
        if sequence.request.sampling.max_tokens == 0:
            return self._end(sequence, FinishReason.LENGTH)
        sequence.entries.append(token_id)
        is_stop = self._is_stop(sequence, token_id)
        reason = FinishReason.STOP if is_stop else self._length_reason(sequence)
        if reason is not None:
            self._end(sequence, reason)
        return TokenEvent(sequence.request.request_id, token_id, is_text=not is_stop, finish_reason=reason)

    def _is_stop(self, sequence: Sequence, token_id: int) -> bool:
        params = sequence.request.sampling
        is_end = token_id in self._info.eog_token_ids and not params.ignore_eos
        return is_end or token_id in (params.stop_token_ids or ())

    def _length_reason(self, sequence: Sequence) -> FinishReason | None:
        max_tokens = sequence.request.sampling.max_tokens
        is_spent = max_tokens is not None and sequence.num_completion >= max_tokens
        is_full = len(sequence.entries) >= self._info.max_sequence_tokens
        return FinishReason.LENGTH if is_spent or is_full else None

    def _end(self, sequence: Sequence, reason: FinishReason) -> TokenEvent:
        """Takes leave of a sequence; returns the event for an end without a token."""
        request = sequence.request
        sequence.finish_reason = reason
        if sequence.slot is None:
            self._waiting.remove(sequence)
        else:
            # What led to an error is not worth keeping: it may be the cause.
            self._vacate(sequence, retain=sequence.is_shared and reason is not FinishReason.ERROR)
        del self._alive[request.request_id]
        self._finished[request.request_id] = sequence
        self._waiting.forget_idle({s.request.client_key for s in self._running.values()})
        return TokenEvent(request.request_id, None, is_text=False, finish_reason=reason)

    def _slot_state(self, slot: int, length: int) -> SlotState:
        sequence = self._running.get(slot)
        if sequence is None:
            return SlotState(slot=slot, num_tokens=length)
        return SlotState(
            slot=slot,
            num_tokens=length,
            request_id=sequence.request.request_id,
            num_prompt=sequence.num_prompt,
            num_completion=sequence.num_completion,
        )

    def _vacate(self, sequence: Sequence, *, retain: bool) -> None:
        assert sequence.slot is not None
        if retain:
            self.tiering.retain(sequence.slot, sequence)
        self.kv.close(sequence.slot, retain=retain)
        del self._running[sequence.slot]
        sequence.slot, sequence.num_computed, sequence.num_restorable = None, 0, 0
        self._admission.reconsider()


def share_budget(prompts: list[Sequence], budget: int) -> list[tuple[Sequence, int]]:
    """Divides a step's prompt tokens: shortest remainder first, but a quarter always goes to the oldest.

    Shortest first keeps the mean time to the first token low; the quarter keeps a long prompt from starving.
    """
    if not prompts:
        return []
    oldest = min(prompts, key=_rank)
    shares = {oldest.arrival: min(oldest.num_pending, -(-budget // 4))}
    left = budget - shares[oldest.arrival]
    by_need = sorted(prompts, key=lambda s: (-s.request.priority, s.num_pending, s.arrival))
    for sequence in by_need:
        more = min(sequence.num_pending - shares.get(sequence.arrival, 0), left)
        shares[sequence.arrival] = shares.get(sequence.arrival, 0) + more
        left -= more
    return [(sequence, shares[sequence.arrival]) for sequence in by_need if shares[sequence.arrival] > 0]


def _is_scoring(sequence: Sequence) -> bool:
    """Rows of its prompt are still to be given away."""
    return sequence.request.scores_prompt and sequence.num_scored < sequence.num_prompt


def _rank(sequence: Sequence) -> tuple[int, int]:
    """Smaller is served before and preempted after: higher priority, then older."""
    return (-sequence.request.priority, sequence.arrival)

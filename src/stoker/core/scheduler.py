"""Decides, step by step, which entries of which sequences are computed; it neither computes nor waits.

There is no prefill phase and no decode phase: every sequence has entries, some of them computed, and a step takes
each a little further. The idea, and most of the words, are those of vLLM's v1 scheduler.
"""

from __future__ import annotations

from collections.abc import Container
from collections.abc import Sequence as Ordered
from dataclasses import dataclass

from stoker.core.admission import LOOKAHEAD, Admission
from stoker.core.batch import Batch, Chunk, Entry, Transfer
from stoker.core.decode_run import DecodeRun
from stoker.core.kv_cache import KVCache
from stoker.core.model_info import ModelInfo
from stoker.core.request import Request
from stoker.core.sequence import FinishReason, Sequence, TokenEvent
from stoker.core.slots import Slots
from stoker.core.speculation import Speculation
from stoker.core.step_plan import RANK, StepPlan, StepPlanner
from stoker.core.tiering import Tiering
from stoker.core.tiers import Tiers
from stoker.core.token_budget import TokenBudget
from stoker.core.turns import Turns
from stoker.core.waiting import WaitingQueue
from stoker.errors import InvalidInput, Overloaded

_EXPORT_SHARE = 0.02
"""Part of a step's limit that may be spent on exporting KV besides, while anybody waits for the step."""
_IDLE_EXPORT_S = 0.05
"""The same when nobody does: a new request should not wait long."""


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
    max_draft: int = 0
    """Most entries that are drafted for one sequence in one step, where a backend computes drafts without changing
    what comes out; 0 = none."""


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
            max_tokens=info.max_batch_tokens,
            target_step_s=config.target_step_s,
            idle_step_s=config.idle_step_s,
            tile_rows=info.tile_rows,
            pass_per_prompt=info.pass_per_prompt,
        )
        self.tiering = Tiering(info, self.kv, self._budget, tiers)
        self._waiting = WaitingQueue()
        self._running: dict[int, Sequence] = {}
        """By slot."""
        self._alive: dict[str, Sequence] = {}
        self._finished: dict[str, Sequence] = {}
        """Those that ended since the last `schedule`."""
        self._paused: dict[str, Sequence] = {}
        """Neither running nor waiting: nobody reads what they would become."""
        can_draft = info.is_batch_invariant and info.traits.can_truncate
        self.speculation = Speculation(config.max_draft if can_draft else 0, info.max_batch_tokens)
        self._run: DecodeRun | None = None
        """What goes on as it was, as long as nobody is added, resumed or loses the slot."""
        self._turns = Turns(info)
        self._admission = Admission(
            self.kv, self.tiering, self._waiting, self._running, config.max_running, self._turns
        )
        self._planner = StepPlanner(
            info,
            self.kv,
            self.tiering,
            self._admission,
            self._budget,
            self._turns,
            self._running,
            make_way=self._make_way,
        )
        self.slots = Slots(info, self.kv, self.tiering, self._running, self._next_step_id)
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
        """Somebody is alive who is not paused."""
        return len(self._alive) > len(self._paused)

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
    def num_paused(self) -> int:
        return len(self._paused)

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
        """Who gets a token of a batch, or several, in the order of their rows."""
        if self._run is not None and self._run.batch is batch:
            return self._run.sequences
        found: list[Sequence] = []
        for slot, start, entries, num_logits, _ in batch.chunks:
            sequence = self._running[slot]
            if num_logits and start + len(entries) == len(sequence.entries):
                found.append(sequence)
        return found

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
        sequence = Sequence.begin(request, self._num_arrivals, self._info)
        self._alive[request.request_id] = sequence
        self.tiering.open(sequence)
        self._end_run()
        self._waiting.push(sequence)
        self._admission.reconsider()

    def abort(self, request_id: str) -> TokenEvent | None:
        """Ends a request between two steps; what was computed of its prompt stays resident."""
        sequence = self._alive.get(request_id)
        if sequence is None:
            return None
        return self._end(sequence, FinishReason.CANCELLED)

    def pause(self, request_id: str) -> None:
        """Nothing of a request is computed until `resume`. Its place goes to others, its KV when they need the room.

        Unknown ids are ignored, and so is pausing what is paused.
        """
        sequence = self._alive.get(request_id)
        if sequence is None or request_id in self._paused:
            return
        if sequence.slot is None:
            self._waiting.remove(sequence)
            self._admission.reconsider()
        else:
            self._vacate(sequence, retain=not sequence.is_isolated)
        sequence.num_paused += 1
        self._paused[request_id] = sequence

    def resume(self, request_id: str) -> None:
        """A paused request goes on as soon as there is a place, before all others of its client."""
        sequence = self._paused.pop(request_id, None)
        if sequence is not None:
            self._end_run()
            self._waiting.push_front(sequence)
            self._admission.reconsider()

    def finish(self, request_id: str, reason: FinishReason, num_completion: int) -> None:
        """Ends a running request for a reason that only its text shows, such as a stop string.

        Args:
            num_completion: tokens up to there; those behind, of a draft, are forgotten.
        """
        sequence = self._alive[request_id]
        self.speculation.withdraw(sequence, sequence.num_completion - num_completion)
        del sequence.entries[sequence.num_prompt + num_completion :]
        if sequence.slot is not None and sequence.num_computed >= len(sequence.entries):
            sequence.num_computed = len(sequence.entries) - 1
            self.kv.shorten(sequence.slot, sequence.num_computed)
        self._end(sequence, reason)

    def exports(self) -> list[Transfer]:
        """What is to be exported now. Asked before `schedule`: what the ledger says of a slot is then really in it."""
        if not self.tiering.may_export:
            return []
        num_streams = sum(sequence.num_pending == 1 for sequence in self._running.values())
        seconds = self._budget.limit_s(num_streams) * _EXPORT_SHARE if self.has_work else _IDLE_EXPORT_S
        return self.tiering.exports(self._running.values(), seconds, is_busy=self.has_work)

    def schedule(self) -> Batch | None:
        """The next step: decodes first, then prompts within the budget, those of whoever can be admitted too.

        None: there is nothing to do before something has been read from disk or a request comes.
        """
        self._finished.clear()
        if self._run is not None and self._run.has_room:
            return self._run.plan(self._next_step_id())
        self._end_run()
        plan = StepPlan()
        self._displace()
        for lane in self._turns.order((*self._running.values(), *self._waiting.candidates(LOOKAHEAD))):
            self._planner.fill(plan, lane)
            if plan.chunks:
                self._turns.take(lane)
                break
        if not plan.chunks and not plan.imports:
            return None
        for slot, chunk in plan.chunks.items():
            sequence = self._running[slot]
            self._waiting.charge(sequence.request.client_key, len(chunk.entries))
            if not sequence.has_begun:
                self._note_begin(sequence)
        if not len(self._waiting):
            self._run = DecodeRun.behind(plan, self._running, self.kv, self._turns, self.speculation)
        imports = tuple([transfer for transfers in plan.imports.values() for transfer in transfers])
        return Batch(self._next_step_id(), tuple(plan.chunks.values()), self.kv.take_ops(), imports)

    def withdraw(self, transfer: Transfer) -> None:
        """An import of this step failed: from there on its sequence is computed."""
        self.kv.withdraw(transfer.slot, transfer.start)
        self._running[transfer.slot].num_restorable = 0

    def update(self, batch: Batch, token_ids: Ordered[int | None]) -> list[TokenEvent]:
        """Takes what the step gave: one token id for each of `sequences`, or None where its row was unusable."""
        self.kv.commit()
        if batch.imports:
            for slot in {transfer.slot for transfer in batch.imports}:
                self._note_import(self._running[slot], self.kv.tree.length(slot))
        for slot, start, entries, _, _ in batch.chunks:
            sequence = self._running[slot]
            sequence.num_computed = end = start + len(entries)
            if sequence.request.scores_prompt:
                sequence.num_scored = max(sequence.num_scored, min(end, sequence.num_prompt))
        return [self._accept(*pair) for pair in zip(self.sequences(batch), token_ids, strict=True)]

    def update_drafted(self, batch: Batch, token_ids: Ordered[Ordered[int | None]]) -> list[list[TokenEvent]]:
        """As `update`, for a step with drafts.

        Args:
            batch: of which `num_drafted` is not 0.
            token_ids: for each of `sequences` what its rows gave, as far as they gave what was drafted, and one more.

        Returns:
            For each of them one event a token, up to its end.
        """
        sequences = self.sequences(batch)
        accepted = [_until_end(sequence, found) for sequence, found in zip(sequences, token_ids, strict=True)]
        for chunk, sequence, found in zip(batch.chunks, sequences, accepted, strict=True):
            num_drafted, num_accepted = len(chunk.entries) - 1, len(found) - 1
            sequence.num_computed = chunk.start + 1 + num_accepted
            if num_accepted < num_drafted:
                self.kv.reject(chunk.slot, sequence.num_computed)
            self.speculation.observe(sequence, num_drafted, num_accepted, is_over=found[-1] in sequence.ends)
        self.kv.commit()
        return [
            [self._accept(sequence, token_id) for token_id in found]
            for sequence, found in zip(sequences, accepted, strict=True)
        ]

    def fail(self, batch: Batch) -> list[TokenEvent]:
        """The forward pass of this batch failed: everybody else goes on, and those without a token try once more.

        With drafts it took more than it had to, and nobody has seen anything of it: all go on without.
        """
        self.kv.abandon()
        if batch.num_drafted:
            self.kv.repeat_ops(batch.ops)
            self.speculation.has_failed()
            return []
        sequences = [self._running[chunk.slot] for chunk in batch.chunks]
        for slot in self.kv.repeat_ops(batch.ops):
            if slot in self._running and self._running[slot] not in sequences:
                self._preempt(self._running[slot], retain=False)
        return [event for sequence in sequences if (event := self._end_or_retry(sequence)) is not None]

    def observe(self, batch: Batch, step_s: float) -> None:
        """Learns how long a step took; not of the first, which touches the weights for all that follow."""
        self._turns.observe(step_s)
        self.tiering.earn(step_s)
        if batch.step_id == 1:
            return
        num_prompts, num_tokens, num_attended = batch.prompt_sizes()
        num_decodes = len(batch.chunks) - num_prompts
        if num_decodes and not num_prompts:
            self.speculation.observe_step(num_decodes, batch.num_drafted, step_s)
        self._budget.observe(
            num_tokens,
            step_s,
            num_decodes=num_decodes + batch.num_drafted,
            num_attended=num_attended,
            num_prompts=num_prompts,
        )

    def check_integrity(self) -> None:
        """Asserts that sequences, slots and cells agree. Cheap enough for every step under test."""
        self.kv.check_integrity()
        assert len(self._running) + len(self._waiting) + len(self._paused) == len(self._alive)
        assert self.kv.running_slots == self._running.keys()
        for slot, sequence in self._running.items():
            assert sequence.slot == slot
            assert self.kv.tree.entries(slot) == sequence.entries[: sequence.num_computed]
        for sequence in (*self._waiting, *self._paused.values()):
            assert sequence.slot is None
            assert sequence.num_computed == 0

    def _next_step_id(self) -> int:
        self._num_steps += 1
        return self._num_steps

    def _end_run(self) -> None:
        if self._run is not None:
            self._run.end(self._waiting)
            self._run = None

    def _displace(self) -> None:
        """A request of higher priority does not wait for a running one of lower priority."""
        for candidate in self._waiting.candidates(1):
            while (victim := self._lowest(())) is not None:
                is_outranked = victim.request.priority < candidate.request.priority
                if not is_outranked or not self._admission.lacks_place(candidate):
                    return
                self._preempt(victim)

    def _note_begin(self, sequence: Sequence) -> None:
        sequence.has_begun = True
        self.num_prompt_tokens += sequence.num_prompt
        self.num_cached_tokens += min(sequence.num_cached, sequence.num_prompt)
        self.num_resident_tokens += min(sequence.num_resident, sequence.num_prompt)

    def _make_way(self, sequence: Sequence, planned: Container[int]) -> bool:
        """Preempts the running sequence that goes first, if it ranks below this one."""
        victim = self._lowest(planned)
        if victim is None or victim.rank <= sequence.rank:
            return False
        self._preempt(victim)
        return True

    def _lowest(self, planned: Container[int]) -> Sequence | None:
        """The running sequence to preempt first: lowest priority, then newest, and not yet part of this step."""
        return max((s for slot, s in self._running.items() if slot not in planned), key=RANK, default=None)

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
        if len(sequence.entries) >= sequence.max_entries:
            return self._end(sequence, FinishReason.LENGTH)  # only the prompt was wanted
        sequence.entries.append(token_id)
        is_stop, reason = token_id in sequence.ends, None
        if is_stop or len(sequence.entries) >= sequence.max_entries:
            reason = FinishReason.STOP if is_stop else FinishReason.LENGTH
            self._end(sequence, reason)
        return TokenEvent(sequence.request.request_id, token_id, not is_stop, reason)

    def _end(self, sequence: Sequence, reason: FinishReason) -> TokenEvent:
        """Takes leave of a sequence; returns the event for an end without a token."""
        request = sequence.request
        sequence.finish_reason = reason
        was_paused = self._paused.pop(request.request_id, None) is not None
        if sequence.slot is not None:
            # What led to an error is not worth keeping: it may be the cause.
            self._vacate(sequence, retain=sequence.is_shared and reason is not FinishReason.ERROR)
        elif not was_paused:
            self._waiting.remove(sequence)
        if sequence.num_paused and not sequence.is_shared:
            self.kv.forget(sequence.cache_key)  # nobody else may read it; who is paused and may, computes it again
        del self._alive[request.request_id]
        self._finished[request.request_id] = sequence
        self._waiting.forget_idle({s.request.client_key for s in self._running.values()})
        return TokenEvent(request.request_id, None, is_text=False, finish_reason=reason)

    def _vacate(self, sequence: Sequence, *, retain: bool) -> None:
        assert sequence.slot is not None
        self._end_run()
        if retain:
            self.tiering.retain(sequence.slot, sequence)
        self.kv.close(sequence.slot, retain=retain)
        del self._running[sequence.slot]
        sequence.slot, sequence.num_computed, sequence.num_restorable = None, 0, 0
        self._admission.reconsider()


def _until_end(sequence: Sequence, token_ids: Ordered[int | None]) -> Ordered[int | None]:
    """Up to the first token that ends a sequence."""
    for index, token_id in enumerate(token_ids, 1):
        if token_id in sequence.ends:
            return token_ids[:index]
    return token_ids

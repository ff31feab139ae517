"""Continuous batching: decides for each step which entries of which sequences are computed. It computes nothing.

There is no separate prefill or decode phase: every sequence has entries, some of them computed, and each step computes
some more entries of many sequences. The idea and most of the terms come from vLLM's v1 scheduler.
"""

from __future__ import annotations

from collections.abc import Sequence as Ordered
from dataclasses import dataclass
from itertools import count

from stoker.core import checkpoints, pool
from stoker.core.adapter_rotation import AdapterRotation
from stoker.core.batch import Batch, Chunk, Entry, Transfer
from stoker.core.decode_run import DecodeRun
from stoker.core.draft_port import DraftPort
from stoker.core.kv_cache import KVCache
from stoker.core.lending import Lending
from stoker.core.media import Span
from stoker.core.media_rows import MediaRows
from stoker.core.model_drafts import ModelDrafts
from stoker.core.model_info import ModelInfo
from stoker.core.pool_view import SequenceState
from stoker.core.population import RANK, Population
from stoker.core.request import Request
from stoker.core.sequence import FinishReason, Sequence, TokenEvent
from stoker.core.slot_admission import LOOKAHEAD, SlotAdmission
from stoker.core.slots import Slots
from stoker.core.speculation import Speculation
from stoker.core.step_plan import StepPlan, StepPlanner
from stoker.core.tiering import Tiering
from stoker.core.tiers import Tiers
from stoker.core.token_budget import TokenBudget
from stoker.errors import InvalidInput, Overloaded

_EXPORT_SHARE = 0.02
"""Fraction of a step's time limit for KV exports while requests are being computed."""
_IDLE_EXPORT_S = 0.05
"""Seconds for one round of KV exports on an idle engine: a request that arrives meanwhile must not wait longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """Limits and targets of one scheduler. Durations are in seconds."""

    max_running: int = 8
    """Maximum number of running sequences (concurrency)."""
    max_waiting: int = 256
    """Maximum number of queued requests; further requests are refused with `Overloaded`."""
    target_step_s: float = 0.2
    """Maximum duration that a step should have while streams run: bounds how much a long prompt slows them down."""
    idle_step_s: float = 1.0
    """Maximum duration that a step should have if it only computes prompts."""
    max_draft: int = 0
    """Speculative decoding: maximum number of drafted entries per sequence and step; 0 = no drafts. Applies only to
    backends where drafts cannot change the answer (`ModelInfo.is_batch_invariant`)."""


class Scheduler:
    """Plans the steps of one backend and takes their results. `Population` owns the sequences. Used by one thread.

    Args:
        info: sizes and abilities of the backend that computes the batches.
        config: limits on running and waiting requests, and on the duration of a step.
        tiers: RAM and disk, where KV is kept that the pool has no room for; None = it is not kept.
        drafting: the draft model for speculative decoding; None = no draft model.
    """

    def __init__(
        self,
        info: ModelInfo,
        config: SchedulerConfig,
        tiers: Tiers | None = None,
        drafting: DraftPort | None = None,
    ) -> None:
        assert 0 < config.max_running <= min(info.num_slots, info.max_batch_tokens)
        # With this capacity, window cells run short only while finished conversations hold some: those can be evicted.
        if info.windows is not None:
            most = config.max_running * info.windows.reach + info.max_batch_tokens
            assert info.windows.capacity >= min(most, info.kv_tokens), "too few cells for windows"
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
        self._population = Population(self.kv, self.tiering)
        most = config.max_draft if info.traits.can_truncate else min(config.max_draft, info.traits.truncatable_tail)
        models = None if drafting is None else ModelDrafts(drafting)
        self.speculation = Speculation(most if info.is_batch_invariant else 0, info.max_batch_tokens, models)
        self._run: DecodeRun | None = None
        """The current series of pure decode steps; ends when a sequence is added, is resumed or loses its slot."""
        self._rotation = AdapterRotation(info)
        self._admission = SlotAdmission(self.kv, self.tiering, self._population, self._rotation, config.max_running)
        self.media = MediaRows()
        self._planner = StepPlanner(
            info, self.kv, self.tiering, self._admission, self._budget, self._rotation, self._population, self.media
        )
        self._step_ids = count(1)
        self.slots = Slots(info, self.kv, self.tiering, self._population, self._step_ids)
        self.lending = Lending(info, self.kv, self._population, self._step_ids, config.max_running)
        self.num_prompt_tokens = 0
        """Prompt tokens of all requests that have begun."""
        self.num_cached_tokens = 0
        """Prompt tokens that were taken from the prefix cache instead of being computed."""
        self.num_resident_tokens = 0
        """Cached prompt tokens found in the KV pool (the other cached ones came from RAM or disk)."""
        self._num_arrivals = 0

    @property
    def has_work(self) -> bool:
        """A sequence is alive and not paused."""
        return self._population.has_work

    @property
    def awaits_tiers(self) -> bool:
        """The last `schedule` skipped a sequence whose KV is still being read from disk."""
        return any(sequence.fetched_keys for sequence in self._population.waiting)

    @property
    def awaits_rows(self) -> bool:
        """A running sequence cannot continue until its image rows (embeddings of an image) arrive."""
        return self.media.is_waited_for(self._population.running.values())

    def rows_wanted(self) -> list[tuple[str, Span]]:
        """Image rows to request now, each only once: the id of the request that needs them, and the span of rows."""
        return self.media.wanted(self._population.running.values())

    def rows_given_up(self) -> set[bytes]:
        """Keys of image rows that the backend can drop, because no running sequence needs them any more."""
        return self.media.given_up(self._population.running.values())

    @property
    def num_running(self) -> int:
        return self._population.num_running

    @property
    def num_waiting(self) -> int:
        return self._population.num_waiting

    @property
    def num_paused(self) -> int:
        return self._population.num_paused

    @property
    def num_preemptions(self) -> int:
        return self._population.num_preemptions

    @property
    def kv_used(self) -> int:
        """Cells of the KV pool that running sequences hold, or that the current step fills."""
        return self.kv.ledger.used - self.kv.held_by_retained

    @property
    def kv_retained(self) -> int:
        """Cells held only by finished conversations; they are evicted when a request needs the room."""
        return self.kv.held_by_retained

    @property
    def kv_capacity(self) -> int:
        return self.kv.ledger.capacity

    def states(self) -> list[SequenceState]:
        """Every live request: first the running ones, then the waiting ones by rank, then the paused ones."""
        waiting = sorted(self._population.waiting, key=RANK)
        found = [pool.sequence_state(sequence) for sequence in (*self._population.running.values(), *waiting)]
        return found + [pool.sequence_state(sequence, is_paused=True) for sequence in self._population.paused]

    def sequence(self, request_id: str) -> Sequence:
        """A sequence that is alive, or that ended in the current step."""
        return self._population.find(request_id) or self._population.ended(request_id)

    def sequences(self, batch: Batch) -> list[Sequence]:
        """The sequences for which a batch yields tokens, in the order of their rows of logits."""
        if self._run is not None and self._run.batch is batch:
            return self._run.sequences
        running = self._population.running
        found: list[Sequence] = []
        for slot, start, entries, num_logits, _, _, _ in batch.chunks:
            sequence = running[slot]
            if num_logits and start + len(entries) == len(sequence.entries):
                found.append(sequence)
        return found

    def rows(self, batch: Batch) -> list[tuple[Sequence, Entry | None]]:
        """For each row of logits of a batch: its sequence, and the prompt entry to score; None = a token is sampled."""
        return [row for chunk in batch.chunks for row in _rows_of(self._population.running[chunk.slot], chunk)]

    def add(self, request: Request) -> None:
        """Queues a request that has passed every check.

        Raises:
            Overloaded: the queue is full.
            InvalidInput: a live request has the same id.
        """
        if self._population.find(request.request_id) is not None:
            raise InvalidInput(f"request id {request.request_id!r} is already in use", parameter="request_id")
        if self.num_waiting >= self._config.max_waiting:
            raise Overloaded(f"the queue is full: {self.num_waiting} requests are waiting", retry_after_s=1.0)
        self._num_arrivals += 1
        self.media.is_used = self.media.is_used or bool(request.spans)
        sequence = Sequence.begin(request, self._num_arrivals, self._info)
        self.tiering.open(sequence)
        if self.kv.copies_whole and request.cache_prompt:
            limit, most = len(sequence.entries) - 1, checkpoints.MAX_RESIDENT
            sequence.checkpoints = checkpoints.choose(sequence.entries, limit, self._info.eog_token_ids, most)
        self._end_run()
        self._population.add(sequence)

    def abort(self, request_id: str) -> TokenEvent | None:
        """Cancels a request between two steps; its computed KV is retained if others may read it. None = unknown id."""
        sequence = self._population.find(request_id)
        return None if sequence is None else self._end(sequence, FinishReason.CANCELLED)

    def pause(self, request_id: str) -> None:
        """Stops computing a request until `resume`. Others may take its slot, and evict its KV when they need the room.

        Unknown ids and requests that are already paused are ignored.
        """
        sequence = self._population.find(request_id)
        if sequence is None or self._population.is_paused(request_id):
            return
        if sequence.slot is not None:
            self._end_run()
        self._population.pause(sequence)

    def resume(self, request_id: str) -> None:
        """Queues a paused request again, before all other requests of its client."""
        if self._population.is_paused(request_id):
            self._end_run()
            self._population.resume(request_id)

    def finish(self, request_id: str, reason: FinishReason, num_completion: int) -> None:
        """Ends a running request for a reason that depends on its text, such as a stop string.

        Args:
            num_completion: completion tokens to keep; later tokens, which were drafted, are discarded.
        """
        sequence = self._population.find(request_id)
        assert sequence is not None, "only a running request is finished"
        self.speculation.withdraw(sequence, sequence.num_completion - num_completion)
        del sequence.entries[sequence.num_prompt + num_completion :]
        if sequence.slot is not None and sequence.num_computed >= len(sequence.entries):
            sequence.num_computed = len(sequence.entries) - 1
            self.kv.shorten(sequence.slot, sequence.num_computed)
        self._end(sequence, reason)

    def exports(self) -> list[Transfer]:
        """The KV exports that are due. Call it before `schedule`: only then do slots hold what the ledger says."""
        is_busy = self.has_work
        if not self.tiering.may_export(is_busy=is_busy):
            return []
        running = self._population.running.values()
        num_streams = sum(sequence.num_pending == 1 for sequence in running)
        seconds = self._budget.limit_s(num_streams) * _EXPORT_SHARE if is_busy else _IDLE_EXPORT_S
        return self.tiering.exports(running, seconds, is_busy=is_busy)

    def schedule(self) -> Batch | None:
        """Plans the next step: decodes first, then prompts within the token budget, newly admitted ones included.

        None = there is nothing to compute until a disk read completes, image rows arrive or a request comes.
        """
        self._population.forget_ended()
        if self._run is not None and self._run.has_room:
            return self._run.plan(next(self._step_ids))
        self._end_run()
        self._displace()
        plan = self._plan()
        if not plan.chunks and not plan.imports:
            return None
        self._charge(plan)
        self._run = DecodeRun.after(plan, self.kv, self._rotation, self.speculation, self._population)
        imports = tuple([transfer for transfers in plan.imports.values() for transfer in transfers])
        return Batch(next(self._step_ids), tuple(plan.chunks.values()), self.kv.take_ops(), imports)

    def withdraw(self, transfer: Transfer) -> None:
        """Handles a KV import that failed: the sequence is computed from there on, or entirely if `restores_whole`."""
        self.kv.ledger.withdraw(transfer.slot, transfer.start)
        self._population.running[transfer.slot].num_restorable = 0

    def update(self, batch: Batch, token_ids: Ordered[int | None]) -> list[TokenEvent]:
        """Takes the result of a step: a token id for each of `sequences`; None = its row of logits was unusable."""
        self.kv.ledger.commit()
        running = self._population.running
        for slot in {transfer.slot for transfer in batch.imports} if batch.imports else ():
            self._note_import(slot)
        for slot, start, entries, _, _, _, _ in batch.chunks:
            sequence = running[slot]
            sequence.num_computed = end = start + len(entries)
            if sequence.request.scores_prompt:
                sequence.num_scored = max(sequence.num_scored, min(end, sequence.num_prompt))
        return [self._accept(*pair) for pair in zip(self.sequences(batch), token_ids, strict=True)]

    def update_drafted(self, batch: Batch, token_ids: Ordered[Ordered[int | None]]) -> list[list[TokenEvent]]:
        """As `update`, for a step with drafts.

        Args:
            batch: a batch with `num_drafted` > 0.
            token_ids: for each of `sequences`, the accepted tokens of its draft and one token after them.

        Returns:
            For each sequence one event per token, up to the end of the sequence.
        """
        sequences = self.sequences(batch)
        accepted = [_until_end(sequence, found) for sequence, found in zip(sequences, token_ids, strict=True)]
        for chunk, sequence, found in zip(batch.chunks, sequences, accepted, strict=True):
            num_drafted, num_accepted = len(chunk.entries) - 1, len(found) - 1
            sequence.num_computed = chunk.start + 1 + num_accepted
            if num_accepted < num_drafted:
                self.kv.reject(chunk.slot, sequence.num_computed)
            self.speculation.observe(sequence, num_drafted, num_accepted, is_over=found[-1] in sequence.ends)
        self.kv.ledger.commit()
        return [
            [self._accept(sequence, token_id) for token_id in found]
            for sequence, found in zip(sequences, accepted, strict=True)
        ]

    def fail(self, batch: Batch) -> list[TokenEvent]:
        """Handles a failed forward pass: each sequence of the batch is retried once if it has no token yet, else ended.

        A batch with drafts needs more memory than one without: after it fails, all sequences continue without drafts.
        """
        self.kv.ledger.abandon()
        if batch.num_drafted:
            self.kv.repeat_ops(batch.ops)
            self.speculation.has_failed()
            return []
        running = self._population.running
        sequences = [running[chunk.slot] for chunk in batch.chunks]
        for slot in self.kv.repeat_ops(batch.ops):
            if slot in running and running[slot] not in sequences:
                self._end_run()
                self._population.preempt(running[slot], retain=False)
        return [event for sequence in sequences if (event := self._end_or_retry(sequence)) is not None]

    def observe(self, batch: Batch, step_s: float) -> None:
        """Learns how long a step took; no costs from the first step, which also brings the weights into memory."""
        self._rotation.observe(step_s)
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
        self._population.check_integrity()

    def _end_run(self) -> None:
        if self._run is not None:
            self._run.end()
            self._run = None

    def _displace(self) -> None:
        """A request of higher priority does not wait for a running one of lower priority."""
        first = self._population.first_in_line
        if first is None:
            return
        while (victim := self._population.lowest_below(first)) is not None and self._admission.lacks_place(first):
            self._population.preempt(victim)

    def _plan(self) -> StepPlan:
        """Plans for the first lane (set of adapters) with entries to compute, plus the imports of lanes before it."""
        plan = StepPlan()
        candidates = self._population.candidates(LOOKAHEAD)
        for lane in self._rotation.order((*self._population.running.values(), *candidates)):
            self._planner.fill(plan, lane)
            if plan.chunks:
                self._rotation.take(lane)
                break
        return plan

    def _charge(self, plan: StepPlan) -> None:
        running, charge = self._population.running, self._population.charge
        for slot, chunk in plan.chunks.items():
            sequence = running[slot]
            charge(sequence.request.client_key, len(chunk.entries))
            if not sequence.has_begun:
                self._note_begin(sequence)

    def _note_begin(self, sequence: Sequence) -> None:
        sequence.has_begun = True
        self.num_prompt_tokens += sequence.num_prompt
        self.num_cached_tokens += min(sequence.num_cached, sequence.num_prompt)
        self.num_resident_tokens += min(sequence.num_resident, sequence.num_prompt)

    def _end_or_retry(self, sequence: Sequence) -> TokenEvent | None:
        """Before the first token a client cannot notice a second prefill; a second failure is an error."""
        if sequence.num_completion or sequence.is_isolated:
            return self._end(sequence, FinishReason.ERROR)
        self._end_run()
        self._population.isolate(sequence)
        return None

    def _note_import(self, slot: int) -> None:
        sequence = self._population.running[slot]
        if self.tiering.restores_whole and not sequence.num_restorable:  # withdrawn
            self.kv.shorten(slot, 0)
        sequence.num_computed = self.kv.tree.length(slot)
        if not sequence.has_begun:
            sequence.num_cached = sequence.num_computed

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
        """Ends a sequence; returns the event for an end without a token."""
        if sequence.slot is not None:
            self._end_run()
        self._population.end(sequence, reason)
        self.media.forget(sequence.request.request_id)
        return TokenEvent(sequence.request.request_id, None, is_text=False, finish_reason=reason)


def _rows_of(sequence: Sequence, chunk: Chunk) -> list[tuple[Sequence, Entry | None]]:
    following: list[Entry | None] = [*sequence.entries[chunk.end - chunk.num_logits + 1 : chunk.end + 1]]
    return [(sequence, entry) for entry in [*following, None][: chunk.num_logits]]


def _until_end(sequence: Sequence, token_ids: Ordered[int | None]) -> Ordered[int | None]:
    """The token ids up to and including the first one that ends the sequence."""
    for index, token_id in enumerate(token_ids, 1):
        if token_id in sequence.ends:
            return token_ids[:index]
    return token_ids

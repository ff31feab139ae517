"""The engine's step: schedule, forward pass, sampling, update, publish. It knows no threads, processes or clients."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Ordered
from dataclasses import replace

from stoker.backends.base import Logits
from stoker.cache.slot_files import SlotFiles
from stoker.cache.store import KVStore
from stoker.core.batch import Batch
from stoker.core.params import SamplingParams
from stoker.core.scheduler import Scheduler, SchedulerConfig
from stoker.core.sequence import FinishReason, Sequence, TokenEvent
from stoker.core.stages import Mark, no_mark
from stoker.engine import parts
from stoker.engine.answers import Answers
from stoker.engine.embeddings import EmbeddingJob
from stoker.engine.faults import fault_of, timed_out, unsampled
from stoker.engine.kv_lending import KVLending
from stoker.engine.live_streams import LiveStreams
from stoker.engine.loaded import Loaded
from stoker.engine.metrics import LoopMetrics
from stoker.engine.protocol import AnswerEvent, Event, Failed, Submit
from stoker.engine.question_messages import Embed, QuickQuestion
from stoker.engine.recorder import Recorder
from stoker.engine.request_intake import RequestIntake
from stoker.engine.row_feed import NoRows, RowFeed
from stoker.engine.sessions import Sessions
from stoker.engine.spans import ends_reasoning
from stoker.engine.stats import EngineStats
from stoker.engine.stream import Stream
from stoker.engine.verification import sample_drafted
from stoker.engine.view import EngineView
from stoker.errors import BackendError, StokerError
from stoker.sampling.row_kernels import RowKernels
from stoker.sampling.sampler import Choice

_WARM_UP = "warm-up"
_WARM_UP_PROMPT, _WARM_UP_ANSWER = 16, 4


class Engine:
    """A loaded model with its scheduler, sampler and live requests. `EngineWorker` runs it on a thread.

    Any thread may call `admit`, `admit_embedding`, `prepare_constraints`, and `answer` for questions about texts; all
    else belongs to the thread that steps.

    Args:
        loaded: the model; `close` closes its backend.
        config: limits of running and waiting requests, and the scheduler's other settings.
        kv_store: the RAM and disk tiers for KV that leaves the pool; `close` closes them. None = no tiers.
        slot_files: folder of saved slots, for the thread that reads and writes files; None = saving slots is off.
        row_kernels: compiled code for the sampler; None = numpy samples.
        lowers_apart: see `Outlines`.
        clock: seconds; only differences count.
        mark: called at the end of each stage of a step, on the thread that calls `step`.
    """

    def __init__(
        self,
        loaded: Loaded,
        config: SchedulerConfig,
        *,
        kv_store: KVStore | None = None,
        slot_files: SlotFiles | None = None,
        row_kernels: RowKernels | None = None,
        lowers_apart: bool = False,
        clock: Callable[[], float] = time.monotonic,
        mark: Mark = no_mark,
    ) -> None:
        self.parallel = config.max_running
        self.capacity = config.max_running + config.max_waiting
        """Maximum number of running and waiting requests. The caller of `add` must not exceed it."""
        self.adapters = loaded.adapters
        self.slot_files = slot_files
        self.is_waiting = False
        """No step can compute anything until a disk block, image rows, KV room, a command or a deadline comes."""
        self._info = info = loaded.backend.info
        self._backend = loaded.backend
        self._clock, self._mark, self._unwatched_mark = clock, mark, mark
        # The scheduler's queue takes all requests: one that runs in the next step waits there after `add`, too.
        self._drafting = parts.drafting(loaded, self._guess, clock)
        self._scheduler = Scheduler(info, replace(config, max_waiting=self.capacity), kv_store, self._drafting)
        self._transfers = parts.transfers(loaded, kv_store, self._scheduler, clock)
        self._embeddings = parts.embeddings(loaded, config, clock)
        self.slot_port = parts.slot_port(loaded, self._scheduler)
        """Saves and restores slots, on the thread that calls `step`; None = the backend cannot export KV."""
        self._sampler = parts.sampler(loaded, row_kernels, mark)
        self._row_kernels = row_kernels
        self._maxima = loaded.maxima_port or parts.NoMaxima()
        port = loaded.rows_port
        self.rows = NoRows() if port is None else RowFeed(port, self._scheduler)
        """Takes the image rows that `RowsWanted` events request. For the thread that calls `step`."""
        self._admission = RequestIntake(
            info,
            loaded.tokenizer,
            self._sampler,
            self.adapters,
            defaults=loaded.defaults,
            clock=clock,
            lowers_apart=lowers_apart,
        )
        self._sessions = Sessions(self._scheduler, clock)
        self._answers = Answers(
            loaded.tokenizer,
            self._scheduler,
            self._transfers,
            self.adapters,
            self._sessions,
            self._look,
            self._end_reasoning,
            KVLending(self._backend, loaded.lending_port, self._scheduler).answer,
        )
        self._streams = LiveStreams(clock)
        self._num_steps = 0
        self._metrics = LoopMetrics(clock)

    @property
    def has_work(self) -> bool:
        """A request that is not paused is alive, a paused one is past its deadline, or KV is due for export."""
        return self._scheduler.has_work or self._transfers.has_work or self._embeddings.has_work or self._has_late

    @property
    def next_deadline(self) -> float:
        """Time on the engine's clock before which no request, running, waiting or paused, exceeds its deadline."""
        return self._streams.next_deadline

    def on_arrival(self, call: Callable[[], None]) -> None:
        """Registers `call`: another thread calls it when KV wanted from disk has arrived, or will not arrive."""
        self._transfers.on_arrival(call)

    def admit(self, submit: Submit) -> Stream:
        """Tokenizes a request and checks all that may make the engine refuse it. Errors: see `RequestIntake`."""
        return self._admission.admit(submit)

    def add(self, stream: Stream) -> None:
        """Queues a request that `admit` returned.

        Raises:
            InvalidInput: another request with this id is alive.
        """
        self._scheduler.add(stream.request)
        stream.sequence = self._scheduler.sequence(stream.request_id)
        stream.sequence.guide = stream.row.constraint
        self._streams.add(stream)
        self._metrics.added(stream.sequence)
        if stream.session is not None:
            self._sessions.use(stream.session.name, stream.session.owner, stream.session.ttl_s)

    def admit_embedding(self, embed: Embed) -> EmbeddingJob:
        """Tokenizes and checks a request for embeddings or reranking. Any thread may call it.

        Raises:
            InvalidInput: the model cannot embed. See also `EmbeddingRequests.admit` and `Adapters.check_embeds`.
        """
        job = self._embeddings.admit(embed)
        self.adapters.check_embeds(embed.adapters)
        return job

    def add_embedding(self, job: EmbeddingJob) -> None:
        """Queues a job that `admit_embedding` returned.

        Raises:
            Overloaded: too many tokens are queued for embedding.
        """
        self._embeddings.add(job)

    def abort(self, request_id: str) -> None:
        """Ends a request; nothing more is published for it. Unknown ids are ignored."""
        self._scheduler.abort(request_id)
        if request_id in self._streams:
            self._take_leave(request_id)
        self._metrics.left(request_id)
        self._embeddings.abort(request_id)

    def pause(self, request_id: str) -> None:
        """Stops computing a request until `resume`; its deadline still holds. Unknown ids are ignored."""
        self._scheduler.pause(request_id)
        self._metrics.note("paused", request_id)

    def resume(self, request_id: str) -> None:
        """Lets a paused request go on, because its reader has caught up. Unknown ids are ignored."""
        self._scheduler.resume(request_id)
        self._metrics.note("resumed", request_id)

    def step(self) -> list[Event]:
        """Runs one step for all live requests. Returns an output for each token, and an error for each failed request.

        Raises:
            Exception: an error that no single request caused; the engine cannot be used any more.
        """
        began = self._clock()
        events = self._expire()
        self._sessions.expire()
        self._transfers.export()
        batch = self._schedule()
        events += self.rows.ask()
        if batch is not None:
            events += self._compute(batch, began)
        if self._embeddings.has_work:
            events += self._embed(self._clock() - began, has_events=bool(events))
        self.adapters.sweep()
        return events

    def _schedule(self) -> Batch | None:
        batch = self._scheduler.schedule() if self._scheduler.has_work else None
        self.is_waiting = batch is None and self._scheduler.has_work
        assert not self.is_waiting or self._awaits_something, "work waits, but nothing was scheduled"
        return batch

    def _compute(self, batch: Batch, plan_began: float) -> list[Event]:
        """Computes a planned batch: forward, sample, update, publish. Scheduling of it began at `plan_began`."""
        self._mark("schedule")
        self._metrics.scheduled(self._scheduler.num_prompt_tokens)
        began = self._clock()
        try:
            logits = self._backend.forward(batch)
        except BackendError as error:
            return self._fail(batch, error)
        self._mark("forward")
        streams, chosen = self._sample(batch, logits)
        self._mark("sample")
        step_s = self._clock() - began
        self._transfers.restore(batch)
        self._streams.trace(batch.step_id, streams, chosen)
        sampled = self._update(batch, streams, chosen)
        self._scheduler.observe(batch, step_s)
        num_accepted = len(sampled) - len(streams)
        self._metrics.stepped(batch, num_accepted, step_s)
        recorder = self._metrics.recorder
        if recorder is not None and not recorder.stepped(batch, num_accepted, step_s, began - plan_began):
            self.stop_watching()
        self._num_steps += 1
        self._mark("schedule")
        reports = self._streams.reports(began)
        return reports + self._publish(sampled)

    def _embed(self, used_s: float, *, has_events: bool) -> list[Event]:
        # Events are published at the end of the step, so embeddings delay them as well as running streams.
        events = self._embeddings.step(used_s, has_streams=has_events or self._scheduler.num_running > 0)
        self._num_steps += 1
        self.is_waiting = False
        self._mark("forward")
        return events

    def warm_up(self) -> None:
        """Runs a short generation at start-up. It pages in the weights and measures the cost of prefill and decode
        before the first request. It leaves nothing in the KV cache.

        Raises:
            BackendError: the model cannot compute.
        """
        if not self._info.can_generate:
            self._embeddings.warm_up()
            return
        if self._drafting is not None:
            self._drafting.warm_up()
        num_prompt = min(_WARM_UP_PROMPT, self._info.max_sequence_tokens - _WARM_UP_ANSWER)
        for prompt, max_tokens in (([0], 1), ([0] * num_prompt, _WARM_UP_ANSWER)):
            if prompt:
                self._compute_once(prompt, max_tokens)
        self._metrics = LoopMetrics(self._clock)
        self._scheduler.speculation.forget_counts()

    def prepare_constraints(self) -> None:
        """Starts to build what the first request with a grammar needs. For idle times; any thread may call it."""
        self._admission.outlines.prepare()

    def _end_reasoning(self, reply_id: str) -> int:
        """Ends the reasoning of a reply's choices. Returns how many of them were reasoning."""
        streams = [each for each in self._streams if each.request_id.rpartition("-")[0] == reply_id]
        return sum(ends_reasoning(stream.row.constraint) for stream in streams)

    def answer(self, question: QuickQuestion) -> AnswerEvent:
        """Answers a question. Any thread may ask questions about texts; others belong to the thread that steps.

        Raises:
            InvalidInput: the question names something that does not exist.
        """
        return self._answers.answer(question)

    def _look(self, since: int) -> EngineView:
        recorder = self._metrics.recorder
        if recorder is None:
            recorder = self._metrics.recorder = Recorder(self._scheduler, self._clock, self._unwatched_mark)
            self._mark = recorder.mark
        return recorder.view(self.stats(), self._metrics.arrivals(), since)

    def stop_watching(self) -> None:
        """Drops the recorder of steps and moments. The next `Look` creates another one."""
        self._metrics.recorder, self._mark = None, self._unwatched_mark

    def stats(self) -> EngineStats:
        """The engine's current statistics. `stalled_s` is 0, because only the thread's owner can detect a late step."""
        scheduler = self._scheduler
        self._metrics.settle()
        compile_s, num_hits = self._admission.outlines.compiled
        return EngineStats(
            num_steps=self._num_steps,
            num_running=scheduler.num_running,
            num_waiting=scheduler.num_waiting,
            num_paused=scheduler.num_paused,
            kv_used=scheduler.kv_used,
            kv_retained=scheduler.kv_retained,
            kv_capacity=scheduler.kv_capacity,
            stalled_s=0.0,
            num_preemptions=scheduler.num_preemptions,
            **parts.draft_counts(scheduler.speculation),
            grammar_compile_s=compile_s,
            num_grammar_hits=num_hits,
            num_constrained_tokens=self._sampler.num_constrained,
            mask_s=self._sampler.mask_s,
            step_s=self._metrics.step_s.snapshot(),
            queue_s=self._metrics.queue_s.snapshot(),
            prefill_s=self._metrics.prefill_s.snapshot(),
            running_s=self._metrics.running_s.snapshot(),
            step_tokens=self._metrics.step_tokens.snapshot(),
            num_step_sequences=self._metrics.num_step_sequences,
            prompt_tokens=scheduler.num_prompt_tokens,
            cached_tokens=scheduler.num_cached_tokens,
            pool_hit_tokens=scheduler.num_resident_tokens,
            pool_evicted_tokens=scheduler.kv.num_evicted,
            pool_evicted_sequences=scheduler.kv.num_evicted_slots,
            **parts.kv_counts(scheduler.kv, self._info),
            tiers=self._transfers.counters(),
            adapters=self.adapters.loads((stream.lease, stream.is_running) for stream in self._streams),
        )

    def check_integrity(self) -> None:
        """Asserts that the engine and its scheduler agree on which requests are alive."""
        self._scheduler.check_integrity()
        scheduler = self._scheduler
        assert len(self._streams) == scheduler.num_running + scheduler.num_waiting + scheduler.num_paused

    def close(self) -> None:
        """Frees the model. Calling it twice is allowed."""
        self._admission.close()
        self._backend.close()
        if self._drafting is not None:
            self._drafting.close()
        self._transfers.close()

    def _compute_once(self, prompt: list[int], max_tokens: int) -> None:
        sampling = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
        self.add(self.admit(Submit(request_id=_WARM_UP, prompt=prompt, sampling=sampling, cache_prompt=False)))
        while self.has_work:
            for event in self.step():
                if isinstance(event, Failed):
                    raise BackendError(f"the model loads, but cannot compute: {event.message}")

    @property
    def _awaits_something(self) -> bool:
        scheduler = self._scheduler
        return scheduler.awaits_tiers or scheduler.awaits_rows or scheduler.kv.lends

    @property
    def _has_late(self) -> bool:
        return self._scheduler.num_paused > 0 and self.next_deadline <= self._clock()

    def _sample(self, batch: Batch, logits: Logits) -> tuple[list[Stream], list[list[Choice]]]:
        """The streams that get tokens in this step, and their choices: one, or the accepted draft and one more."""
        streams, rows = self._streams.sampled(self._scheduler.sequences(batch))
        maxima = self._maxima.maxima
        if batch.num_drafted:
            return streams, sample_drafted(batch, logits, maxima, rows, self._sampler)
        if len(streams) < len(logits):
            logits, maxima = self._score_prompts(batch, logits), None
        return streams, [[choice] for choice in self._sampler.sample(logits, rows, maxima)]

    def _guess(self, logits: Logits, places: Ordered[tuple[Sequence, int]]) -> list[int]:
        """Drafts a token for each place (sequence, number of tokens drafted before it) from a draft model's logits."""
        rows = [self._streams.of(sequence).row for sequence, _ in places]
        return self._sampler.guess(logits, rows, [ahead for _, ahead in places])

    def _update(
        self, batch: Batch, streams: list[Stream], chosen: list[list[Choice]]
    ) -> list[tuple[Stream, Choice, TokenEvent]]:
        """Gives the sampled tokens to the scheduler. Returns the resulting event of each token."""
        if batch.num_drafted:
            found = [[choice.token_id for choice in choices] for choices in chosen]
            events = self._scheduler.update_drafted(batch, found)
            return [
                (stream, *pair)
                for stream, choices, its in zip(streams, chosen, events, strict=True)
                for pair in zip(choices, its, strict=False)  # drafted tokens after an end have no events
            ]
        first = [choices[0] for choices in chosen]
        token_ids = [c.token_id if s.is_usable else None for s, c in zip(streams, first, strict=True)]
        return list(zip(streams, first, self._scheduler.update(batch, token_ids), strict=True))

    def _score_prompts(self, batch: Batch, logits: Logits) -> Logits:
        """Records the log-probabilities of prompt tokens. Returns the remaining rows, which are to be sampled."""
        rows = self._scheduler.rows(batch)
        for row, (sequence, entry) in zip(logits, rows, strict=True):
            if entry is not None:
                self._streams.of(sequence).push_prompt(row, entry, self._row_kernels)
        return logits[[entry is None for _, entry in rows]]

    def _publish(self, rows: Iterable[tuple[Stream, Choice, TokenEvent]]) -> list[Event]:
        published: list[Event] = []
        pushed: dict[Stream, None] = {}
        for stream, choice, event in rows:
            if stream.finish_reason is not None:
                continue  # a drafted token after a stop string
            if stream in pushed:
                published.append(stream.take())  # one output per token: many clients count outputs
            if event.finish_reason is FinishReason.ERROR:
                pushed.pop(stream, None)
                published.append(self._end_failed(stream.request_id, unsampled(stream.row)))
                continue
            if not stream.num_completion:
                self._metrics.has_token(stream.request_id)
            stream.push(choice, event)
            pushed[stream] = None
        self._mark("detokenize")
        for stream in pushed:
            sequence = stream.sequence
            assert sequence is not None, "a request with a token was added"
            if stream.finish_reason is None and (fault := fault_of(stream.row)) is not None:
                self._scheduler.abort(stream.request_id)
                published.append(self._end_failed(stream.request_id, fault))
                continue
            if stream.finish_reason is not None:
                if sequence.finish_reason is None:
                    self._scheduler.finish(stream.request_id, FinishReason.STOP, stream.num_completion)
                self._take_leave(stream.request_id)
                stream.timing = self._metrics.finished(sequence)
            published.append(stream.take())
        self._mark("publish")
        return published

    def _expire(self) -> list[Event]:
        late = self._streams.late()
        for stream in late:
            self._scheduler.abort(stream.request_id)
        return [self._end_failed(stream.request_id, timed_out(stream)) for stream in late]

    def _fail(self, batch: Batch, error: BackendError) -> list[Event]:
        return [self._end_failed(event.request_id, error) for event in self._scheduler.fail(batch)]

    def _take_leave(self, request_id: str) -> None:
        self.adapters.close(self._streams.pop(request_id).lease)

    def _end_failed(self, request_id: str, error: StokerError) -> Event:
        self._take_leave(request_id)
        self._metrics.left(request_id)
        return Failed.of(request_id, error)

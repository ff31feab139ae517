"""Measures the durations of steps, and of each request's queueing, prefill and whole computation, as histograms."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from stoker.core.histogram import Histogram
from stoker.engine.protocol import Timing

if TYPE_CHECKING:
    from stoker.core.batch import Batch
    from stoker.core.sequence import Sequence
    from stoker.engine.recorder import Recorder

STEP_BOUNDS = (
    *(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5),
    *(1.0, 2.0, 5.0, 10.0),
)
"""Histogram buckets for the duration of a step, in seconds."""
STEP_TOKEN_BOUNDS = (1.0, *(float(8 * 2**power) for power in range(12)))
"""Histogram buckets for the tokens of a step: 1, 8, 16 … 16,384, as in vLLM."""
PHASE_BOUNDS = (
    *(0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0),
    *(30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0),
)
"""Histogram buckets for a phase of a request (such as prefill), in seconds: as in vLLM, but finer below 0.3 s."""
COMPILE_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Histogram buckets for the compilation of one grammar, in seconds."""
_MAX_STEPS = 32
"""Number of steps counted together, which is faster than one at a time."""


class LoopMetrics:
    """Histograms and counters of an engine since its start. Belongs to the engine's thread.

    Args:
        clock: seconds; only differences count.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.step_s = Histogram(STEP_BOUNDS)
        self.queue_s = Histogram(PHASE_BOUNDS)
        self.prefill_s = Histogram(PHASE_BOUNDS)
        self.running_s = Histogram(PHASE_BOUNDS)
        self.step_tokens = Histogram(STEP_TOKEN_BOUNDS)
        self.num_step_sequences = 0
        """Number of requests in each step, added up over all steps."""
        self.recorder: Recorder | None = None
        """Records steps and events while a client watches; None = no client does."""
        self._clock = clock
        self._steps: list[tuple[Batch, int, float]] = []
        """Steps not counted yet: batch, accepted drafted tokens, and duration in seconds."""
        self._num_prompt_tokens = 0
        self._queued: dict[str, tuple[Sequence, float]] = {}
        """Requests of which nothing was computed yet, with their arrival times."""
        self._begun: dict[str, tuple[float, float]] = {}
        """Requests without a token yet, with the times when they arrived and when they began."""
        self._running: dict[str, tuple[float, float, float]] = {}
        """Requests with a token, with the times when they arrived, when they began and when the first token came."""

    def added(self, sequence: Sequence) -> None:
        """Notes the arrival of a request."""
        self._queued[sequence.request.request_id] = (sequence, self._clock())
        self.note("arrived", sequence.request.request_id, sequence.num_prompt)

    def scheduled(self, num_prompt_tokens: int) -> None:
        """Notes which waiting requests begin in the step that has just been scheduled.

        Args:
            num_prompt_tokens: prompt tokens of all requests that have ever begun. If it has not grown, none begins.
        """
        if num_prompt_tokens == self._num_prompt_tokens:
            return
        self._num_prompt_tokens = num_prompt_tokens
        now = self._clock()
        begun = [(sequence, since) for sequence, since in self._queued.values() if sequence.has_begun]
        for sequence, since in begun:
            request_id = sequence.request.request_id
            del self._queued[request_id]
            self.note("begun", request_id, min(sequence.num_cached, sequence.num_prompt))
            self._begun[request_id] = since, now
            self.queue_s.observe(now - since)

    def has_token(self, request_id: str) -> None:
        """Notes that a request got a token. Only its first token has an effect."""
        times = self._begun.pop(request_id, None)
        if times is not None:
            now = self._clock()
            self._running[request_id] = *times, now
            self.note("first", request_id)
            self.prefill_s.observe(now - times[1])

    def stepped(self, batch: Batch, num_accepted: int, step_s: float) -> None:
        """Notes a computed step. It is counted later, see `settle`, so that the next step need not wait.

        Args:
            batch: the batch of the step.
            num_accepted: number of accepted drafted tokens. Rejected ones are not counted as computed tokens.
            step_s: duration of the step, in seconds.
        """
        self._steps.append((batch, num_accepted, step_s))
        if len(self._steps) >= _MAX_STEPS:
            self.settle()

    def settle(self) -> None:
        """Counts all noted steps. To be called before the histograms are read."""
        for batch, num_accepted, step_s in self._steps:
            self.step_s.observe(step_s)
            self.step_tokens.observe(batch.num_tokens - batch.num_drafted + num_accepted)
            self.num_step_sequences += len(batch.chunks)
        self._steps.clear()

    def finished(self, sequence: Sequence) -> Timing:
        """Notes that a request got its last token, and returns its durations."""
        now = self._clock()
        arrived, begun, first = self._running.pop(sequence.request.request_id)
        self.note("finished", sequence.request.request_id, sequence.num_completion)
        self.running_s.observe(now - begun)
        drafter = sequence.drafter
        drafted = (0, 0) if drafter is None else (drafter.num_drafted, drafter.num_accepted)
        return Timing(first - begun, now - first, *drafted, begun - arrived)

    def arrivals(self) -> dict[str, float]:
        """The arrival time of each live request, on the clock."""
        queued = {request_id: since for request_id, (_, since) in self._queued.items()}
        return queued | {request_id: times[0] for request_id, times in (*self._begun.items(), *self._running.items())}

    def left(self, request_id: str) -> None:
        """Notes that a request ended without finishing. Unknown ids are ignored."""
        found = [known.pop(request_id, None) for known in (self._queued, self._begun, self._running)]
        if any(found):
            self.note("ended", request_id)

    def note(self, kind: str, request_id: str, count: int = 0) -> None:
        """Records an event of a request, if a recorder is attached. See `Moment`."""
        if self.recorder is not None:
            self.recorder.note(kind, request_id, count)

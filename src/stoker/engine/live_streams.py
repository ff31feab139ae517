"""The streams of an engine's live requests, found by request, by step, and by deadline. It ends no request."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import inf

from stoker.core.sequence import Sequence
from stoker.engine.protocol import Event
from stoker.engine.stream import Stream
from stoker.sampling.sampler import Choice, RowState


class LiveStreams:
    """The streams of live requests. Belongs to the thread that calls `Engine.step`.

    Args:
        clock: seconds; only differences count.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.next_deadline = inf
        """A lower bound of all deadlines, which saves checking hundreds of streams in each step."""
        self._clock = clock
        self._streams: dict[str, Stream] = {}
        self._reporting: dict[str, Stream] = {}
        """Streams that report prompt progress and have no token yet."""
        self._num_traced = 0
        self._sequences: list[Sequence] = []
        """Sequences that had rows in the last step; `_sampled` and `_rows` hold their streams and sampler states."""
        self._sampled: list[Stream] = []
        self._rows: list[RowState] = []

    def __len__(self) -> int:
        return len(self._streams)

    def __iter__(self) -> Iterator[Stream]:
        return iter(self._streams.values())

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._streams

    def add(self, stream: Stream) -> None:
        """Adds a stream whose request the scheduler has already."""
        self._streams[stream.request_id] = stream
        if stream.reports_progress:
            self._reporting[stream.request_id] = stream
        self._num_traced += stream.tracer is not None
        self.next_deadline = min(self.next_deadline, stream.deadline)

    def pop(self, request_id: str) -> Stream:
        """Removes and returns a stream that has ended."""
        self._reporting.pop(request_id, None)
        stream = self._streams.pop(request_id)
        self._num_traced -= stream.tracer is not None
        if not self._streams:
            self.next_deadline = inf
        return stream

    def of(self, sequence: Sequence) -> Stream:
        """The stream of a sequence."""
        return self._streams[sequence.request.request_id]

    def sampled(self, sequences: list[Sequence]) -> tuple[list[Stream], list[RowState]]:
        """The streams of sequences, and their sampler states, cached while the scheduler returns the same list."""
        if sequences is not self._sequences:
            self._sequences = sequences
            self._sampled = [self.of(sequence) for sequence in sequences]
            self._rows = [stream.row for stream in self._sampled]
        return self._sampled, self._rows

    def trace(self, step_id: int, streams: list[Stream], chosen: list[list[Choice]]) -> None:
        """Notes the tokens of a step in the traces of streams that want one. To be called before the scheduler takes
        the tokens.
        """
        if not self._num_traced:
            return
        for stream, choices in zip(streams, chosen, strict=True):
            if stream.tracer is not None and stream.sequence is not None:
                stream.tracer.note(step_id, stream.sequence.slot, len(choices))

    def late(self) -> list[Stream]:
        """Streams whose deadline has passed; the caller ends them."""
        now = self._clock()
        if now < self.next_deadline:
            return []
        self.next_deadline = min((each.deadline for each in self if each.deadline > now), default=inf)
        return [stream for stream in self if stream.deadline <= now]

    def reports(self, began: float) -> list[Event]:
        """Progress of prefill, for the requests that want it. A stream with a token is not reported any more.

        Args:
            began: when the current step began.
        """
        if not self._reporting:
            return []
        now = self._clock()
        reports = [stream.progress(began, now) for stream in self._reporting.values() if stream.is_running]
        self._reporting = {key: stream for key, stream in self._reporting.items() if not stream.num_completion}
        return [report for report in reports if report is not None]

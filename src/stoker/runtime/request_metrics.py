"""Request metrics of one model: counts and latencies as clients see them. Nothing here waits or knows a wire format.

A request is watched from its submission to its end. It ends in exactly one of these ways:

```
watch() --> refused             an error instead of `Accepted`
        --> failed              an error later
        --> stop | length       the last output
        --> abort               closed before any of the above: its client has left
```
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass

from stoker.core.histogram import Histogram
from stoker.engine.protocol import Output, Usage
from stoker.errors import Cancelled, StokerError

LATENCY_BOUNDS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
"""Histogram buckets of the time to the first token, in seconds, as in vLLM."""
TOKEN_BOUNDS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0),
)
"""Histogram buckets of the time between two tokens, in seconds, as in vLLM, and finer below 10 ms."""
REQUEST_BOUNDS = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
"""Histogram buckets of the duration of a request, in seconds, as in vLLM."""
SIZE_BOUNDS = tuple(float(digit * 10**power) for power in range(6) for digit in (1, 2, 5))
"""Histogram buckets of numbers of tokens: 1, 2, 5, 10 … 500,000, as in vLLM."""
N_BOUNDS = (1.0, 2.0, 5.0, 10.0, 20.0)
"""Histogram buckets of the number of answers to one prompt, as in vLLM."""
ABORT = "abort"


@dataclass(slots=True)
class EmbeddingCount:
    """The size of a request for embeddings or ranks, which its handler sets when it has answered."""

    num_tokens: int = 0


class RequestMetrics:
    """The metrics of one model since the server's start. Belongs to one event loop.

    Args:
        clock: seconds; only differences count.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.ttft_s = Histogram(LATENCY_BOUNDS)
        self.token_s = Histogram(TOKEN_BOUNDS)
        self.request_s = Histogram(REQUEST_BOUNDS)
        self.decode_s = Histogram(REQUEST_BOUNDS)
        """Seconds from a request's first output to its last."""
        self.request_prompt = Histogram(SIZE_BOUNDS)
        """Prompt tokens of each finished request."""
        self.request_completion = Histogram(SIZE_BOUNDS)
        """Completion tokens of each finished request."""
        self.request_computed = Histogram(SIZE_BOUNDS)
        """Prompt tokens of each finished request that were not found in the prefix cache."""
        self.request_token_s = Histogram(TOKEN_BOUNDS)
        """Mean seconds between two tokens of each finished request with more than one token."""
        self.request_max_tokens = Histogram(SIZE_BOUNDS)
        """The `max_tokens` parameter of each finished request that gave it."""
        self.group_n = Histogram(N_BOUNDS)
        """Number of answers that were requested for one prompt."""
        self.group_longest = Histogram(SIZE_BOUNDS)
        """Completion tokens of the longest answer to each prompt."""
        self.longest_sequence = 0
        """Maximum number of tokens that a prompt and its answer had together."""
        self.num_later_tokens = 0
        """Tokens generated during `decode_s`: all but those of the first outputs."""
        self.num_open = 0
        self.ends: Counter[tuple[str, str]] = Counter()
        """Ended requests by the name of the API key and the finish reason or `abort`."""
        self.refusals: Counter[str] = Counter()
        """Requests that were not accepted, by the error's code."""
        self.failures: Counter[str] = Counter()
        """Requests that failed after they were accepted, by the error's code."""
        self.prompt_tokens: Counter[str] = Counter()
        """Prompt tokens by the name of the API key."""
        self.cached_tokens: Counter[str] = Counter()
        """Prompt tokens found in the prefix cache, by the name of the API key."""
        self.completion_tokens: Counter[str] = Counter()
        self.reasoning_tokens: Counter[str] = Counter()
        """Completion tokens that are reasoning, by the name of the API key."""
        self.constrained: Counter[str] = Counter()
        """Accepted requests whose answers follow a grammar, by the grammar's kind."""
        self.tool_calls: Counter[tuple[str, str]] = Counter()
        """Tool calls in answers: `complete`, `cut_off` or `not_a_call`, and the name of the format."""

        self.embedding_s = Histogram(LATENCY_BOUNDS)
        """Seconds of each request for embeddings or ranks that was answered."""
        self.embedding_ends: Counter[tuple[str, str]] = Counter()
        """Requests for embeddings or ranks by the name of the API key and `ok`, `abort` or the error's code."""
        self.embedding_tokens: Counter[str] = Counter()
        """Tokens of answered requests for embeddings or ranks, by the name of the API key."""

    @contextmanager
    def embedding(self, key_name: str) -> Generator[EmbeddingCount]:
        """Counts one request for embeddings or ranks. The exception that leaves the block says how it ended."""
        began_s, count, end = self.clock(), EmbeddingCount(), ABORT
        try:
            yield count
            end = "ok"
            self.embedding_s.observe(self.clock() - began_s)
            self.embedding_tokens[key_name] += count.num_tokens
        except Cancelled:
            raise
        except StokerError as error:
            end = error.code
            raise
        finally:
            self.embedding_ends[key_name, end] += 1

    def watch(self, key_name: str, group: RequestGroup | None = None, max_tokens: int | None = None) -> RequestWatch:
        """Watches a request that is being submitted.

        Args:
            key_name: name of the request's API key; may be empty.
            group: the answers to one prompt that this request belongs to; None = it is the only one.
            max_tokens: the request's `max_tokens`, if given.
        """
        return RequestWatch(self, key_name, group, max_tokens)


class RequestGroup:
    """The answers to one prompt, each of which is a request of its own.

    Args:
        metrics: gets the group's numbers when all computed answers have finished.
        n: number of answers that the client asked for.
        num_computed: number of answers that are computed.
    """

    def __init__(self, metrics: RequestMetrics, n: int, num_computed: int) -> None:
        self._metrics = metrics
        self._n = n
        self._num_left = num_computed
        self._longest = 0

    def finished(self, completion_tokens: int) -> None:
        """Notes that an answer of the group has finished."""
        self._longest = max(self._longest, completion_tokens)
        self._num_left -= 1
        if not self._num_left:
            self._metrics.group_n.observe(self._n)
            self._metrics.group_longest.observe(self._longest)


class RequestWatch:
    """Measures one request until its end; its handler must close it in every case.

    Args:
        metrics: gets the request's numbers.
        key_name: name of the request's API key; may be empty.
        group: the answers to one prompt that this request belongs to; None = it is the only one.
        max_tokens: the request's `max_tokens`, if given.
    """

    def __init__(
        self, metrics: RequestMetrics, key_name: str, group: RequestGroup | None = None, max_tokens: int | None = None
    ) -> None:
        self._metrics = metrics
        self._key_name = key_name
        self._group = group or RequestGroup(metrics, 1, 1)
        self._max_tokens = max_tokens
        self._began_s = self._first_s = self._last_s = metrics.clock()
        self._num_tokens = 0
        self._has_ended = False
        self.ttft_s: float | None = None
        """Seconds to the first output; None = there was no output yet."""
        metrics.num_open += 1

    def output(self, output: Output) -> None:
        """Notes the request's next output."""
        metrics, now = self._metrics, self._metrics.clock()
        num_tokens = output.usage.completion_tokens - self._num_tokens
        if self.ttft_s is None:
            self.ttft_s, self._first_s = now - self._began_s, now
            metrics.ttft_s.observe(self.ttft_s)
            metrics.prompt_tokens[self._key_name] += output.usage.prompt_tokens
            metrics.cached_tokens[self._key_name] += output.usage.cached_tokens
        elif num_tokens > 0:
            # Several tokens arrive at once if they were drafted, or if the reader was late: they share the time evenly.
            metrics.token_s.observe((now - self._last_s) / num_tokens, num_tokens)
            metrics.num_later_tokens += num_tokens
        self._last_s = now
        self._num_tokens += num_tokens
        metrics.completion_tokens[self._key_name] += num_tokens
        if (size := output.usage.prompt_tokens + self._num_tokens) > metrics.longest_sequence:
            metrics.longest_sequence = size
        if output.finish_reason is not None:
            self._finish(output.usage, now)
            self._end(output.finish_reason)

    def refused(self, error: StokerError) -> None:
        """Notes that the request was not accepted."""
        self._metrics.refusals[error.code] += 1
        self._end(None)

    def failed(self, error: StokerError) -> None:
        """Notes that the request was accepted, and ended with an error."""
        self._metrics.failures[error.code] += 1
        self._end(None)

    def close(self) -> None:
        """Ends the watch: a request that has not ended counts as aborted, because its client has left."""
        self._end(ABORT)

    def _finish(self, usage: Usage, now: float) -> None:
        metrics = self._metrics
        metrics.request_s.observe(now - self._began_s)
        metrics.decode_s.observe(now - self._first_s)
        metrics.request_prompt.observe(usage.prompt_tokens)
        metrics.request_computed.observe(usage.prompt_tokens - usage.cached_tokens)
        metrics.request_completion.observe(usage.completion_tokens)
        if usage.reasoning_tokens:
            metrics.reasoning_tokens[self._key_name] += usage.reasoning_tokens
        if usage.completion_tokens > 1:
            metrics.request_token_s.observe((now - self._first_s) / (usage.completion_tokens - 1))
        if self._max_tokens is not None:
            metrics.request_max_tokens.observe(self._max_tokens)
        self._group.finished(usage.completion_tokens)

    def _end(self, reason: str | None) -> None:
        if self._has_ended:
            return
        self._has_ended = True
        self._metrics.num_open -= 1
        if reason is not None:
            self._metrics.ends[self._key_name, reason] += 1

"""What became of one model's requests, in numbers, as their clients saw it. Nothing here waits or knows a wire format.

A request is watched from its submission to its end, of which there is exactly one kind:

```
watch() --> refused             an error instead of `Accepted`
        --> failed              an error later
        --> stop | length       the last output
        --> abort               closed before any of these: its client has left
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
"""Seconds to the first token; vLLM's buckets."""
TOKEN_BOUNDS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0),
)
"""Seconds between two tokens; vLLM's buckets, and finer below 10 ms."""
REQUEST_BOUNDS = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
"""Seconds of a whole request; vLLM's buckets."""
SIZE_BOUNDS = tuple(float(digit * 10**power) for power in range(6) for digit in (1, 2, 5))
"""Tokens of a request: 1, 2, 5, 10 … 500,000, as vLLM has them."""
N_BOUNDS = (1.0, 2.0, 5.0, 10.0, 20.0)
"""Answers to one prompt; vLLM's buckets."""
ABORT = "abort"


@dataclass(slots=True)
class EmbeddingCount:
    """What is known of a request for embeddings when it has been answered."""

    num_tokens: int = 0


class RequestMetrics:
    """Totals since the start. Belongs to one event loop.

    Args:
        clock: seconds; only differences count.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.ttft_s = Histogram(LATENCY_BOUNDS)
        self.token_s = Histogram(TOKEN_BOUNDS)
        self.request_s = Histogram(REQUEST_BOUNDS)
        self.decode_s = Histogram(REQUEST_BOUNDS)
        """From a request's first output to its last."""
        self.request_prompt = Histogram(SIZE_BOUNDS)
        """Tokens of the prompts of requests that came to their end."""
        self.request_completion = Histogram(SIZE_BOUNDS)
        """Tokens that were written for them."""
        self.request_computed = Histogram(SIZE_BOUNDS)
        """Tokens of their prompts that were computed."""
        self.request_token_s = Histogram(TOKEN_BOUNDS)
        """Seconds from one token of a request to its next, on the average; of requests with more than one token."""
        self.request_max_tokens = Histogram(SIZE_BOUNDS)
        """Most tokens that they asked for, if they said so."""
        self.group_n = Histogram(N_BOUNDS)
        """How many answers to one prompt were asked for."""
        self.group_longest = Histogram(SIZE_BOUNDS)
        """Tokens of the longest of them."""
        self.longest_sequence = 0
        """Most tokens that a prompt and what was written for it had together."""
        self.num_later_tokens = 0
        """Tokens generated in `decode_s`, that is, all but the first."""
        self.num_open = 0
        self.ends: Counter[tuple[str, str]] = Counter()
        """By the name of the API key, and how they ended: a finish reason or `abort`."""
        self.refusals: Counter[str] = Counter()
        """By the error's code."""
        self.failures: Counter[str] = Counter()
        """By the error's code: those that had been accepted."""
        self.prompt_tokens: Counter[str] = Counter()
        """By the name of the API key."""
        self.cached_tokens: Counter[str] = Counter()
        """Prompt tokens found in the prefix cache."""
        self.completion_tokens: Counter[str] = Counter()
        self.reasoning_tokens: Counter[str] = Counter()
        """Completion tokens that are reasoning."""
        self.constrained: Counter[str] = Counter()
        """Accepted requests whose answers follow a grammar, by its kind."""
        self.tool_calls: Counter[tuple[str, str]] = Counter()
        """Tool calls in answers: `complete`, `cut_off` or `not_a_call`, and the name of the format."""

        self.embedding_s = Histogram(LATENCY_BOUNDS)
        """Seconds of a request for embeddings or ranks that was answered."""
        self.embedding_ends: Counter[tuple[str, str]] = Counter()
        """By the name of the API key, and how they ended: `ok`, `abort`, or the error's code."""
        self.embedding_tokens: Counter[str] = Counter()
        """By the name of the API key."""

    @contextmanager
    def embedding(self, key_name: str) -> Generator[EmbeddingCount]:
        """Around one request for embeddings or ranks. What leaves the block is how it ended."""
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
        """A request is being submitted."""
        return RequestWatch(self, key_name, group, max_tokens)


class RequestGroup:
    """The answers to one prompt, which are requests of their own.

    Args:
        metrics: where it counts, when the last of them has ended.
        n: so many were asked for.
        num_computed: so many are computed.
    """

    def __init__(self, metrics: RequestMetrics, n: int, num_computed: int) -> None:
        self._metrics = metrics
        self._n = n
        self._num_left = num_computed
        self._longest = 0

    def finished(self, completion_tokens: int) -> None:
        """One more has come to its end."""
        self._longest = max(self._longest, completion_tokens)
        self._num_left -= 1
        if not self._num_left:
            self._metrics.group_n.observe(self._n)
            self._metrics.group_longest.observe(self._longest)


class RequestWatch:
    """One request until its end; to be closed in every case.

    Args:
        metrics: where it counts.
        key_name: of the API key by which it came, or empty.
        group: it is one of these; None: it is alone.
        max_tokens: as it asked for, if it did.
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
        """None: there was no output yet."""
        metrics.num_open += 1

    def output(self, output: Output) -> None:
        """Its next output has come."""
        metrics, now = self._metrics, self._metrics.clock()
        num_tokens = output.usage.completion_tokens - self._num_tokens
        if self.ttft_s is None:
            self.ttft_s, self._first_s = now - self._began_s, now
            metrics.ttft_s.observe(self.ttft_s)
            metrics.prompt_tokens[self._key_name] += output.usage.prompt_tokens
            metrics.cached_tokens[self._key_name] += output.usage.cached_tokens
        elif num_tokens > 0:
            # Several tokens come at once if they were drafted, or the reader was late; each took its part of the time.
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
        """It was not accepted."""
        self._metrics.refusals[error.code] += 1
        self._end(None)

    def failed(self, error: StokerError) -> None:
        """It was accepted, and ended with an error."""
        self._metrics.failures[error.code] += 1
        self._end(None)

    def close(self) -> None:
        """The client is gone: a request that had not ended counts as aborted."""
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

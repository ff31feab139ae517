"""What one HTTP request asks of a model, and the answers to it as they run side by side; it knows no wire format."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, closing
from dataclasses import dataclass, field, replace
from math import inf
from types import TracebackType
from typing import TypeAlias

import msgspec

from stoker.chat.thoughts import NO_THOUGHTS, Thoughts
from stoker.core.media import Media
from stoker.core.outline import Outline
from stoker.core.params import NO_LIMIT, SamplingParams
from stoker.engine.cards import ModelCard
from stoker.engine.inbox import merge
from stoker.engine.protocol import Accepted, Output, Prompt, PromptToken, SessionUse, Submit, Timing, Usage
from stoker.engine.question_messages import AdapterChoice
from stoker.errors import InvalidInput, StokerError
from stoker.runtime.registry import ServedModel
from stoker.runtime.request_metrics import RequestGroup, RequestWatch
from stoker.server.observe.account import Account
from stoker.server.request.adapters import with_named_adapter
from stoker.server.request.lines import LineBounds, bounded
from stoker.text.chat_formats.reader import Reader

_Stream: TypeAlias = AsyncGenerator[Accepted | Output, None]


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """What one HTTP request asks of a model, whatever API it came by. Choices are numbered prompt by prompt."""

    reply_id: str
    """The id of the whole reply; what its choices are called in the engine begins with it."""
    prompts: Sequence[Prompt]
    sampling: SamplingParams
    """`logprobs`, if it is given, counts for the prompt too where it is echoed."""
    n: int = 1
    """Answers to each prompt."""
    best_of: int | None = None
    """Number of answers that are computed; the `n` likeliest are returned. Only `collect` can choose."""
    echo: bool = False
    """Each choice's first output has the prompt's tokens."""
    text_bias: Mapping[str, float] = field(default_factory=dict[str, float])
    """Added to the logits of every token of these texts."""
    priority: int = 0
    client_key: str = ""
    cache_prompt: bool = True
    parse_special: bool = True
    """The text of a special token in a prompt is that token."""
    timeout_s: float | None = None
    lines: LineBounds | None = None
    """Further bounds at which each answer ends, by line."""
    model: str = ""
    """The model's name as the client wrote it; an adapter's name may follow."""
    adapters: list[AdapterChoice] | None = None
    """Adapters to apply; None = the request names none, so the server's default adapters apply."""
    outline: Outline | None = None
    """The parts of an answer and what constrains them; None = plain text."""
    reader: Callable[[], Reader] | None = None
    """Makes the reader of one answer; None = an answer is content as it is written."""
    reports_progress: bool = False
    """Outputs say how far the prompts are computed, before the first tokens."""
    traces: bool = False
    """Outputs say where their tokens came from."""
    media: tuple[Media, ...] = ()
    """Files whose markers are in the prompts."""
    session: SessionUse | None = None
    """The conversation that the first of its answers goes on with."""
    account: Account = field(default_factory=Account)
    """Account of the request, filled in while it is answered."""
    thoughts: Thoughts = NO_THOUGHTS
    """The store for reasoning that precedes tool calls."""

    @property
    def num_computed(self) -> int:
        """Answers that are computed for each prompt."""
        return self.best_of or self.n

    def submits(self) -> list[Submit]:
        """One request for the engine per answer: those to the first prompt come first."""
        return [
            self._submit(index, choice) for index in range(len(self.prompts)) for choice in range(self.num_computed)
        ]

    def _submit(self, index: int, choice: int) -> Submit:
        return Submit(
            request_id=f"{self.reply_id}-{index * self.num_computed + choice}",
            prompt=self.prompts[index],
            sampling=self._sampling(choice),
            priority=self.priority,
            client_key=self.client_key,
            cache_prompt=self.cache_prompt,
            timeout_s=self.timeout_s,
            group=f"{self.reply_id}-{index}" if self.num_computed > 1 else "",
            # The neighbors take it from the first: to score a prompt means to compute all of it again.
            echo=self.echo and choice == 0,
            parse_special=self.parse_special,
            text_bias=dict(self.text_bias),
            adapters=self.adapters,
            outline=self.outline,
            reports_progress=self.reports_progress,
            traces=self.traces,
            media=self.media,
            session=self.session if index == choice == 0 else None,
        )

    def _sampling(self, choice: int) -> SamplingParams:
        """Choice k of one prompt draws with seed + k: without this, all of them would be the same (as in vLLM)."""
        params = self.sampling
        seed = None if params.seed is None else (params.seed + choice) % 2**64
        needs_logprobs = self.num_computed > self.n and params.logprobs is None
        if needs_logprobs:
            return replace(params, seed=seed, logprobs=0, post_sampling_probs=None)
        return params if seed == params.seed else replace(params, seed=seed)


class Generation:
    """One or several accepted requests. Leaving it as a context manager frees all that still run.

    Iterating gives `(choice index, Output)` as the engine produces them.

    Args:
        request: what they are for.
        streams: what the runtime gave for its `submits`, each past its `Accepted`.
        watches: one for each stream.
        tool_calls: counts the tool calls of the answers.
    """

    def __init__(
        self,
        request: GenerationRequest,
        streams: Sequence[_Stream],
        watches: Sequence[RequestWatch],
        tool_calls: Counter[tuple[str, str]],
    ) -> None:
        self.tool_calls = tool_calls
        self._request = request
        self._streams = streams
        self._watches = watches
        self._items = self._single() if len(streams) == 1 else self._merged()
        self._usage: dict[int, Usage] = {}
        self._timings: list[Timing] = []
        """Timings of the choices that have ended, if their engine reports them."""
        self._echoes = _Echoes(request.num_computed)
        self.opened_s = time.monotonic()
        self.first_output_s: float | None = None
        """When the first token of any choice came, on the clock of `time.monotonic`."""

    @classmethod
    async def open(cls, served: ServedModel, request: GenerationRequest) -> Generation:
        """Submits everything and returns when all of it is accepted. If one is refused, all others are ended.

        Raises:
            StokerError: a request was refused.
            InvalidInput: they are more than the runtime could ever take at once.
        """
        request = replace(request, adapters=with_named_adapter(request.adapters, request.model, served))
        submits = request.submits()
        runtime = served.runtime
        request.account.model, request.account.max_tokens = served.model_id, _longest(request, runtime.card)
        capacity = runtime.card.parallel + runtime.card.max_queue
        if len(submits) > capacity:
            message = f"{len(submits)} answers in one request are more than the {capacity} that can run and wait here"
            raise InvalidInput(message, parameter="n")
        metrics, max_tokens = served.metrics, request.sampling.longest
        groups = [RequestGroup(metrics, request.n, request.num_computed) for _ in request.prompts]
        async with AsyncExitStack() as stack:
            streams: list[_Stream] = []
            watches: list[RequestWatch] = []
            for index, submit in enumerate(submits):
                group = groups[index // request.num_computed]
                watch = metrics.watch(request.account.key_name, group, max_tokens)
                watches.append(stack.enter_context(closing(watch)))
                outputs = runtime.generate(submit)
                stream = outputs if request.lines is None else bounded(outputs, request.lines)
                await stack.enter_async_context(aclosing(stream))
                accepted = await _accepted(stream, watches[-1])
                request.account.relaxed = accepted.relaxed
                streams.append(stream)
            stack.pop_all()
        if request.outline is not None and request.outline.grammar is not None:
            metrics.constrained[request.outline.grammar.kind] += len(submits)
        return cls(request, streams, watches, metrics.tool_calls)

    @property
    def usage(self) -> Usage:
        """The tokens of all choices so far. A prompt that several choices share counts once."""
        firsts = [usage for index, usage in self._usage.items() if index % self._request.num_computed == 0]
        return Usage(
            prompt_tokens=sum(usage.prompt_tokens for usage in firsts),
            completion_tokens=sum(usage.completion_tokens for usage in self._usage.values()),
            cached_tokens=sum(usage.cached_tokens for usage in firsts),
            reasoning_tokens=sum(usage.reasoning_tokens for usage in self._usage.values()),
            audio_tokens=sum(usage.audio_tokens for usage in firsts),
            image_tokens=sum(usage.image_tokens for usage in firsts),
        )

    @property
    def timing(self) -> Timing:
        """How long the slowest of all prompts and of all answers took, to be asked for at the end.

        What an engine does not say is taken from the clock here, which stands still while others are served.
        """
        if len(self._timings) == self.num_choices:
            return Timing(
                max(timing.prefill_s for timing in self._timings),
                max(timing.decode_s for timing in self._timings),
                sum(timing.num_drafted for timing in self._timings),
                sum(timing.num_accepted for timing in self._timings),
            )
        now_s = time.monotonic()
        first_s = now_s if self.first_output_s is None else self.first_output_s
        return Timing(first_s - self.opened_s, now_s - first_s)

    @property
    def reply_id(self) -> str:
        """The id of the whole reply."""
        return self._request.reply_id

    @property
    def reader(self) -> Callable[[], Reader] | None:
        """Makes the reader of one choice; see `GenerationRequest.reader`."""
        return self._request.reader

    @property
    def sampling(self) -> SamplingParams:
        """What the request itself sets."""
        return self._request.sampling

    @property
    def num_choices(self) -> int:
        return len(self._streams)

    async def collect(self) -> list[Output]:
        """Every choice as one whole output, in their order; the likeliest of each prompt if `best_of` says so."""
        outputs: dict[int, list[Output]] = {}
        async for index, output in self:
            outputs.setdefault(index, []).append(output)
        whole = [merge(outputs[index]) for index in range(self.num_choices)]
        size, n = self._request.num_computed, self._request.n
        if size == n:
            return whole
        chosen = [best for at in range(0, len(whole), size) for best in _likeliest(whole[at : at + size], n)]
        if self._request.sampling.logprobs is not None:
            return chosen
        return [msgspec.structs.replace(output, logprobs=None) for output in chosen]

    def __aiter__(self) -> AsyncGenerator[tuple[int, Output], None]:
        return self._items

    async def close(self) -> None:
        """Frees all that still runs. Calling it twice is allowed."""
        await self._items.aclose()
        for stream, watch in zip(self._streams, self._watches, strict=True):
            await stream.aclose()
            watch.close()

    async def __aenter__(self) -> Generation:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def _single(self) -> AsyncGenerator[tuple[int, Output], None]:
        try:
            async for item in self._streams[0]:
                yield 0, self._note(0, item)
        except StokerError as error:
            self._watches[0].failed(error)
            raise

    async def _merged(self) -> AsyncGenerator[tuple[int, Output], None]:
        waiting = {asyncio.create_task(_next(stream)): index for index, stream in enumerate(self._streams)}
        try:
            while waiting:
                done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in sorted(done, key=waiting.__getitem__):
                    index = waiting[task]
                    output = self._note(index, self._result(index, task))
                    del waiting[task]
                    if output.finish_reason is None:
                        waiting[asyncio.create_task(_next(self._streams[index]))] = index
                    else:
                        await self._streams[index].aclose()  # its place may be what another choice waits for
                    for ready in self._ready(index, output):
                        yield ready
        finally:
            await _end(waiting)

    def _ready(self, index: int, output: Output) -> list[tuple[int, Output]]:
        if output.progress is None and self._request.echo:
            return self._echoes.push(index, output)
        return [(index, output)]

    def _result(self, index: int, task: asyncio.Task[Accepted | Output]) -> Accepted | Output:
        try:
            return task.result()
        except StokerError as error:
            self._watches[index].failed(error)
            raise

    def _note(self, index: int, item: Accepted | Output) -> Output:
        assert isinstance(item, Output), "a runtime accepts a request once"
        if item.progress is not None:
            return item
        self._watches[index].output(item)
        if self.first_output_s is None:
            self.first_output_s = time.monotonic()
            self._request.account.ttft_s = self._watches[index].ttft_s
        self._usage[index] = item.usage
        if item.timing is not None:
            self._timings.append(item.timing)
        if item.finish_reason is not None:
            self._settle(item.finish_reason)
        return item

    def _settle(self, finish_reason: str) -> None:
        account, usage = self._request.account, self.usage
        account.finish_reasons.append(finish_reason)
        account.prompt_tokens, account.cached_tokens = usage.prompt_tokens, usage.cached_tokens
        account.completion_tokens = usage.completion_tokens


class _Echoes:
    """Gives the echo of a prompt, which the first of its choices brings, to the others: none begins without it."""

    def __init__(self, choices_per_prompt: int) -> None:
        self._choices_per_prompt = choices_per_prompt
        self._prompts: dict[int, list[PromptToken]] = {}
        """By the prompt's first choice."""
        self._withheld: dict[int, Output] = {}
        self._begun: set[int] = set()

    def push(self, index: int, output: Output) -> list[tuple[int, Output]]:
        """The outputs that may be passed on now."""
        first = self._first(index)
        if output.prompt is not None:
            self._prompts[first] = output.prompt
            ready = sorted(other for other in self._withheld if self._first(other) == first)
            return [(index, output), *((other, self._begin(other, self._withheld.pop(other))) for other in ready)]
        if index == first or index in self._begun:
            return [(index, output)]
        if first in self._prompts:
            return [(index, self._begin(index, output))]
        before = self._withheld.get(index)
        self._withheld[index] = output if before is None else merge([before, output])
        return []

    def _first(self, index: int) -> int:
        return index - index % self._choices_per_prompt

    def _begin(self, index: int, output: Output) -> Output:
        self._begun.add(index)
        return msgspec.structs.replace(output, prompt=self._prompts[self._first(index)])


def _longest(request: GenerationRequest, card: ModelCard) -> int | None:
    """How many tokens an answer may have; the context may have room for fewer."""
    length = card.sampling.max_tokens if request.sampling.max_tokens is None else request.sampling.max_tokens
    return card.context_size if length == NO_LIMIT else length


async def _accepted(stream: _Stream, watch: RequestWatch) -> Accepted:
    try:
        accepted = await anext(stream)
    except StokerError as error:
        watch.refused(error)
        raise
    assert isinstance(accepted, Accepted), "a runtime's first item is Accepted"
    return accepted


async def _next(stream: _Stream) -> Accepted | Output:
    return await anext(stream)


async def _end(tasks: Iterable[asyncio.Task[Accepted | Output]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _likeliest(outputs: Sequence[Output], n: int) -> list[Output]:
    return sorted(outputs, key=_mean_logprob, reverse=True)[:n]


def _mean_logprob(output: Output) -> float:
    logprobs = [position.chosen.logprob for position in output.logprobs or ()]
    return sum(logprobs) / len(logprobs) if logprobs else -inf

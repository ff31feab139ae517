"""The generation that one HTTP request asks for, with all of its choices. Independent of any wire format."""

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
    """The generation that one HTTP request of any API asks for. Choices are numbered prompt by prompt."""

    reply_id: str
    """Id of the whole reply; the engine's request ids are this id with the number of the choice."""
    prompts: Sequence[Prompt]
    sampling: SamplingParams
    """Sampling parameters of every choice. `logprobs` also applies to an echoed prompt."""
    n: int = 1
    """Number of answers to each prompt."""
    best_of: int | None = None
    """Number of answers computed per prompt, of which the `n` likeliest are returned; None = `n`. Only `collect`, that
    is, a reply without streaming, can choose."""
    echo: bool = False
    """Whether the first output of each choice contains the tokens of the prompt."""
    text_bias: Mapping[str, float] = field(default_factory=dict[str, float])
    """Bias per text, added to the logits of every token of the text."""
    priority: int = 0
    client_key: str = ""
    cache_prompt: bool = True
    parse_special: bool = True
    """Whether the text of a special token in a prompt is tokenized as that token."""
    timeout_s: float | None = None
    lines: LineBounds | None = None
    """Bounds that end each answer at a line; None = none."""
    model: str = ""
    """Name of the model as the client wrote it; a colon and the name of an adapter may follow."""
    adapters: list[AdapterChoice] | None = None
    """Adapters to apply; None = the request names none, so the server's default adapters apply."""
    outline: Outline | None = None
    """The parts of an answer and their grammars; None = unconstrained text."""
    reader: Callable[[], Reader] | None = None
    """Makes the parser of one answer; None = all text of an answer is content."""
    reports_progress: bool = False
    """Whether the engine reports the progress of the prefill before the first tokens."""
    traces: bool = False
    """Whether outputs trace where their tokens came from (step, speculative decoding, cache)."""
    media: tuple[Media, ...] = ()
    """Images and recordings whose markers are in the prompts."""
    session: SessionUse | None = None
    """Session (named conversation) that the first choice of the first prompt continues; None = none."""
    account: Account = field(default_factory=Account)
    """Account of the HTTP request, filled in while it is answered."""
    thoughts: Thoughts = NO_THOUGHTS
    """Store for the reasoning that precedes tool calls."""

    @property
    def num_computed(self) -> int:
        """Number of answers that are computed for each prompt."""
        return self.best_of or self.n

    def submits(self) -> list[Submit]:
        """One engine request per computed answer; the answers to the first prompt come first."""
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
            # `_Echoes` copies the first choice's echo to the others: scoring a prompt means to compute all of it again.
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
        """Choice k of a prompt samples with seed + k, as in vLLM: with one seed, all choices would be the same text."""
        params = self.sampling
        seed = None if params.seed is None else (params.seed + choice) % 2**64
        needs_logprobs = self.num_computed > self.n and params.logprobs is None
        if needs_logprobs:
            return replace(params, seed=seed, logprobs=0, post_sampling_probs=None)
        return params if seed == params.seed else replace(params, seed=seed)


class Generation:
    """The running choices of one `GenerationRequest`, all accepted by the engine.

    Iterating yields `(choice index, Output)` as the engine produces outputs. Leaving the context manager cancels the
    choices that still run.

    Args:
        request: the request that the choices answer.
        streams: the runtime's output streams of its `submits`; the first item, `Accepted`, has been read from each.
        watches: metrics of each stream, in the same order.
        tool_calls: counter of the tool calls in the answers.
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
        """Timings of the choices that have ended, where the engine reports them."""
        self._echoes = _Echoes(request.num_computed)
        self.opened_s = time.monotonic()
        self.first_output_s: float | None = None
        """Time of the first token of any choice, in seconds of `time.monotonic`; None = none yet."""

    @classmethod
    async def open(cls, served: ServedModel, request: GenerationRequest) -> Generation:
        """Submits all choices and returns when all are accepted. If one is refused, the others are cancelled.

        Raises:
            StokerError: the engine refused a choice.
            InvalidInput: there are more choices than can run and wait in the queue at once.
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
        """Token counts of all choices so far. A prompt that several choices share counts once."""
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
        """The longest prefill and the longest decode of all choices, with the sums of drafted and accepted tokens.

        Read it at the end. Before the end, or if an engine reports no timings, the durations are measured here: the
        prefill then includes the wait in the queue, and both include delays by other work on the event loop.
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
        """Makes the parser of one choice; see `GenerationRequest.reader`."""
        return self._request.reader

    @property
    def sampling(self) -> SamplingParams:
        """The sampling parameters that the request itself sets, without the model's defaults."""
        return self._request.sampling

    @property
    def num_choices(self) -> int:
        return len(self._streams)

    async def collect(self) -> list[Output]:
        """One merged output per choice, in order. With `best_of`, only the `n` likeliest choices of each prompt."""
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
        """Cancels the choices that still run. Calling it twice is allowed."""
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
                        await self._streams[index].aclose()  # another choice may wait for its slot
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
    """Copies the echo of a prompt from its first choice to the others, whose outputs are withheld until it arrives."""

    def __init__(self, choices_per_prompt: int) -> None:
        self._choices_per_prompt = choices_per_prompt
        self._prompts: dict[int, list[PromptToken]] = {}
        """Tokens of each echoed prompt, by the index of the prompt's first choice."""
        self._withheld: dict[int, Output] = {}
        self._begun: set[int] = set()

    def push(self, index: int, output: Output) -> list[tuple[int, Output]]:
        """Takes an output and returns the outputs that may be passed on now."""
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
    """Maximum number of tokens of an answer, by the request or the model's default; the context may hold fewer."""
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

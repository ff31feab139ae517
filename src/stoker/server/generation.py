"""The answers of one HTTP request, running side by side on one runtime; it knows no wire format."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import AsyncExitStack, aclosing
from types import TracebackType
from typing import TypeAlias

from stoker.core.sequence import FinishReason
from stoker.engine.protocol import Accepted, Output, Submit, Usage
from stoker.errors import BackendError, Cancelled, InvalidInput
from stoker.runtime.base import Runtime

_Stream: TypeAlias = AsyncGenerator[Accepted | Output, None]


class Generation:
    """One or several accepted requests. Leaving it as a context manager frees all that still run.

    Iterating gives `(choice index, Output)` as the engine produces them.

    Args:
        streams: what the runtime gave, each past its `Accepted`.
        choices_per_prompt: so many neighbours share one prompt.
    """

    def __init__(self, streams: Sequence[_Stream], choices_per_prompt: int = 1) -> None:
        self._streams = streams
        self._choices_per_prompt = choices_per_prompt
        self._items = self._single() if len(streams) == 1 else self._merged()
        self._usage: dict[int, Usage] = {}
        self.opened_s = time.monotonic()
        self.first_output_s: float | None = None
        """When the first token of any choice came, on the clock of `time.monotonic`."""

    @classmethod
    async def open(cls, runtime: Runtime, submits: Sequence[Submit], choices_per_prompt: int = 1) -> Generation:
        """Submits everything and returns when all of it is accepted. If one is refused, all others are ended.

        Raises:
            StokerError: a request was refused.
            InvalidInput: they are more than the runtime could ever take at once.
        """
        capacity = runtime.card.parallel + runtime.card.max_queue
        if len(submits) > capacity:
            message = f"{len(submits)} answers in one request are more than the {capacity} that can run and wait here"
            raise InvalidInput(message, parameter="n")
        async with AsyncExitStack() as stack:
            streams: list[_Stream] = []
            for submit in submits:
                stream = await stack.enter_async_context(aclosing(runtime.generate(submit)))
                accepted = await anext(stream)
                assert isinstance(accepted, Accepted), "a runtime's first item is Accepted"
                streams.append(stream)
            stack.pop_all()
        return cls(streams, choices_per_prompt)

    @property
    def usage(self) -> Usage:
        """The tokens of all choices so far. A prompt that several choices share counts once."""
        firsts = [usage for index, usage in self._usage.items() if index % self._choices_per_prompt == 0]
        return Usage(
            prompt_tokens=sum(usage.prompt_tokens for usage in firsts),
            completion_tokens=sum(usage.completion_tokens for usage in self._usage.values()),
            cached_tokens=sum(usage.cached_tokens for usage in firsts),
        )

    @property
    def num_choices(self) -> int:
        return len(self._streams)

    def __aiter__(self) -> AsyncGenerator[tuple[int, Output], None]:
        return self._items

    async def close(self) -> None:
        """Frees all that still runs. Calling it twice is allowed."""
        await self._items.aclose()
        for stream in self._streams:
            await stream.aclose()

    async def __aenter__(self) -> Generation:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def _single(self) -> AsyncGenerator[tuple[int, Output], None]:
        async for item in self._streams[0]:
            yield 0, self._note(0, item)

    async def _merged(self) -> AsyncGenerator[tuple[int, Output], None]:
        waiting = {asyncio.create_task(_next(stream)): index for index, stream in enumerate(self._streams)}
        try:
            while waiting:
                done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in sorted(done, key=waiting.__getitem__):
                    index = waiting[task]
                    output = self._note(index, task.result())
                    del waiting[task]
                    if output.finish_reason is None:
                        waiting[asyncio.create_task(_next(self._streams[index]))] = index
                    yield index, output
        finally:
            await _end(waiting)

    def _note(self, index: int, item: Accepted | Output) -> Output:
        assert isinstance(item, Output), "a runtime accepts a request once"
        if self.first_output_s is None:
            self.first_output_s = time.monotonic()
        if item.finish_reason == FinishReason.ERROR.value:
            raise BackendError("the model gave numbers that no token can be chosen from")
        if item.finish_reason == FinishReason.CANCELLED.value:
            raise Cancelled("the request was ended by the server")
        self._usage[index] = item.usage
        return item


async def _next(stream: _Stream) -> Accepted | Output:
    return await anext(stream)


async def _end(tasks: Iterable[asyncio.Task[Accepted | Output]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)

"""`AsyncLLM`: the verbs of `LLM` for asyncio. The event loop is never blocked; cancelling a task stops its request."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, overload

import numpy as np
from numpy.typing import NDArray

from stoker.core.params import SamplingParams
from stoker.engine.cards import ModelCard
from stoker.engine.config import EngineConfig
from stoker.engine.protocol import Embed, Embedded
from stoker.errors import StokerError
from stoker.llm.async_completions import AsyncCompletions
from stoker.llm.inputs import (
    GENERATE_DEFAULTS,
    NOTHING_GIVEN,
    Adapters,
    Conversation,
    EngineOptions,
    Lora,
    Prompt,
    Prompts,
    Sampling,
    as_adapters,
    as_batch,
    as_conversations,
    as_prompt,
    as_sampling,
    embed_dimensions,
    engine_config,
    spread,
    spread_lora,
)
from stoker.llm.session import Answer, Completion, Session

if TYPE_CHECKING:
    from typing import Unpack

    from stoker.models.progress import Progress


class _Wake:
    """Wakes the reader of an answer, on its event loop, from any thread."""

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self.changed = asyncio.Event()

    def __call__(self, is_ended: bool) -> None:
        assert self.loop is not None
        try:
            self.loop.call_soon_threadsafe(self.changed.set)
        except RuntimeError:
            # The loop is closed: nobody reads any more.
            assert self.loop.is_closed()


class AsyncTextStream(AsyncIterator[str]):
    """The pieces of one answer, as they come. Iterate over it; `aclose`, or cancelling the reader, stops the model."""

    def __init__(self, texts: AsyncGenerator[str], answer: Answer) -> None:
        self._texts = texts
        self._answer = answer

    async def __anext__(self) -> str:
        return await anext(self._texts)

    @property
    def completion(self) -> Completion:
        """The answer as far as it has come; complete when the iteration is over.

        Raises:
            StokerError: the request failed.
        """
        return self._answer.completion()

    async def aclose(self) -> None:
        """Stops the model. Calling it twice is allowed."""
        await self._texts.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.aclose()


class AsyncLLM:
    """A model in this process, for asyncio. It is loaded by `start`, by `async with`, or by the first request.

    Args: as those of `LLM`.

    Example:
        >>> async with AsyncLLM("smollm2") as llm:  # doctest: +SKIP
        ...     async for text in llm.stream_chat([{"role": "user", "content": "Hello!"}]):
        ...         print(text, end="")
    """

    def __init__(
        self, model: str | Path | EngineConfig, *, progress: Progress | None = None, **options: Unpack[EngineOptions]
    ) -> None:
        self._open = partial(Session, engine_config(model, options), progress)
        self._loading: Future[Session] | None = None
        self._places: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore]
        self._places = weakref.WeakKeyDictionary()
        """An asyncio lock serves the loop that first waited for it, and no other."""

    async def start(self) -> ModelCard:
        """Loads the model, once; whoever comes in the meantime waits for it.

        Raises:
            StokerError: the model cannot be loaded.
        """
        return (await self._session()).card

    @overload
    def generate(
        self,
        prompts: Prompt,
        sampling: SamplingParams | None = None,
        *,
        lora: Adapters = None,
        progress: bool = False,
    ) -> AsyncCompletions[Completion]: ...
    @overload
    def generate(
        self, prompts: Prompts, sampling: Sampling = None, *, lora: Lora = None, progress: bool = False
    ) -> AsyncCompletions[list[Completion]]: ...
    def generate(
        self, prompts: Prompt | Prompts, sampling: Sampling = None, *, lora: Lora = None, progress: bool = False
    ) -> AsyncCompletions[Completion] | AsyncCompletions[list[Completion]]:
        """See `LLM.generate`. Await it for the result, or iterate over it for one completion after the other."""
        batch, is_single = as_batch(prompts)

        async def start() -> list[Coroutine[Any, Any, Completion]]:
            defaults = NOTHING_GIVEN if (await self._session()).gives_max_tokens else GENERATE_DEFAULTS
            jobs = zip(batch, spread(sampling, len(batch), defaults), spread_lora(lora, len(batch)), strict=True)
            return [_read(self.stream(prompt, params, lora=adapters)) for prompt, params, adapters in jobs]

        return AsyncCompletions(start, is_single=is_single, show_progress=progress)

    @overload
    def chat(
        self,
        messages: Conversation,
        sampling: SamplingParams | None = None,
        *,
        lora: Adapters = None,
        progress: bool = False,
    ) -> AsyncCompletions[Completion]: ...
    @overload
    def chat(
        self, messages: Sequence[Conversation], sampling: Sampling = None, *, lora: Lora = None, progress: bool = False
    ) -> AsyncCompletions[list[Completion]]: ...
    def chat(
        self,
        messages: Conversation | Sequence[Conversation],
        sampling: Sampling = None,
        *,
        lora: Lora = None,
        progress: bool = False,
    ) -> AsyncCompletions[Completion] | AsyncCompletions[list[Completion]]:
        """See `LLM.chat`. Await it for the result, or iterate over it for one completion after the other."""
        batch, is_single = as_conversations(messages)

        async def start() -> list[Coroutine[Any, Any, Completion]]:
            jobs = zip(batch, spread(sampling, len(batch), NOTHING_GIVEN), spread_lora(lora, len(batch)), strict=True)
            return [_read(self.stream_chat(messages, params, lora=adapters)) for messages, params, adapters in jobs]

        return AsyncCompletions(start, is_single=is_single, show_progress=progress)

    def stream(
        self, prompt: Prompt, sampling: SamplingParams | None = None, *, lora: Adapters = None
    ) -> AsyncTextStream:
        """Completes one prompt piece by piece. It begins, and is refused if it must be, with the first iteration."""
        return self._stream(lambda _: as_prompt(prompt), sampling, lora)

    def stream_chat(
        self, messages: Conversation, sampling: SamplingParams | None = None, *, lora: Adapters = None
    ) -> AsyncTextStream:
        """Answers one conversation piece by piece; begins with the first iteration."""
        return self._stream(lambda session: session.render(messages), sampling, lora)

    async def embed(
        self, texts: Prompt | Prompts, *, dimensions: int | None = None, truncate: bool = False
    ) -> NDArray[np.float32]:
        """See `LLM.embed`."""
        batch, is_single = as_batch(texts)
        rows = (await self._embed(Embed(batch, dimensions=embed_dimensions(dimensions), truncates=truncate))).rows()
        return (rows[0] if is_single else rows).copy()

    async def rank(self, query: str, documents: Sequence[str], *, truncate: bool = False) -> list[float]:
        """See `LLM.rank`."""
        embed = Embed(list(documents), query=query, truncates=truncate, parameter="documents")
        return (await self._embed(embed)).relevance()

    async def close(self) -> None:
        """Ends every request and frees the model. Calling it twice is allowed."""
        if self._loading is None:
            return
        try:
            session = await self._session()
        except StokerError:  # whoever asked has been told
            return
        await asyncio.to_thread(session.close)

    def __getstate__(self) -> object:
        """Refuses to be pickled or copied, as `multiprocessing` would."""
        raise TypeError("a model lives in one process: make the AsyncLLM in the process that uses it")

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()

    async def _session(self) -> Session:
        if self._loading is None:
            # Not a task: an event loop that is closed in the meantime would take it along.
            loader = ThreadPoolExecutor(1, "stoker-load")
            self._loading = loader.submit(self._load)
            loader.shutdown(wait=False)
        return await asyncio.shield(asyncio.wrap_future(self._loading))

    def _load(self) -> Session:
        session = self._open()
        weakref.finalize(self, session.close)
        return session

    def _places_here(self, session: Session) -> asyncio.Semaphore:
        loop = asyncio.get_running_loop()
        return self._places.setdefault(loop, asyncio.Semaphore(session.max_outstanding))

    async def _embed(self, embed: Embed) -> Embedded:
        session = await self._session()
        async with self._places_here(session):
            starting = asyncio.ensure_future(asyncio.to_thread(session.embed, embed))
            try:
                started = await asyncio.shield(starting)
            except asyncio.CancelledError:
                starting.add_done_callback(_take_back)
                raise
            return await asyncio.wrap_future(started)

    def _stream(
        self, prompt: Callable[[Session], Prompt], sampling: SamplingParams | None, lora: Adapters
    ) -> AsyncTextStream:
        wake = _Wake()
        answer = Answer(wake)
        return AsyncTextStream(self._texts(answer, wake, prompt, sampling, lora), answer)

    async def _texts(
        self,
        answer: Answer,
        wake: _Wake,
        prompt: Callable[[Session], Prompt],
        sampling: SamplingParams | None,
        lora: Adapters,
    ) -> AsyncGenerator[str]:
        params, adapters = as_sampling(sampling), as_adapters(lora)
        session = await self._session()
        wake.loop = asyncio.get_running_loop()
        async with self._places_here(session):
            try:
                await asyncio.to_thread(lambda: session.submit(answer, prompt(session), params, adapters))
                while (text := answer.take()) is not None:
                    if text:
                        yield text
                    else:
                        await wake.changed.wait()
                    wake.changed.clear()
            finally:
                session.abort(answer)


def _take_back(starting: asyncio.Future[Future[Embedded]]) -> None:
    if not starting.cancelled() and starting.exception() is None:
        starting.result().cancel()


async def _read(stream: AsyncTextStream) -> Completion:
    async with stream:
        async for _ in stream:
            pass
    return stream.completion

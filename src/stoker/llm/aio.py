"""`AsyncLLM`: the verbs of `LLM` for asyncio. The event loop is never blocked; cancelling a task stops its request."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import AsyncGeneratorType, TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeAlias, cast, overload

import numpy as np
from numpy.typing import NDArray

from stoker.core.params import SamplingParams
from stoker.engine.cards import ModelCard
from stoker.engine.config import EngineConfig
from stoker.engine.protocol import Embed, Embedded
from stoker.errors import Cancelled, ModelNotLoaded, StokerError
from stoker.llm.async_completions import AsyncCompletions
from stoker.llm.inputs import (
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
    as_ranking,
    as_sampling,
    embed_dimensions,
    engine_config,
    spread,
    spread_lora,
)
from stoker.llm.places import Places
from stoker.llm.session import Answer, Completion, Session
from stoker.loading.locating import local_model

if TYPE_CHECKING:
    from typing import Unpack

    from stoker.models.progress import Progress

_Asked: TypeAlias = Callable[[Session], tuple[Prompt, SamplingParams]]
"""What a request asks for, once the model that answers it is loaded."""


class _Wake:
    """Wakes the reader of an answer, on its event loop, from any thread."""

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self.changed = asyncio.Event()

    def __call__(self, is_ended: bool) -> None:
        if self.loop is None:  # nobody has begun to read
            return
        try:
            self.loop.call_soon_threadsafe(self.changed.set)
        except RuntimeError:
            # The loop is closed: nobody reads any more.
            assert self.loop.is_closed()


class AsyncTextStream(AsyncIterator[str]):
    """The pieces of one answer, as they come. Iterate over it; `aclose`, or cancelling the reader, stops the model.

    One task reads it. It stops the model too when nobody holds it any more.
    """

    def __init__(self, llm: AsyncLLM, texts: AsyncGenerator[str], answer: Answer) -> None:
        self._llm = llm
        self._texts = cast("AsyncGeneratorType[str]", texts)
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
        """Stops the model; what has come so far can still be read. Calling it twice is allowed.

        Any task may call it. Where another one waits for the next piece, its iteration is over; if it waits for the
        model to be loaded, or for a place in the engine, then as soon as it has that.
        """
        if not self._texts.ag_running:
            await self._texts.aclose()
        elif (session := self._llm._loaded) is not None:
            session.abort(self._answer)
        else:
            self._answer.end()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.aclose()

    def __del__(self) -> None:
        # An event loop that is closed does not end the generator any more.
        session = self._llm._loaded
        if session is not None and not self._answer.is_ended:
            session.forsake(self._answer)


class AsyncLLM:
    """A model in this process, for asyncio. It is loaded by `start`, by `async with`, or by the first request.

    Several event loops, one after the other or in several threads, may use it.

    Args: as those of `LLM`.

    Example:
        >>> async with AsyncLLM("smollm2") as llm:  # doctest: +SKIP
        ...     async for text in llm.stream_chat([{"role": "user", "content": "Hello!"}]):
        ...         print(text, end="")
    """

    def __init__(
        self, model: str | Path | EngineConfig, *, progress: Progress | None = None, **options: Unpack[EngineOptions]
    ) -> None:
        self._config = engine_config(model, options)
        self._progress = progress
        self._loading: Future[Session] | None = None
        self._lock = threading.Lock()
        """Guards the beginning of loading: event loops of several threads may ask."""
        self._loaded: Session | None = None
        self._is_closed = False
        self._places: Places
        """Of the engine; there are none before it is loaded."""

    async def start(self) -> ModelCard:
        """Loads the model, once; whoever comes in the meantime waits for it. After a failure the next one tries again.

        Raises:
            StokerError: the model cannot be loaded.
            ModelNotLoaded: it was closed.
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
            jobs = zip(batch, spread(sampling, len(batch), NOTHING_GIVEN), spread_lora(lora, len(batch)), strict=True)
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
        """Completes one prompt piece by piece, with the defaults of `generate`.

        It begins, and is refused if it must be, with the first iteration.
        """

        def begin(session: Session) -> tuple[Prompt, SamplingParams]:
            return as_prompt(prompt), as_sampling(sampling).filled_from(session.text_defaults)

        return self._stream(begin, lora)

    def stream_chat(
        self, messages: Conversation, sampling: SamplingParams | None = None, *, lora: Adapters = None
    ) -> AsyncTextStream:
        """Answers one conversation piece by piece; begins with the first iteration."""
        return self._stream(lambda session: (session.render(messages), as_sampling(sampling)), lora)

    async def embed(
        self, texts: Prompt | Prompts, *, dimensions: int | None = None, truncate: bool = False
    ) -> NDArray[np.float32]:
        """See `LLM.embed`."""
        batch, is_single = as_batch(texts)
        rows = (await self._embed(Embed(batch, dimensions=embed_dimensions(dimensions), truncates=truncate))).rows()
        return (rows[0] if is_single else rows).copy()

    async def rank(self, query: str, documents: Sequence[str], *, truncate: bool = False) -> list[float]:
        """See `LLM.rank`."""
        return (await self._embed(as_ranking(query, documents, truncate=truncate))).relevance()

    async def close(self) -> None:
        """Ends every request and frees the model, which is not loaded again. Calling it twice is allowed."""
        with self._lock:
            self._is_closed = True
            loading = self._loading
        if loading is None:
            return
        try:
            session = await asyncio.shield(asyncio.wrap_future(loading))
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
        with self._lock:
            if self._is_closed:
                raise ModelNotLoaded("the model was closed")
            loading = self._loading
            if loading is None:
                loading = self._loading = Future()
                # Not a task: an event loop that is closed in the meantime would take it along. A daemon: a program that
                # ends does not wait for a download.
                threading.Thread(target=self._load, args=(loading,), name="stoker-load", daemon=True).start()
        return await asyncio.shield(asyncio.wrap_future(loading))

    def _load(self, loading: Future[Session]) -> None:
        try:
            config = local_model(self._config, progress=self._progress)
            # Python would end this thread in the midst of native code, which aborts then; for this one it waits.
            with ThreadPoolExecutor(1, "stoker-open") as opener:
                session = opener.submit(self._open, config).result()
        except BaseException as error:  # noqa: BLE001  # raised where it is waited for
            with self._lock:
                self._loading = None
            loading.set_exception(error)
        else:
            loading.set_result(session)

    def _open(self, config: EngineConfig) -> Session:
        session = Session(config, self._progress)
        weakref.finalize(self, session.close)
        self._places = Places(session.max_outstanding)
        self._loaded = session
        return session

    async def _embed(self, embed: Embed) -> Embedded:
        session = await self._session()
        await self._places.take()
        future: Future[Embedded] = Future()

        def begin() -> None:
            try:
                session.embed(embed, future)
            finally:
                future.add_done_callback(lambda _: self._places.give_back())

        try:
            await _on_thread(begin)
            return await asyncio.wrap_future(future)
        finally:
            future.cancel()

    def _stream(self, asked: _Asked, lora: Adapters) -> AsyncTextStream:
        wake = _Wake()
        answer = Answer(wake)
        return AsyncTextStream(self, self._texts(answer, wake, asked, lora), answer)

    async def _texts(
        self,
        answer: Answer,
        wake: _Wake,
        asked: _Asked,
        lora: Adapters,
    ) -> AsyncGenerator[str]:
        adapters = as_adapters(lora)
        wake.loop = asyncio.get_running_loop()
        session = await self._session()
        await self._places.take()

        def begin() -> None:
            try:
                session.submit(answer, *asked(session), adapters)
            finally:
                answer.when_ended(self._places.give_back)

        try:
            with suppress(Cancelled):  # by `aclose`: the answer has ended
                await _on_thread(begin)
            while (text := answer.take()) is not None:
                if text:
                    yield text
                else:
                    await wake.changed.wait()
                wake.changed.clear()
        finally:
            session.abort(answer)


async def _on_thread(begin: Callable[[], None]) -> None:
    """As `asyncio.to_thread`; but what has been asked for is done to its end, also if nobody waits for it any more."""
    beginning = asyncio.get_running_loop().run_in_executor(None, begin)
    try:
        await asyncio.shield(beginning)
    except asyncio.CancelledError:
        beginning.add_done_callback(_forget_error)
        raise


def _forget_error(beginning: asyncio.Future[None]) -> None:
    if not beginning.cancelled():
        beginning.exception()


async def _read(stream: AsyncTextStream) -> Completion:
    async with stream:
        async for _ in stream:
            pass
    return stream.completion

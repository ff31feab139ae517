"""`AsyncLLM`: the methods of `LLM` for asyncio. The event loop is never blocked; canceling a task stops its request."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import AsyncGeneratorType, TracebackType
from typing import TYPE_CHECKING, Any, Self, cast, overload

import numpy as np
from numpy.typing import NDArray

from stoker.chat.answers import Part, text_of
from stoker.core.params import whole_number
from stoker.engine.cards import ModelCard
from stoker.engine.config import EngineConfig
from stoker.engine.health import Health
from stoker.engine.question_messages import A, Detokenize, Embed, Question, Tokenize
from stoker.engine.stats import EngineStats
from stoker.errors import Cancelled, ModelNotLoaded, StokerError
from stoker.llm.asks import Ask, chat_ask, text_ask
from stoker.llm.async_completions import AsyncCompletions
from stoker.llm.completion import Completion
from stoker.llm.inputs import (
    Adapters,
    Conversation,
    EngineOptions,
    Lora,
    Messages,
    OneSampling,
    Prompt,
    Prompts,
    Sampling,
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
from stoker.llm.options import ChatOptions, TextOptions, chat_options, text_options
from stoker.llm.places import Places
from stoker.llm.session import Answer, Session
from stoker.loading.locating import local_model

if TYPE_CHECKING:
    from typing import Unpack

    from stoker.models.progress import Progress


class _Wake:
    """Wakes the reader of an answer on the reader's event loop. Safe to call from any thread."""

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self.changed = asyncio.Event()

    def __call__(self, is_ended: bool) -> None:
        if self.loop is None:  # the iteration has not begun
            return
        try:
            self.loop.call_soon_threadsafe(self.changed.set)
        except RuntimeError:
            # The loop is closed, so its reader no longer exists.
            assert self.loop.is_closed()


class AsyncTextStream(AsyncIterator[str]):
    """The text of one answer as a stream. Iterate over it; `aclose`, or canceling the reader, stops the model.

    While the reader is slow, the request is paused, as in `TextStream`.

    `events` also yields reasoning and tool calls. Only one task may read a stream. The model also stops when the last
    reference to the stream is gone.
    """

    def __init__(self, llm: AsyncLLM, parts: AsyncGenerator[Sequence[Part]], answer: Answer) -> None:
        self._llm = llm
        self._parts = cast("AsyncGeneratorType[Sequence[Part]]", parts)
        self._answer = answer

    async def __anext__(self) -> str:
        async for parts in self._parts:
            if text := text_of(parts):
                return text
        raise StopAsyncIteration

    async def events(self) -> AsyncGenerator[Part]:
        """See `TextStream.events`."""
        async for parts in self._parts:
            for part in parts:
                yield part

    @property
    def prompt_progress(self) -> tuple[int, int] | None:
        """See `TextStream.prompt_progress`."""
        return self._answer.prompt_progress

    @property
    def completion(self) -> Completion:
        """The answer so far; complete when the iteration has ended.

        Raises:
            StokerError: the request failed.
        """
        return self._answer.completion()

    async def aclose(self) -> None:
        """Stops the model. The text that was generated before can still be read. Calling it twice is allowed.

        Any task may call it. If another task waits for the next piece of text, its iteration ends. If that task waits
        for the model to load, or for a place in the engine, its iteration ends after this wait.
        """
        if not self._parts.ag_running:
            await self._parts.aclose()
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
        # A closed event loop can no longer finalize the async generator, which would abort the request.
        session = self._llm._loaded
        if session is not None and not self._answer.is_ended:
            session.forsake(self._answer)


class AsyncLLM:
    """A model in this process, for asyncio. It is loaded by `start`, by `async with`, or by the first request.

    Several event loops may use it, one after the other or in several threads. The arguments are those of `LLM`.

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
        """Guards the start of loading, which event loops in several threads may request at once."""
        self._loaded: Session | None = None
        self._is_closed = False
        self._places: Places
        """Semaphore for requests in the engine; set when the model is loaded."""

    async def start(self) -> ModelCard:
        """Loads the model once; concurrent callers wait for it. After a failure, the next call tries again.

        Raises:
            StokerError: the model cannot be loaded.
            ModelNotLoaded: the model was closed.
        """
        return (await self._session()).card

    @overload
    def generate(
        self,
        prompts: Prompt,
        sampling: OneSampling = None,
        *,
        lora: Adapters = None,
        progress: bool | None = None,
        **options: Unpack[TextOptions],
    ) -> AsyncCompletions[Completion]: ...
    @overload
    def generate(
        self,
        prompts: Prompts,
        sampling: Sampling = None,
        *,
        lora: Lora = None,
        progress: bool | None = None,
        **options: Unpack[TextOptions],
    ) -> AsyncCompletions[list[Completion]]: ...
    def generate(
        self,
        prompts: Prompt | Prompts,
        sampling: Sampling = None,
        *,
        lora: Lora = None,
        progress: bool | None = None,
        **options: Unpack[TextOptions],
    ) -> AsyncCompletions[Completion] | AsyncCompletions[list[Completion]]:
        """See `LLM.generate`. Await the call for the result, or iterate over it for the completions one by one."""
        given, others = text_options("generate()", options)
        batch, is_single = as_batch(prompts)

        async def start() -> list[Coroutine[Any, Any, Completion]]:
            params = spread(sampling, len(batch), given)
            jobs = zip(batch, params, spread_lora(lora, len(batch)), strict=True)
            return [_read(self.stream(prompt, params, lora=adapters, **others)) for prompt, params, adapters in jobs]

        return AsyncCompletions(start, is_single=is_single, show_progress=progress)

    @overload
    def chat(
        self,
        messages: Conversation,
        sampling: OneSampling = None,
        *,
        lora: Adapters = None,
        progress: bool | None = None,
        **options: Unpack[ChatOptions],
    ) -> AsyncCompletions[Completion]: ...
    @overload
    def chat(
        self,
        messages: Sequence[Messages],
        sampling: Sampling = None,
        *,
        lora: Lora = None,
        progress: bool | None = None,
        **options: Unpack[ChatOptions],
    ) -> AsyncCompletions[list[Completion]]: ...
    def chat(
        self,
        messages: Conversation | Sequence[Messages],
        sampling: Sampling = None,
        *,
        lora: Lora = None,
        progress: bool | None = None,
        **options: Unpack[ChatOptions],
    ) -> AsyncCompletions[Completion] | AsyncCompletions[list[Completion]]:
        """See `LLM.chat`. Await the call for the result, or iterate over it for the completions one by one."""
        given, others = chat_options("chat()", options)
        batch, is_single = as_conversations(messages)

        async def start() -> list[Coroutine[Any, Any, Completion]]:
            params = spread(sampling, len(batch), given)
            jobs = zip(batch, params, spread_lora(lora, len(batch)), strict=True)
            return [_read(self.stream_chat(said, each, lora=adapters, **others)) for said, each, adapters in jobs]

        return AsyncCompletions(start, is_single=is_single, show_progress=progress)

    def stream(
        self, prompt: Prompt, sampling: OneSampling = None, *, lora: Adapters = None, **options: Unpack[TextOptions]
    ) -> AsyncTextStream:
        """Completes one prompt and streams the text, with the defaults of `generate`.

        The request starts with the first iteration, which also raises the error of an invalid request.
        """
        given, others = text_options("stream()", options)

        def ask(session: Session) -> Ask:
            return text_ask(as_prompt(prompt), as_sampling(sampling, given), lora, others)

        return self._stream(ask)

    def stream_chat(
        self,
        messages: Conversation,
        sampling: OneSampling = None,
        *,
        lora: Adapters = None,
        **options: Unpack[ChatOptions],
    ) -> AsyncTextStream:
        """Answers one conversation and streams the text. The request starts with the first iteration."""
        given, others = chat_options("stream_chat()", options)
        return self._stream(lambda model: chat_ask(model, messages, as_sampling(sampling, given), lora, others))

    async def tokenize(self, text: str, *, add_bos: bool = False) -> list[int]:
        """See `LLM.tokenize`."""
        return (await self._asked(Tokenize(text, wants_bos=add_bos))).token_ids

    async def detokenize(self, token_ids: Sequence[int]) -> str:
        """See `LLM.detokenize`."""
        question = Detokenize([whole_number("token_ids", token_id) for token_id in token_ids])
        return (await self._asked(question)).text

    async def embed(
        self, texts: Prompt | Prompts, *, dimensions: int | None = None, truncate: bool = False
    ) -> NDArray[np.float32]:
        """See `LLM.embed`."""
        batch, is_single = as_batch(texts)
        rows = (await self._asked(Embed(batch, dimensions=embed_dimensions(dimensions), truncates=truncate))).rows()
        return (rows[0] if is_single else rows).copy()

    async def rank(self, query: str, documents: Sequence[str], *, truncate: bool = False) -> list[float]:
        """See `LLM.rank`."""
        return (await self._asked(as_ranking(query, documents, truncate=truncate))).relevance()

    async def metrics(self) -> EngineStats:
        """See `LLM.metrics`."""
        return await asyncio.wrap_future((await self._session()).metrics())

    def health(self) -> Health:
        """See `LLM.health`; before the model is loaded, the state is `starting`."""
        if self._loaded is None:
            return Health(is_ready=False, state="closed" if self._is_closed else "starting")
        return self._loaded.health()

    async def reload(self) -> ModelCard:
        """See `LLM.reload`."""
        await self.close()
        with self._lock:
            self._is_closed, self._loading = False, None
        return await self.start()

    async def close(self) -> None:
        """Ends all requests and frees the model; only `reload` loads it again. Calling it twice is allowed."""
        with self._lock:
            self._is_closed = True
            loading = self._loading
        if loading is None:
            return
        try:
            session = await asyncio.shield(asyncio.wrap_future(loading))
        except StokerError:  # loading failed, and the callers of `start` got the error
            return
        await asyncio.to_thread(session.close)

    def __getstate__(self) -> object:
        """Refuses to be pickled or copied, as `multiprocessing` would."""
        raise TypeError("an AsyncLLM belongs to one process: create it in the process that uses it")

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
                # A thread instead of a task: loading must survive the end of this event loop. A daemon thread: the exit
                # of the program must not wait for a download.
                threading.Thread(target=self._load, args=(loading,), name="stoker-load", daemon=True).start()
        return await asyncio.shield(asyncio.wrap_future(loading))

    def _load(self, loading: Future[Session]) -> None:
        try:
            config = local_model(self._config, progress=self._progress)
            # At exit, Python would kill a daemon thread inside native code, which then aborts the process. Python waits
            # for the executor's thread.
            with ThreadPoolExecutor(1, "stoker-open") as opener:
                session = opener.submit(self._open, config).result()
        except BaseException as error:  # noqa: BLE001  # raised by the waiting callers
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

    async def _asked(self, question: Question[A]) -> A:
        session = await self._session()
        await self._places.take(session.free_places)
        future: Future[A] = Future()

        def begin() -> None:
            try:
                session.ask(question, future)
            finally:
                future.add_done_callback(lambda _: self._places.give_back())

        try:
            await _on_thread(begin)
            return await asyncio.wrap_future(future)
        finally:
            future.cancel()

    def _stream(self, ask: Callable[[Session], Ask]) -> AsyncTextStream:
        wake = _Wake()
        answer = Answer(wake, is_streamed=True)
        return AsyncTextStream(self, self._parts(answer, wake, ask), answer)

    async def _parts(
        self, answer: Answer, wake: _Wake, ask: Callable[[Session], Ask]
    ) -> AsyncGenerator[Sequence[Part]]:
        wake.loop = asyncio.get_running_loop()
        session = await self._session()
        await self._places.take(session.free_places)

        def begin() -> None:
            try:
                session.submit(answer, ask(session))
            finally:
                answer.when_ended(self._places.give_back)

        try:
            with suppress(Cancelled):  # `aclose` aborted the request, so the answer has ended
                await _on_thread(begin)
            while (parts := answer.take()) is not None:
                if parts:
                    yield parts
                else:
                    await wake.changed.wait()
                wake.changed.clear()
        finally:
            session.abort(answer)


async def _on_thread(begin: Callable[[], None]) -> None:
    """Runs `begin` on a thread, as `asyncio.to_thread` does; `begin` finishes even if the caller is canceled."""
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

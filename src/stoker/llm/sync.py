"""`LLM`: a model in this process, asked by plain calls from any thread."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from stoker.chat.answers import Part, text_of
from stoker.core.params import whole_number
from stoker.engine.cards import ModelCard
from stoker.engine.config import EngineConfig
from stoker.engine.health import Health
from stoker.engine.question_messages import A, Detokenize, Embed, Question, Tokenize
from stoker.engine.stats import EngineStats
from stoker.llm.asks import Ask, chat_ask, text_ask
from stoker.llm.batch_run import POLL_S, BatchRun, take_place
from stoker.llm.completion import Completion, model_table
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
from stoker.llm.progress_bar import progress_bar
from stoker.llm.session import Answer, Session

if TYPE_CHECKING:
    from typing import Unpack

    from stoker.models.progress import Progress


R = TypeVar("R")


class TextStream(Iterator[str]):
    """The text of one answer, as it comes. Iterate over it, or close it to stop the model.

    When some hundred tokens have come that are not read, the request is paused until they are, so that nothing is
    computed for a reader that has stopped. Other requests have its place meanwhile, and nothing is lost.

    `events` gives reasoning and tool calls besides. One thread reads it. It is also a context manager, and stops the
    model when the last reference is gone.
    """

    def __init__(self, llm: LLM, ask: Ask) -> None:
        self._llm = llm
        """Keeps the model alive: without other references it would be closed under its reader."""
        session, places = llm._session, llm._places
        self._session = session
        self._changed = threading.Event()
        # The callback must not hold this object, or only the garbage collector could ever end it.
        answer = Answer(partial(_wake_reader, self._changed, places), is_streamed=True)
        take_place(session, places)
        self._answer = answer  # not before: whatever ends it gives the place back
        session.submit(answer, ask)

    def __next__(self) -> str:
        while (parts := self._next_parts()) is not None:
            if text := text_of(parts):
                return text
        raise StopIteration

    def events(self) -> Generator[Part]:
        """All parts of the answer, in the order in which the model writes them.

        `Content` and `Reasoning` are pieces of text; a tool call is a `CallBegin`, any number of `CallArguments` and a
        `CallEnd`.
        """
        while (parts := self._next_parts()) is not None:
            yield from parts

    def _next_parts(self) -> Sequence[Part] | None:
        """What has come since the last call, at least one part; None = the answer has ended."""
        while True:
            self._changed.clear()
            parts = self._answer.take()
            if parts is None or parts:
                return parts
            while not self._changed.wait(POLL_S):
                self._session.check_alive()

    @property
    def completion(self) -> Completion:
        """The answer as far as it has come; complete when the iteration is over.

        Raises:
            StokerError: the request failed.
        """
        return self._answer.completion()

    def close(self) -> None:
        """Stops the model; what has come so far can still be read. Calling it twice is allowed."""
        self._session.abort(self._answer)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_answer") and not self._answer.is_ended:
            self._session.forsake(self._answer)


class LLM:
    """A model in this process. Requests of all threads are computed together, up to `parallel` at a time.

    Args:
        model: a catalog name, a path to a `.gguf` file, `hf:org/repo[:file]`, or a whole `EngineConfig`.
        progress: told about the download, if one is necessary.
        options: `backend`, `ctx_size`, `kv_tokens`, `parallel`, `threads`, as in `EngineConfig`; `lora`: adapters by
            name, such as `{"sql": "sql.gguf"}`.

    Raises:
        StokerError: the model cannot be loaded.

    Example:
        >>> with LLM("smollm2") as llm:  # doctest: +SKIP
        ...     print(llm.chat([{"role": "user", "content": "Hello!"}]).text)
    """

    def __init__(
        self, model: str | Path | EngineConfig, *, progress: Progress | None = None, **options: Unpack[EngineOptions]
    ) -> None:
        self._config, self._progress = engine_config(model, options), progress
        self._reloading = threading.Lock()
        self._open()

    def _open(self) -> None:
        self._session = Session(self._config, self._progress)
        self._places = threading.BoundedSemaphore(self._session.max_outstanding)
        # Runs at the interpreter's exit too: a forgotten `close` must not keep it alive.
        self._close = weakref.finalize(self, self._session.close)

    @property
    def card(self) -> ModelCard:
        """What the loaded model is."""
        return self._session.card

    @overload
    def generate(
        self,
        prompts: Prompt,
        sampling: OneSampling = None,
        *,
        lora: Adapters = None,
        progress: bool | None = None,
        **options: Unpack[TextOptions],
    ) -> Completion: ...
    @overload
    def generate(
        self,
        prompts: Prompts,
        sampling: Sampling = None,
        *,
        lora: Lora = None,
        progress: bool | None = None,
        **options: Unpack[TextOptions],
    ) -> list[Completion]: ...
    def generate(
        self,
        prompts: Prompt | Prompts,
        sampling: Sampling = None,
        *,
        lora: Lora = None,
        progress: bool | None = None,
        **options: Unpack[TextOptions],
    ) -> Completion | list[Completion]:
        """Completes one prompt, or a list of prompts together; a list comes back in its order.

        Args:
            prompts: text, token ids, or a list of either. No chat template is applied.
            sampling: one for all prompts, or one for each. `max_tokens` not given = 16384, but no more than three
                quarters of the context; -1 = until the model stops or the context is full.
            lora: the name of an adapter, or names with scales; a list has one of these for each prompt.
            progress: whether to draw a progress bar on stderr. None = for 16 prompts or more, on a terminal or in a
                notebook.
            options: `timeout`, the maximum time for each answer in seconds; `response_format`, what the answers must
                look like: a class, a JSON schema, or a dict such as `{"regex": "[0-9]+"}` or
                `{"choice": ["yes", "no"]}`. All others are fields of `SamplingParams`, such as `temperature=0`; they
                take precedence over `sampling`.

        Raises:
            StokerError: a request was refused or failed; all others are stopped.
            TypeError: there is no such option.
        """
        given, options = text_options("generate()", options)
        batch, is_single = as_batch(prompts)
        params = spread(sampling, len(batch), given)
        jobs = zip(batch, params, spread_lora(lora, len(batch)), strict=True)
        answers = self._run([text_ask(*job, options) for job in jobs], show_progress=progress)
        return answers[0] if is_single else answers

    @overload
    def chat(
        self,
        messages: Conversation,
        sampling: OneSampling = None,
        *,
        lora: Adapters = None,
        progress: bool | None = None,
        **options: Unpack[ChatOptions],
    ) -> Completion: ...
    @overload
    def chat(
        self,
        messages: Sequence[Messages],
        sampling: Sampling = None,
        *,
        lora: Lora = None,
        progress: bool | None = None,
        **options: Unpack[ChatOptions],
    ) -> list[Completion]: ...
    def chat(
        self,
        messages: Conversation | Sequence[Messages],
        sampling: Sampling = None,
        *,
        lora: Lora = None,
        progress: bool | None = None,
        **options: Unpack[ChatOptions],
    ) -> Completion | list[Completion]:
        """Answers one conversation, or a list of them together, by the model's own chat template.

        Args:
            messages: one conversation (`Message` objects, dicts in OpenAI's shape, or a text as the user's only
                message), or a list of conversations.
            sampling: one for all, or one for each. `max_tokens` as of `generate`.
            lora: as of `generate`.
            progress: as of `generate`.
            options: `timeout` as of `generate`; `tools`, Python functions or definitions in OpenAI's shape, and
                `tool_choice`, which is `auto`, `required`, `none` or a tool; `parallel_tool_calls`; `response_format`
                as of `generate`; `reasoning`, which is False, True, the maximum number of its tokens, or an effort such
                as `low`; `template_kwargs`, further variables for the chat template. All others are fields of
                `SamplingParams`.

        Raises:
            StokerError: a request was refused or failed; all others are stopped.
            TypeError: there is no such option.

        Example:
            >>> def weather(city: str) -> str:
            ...     "Says how the weather is."
            ...     return f"It rains in {city}."
            >>> with LLM("smollm2") as llm:  # doctest: +SKIP
            ...     answer = llm.chat("How is the weather in Paris?", tools=[weather])
            ...     print([call.run() for call in answer.tool_calls] or answer.text)
        """
        given, options = chat_options("chat()", options)
        batch, is_single = as_conversations(messages)
        jobs = zip(batch, spread(sampling, len(batch), given), spread_lora(lora, len(batch)), strict=True)
        answers = self._run([chat_ask(self._session, *job, options) for job in jobs], show_progress=progress)
        return answers[0] if is_single else answers

    def stream(
        self, prompt: Prompt, sampling: OneSampling = None, *, lora: Adapters = None, **options: Unpack[TextOptions]
    ) -> TextStream:
        """Completes one prompt piece by piece, with the defaults of `generate`.

        What can be refused is refused here, not by the iteration.

        Args:
            prompt: text or token ids.
            sampling: its parameters.
            lora: as of `generate`.
            options: as of `generate`.
        """
        given, options = text_options("stream()", options)
        return TextStream(self, text_ask(as_prompt(prompt), as_sampling(sampling, given), lora, options))

    def stream_chat(
        self,
        messages: Conversation,
        sampling: OneSampling = None,
        *,
        lora: Adapters = None,
        **options: Unpack[ChatOptions],
    ) -> TextStream:
        """Answers one conversation piece by piece. What can be refused is refused here, not by the iteration.

        Args:
            messages: one conversation.
            sampling: its parameters.
            lora: as of `generate`.
            options: as of `chat`.
        """
        given, options = chat_options("stream_chat()", options)
        return TextStream(self, chat_ask(self._session, messages, as_sampling(sampling, given), lora, options))

    def tokenize(self, text: str, *, add_bos: bool = False) -> list[int]:
        """The token ids of a text; the text of a special token is that token.

        Args:
            text: the text.
            add_bos: begin with the beginning-of-sequence token if the model wants one, as a prompt does.
        """
        return self._asked(Tokenize(text, wants_bos=add_bos)).token_ids

    def detokenize(self, token_ids: Sequence[int]) -> str:
        """The text of some tokens; special tokens are written out."""
        return self._asked(Detokenize([whole_number("token_ids", token_id) for token_id in token_ids])).text

    def embed(
        self, texts: Prompt | Prompts, *, dimensions: int | None = None, truncate: bool = False
    ) -> NDArray[np.float32]:
        """The embedding of one text, or of a list of them, each of length 1.

        Args:
            texts: text, token ids, or a list of either.
            dimensions: only so many numbers of each, for models that were trained for that.
            truncate: cut what is too long, instead of refusing it.

        Returns:
            `(size,)` for one text, `(n, size)` for a list, in its order.

        Raises:
            StokerError: an input was refused, or the model cannot embed.

        Example:
            >>> with LLM("smollm2") as llm:  # doctest: +SKIP
            ...     a, b = llm.embed(["a cat", "a kitten"])
            ...     print(float(a @ b))
        """
        batch, is_single = as_batch(texts)
        rows = self._asked(Embed(batch, dimensions=embed_dimensions(dimensions), truncates=truncate)).rows()
        return (rows[0] if is_single else rows).copy()

    def rank(self, query: str, documents: Sequence[str], *, truncate: bool = False) -> list[float]:
        """How well each document answers a query, between 0 and 1, in their order. For reranking models.

        Raises:
            StokerError: a document was refused, or the model is no reranking model.
        """
        return self._asked(as_ranking(query, documents, truncate=truncate)).relevance()

    def metrics(self) -> EngineStats:
        """What the engine computes now, and has computed since the model was loaded: requests, tokens, cache, steps."""
        return self._awaited(self._session.metrics())

    def health(self) -> Health:
        """Whether the model can answer now: `is_ready`, `state` (`ready`, `failed` or `closed`) and `last_error`."""
        return self._session.health()

    def reload(self) -> ModelCard:
        """Loads the model again from its file, as after a change of the file, a failure of the engine, or `close`.

        Requests that run end with `ModelNotLoaded`, and so do those of other threads until the model is loaded.

        Raises:
            StokerError: the model cannot be loaded; `reload` may be tried again.
        """
        with self._reloading:
            self._close()
            self._open()
        return self.card

    def close(self) -> None:
        """Ends every request and frees the model. Calling it twice is allowed."""
        self._close()

    def __repr__(self) -> str:
        return f"<LLM {self.card.name}, context size {self.card.context_size}, {self.health().state}>"

    def _repr_html_(self) -> str:
        """What Jupyter shows: the model and its sizes."""
        return model_table(self.card, self.health().state)

    def __getstate__(self) -> object:
        """Refuses to be pickled or copied, as `multiprocessing` would."""
        raise TypeError("an LLM belongs to one process: create it in the process that uses it")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _asked(self, question: Question[A]) -> A:
        take_place(self._session, self._places)
        try:
            future: Future[A] = Future()
            try:
                self._session.ask(question, future)
                return self._awaited(future)
            finally:
                future.cancel()
        finally:
            self._places.release()

    def _awaited(self, future: Future[R]) -> R:
        while True:
            try:
                return future.result(POLL_S)
            except FutureTimeout:
                self._session.check_alive()

    def _run(self, jobs: Sequence[Ask], *, show_progress: bool | None) -> list[Completion]:
        run = BatchRun(self._session, self._places, len(jobs))
        try:
            with progress_bar(len(jobs), is_shown=show_progress) as advance:
                for job in jobs:
                    run.submit(job)
                    run.collect(advance, wait_for_all=False)
                run.collect(advance, wait_for_all=True)
        finally:
            run.stop()
        return [answer.completion() for answer in run.answers]


def _wake_reader(changed: threading.Event, places: threading.BoundedSemaphore, is_ended: bool) -> None:
    if is_ended:
        places.release()
    changed.set()

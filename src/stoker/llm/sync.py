"""`LLM`: a model in this process, with blocking methods for any thread."""

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
    """The text of one answer as a stream. Iterate over it, or close it to stop the model.

    When a few hundred tokens are unread, the request is paused until the reader has read them, so that nothing is
    computed for a reader that has stopped. Meanwhile, other requests can use its place. No text is lost.

    `events` also yields reasoning and tool calls. Only one thread may read a stream. A stream is a context manager, and
    the model stops when the last reference to the stream is gone.
    """

    def __init__(self, llm: LLM, ask: Ask) -> None:
        self._llm = llm
        """Keeps the model alive: without other references it would be closed under its reader."""
        session, places = llm._session, llm._places
        self._session = session
        self._changed = threading.Event()
        # The callback must not refer to this object, since only the garbage collector could end the reference cycle.
        answer = Answer(partial(_wake_reader, self._changed, places), is_streamed=True)
        take_place(session, places)
        self._answer = answer  # only after `take_place`: the end of the answer gives the place back
        session.submit(answer, ask)

    def __next__(self) -> str:
        while (parts := self._next_parts()) is not None:
            if text := text_of(parts):
                return text
        raise StopIteration

    def events(self) -> Generator[Part]:
        """All parts of the answer, in the order in which the model generates them.

        `Content` and `Reasoning` are pieces of text. A tool call is a `CallBegin`, any number of `CallArguments`, and a
        `CallEnd`.
        """
        while (parts := self._next_parts()) is not None:
            yield from parts

    def _next_parts(self) -> Sequence[Part] | None:
        """Waits for the parts since the last call, at least one; None = the answer has ended."""
        while True:
            self._changed.clear()
            parts = self._answer.take()
            if parts is None or parts:
                return parts
            while not self._changed.wait(POLL_S):
                self._session.check_alive()

    @property
    def prompt_progress(self) -> tuple[int, int] | None:
        """Computed or cached tokens of the prompt, and all of its tokens; None = not known yet. Any thread may ask."""
        return self._answer.prompt_progress

    @property
    def completion(self) -> Completion:
        """The answer so far; complete when the iteration has ended.

        Raises:
            StokerError: the request failed.
        """
        return self._answer.completion()

    def close(self) -> None:
        """Stops the model. The text that was generated before can still be read. Calling it twice is allowed."""
        self._session.abort(self._answer)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_answer") and not self._answer.is_ended:
            self._session.forsake(self._answer)


class LLM:
    """A model in this process. Requests of all threads are batched, up to `parallel` at a time.

    Args:
        model: a short name, the path of a `.gguf` file or an ONNX folder, `org/repo[:file]` on the Hugging Face Hub, or
            an `EngineConfig`.
        progress: receives the progress of the download, if there is one.
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
        # This also runs at the interpreter's exit, so that a forgotten `close` does not keep the process alive.
        self._close = weakref.finalize(self, self._session.close)

    @property
    def card(self) -> ModelCard:
        """Properties of the loaded model: name, sizes, capabilities."""
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
        """Completes one prompt, or a list of prompts in a batch. The answers to a list have the order of the prompts.

        Args:
            prompts: text, token ids, or a list of either. No chat template is applied.
            sampling: parameters for all prompts, or a list with one for each prompt. The default of `max_tokens` is
                16384, but no more than three quarters of the context; -1 = until the model stops or the context is
                full.
            lora: the name of an adapter, or names with scales; or a list with one of these for each prompt.
            progress: whether to show a progress bar on stderr. None = for 16 prompts or more, on a terminal or in a
                notebook.
            options: `timeout` is the maximum time for each answer, in seconds. `response_format` constrains the
                answers: a class, a JSON schema, or a dict such as `{"regex": "[0-9]+"}` or
                `{"choice": ["yes", "no"]}`. All other options are fields of `SamplingParams`, such as `temperature=0`,
                and take precedence over `sampling`.

        Raises:
            StokerError: a request was refused or failed; all other requests of the call are stopped.
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
        """Answers one conversation, or a list of conversations in a batch, with the model's own chat template.

        Args:
            messages: one conversation (`Message` objects, dicts in OpenAI's format, or a string as the user's only
                message), or a list of conversations.
            sampling: as in `generate`.
            lora: as in `generate`.
            progress: as in `generate`.
            options: `timeout` and `response_format` as in `generate`. `tools` are Python functions or definitions in
                OpenAI's format. `tool_choice` is `auto`, `required`, `none` or a tool. `parallel_tool_calls=False`
                allows at most one call. `reasoning` is False, True, the maximum number of reasoning tokens, or
                an effort such as `low`. `template_kwargs` are additional variables for the chat template. All other
                options are fields of `SamplingParams`.

        Raises:
            StokerError: a request was refused or failed; all other requests of the call are stopped.
            TypeError: there is no such option.

        Example:
            >>> def weather(city: str) -> str:
            ...     "Returns the current weather."
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
        """Completes one prompt and streams the text, with the defaults of `generate`.

        An invalid request raises an error here, not during the iteration.

        Args:
            prompt: text or token ids.
            sampling: sampling parameters.
            lora: as in `generate`.
            options: as in `generate`.
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
        """Answers one conversation and streams the text.

        An invalid request raises an error here, not during the iteration.

        Args:
            messages: one conversation.
            sampling: sampling parameters.
            lora: as in `generate`.
            options: as in `chat`.
        """
        given, options = chat_options("stream_chat()", options)
        return TextStream(self, chat_ask(self._session, messages, as_sampling(sampling, given), lora, options))

    def tokenize(self, text: str, *, add_bos: bool = False) -> list[int]:
        """The token ids of a text. The text of a special token, such as `<|im_end|>`, becomes that token.

        Args:
            text: the text.
            add_bos: begin with the beginning-of-sequence token, as in a prompt, if the model uses one.
        """
        return self._asked(Tokenize(text, wants_bos=add_bos)).token_ids

    def detokenize(self, token_ids: Sequence[int]) -> str:
        """The text of a list of token ids, including the text of special tokens."""
        return self._asked(Detokenize([whole_number("token_ids", token_id) for token_id in token_ids])).text

    def embed(
        self, texts: Prompt | Prompts, *, dimensions: int | None = None, truncate: bool = False
    ) -> NDArray[np.float32]:
        """The embedding of one text, or of each text in a list, normalized to length 1.

        Args:
            texts: text, token ids, or a list of either.
            dimensions: keep only the first numbers of each embedding, for models that were trained for this.
            truncate: truncate texts that are too long for the model, instead of refusing them.

        Returns:
            Array of shape `(size,)` for one text, or `(n, size)` for a list, in the order of the texts.

        Raises:
            StokerError: an input was refused, or the model cannot compute embeddings.

        Example:
            >>> with LLM("smollm2") as llm:  # doctest: +SKIP
            ...     a, b = llm.embed(["a cat", "a kitten"])
            ...     print(float(a @ b))
        """
        batch, is_single = as_batch(texts)
        rows = self._asked(Embed(batch, dimensions=embed_dimensions(dimensions), truncates=truncate)).rows()
        return (rows[0] if is_single else rows).copy()

    def rank(self, query: str, documents: Sequence[str], *, truncate: bool = False) -> list[float]:
        """The relevance of each document for a query, between 0 and 1, in the given order. For reranking models.

        Raises:
            StokerError: a document was refused, or the model is not a reranking model.
        """
        return self._asked(as_ranking(query, documents, truncate=truncate)).relevance()

    def metrics(self) -> EngineStats:
        """Current and total numbers of requests, tokens, cache hits and steps since the model was loaded."""
        return self._awaited(self._session.metrics())

    def health(self) -> Health:
        """State of the model: `is_ready`, `state` (`ready`, `failed` or `closed`) and `last_error`."""
        return self._session.health()

    def reload(self) -> ModelCard:
        """Loads the model again from its file, such as after a change of the file, an engine failure, or `close`.

        Running requests end with `ModelNotLoaded`, as do requests of other threads until the model is loaded.

        Raises:
            StokerError: the model cannot be loaded. `reload` may be called again.
        """
        with self._reloading:
            self._close()
            self._open()
        return self.card

    def close(self) -> None:
        """Ends all requests and frees the model. Calling it twice is allowed."""
        self._close()

    def __repr__(self) -> str:
        return f"<LLM {self.card.name}, context size {self.card.context_size}, {self.health().state}>"

    def _repr_html_(self) -> str:
        """HTML for Jupyter: the model and its sizes."""
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

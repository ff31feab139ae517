"""`Runtime`: the interface of a served model, whatever engine or process computes it. It knows no wire format."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import TYPE_CHECKING, Protocol, Unpack

from stoker.engine.cards import ModelCard
from stoker.engine.config import AdapterSpec
from stoker.engine.health import Health
from stoker.engine.protocol import Accepted, Output, Submit
from stoker.engine.question_messages import A, Question
from stoker.text.messages import Message, RenderOptions

if TYPE_CHECKING:
    from stoker.text.chat_formats.probe import ChatFormat


class Runtime(Protocol):
    """One served model. All methods but `render_chat` and `chat_format` belong to one event loop.

    `start` loads the model and `close` unloads it. `card` describes the model; `health` says whether it can be asked,
    and its heartbeat carries the metrics. Failures are the exceptions of `errors`, whatever backend computes.
    """

    @property
    def card(self) -> ModelCard:
        """The description of the loaded model.

        Raises:
            ModelNotLoaded: the model was never loaded.
        """
        ...

    async def start(self) -> ModelCard:
        """Loads the model and returns when it can be asked. Further calls do nothing.

        Raises:
            StokerError: the model cannot be loaded.
        """
        ...

    def health(self) -> Health: ...

    def generate(self, submit: Submit) -> AsyncGenerator[Accepted | Output, None]:
        """Runs one request. The first item is `Accepted`, the last one an `Output` with a `finish_reason`.

        Closing the generator, or cancelling the task that waits on it, aborts the request and frees its resources.

        Raises:
            StokerError: instead of `Accepted` if the request is refused, later if it fails.
        """
        ...

    @property
    def chat_format(self) -> ChatFormat:
        """The syntax of the model's reasoning and tool calls. Computed at the first use; safe to use from any thread.

        Raises:
            ModelNotLoaded: the model was never loaded.
            TemplateError: the chat template does not compile.
        """
        ...

    def render_chat(self, messages: Sequence[Message], **options: Unpack[RenderOptions]) -> str:
        """The prompt text of a conversation, by the model's own chat template. Safe to call from any thread.

        Args:
            messages: the conversation, oldest first; not empty.
            options: see `RenderOptions`.

        Raises:
            TemplateError: the template refused the messages.
        """
        ...

    async def ask(self, question: Question[A]) -> A:
        """The answer to a question. Cancelling the task that waits on it aborts an `Embed`.

        A `ChangeAdapters` that has begun must not be cancelled: replicas would differ.

        Raises:
            InvalidInput: the question names something that does not exist.
            UnsupportedParameter: this runtime, its backend or its settings do not support the question.
            AdapterNotFound: no adapter has this name or id.
            ResourceExhausted: running requests occupy the memory that the question needs.
            StokerError: the model cannot answer now, or the question failed.
        """
        ...

    def begin_with(self, adapters: Sequence[AdapterSpec]) -> None:
        """Sets the adapters that every engine started from now on loads, instead of the configured ones.

        An adapter that can no longer be loaded is left out.
        """
        ...

    async def close(self) -> None:
        """Ends every request with an error and frees the model. Calling it twice is allowed."""
        ...

"""What a model that can be asked offers, wherever it runs; nothing here knows a wire format."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from stoker.engine.cards import ModelCard
from stoker.engine.config import AdapterSpec
from stoker.engine.health import Health
from stoker.engine.protocol import Accepted, Output, Submit
from stoker.engine.question_messages import A, Question
from stoker.text.messages import Json, Message

if TYPE_CHECKING:
    from stoker.text.chat_formats.probe import ChatFormat


class Runtime(Protocol):
    """One served model. All methods but `render_chat` belong to one event loop.

    It is loaded by `start` and unloaded by `close`; `card` is what it is, `health` how it does, and the heartbeat in it
    carries its metrics. Failures are those of `errors`, whatever backend computes.
    """

    @property
    def card(self) -> ModelCard:
        """What the loaded model is.

        Raises:
            ModelNotLoaded: it was never loaded.
        """
        ...

    async def start(self) -> ModelCard:
        """Loads the model and returns when it can be asked. Calling it again is free.

        Raises:
            StokerError: the model cannot be loaded.
        """
        ...

    def health(self) -> Health: ...

    def generate(self, submit: Submit) -> AsyncGenerator[Accepted | Output, None]:
        """Runs one request. The first item is `Accepted`, the last one an `Output` with a `finish_reason`.

        Closing the generator, or cancelling the task that waits on it, frees what the request holds.

        Raises:
            StokerError: instead of `Accepted` if the request is refused, later if it fails.
        """
        ...

    @property
    def chat_format(self) -> ChatFormat:
        """How the model reasons and calls tools. Computed at the first use; safe to use from any thread.

        Raises:
            ModelNotLoaded: the model was never loaded.
            TemplateError: the chat template does not compile.
        """
        ...

    def render_chat(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Json]] = (),
        template_kwargs: Mapping[str, object] | None = None,
    ) -> str:
        """The prompt text of a conversation, by the model's own chat template. Safe to call from any thread.

        Args:
            messages: the conversation, oldest first; not empty.
            add_generation_prompt: open the assistant's turn at the end.
            continue_final_message: leave the last message open, so that the answer continues it.
            tools: definitions in OpenAI's shape that the model may call.
            template_kwargs: further variables for the template (such as `enable_thinking`).

        Raises:
            TemplateError: the template refused the messages.
        """
        ...

    async def ask(self, question: Question[A]) -> A:
        """The answer to a question. Cancelling the task that waits on it takes an `Embed` back.

        A `ChangeAdapters` that has begun must not be cancelled: replicas would differ.

        Raises:
            InvalidInput: the question asks for something that is not there.
            UnsupportedParameter: this runtime, its backend or its settings cannot do it.
            AdapterNotFound: there is no adapter of this name or id.
            ResourceExhausted: running requests need the room.
            StokerError: the model cannot answer now, or the question failed.
        """
        ...

    def begin_with(self, adapters: Sequence[AdapterSpec]) -> None:
        """What an engine that is started from now on has loaded, whatever the configuration says.

        An adapter that cannot be loaded any more is left out.
        """
        ...

    async def close(self) -> None:
        """Ends every request with an error and frees the model. Calling it twice is allowed."""
        ...

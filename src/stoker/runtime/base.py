"""What a model that can be asked offers, wherever it runs; nothing here knows a wire format."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from stoker.engine.protocol import Accepted, Heartbeat, ModelCard, Output, Submit
from stoker.text.messages import Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """Whether a runtime can answer now, and why not."""

    is_ready: bool
    state: str
    """One word for people and probes: `starting`, `ready`, `restarting`, `stalled`, `failed`, `closed`."""
    num_restarts: int = 0
    last_error: str | None = None
    heartbeat: Heartbeat | None = None
    """The newest sign of life of the engine, if there was one."""


class Runtime(Protocol):
    """One served model. All methods but `render_chat` belong to one event loop."""

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

    def render_chat(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_kwargs: Mapping[str, object] | None = None,
    ) -> str:
        """The prompt text of a conversation, by the model's own chat template. Safe to call from any thread.

        Args:
            messages: the conversation, oldest first; not empty.
            add_generation_prompt: open the assistant's turn at the end.
            continue_final_message: leave the last message open, so that the answer continues it.
            template_kwargs: further variables for the template (such as `enable_thinking`).

        Raises:
            TemplateError: the template refused the messages.
        """
        ...

    async def close(self) -> None:
        """Ends every request with an error and frees the model. Calling it twice is allowed."""
        ...

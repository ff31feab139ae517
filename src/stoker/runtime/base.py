"""What a model that can be asked offers, wherever it runs; nothing here knows a wire format."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from stoker.core.slot_state import SlotState
from stoker.engine.cards import AdapterCard, ModelCard
from stoker.engine.config import AdapterSpec
from stoker.engine.heartbeat import Heartbeat
from stoker.engine.protocol import Accepted, Embed, Embedded, Output, SlotFiled, Submit, Tokenized
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
    loaded_part: float | None = None
    """How far the weights are on their way into memory, if that is known. Range 0 … 1."""
    replicas: Mapping[int, Health] = field(default_factory=dict[int, "Health"])
    """Of a model that has several engines: each of them, by its number."""


class Runtime(Protocol):
    """One served model. All methods but `render_chat` belong to one event loop.

    It is loaded by `start` and unloaded by `close`; `card` is what it is, `health` how it does, and the heartbeat in it
    carries its metrics. What goes wrong is one of `errors`, whoever computes.
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

    async def tokenize(self, text: str, *, wants_bos: bool = True, parse_special: bool = True) -> Tokenized:
        """The tokens of a text; as those of a prompt, unless told otherwise.

        Args:
            text: any text.
            wants_bos: BOS in front, if the model wants one and the text does not bring its own.
            parse_special: the text of a special token becomes that token.

        Raises:
            StokerError: the model cannot answer now, or the text is not valid Unicode.
        """
        ...

    async def detokenize(self, token_ids: Sequence[int]) -> str:
        """The text of some tokens, special ones written out.

        Raises:
            StokerError: the model cannot answer now, or an id is outside the vocabulary.
        """
        ...

    async def embed(self, embed: Embed) -> Embedded:
        """Embeddings, or ranks. Cancelling the task that waits on it takes the request back.

        Args:
            embed: its `question_id` is given by whoever sends it on.

        Raises:
            StokerError: it was refused or failed.
        """
        ...

    async def slots(self) -> list[SlotState]:
        """What every slot of the KV pool holds now.

        Raises:
            StokerError: the model cannot answer now.
        """
        ...

    async def erase(self, slot: int | None = None) -> int:
        """Forgets what finished conversations left in one slot, or in all; returns how many tokens those were.

        Raises:
            StokerError: the model cannot answer now, there is no such slot, or a request runs in it.
        """
        ...

    async def save_slot(self, slot: int, filename: str) -> SlotFiled:
        """Writes what a finished conversation left in a slot to a file in the folder for that.

        Raises:
            UnsupportedParameter: there is no such folder, or the backend cannot do it.
            InvalidInput: there is nothing to save, a request runs in it, or that is no name for a file.
            StokerError: the model cannot answer now.
        """
        ...

    async def restore_slot(self, slot: int, filename: str) -> SlotFiled:
        """Fills an idle slot with what was saved.

        Raises:
            InvalidInput: a request runs in it; there is no such file, or it is another model's or damaged.
            ResourceExhausted: running requests need the room.
            StokerError: see `save_slot`.
        """
        ...

    async def change_adapters(
        self, *, load: AdapterSpec | None = None, unload: str | None = None, scales: dict[int, float] | None = None
    ) -> list[AdapterCard]:
        """The adapters that are loaded, after these changes. See `ChangeAdapters`.

        Raises:
            AdapterNotFound: there is none of this name or id.
            StokerError: they cannot be changed so.
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

"""A model in an engine process of our own; conversations are rendered on this side of it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence

import msgspec

from stoker.core.slot_state import SlotState
from stoker.engine.cards import AdapterCard, ModelCard
from stoker.engine.client import EngineClient
from stoker.engine.config import AdapterSpec
from stoker.engine.protocol import Accepted, Embed, Embedded, Output, SlotFiled, Submit, Tokenized
from stoker.errors import ModelNotLoaded
from stoker.runtime.base import Health
from stoker.runtime.card_template import CardTemplate
from stoker.text.messages import Message
from stoker.text.volatile import VolatileHeaders


class LocalRuntime:
    """The `Runtime` over one `EngineClient`, which it owns.

    Args:
        client: not started yet.
        volatile: what is dropped from the head of system prompts; None = nothing.
    """

    def __init__(self, client: EngineClient, volatile: VolatileHeaders | None = None) -> None:
        self._client = client
        self._volatile = volatile or VolatileHeaders(())
        self._card: ModelCard | None = None
        self._template: CardTemplate | None = None

    @property
    def card(self) -> ModelCard:
        if self._card is None:
            raise ModelNotLoaded("the model is still loading")
        return self._card

    async def start(self) -> ModelCard:
        if self._card is None:
            self._card = await self._client.start()
            self._template = CardTemplate(self._card)
        return self._card

    def health(self) -> Health:
        engine = self._client.health()
        return Health(
            is_ready=engine.is_ready,
            state=engine.state.value,
            num_restarts=engine.num_restarts,
            last_error=engine.last_error,
            heartbeat=engine.heartbeat,
            loaded_part=engine.loaded_part,
        )

    def generate(self, submit: Submit) -> AsyncGenerator[Accepted | Output, None]:
        return self._client.generate(submit)

    def render_chat(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_kwargs: Mapping[str, object] | None = None,
    ) -> str:
        variables: dict[str, object] = dict(template_kwargs or {})
        template = self._template
        if template is None:
            raise ModelNotLoaded("the model is still loading")
        return template.compiled.render(
            self._volatile.drop(messages),
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            **variables,  # pyright: ignore[reportArgumentType]  # the server keeps the named ones out
        )

    async def tokenize(self, text: str, *, wants_bos: bool = True, parse_special: bool = True) -> Tokenized:
        return await self._client.tokenize(text, wants_bos=wants_bos, parse_special=parse_special)

    async def detokenize(self, token_ids: Sequence[int]) -> str:
        return await self._client.detokenize(token_ids)

    async def embed(self, embed: Embed) -> Embedded:
        return await self._client.embed(embed)

    async def slots(self) -> list[SlotState]:
        return await self._client.slots()

    async def erase(self, slot: int | None = None) -> int:
        return await self._client.erase(slot)

    async def change_adapters(
        self, *, load: AdapterSpec | None = None, unload: str | None = None, scales: dict[int, float] | None = None
    ) -> list[AdapterCard]:
        adapters = await self._client.change_adapters(load=load, unload=unload, scales=scales)
        if self._card is not None:
            self._card = msgspec.structs.replace(self._card, adapters=adapters)
        return adapters

    def begin_with(self, adapters: Sequence[AdapterSpec]) -> None:
        self._client.begin_with(adapters)

    async def save_slot(self, slot: int, filename: str) -> SlotFiled:
        return await self._client.save_slot(slot, filename)

    async def restore_slot(self, slot: int, filename: str) -> SlotFiled:
        return await self._client.restore_slot(slot, filename)

    async def close(self) -> None:
        await self._client.close()

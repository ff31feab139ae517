"""The asyncio face of an engine that runs in a supervised process of its own. It decides nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass

import msgspec

from stoker.core.slot_state import SlotState
from stoker.engine.cards import AdapterCard, ModelCard
from stoker.engine.config import AdapterSpec, EngineConfig, SupervisionConfig
from stoker.engine.door import Door
from stoker.engine.heartbeat import Heartbeat
from stoker.engine.inbox import InboxLimits
from stoker.engine.protocol import (
    Accepted,
    AdapterList,
    Answer,
    ChangeAdapters,
    Command,
    Detokenize,
    Detokenized,
    Embed,
    Embedded,
    Erased,
    EraseSlots,
    Failed,
    ListSlots,
    Output,
    RestoreSlot,
    SaveSlot,
    SlotFiled,
    SlotList,
    Submit,
    Tokenize,
    Tokenized,
)
from stoker.engine.questions import Questions
from stoker.engine.requests import PendingRequest, Requests
from stoker.engine.spare import ENGINE_COMMAND
from stoker.engine.supervisor import State, Supervisor
from stoker.engine.template import Template
from stoker.errors import ModelNotLoaded, Timeout

_TIMEOUT_GRACE_S = 2.0
"""The engine keeps the deadline; this is for when it cannot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineHealth:
    """How an engine process is doing."""

    state: State
    heartbeat: Heartbeat | None
    """The newest one of the present process."""
    num_restarts: int
    last_error: str | None
    """Why the process before this one ended, or why there is none."""
    loaded_part: float | None = None
    """How far it is with loading, if it says so. Range 0 … 1."""

    @property
    def is_ready(self) -> bool:
        return self.state is State.READY


class _Switch:
    """Tells requests and questions what the supervisor hears. See `Listener`."""

    def __init__(self, requests: Requests, questions: Questions) -> None:
        self._requests = requests
        self._questions = questions

    def on_ready(self, card: ModelCard) -> None:
        self._requests.on_ready(card)

    def on_event(self, event: Accepted | Output | Failed | Answer) -> None:
        match event:
            case Output() | Accepted() | Failed():
                self._requests.on_event(event)
            case _:
                self._questions.on_answer(event)

    def on_down(self, reason: str) -> None:
        self._requests.on_down(reason)
        self._questions.on_down(reason)


class EngineClient:
    """Asks an engine in a child process. Belongs to one event loop.

    If the child dies, requests that had begun to answer end with `EngineCrashed`; the others are given once to its
    successor, and notice nothing. While there is no child, new requests are refused.

    Args:
        config: what the child is told to load.
        command: starts a child that runs `serve_engine`.
        supervision: when a child counts as lost, and how it is started again.
        limits: how far a reader may fall behind.
        repeats: False = whoever asks gives what had not begun to somebody else: it ends with `EngineCrashed` too.
        template: forks the child, see `Supervisor`.
    """

    def __init__(
        self,
        config: EngineConfig,
        *,
        command: Sequence[str] = ENGINE_COMMAND,
        supervision: SupervisionConfig | None = None,
        limits: InboxLimits | None = None,
        repeats: bool = True,
        template: Template | None = None,
    ) -> None:
        supervision = supervision or SupervisionConfig()
        door = Door(capacity=config.parallel + config.max_queue, parallel=config.parallel)
        repeat_wait_s = supervision.restart_wait_s if repeats else None
        self._requests = Requests(self._send, door, limits or InboxLimits(), repeat_wait_s)
        self._questions = Questions(self._send)
        switch = _Switch(self._requests, self._questions)
        self._supervisor = Supervisor(command, config, switch, supervision, template)
        self._card: ModelCard | None = None

    @property
    def card(self) -> ModelCard:
        """What the loaded model is.

        Raises:
            ModelNotLoaded: it was never loaded.
        """
        if self._card is None:
            raise ModelNotLoaded("the model is not loaded yet")
        return self._card

    @property
    def child_pid(self) -> int | None:
        """The process id of the present child."""
        return self._supervisor.child_pid

    async def start(self) -> ModelCard:
        """Starts the child and returns when it has loaded the model. Call it once.

        Raises:
            StokerError: the model cannot be loaded; nothing is left running.
        """
        self._card = await self._supervisor.start()
        return self._card

    async def generate(self, submit: Submit) -> AsyncGenerator[Accepted | Output, None]:
        """Runs one request. The first item is `Accepted`, the last one an `Output` with a `finish_reason`.

        Closing the generator, or cancelling the task that waits on it, aborts the request.

        Raises:
            StokerError: instead of `Accepted` if the request is refused, later if it fails. `EngineCrashed`: the
                child died after the first token, or twice before it. `Cancelled`: the reader was far too slow.
        """
        request = self._requests.open(submit)
        try:
            while True:
                event = await (request.inbox.get() if request.deadline is None else _in_time(request, request.deadline))
                self._requests.note_read(request)
                yield event
                if isinstance(event, Output) and event.finish_reason is not None:
                    return
        finally:
            self._requests.close(request)

    async def tokenize(self, text: str, *, wants_bos: bool = True, parse_special: bool = True) -> Tokenized:
        """The tokens of a text; as those of a prompt, unless told otherwise. See `Tokenize`.

        Raises:
            InvalidInput: the text is not valid Unicode.
            StokerError: the engine cannot answer, see `Questions.ask`.
        """
        return await self._questions.ask(lambda number: Tokenize(number, text, wants_bos, parse_special), Tokenized)

    async def detokenize(self, token_ids: Sequence[int]) -> str:
        """The text of some tokens, special ones written out.

        Raises:
            InvalidInput: an id is outside the vocabulary.
            StokerError: see `tokenize`.
        """
        answer = await self._questions.ask(lambda number: Detokenize(number, list(token_ids)), Detokenized)
        return answer.text

    async def embed(self, embed: Embed) -> Embedded:
        """Embeddings, or ranks. Cancelling the task that waits on it takes the request back.

        Args:
            embed: its `question_id` is given here.

        Raises:
            StokerError: it was refused or failed. `EngineCrashed`: the child died meanwhile.
        """
        return await self._questions.ask(
            lambda number: msgspec.structs.replace(embed, question_id=f"embed-{number}"), Embedded
        )

    async def slots(self) -> list[SlotState]:
        """What every slot of the KV pool holds, between two steps.

        Raises:
            StokerError: see `tokenize`.
        """
        return (await self._questions.ask(ListSlots, SlotList)).slots

    async def change_adapters(
        self, *, load: AdapterSpec | None = None, unload: str | None = None, scales: dict[int, float] | None = None
    ) -> list[AdapterCard]:
        """The adapters that are loaded, after these changes. A child that is started again has the same. See
        `ChangeAdapters`.

        Raises:
            InvalidInput: a name is taken or not possible, or a scale is out of range.
            AdapterNotFound: there is none of this name or id.
            AdapterInvalid: it cannot be loaded.
            StokerError: see `tokenize`.
        """
        adapters = (
            await self._questions.ask(lambda number: ChangeAdapters(number, load, unload, scales), AdapterList)
        ).adapters
        self._supervisor.remember_adapters([card.as_spec() for card in adapters])
        return adapters

    def begin_with(self, adapters: Sequence[AdapterSpec]) -> None:
        """What a child is to have loaded from its start on, whatever the configuration says. One that is loading gets
        it before it is ready; one that is ready keeps what it has.
        """
        self._supervisor.remember_adapters(adapters)

    async def erase(self, slot: int | None = None) -> int:
        """Forgets what finished conversations left in one slot, or in all; returns how many tokens those were.

        Raises:
            InvalidInput: there is no such slot, or a request runs in it.
            StokerError: see `tokenize`.
        """
        return (await self._questions.ask(lambda number: EraseSlots(number, slot), Erased)).num_tokens

    async def save_slot(self, slot: int, filename: str) -> SlotFiled:
        """Writes what a finished conversation left in a slot to a file in the engine's folder for that.

        Raises:
            UnsupportedParameter: there is no such folder, or the backend cannot do it.
            InvalidInput: there is nothing to save, or that is no name for a file.
            StokerError: see `tokenize`.
        """
        return await self._questions.ask(lambda number: SaveSlot(number, slot, filename), SlotFiled)

    async def restore_slot(self, slot: int, filename: str) -> SlotFiled:
        """Fills an idle slot with what was saved.

        Raises:
            InvalidInput: a request runs in it; there is no such file, or it is another model's or damaged.
            ResourceExhausted: running requests need the room.
            StokerError: see `save_slot`.
        """
        return await self._questions.ask(lambda number: RestoreSlot(number, slot, filename), SlotFiled)

    def health(self) -> EngineHealth:
        """How the engine is doing, as far as this process knows now."""
        supervisor = self._supervisor
        return EngineHealth(
            state=supervisor.state,
            heartbeat=supervisor.heartbeat,
            num_restarts=supervisor.num_restarts,
            last_error=supervisor.last_error,
            loaded_part=supervisor.loaded_part,
        )

    async def close(self) -> None:
        """Ends every request with `ModelNotLoaded` and stops the child. Calling it twice is allowed."""
        self._requests.end_all(ModelNotLoaded("the model was closed"))
        self._questions.end_all(ModelNotLoaded("the model was closed"))
        await self._supervisor.close()

    def _send(self, command: Command) -> None:
        self._supervisor.send(command)


async def _in_time(request: PendingRequest, deadline: float) -> Accepted | Output:
    try:
        async with asyncio.timeout_at(deadline + _TIMEOUT_GRACE_S):
            return await request.inbox.get()
    except TimeoutError as error:
        timeout_s = request.submit.timeout_s
        raise Timeout(f"the request was not finished within {timeout_s:g} s", timeout_s=timeout_s) from error

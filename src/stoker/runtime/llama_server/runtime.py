"""A model in an external llama-server, behind the same interface as one in an engine of ours."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from stoker.core.request import check_token_ids
from stoker.engine.card_template import CardTemplate
from stoker.engine.cards import ModelCard
from stoker.engine.closing import aclosing_on_error
from stoker.engine.config import AdapterSpec, EngineConfig, SupervisionConfig
from stoker.engine.door import Door
from stoker.engine.health import Health
from stoker.engine.protocol import Accepted, Output, Submit
from stoker.engine.question_messages import (
    A,
    AdapterList,
    Answer,
    ChangeAdapters,
    CountTokens,
    Detokenize,
    Detokenized,
    Embed,
    Embedded,
    EraseSlots,
    ListSlots,
    Question,
    RestoreSlot,
    SaveSlot,
    TokenCount,
    Tokenize,
    as_answer_to,
)
from stoker.engine.stats import EngineStats
from stoker.engine.supervisor import State
from stoker.errors import (
    BackendError,
    ConfigError,
    InvalidInput,
    ModelNotLoaded,
    StokerError,
    Timeout,
    UnsupportedParameter,
)
from stoker.media.decoder import check_available
from stoker.runtime.llama_server.answers import Answers
from stoker.runtime.llama_server.arguments import fixed_arguments, users_arguments
from stoker.runtime.llama_server.binary import ask_binary, find_binary
from stoker.runtime.llama_server.card import make_card, make_info
from stoker.runtime.llama_server.client import BrokenOff, LlamaServerClient
from stoker.runtime.llama_server.config import RuntimeConfig, check_engine
from stoker.runtime.llama_server.embedding import Embeddings
from stoker.runtime.llama_server.incarnation import PROBE_S, Incarnation, Order
from stoker.runtime.llama_server.media import RemoteMedia
from stoker.runtime.llama_server.model_file import ModelFile, Task, read_model_file
from stoker.runtime.llama_server.remote_intake import RemoteIntake, check_no_adapters
from stoker.runtime.llama_server.slot_queue import SlotQueue
from stoker.runtime.llama_server.slots import Slots
from stoker.runtime.llama_server.supervisor import LlamaServerSupervisor, crash
from stoker.runtime.llama_server.tokens import RemoteTokenizer
from stoker.runtime.llama_server.wire import ModelList, Props, decode
from stoker.text.chat_formats.probe import ChatFormat
from stoker.text.messages import Json, Message
from stoker.text.volatile import VolatileHeaders

T = TypeVar("T")

_ASK_S = 10.0
_NO_WAIT_S = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class _Loaded:
    """What is there once the first server answers."""

    card: ModelCard
    template: CardTemplate
    tokenizer: RemoteTokenizer
    intake: RemoteIntake
    embeddings: Embeddings


@dataclass(frozen=True, slots=True, kw_only=True)
class _Serving:
    """What is there once it is known what to start."""

    supervisor: LlamaServerSupervisor
    queue: SlotQueue
    answers: Answers


class LlamaServerRuntime:
    """The `Runtime` over a llama-server that it starts and owns.

    Args:
        engine: the model, whose file is on this disk, and how much of the machine it may take.
        config: which binary, and what it is told besides.
        supervision: when it counts as lost, and how it is started again.
        volatile: what is dropped from the head of system prompts; None = nothing.
        repeats: False = the caller repeats requests elsewhere that had not begun when this server dies.

    Raises:
        ConfigError: something is asked for that only engines of ours have.
    """

    def __init__(
        self,
        engine: EngineConfig,
        config: RuntimeConfig,
        *,
        supervision: SupervisionConfig | None = None,
        volatile: VolatileHeaders | None = None,
        repeats: bool = True,
    ) -> None:
        check_engine(engine)
        self._engine = engine
        self._config = config
        times = supervision or SupervisionConfig()
        self._times = times if repeats else replace(times, restart_wait_s=_NO_WAIT_S)
        self._volatile = volatile
        self._door = Door(capacity=engine.parallel + engine.max_queue, parallel=engine.parallel)
        self._inside: set[str] = set()
        """Requests and embeddings, running and waiting, by their ids."""
        self._slots = Slots()
        self._embedding_turns = asyncio.Semaphore(engine.parallel)
        self._serving: _Serving | None = None
        self._loaded: _Loaded | None = None
        self._load_error: StokerError | None = None
        self._is_closed = False

    @property
    def card(self) -> ModelCard:
        return self._known().card

    @property
    def server_pid(self) -> int | None:
        """The process id of the present llama-server."""
        return None if self._serving is None else self._serving.supervisor.pid

    async def start(self) -> ModelCard:
        if self._loaded is None:
            try:
                self._loaded = await self._load()
            except StokerError as error:
                self._load_error = error
                raise
        return self._loaded.card

    def health(self) -> Health:
        if self._serving is None:
            failed = State.FAILED if self._load_error is not None else State.STARTING
            state = State.CLOSED if self._is_closed else failed
            return Health(is_ready=False, state=state.value, last_error=_message(self._load_error))
        supervisor = self._serving.supervisor
        state = supervisor.state
        if state is State.READY and self._loaded is None:
            state = State.STARTING
        return Health(
            is_ready=state is State.READY,
            state=state.value,
            num_restarts=supervisor.num_restarts,
            last_error=supervisor.last_error,
            heartbeat=self._heartbeat(self._serving) if self._loaded is not None else None,
        )

    async def generate(self, submit: Submit) -> AsyncGenerator[Accepted | Output, None]:
        loaded, serving = self._known(), self._ready()
        with self._counted(submit.request_id):
            asked = await self._asking(lambda: loaded.intake.admit(submit))
            serving.queue.check(asked.request)
            body = asked.body()
            yield Accepted(submit.request_id, asked.num_prompt)
            async with aclosing(serving.answers.outputs(asked, body)) as outputs:
                async for output in outputs:
                    yield output

    @property
    def chat_format(self) -> ChatFormat:
        return self._known().template.chat_format

    def render_chat(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Json]] = (),
        template_kwargs: Mapping[str, object] | None = None,
    ) -> str:
        return self._known().template.render(
            messages,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            tools=tools,
            variables=template_kwargs,
        )

    async def ask(self, question: Question[A]) -> A:
        return as_answer_to(question, await self._answer(question))

    async def _answer(self, question: Question[Any]) -> Answer:
        match question:
            case Tokenize():
                return await self._asking(partial(self._known().tokenizer.answer, question))
            case CountTokens(prompt=str(prompt), media=()):
                tokenized = await self._asking(partial(self._known().tokenizer.answer, Tokenize(prompt)))
                return TokenCount(question.question_id, len(tokenized.token_ids))
            case CountTokens():
                message = "llama-server counts the rows of images and recordings only when it computes them"
                raise UnsupportedParameter(message, parameter="messages")
            case Detokenize():
                check_token_ids("tokens", tuple(question.token_ids), self._known().card.vocab_size)
                text = await self._asking(partial(self._known().tokenizer.text, question.token_ids))
                return Detokenized(question.question_id, text)
            case Embed():
                return await self._embed(question)
            case ListSlots() | EraseSlots() | SaveSlot() | RestoreSlot():
                return await self._ask_slots(question)
            case ChangeAdapters(is_empty=True):
                return AdapterList(question.question_id, [])
            case ChangeAdapters():
                message = "adapters are not passed on to llama-server: serve the model without --runtime llama-server"
                raise UnsupportedParameter(message, parameter="lora")
            case _:
                message = f"llama-server has no answer to {type(question).__name__}"
                raise UnsupportedParameter(f"{message}: serve the model without --runtime llama-server")

    async def _embed(self, embed: Embed) -> Embedded:
        embeddings = self._known().embeddings
        self._ready()
        check_no_adapters(embed.adapters)
        embeddings.check(embed)
        with self._counted(f"embed-{id(embed)}"):
            try:
                async with asyncio.timeout(embed.timeout_s), self._embedding_turns:
                    return await self._asking(lambda: embeddings.answer(embed, self._client()))
            except TimeoutError as error:
                message = f"the request was not finished within {embed.timeout_s:g} s"
                raise Timeout(message, timeout_s=embed.timeout_s) from error

    async def _ask_slots(self, question: ListSlots | EraseSlots | SaveSlot | RestoreSlot) -> Answer:
        if isinstance(question, SaveSlot | RestoreSlot) and not self._engine.slot_save_path:
            message = "slots are neither saved nor restored: start the server with --slot-save-path FOLDER"
            raise UnsupportedParameter(message, parameter="action")
        return await self._asking(lambda: self._slots.answer(question, self._client()))

    def begin_with(self, adapters: Sequence[AdapterSpec]) -> None:
        assert not adapters, "it never had any"

    async def close(self) -> None:
        self._is_closed = True
        if self._serving is not None:
            await self._serving.supervisor.close()

    async def _load(self) -> _Loaded:
        model, order = await asyncio.to_thread(self._order)
        if self._is_closed:
            raise ModelNotLoaded("the model was closed while it was loaded")
        self._serving = self._set_up(model, order)
        await self._serving.supervisor.start()
        async with aclosing_on_error(self._serving.supervisor.close):
            return await self._asking(lambda: self._learn(model))

    def _order(self) -> tuple[ModelFile, Order]:
        """Reads files and asks the binary, so it has a thread of its own."""
        if self._engine.slot_save_path:
            self._engine = _with_slot_folder(self._engine)
        binary = ask_binary(find_binary(self._config.llama_server_path))
        further = users_arguments(binary, self._config.further_arguments())
        model = read_model_file(self._engine, can_unify="--kv-unified" in binary.flags)
        if model.mmproj is not None:
            check_available()
        arguments = fixed_arguments(binary, model, self._engine)
        return model, Order(binary, arguments, further, model.task, self._config.llama_server_start_s)

    def _set_up(self, model: ModelFile, order: Order) -> _Serving:
        queue = SlotQueue(
            parallel=self._engine.parallel,
            pool_tokens=model.total_tokens,
            max_queue_tokens=self._engine.max_queue_tokens,
            door=self._door,
        )
        supervisor = LlamaServerSupervisor(order, self._look, self._stalled_s, self._times)
        return _Serving(supervisor=supervisor, queue=queue, answers=Answers(supervisor, queue))

    async def _learn(self, model: ModelFile) -> _Loaded:
        """What only a running server knows."""
        client, tokenizer = self._client(), RemoteTokenizer(self._client)
        props = decode(await client.get("/props", _ASK_S), Props, "properties")
        listed = decode(await client.get("/v1/models", _ASK_S), ModelList, "list of models")
        await tokenizer.learn(props.bos_token)
        can_generate = model.task is Task.TEXT
        card = make_card(
            self._engine, model, props, listed, await tokenizer.find_fill_tokens() if can_generate else None
        )
        return _Loaded(
            card=card,
            template=CardTemplate(card, self._volatile),
            tokenizer=tokenizer,
            intake=RemoteIntake(
                make_info(card),
                can_generate=can_generate,
                defaults=model.defaults,
                tokenizer=tokenizer,
                media=RemoteMedia(card.media, props.media_marker, tokenizer.bos_text),
            ),
            embeddings=Embeddings(model, card.name, tokenizer, card.vocab_size),
        )

    async def _look(self, incarnation: Incarnation) -> None:
        await self._slots.look(incarnation.client, PROBE_S)

    def _stalled_s(self) -> float:
        return 0.0 if self._serving is None else self._serving.answers.stalled_s()

    def _heartbeat(self, serving: _Serving) -> EngineStats:
        answers = serving.answers
        return EngineStats(
            num_steps=0,  # only llama-server counts them
            num_running=serving.queue.num_running,
            num_waiting=serving.queue.num_waiting,
            kv_used=sum(answers.held.values()),
            kv_retained=self._slots.num_retained,
            kv_capacity=self._known().card.kv_tokens,
            stalled_s=answers.stalled_s(),
            prompt_tokens=answers.prompt_tokens,
            cached_tokens=answers.cached_tokens,
            pool_hit_tokens=answers.cached_tokens,
        )

    def _known(self) -> _Loaded:
        if self._loaded is None:
            raise ModelNotLoaded("the model is still loading")
        return self._loaded

    def _ready(self) -> _Serving:
        """Raises ModelNotLoaded if no server answers now."""
        if self._serving is None:
            raise ModelNotLoaded("the model is still loading")
        _ = self._serving.supervisor.present
        return self._serving

    def _client(self) -> LlamaServerClient:
        return self._ready().supervisor.present.client

    @contextmanager
    def _counted(self, request_id: str) -> Generator[None]:
        """Refuses what is too much, or has the same id as another one."""
        if request_id in self._inside:
            raise InvalidInput(f"request id {request_id!r} is already in use", parameter="request_id")
        self._door.check(len(self._inside))
        self._inside.add(request_id)
        try:
            yield
        finally:
            self._inside.discard(request_id)

    async def _asking(self, ask: Callable[[], Awaitable[T]]) -> T:
        """What the present server answers, or its successor if it dies meanwhile.

        Raises:
            EngineCrashed: that one died, too.
            ModelNotLoaded: there is none.
        """
        supervisor = self._ready().supervisor
        for is_last in (False, True):
            incarnation = supervisor.present
            try:
                return await ask()
            except BrokenOff as error:
                reason = await supervisor.death_of(incarnation)
                if reason is None:
                    raise BackendError(f"llama-server broke off before it answered: {error}") from error
                if is_last or supervisor.closed_error() is not None:
                    raise supervisor.closed_error() or crash(reason) from error
            await supervisor.successor(reason)
        raise AssertionError("the last attempt returns or raises")


def _with_slot_folder(engine: EngineConfig) -> EngineConfig:
    folder = Path(engine.slot_save_path).expanduser()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--slot-save-path: {folder} is no folder: {error.strerror}", key="slot_save_path") from error
    return msgspec.structs.replace(engine, slot_save_path=str(folder))


def _message(error: StokerError | None) -> str | None:
    return None if error is None else error.message

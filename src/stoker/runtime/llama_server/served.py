"""A model in llama.cpp's llama-server: `LlamaServed` has what is specific to this program. See `ExternalRuntime`."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from stoker.core.media import MediaKind
from stoker.core.model_info import CacheTraits, ModelInfo
from stoker.core.params import SamplingParams
from stoker.core.request import check_token_ids
from stoker.engine.cards import EmbeddingCard, FillTokens, ModelCard
from stoker.engine.config import EngineConfig
from stoker.engine.protocol import Submit
from stoker.engine.question_messages import (
    Answer,
    Detokenize,
    Detokenized,
    Embed,
    EraseSlots,
    ListSlots,
    Question,
    RestoreSlot,
    SaveSlot,
    Tokenize,
)
from stoker.engine.template_file import configured_template
from stoker.errors import ConfigError, UnsupportedParameter
from stoker.media.decoder import check_available
from stoker.runtime.external.answers import Asked
from stoker.runtime.external.client import ServerClient, decode
from stoker.runtime.external.config import RuntimeConfig, check_engine
from stoker.runtime.external.incarnation import PROBE_S
from stoker.runtime.llama_server.arguments import fixed_arguments, users_arguments
from stoker.runtime.llama_server.binary import ask_binary, find_binary
from stoker.runtime.llama_server.embedding import Embeddings
from stoker.runtime.llama_server.media import RemoteMedia
from stoker.runtime.llama_server.model_file import ModelFile, Task, read_model_file
from stoker.runtime.llama_server.program import Order
from stoker.runtime.llama_server.remote_intake import RemoteIntake, check_no_adapters
from stoker.runtime.llama_server.slots import Slots
from stoker.runtime.llama_server.tokens import RemoteTokenizer
from stoker.runtime.llama_server.wire import ModelList, Props
from stoker.text.chat_formats.table import check_tool_format

_ASK_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Learned:
    """What is known once the first server answers."""

    card: ModelCard
    tokenizer: RemoteTokenizer
    intake: RemoteIntake
    embeddings: Embeddings
    client: Callable[[], ServerClient]


class LlamaServed:
    """The `ServedFile` of a model in llama-server. Belongs to one event loop.

    Args:
        engine: the model, whose file is on this disk, and the resources that it may use.
        config: which binary to start, and its further options.

    Raises:
        ConfigError: the configuration demands a feature that only Stoker's own engines have.
    """

    answers_at = "/completion"

    def __init__(self, engine: EngineConfig, config: RuntimeConfig) -> None:
        check_engine(engine, "llama-server")
        self._engine = engine
        self._config = config
        self._slots = Slots()
        self._model: ModelFile | None = None
        self._learned: _Learned | None = None

    @property
    def pool_tokens(self) -> int:
        return self._prepared().total_tokens

    @property
    def num_retained(self) -> int:
        return self._slots.num_retained

    def prepare(self) -> Order:
        if self._engine.slot_save_path:
            self._engine = _with_slot_folder(self._engine)
        binary = ask_binary(find_binary(self._config.llama_server_path))
        further = users_arguments(binary, self._config.further_arguments("llama_server_args"))
        model = self._model = read_model_file(self._engine, can_unify="--kv-unified" in binary.flags)
        if model.mmproj is not None:
            check_available()
        arguments = fixed_arguments(binary, model, self._engine)
        return Order(binary, arguments, further, model.task, self._config.llama_server_start_s)

    async def learn(self, client: Callable[[], ServerClient]) -> ModelCard:
        model, tokenizer = self._prepared(), RemoteTokenizer(client)
        props = decode(await client().get("/props", _ASK_S), Props, "llama-server's properties")
        listed = decode(await client().get("/v1/models", _ASK_S), ModelList, "llama-server's list of models")
        await tokenizer.learn(props.bos_token)
        can_generate = model.task is Task.TEXT
        card = make_card(
            self._engine, model, props, listed, await tokenizer.find_fill_tokens() if can_generate else None
        )
        self._learned = _Learned(
            card=card,
            tokenizer=tokenizer,
            intake=RemoteIntake(
                info=make_info(card),
                can_generate=can_generate,
                defaults=model.defaults,
                tokenizer=tokenizer,
                media=RemoteMedia(card.media, props.media_marker, tokenizer.bos_text),
            ),
            embeddings=Embeddings(model, card.name, tokenizer, card.vocab_size),
            client=client,
        )
        return card

    async def look(self, client: ServerClient) -> None:
        await self._slots.look(client, PROBE_S)

    async def admit(self, submit: Submit) -> Asked:
        return await self._known().intake.admit(submit)

    def check(self, question: Question[Any]) -> None:
        match question:
            case Detokenize():
                check_token_ids("tokens", tuple(question.token_ids), self._known().card.vocab_size)
            case Embed():
                check_no_adapters(question.adapters)
                self._known().embeddings.check(question)
            case SaveSlot() | RestoreSlot() if not self._engine.slot_save_path:
                message = "saving and restoring slots is turned off: start the server with --slot-save-path FOLDER"
                raise UnsupportedParameter(message, parameter="action")
            case Tokenize() | ListSlots() | EraseSlots() | SaveSlot() | RestoreSlot():
                pass
            case _:
                message = f"llama-server has no answer to {type(question).__name__}"
                raise UnsupportedParameter(f"{message}: serve the model without --runtime llama-server")

    async def answer(self, question: Question[Any]) -> Answer:
        known = self._known()
        match question:
            case Tokenize():
                return await known.tokenizer.answer(question)
            case Detokenize():
                text = await known.tokenizer.text(question.token_ids)
                return Detokenized(question.question_id, text)
            case Embed():
                return await known.embeddings.answer(question, known.client())
            case ListSlots() | EraseSlots() | SaveSlot() | RestoreSlot():
                return await self._slots.answer(question, known.client())
            case _:
                raise AssertionError("it was checked")

    def _prepared(self) -> ModelFile:
        assert self._model is not None, "it was prepared"
        return self._model

    def _known(self) -> _Learned:
        assert self._learned is not None, "the model is loaded"
        return self._learned


def _with_slot_folder(engine: EngineConfig) -> EngineConfig:
    folder = Path(engine.slot_save_path).expanduser()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"--slot-save-path: {folder} is not a directory: {error.strerror}", key="slot_save_path"
        ) from error
    return msgspec.structs.replace(engine, slot_save_path=str(folder))


_TRAITS = CacheTraits(can_truncate=False, can_copy=False, shares_cells=False)
"""Stoker can neither truncate nor copy KV in llama-server."""


def make_card(
    config: EngineConfig, model: ModelFile, props: Props, listed: ModelList, fill_tokens: FillTokens | None
) -> ModelCard:
    """The card of the model.

    Args:
        config: the model's configuration.
        model: the model's file.
        props: the server's properties.
        listed: the server's list of models.
        fill_tokens: tokens for fill-in-the-middle prompts; None = the model has none.
    """
    facts, embedding = model.facts, None
    context_size = min(model.context_size, props.default_generation_settings.n_ctx or model.context_size)
    if model.task is not Task.TEXT:
        pooling = "rank" if model.pooling is None else model.pooling.value
        embedding = EmbeddingCard(pooling, model.embedding_size, context_size)
    template = configured_template(config)
    check_tool_format(config.tool_format)
    meta = listed.data[0].meta if listed.data else None
    return ModelCard(
        name=config.name or config.model or facts.name,
        backend="llama-server",
        backend_version=props.build_info,
        architecture=facts.architecture,
        path=str(model.path),
        vocab_size=(meta.n_vocab if meta is not None else None) or facts.vocab_size,
        trained_context=facts.trained_context,
        context_size=context_size,
        kv_tokens=model.total_tokens,
        parallel=config.parallel,
        max_queue=config.max_queue,
        chat_template=facts.chat_template if template is None else template,
        tool_format=config.tool_format,
        bos_token=props.bos_token,
        eos_token=props.eos_token,
        num_parameters=facts.num_parameters,
        size_bytes=facts.weights_bytes,
        created=int(time.time()),
        fill_tokens=fill_tokens,
        embedding=embedding,
        can_generate=model.task is Task.TEXT,
        system=config.preset.system,
        sampling=SamplingParams().completed(model.defaults, context_size),
        media=_media(props),
    )


def _media(props: Props) -> list[MediaKind]:
    kinds: dict[MediaKind, bool] = {"image": props.modalities.vision, "audio": props.modalities.audio}
    return [kind for kind, is_taken in kinds.items() if is_taken]


def make_info(card: ModelCard) -> ModelInfo:
    """The facts of the card that requests are checked against."""
    return ModelInfo(
        name=card.name,
        architecture=card.architecture,
        vocab_size=card.vocab_size,
        eog_token_ids=frozenset(),
        trained_context=card.trained_context,
        context_size=card.context_size,
        kv_tokens=card.kv_tokens,
        num_slots=card.parallel,
        max_batch_tokens=card.context_size,
        traits=_TRAITS,
    )

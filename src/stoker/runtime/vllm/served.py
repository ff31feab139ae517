"""A model in vLLM: `VLLMServed` has what is specific to this program. See `ExternalRuntime`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import msgspec

from stoker.core.model_info import CacheTraits, ModelInfo
from stoker.core.params import SamplingParams
from stoker.core.request import Request, prompt_too_long
from stoker.engine.answers import answer_detokenize, answer_tokenize
from stoker.engine.cards import ModelCard
from stoker.engine.config import EngineConfig
from stoker.engine.outlines import Outlines, StreamOutline
from stoker.engine.prompt import echo, find_fill_tokens, find_markers, prompt_entries, with_text_bias
from stoker.engine.protocol import Submit
from stoker.engine.question_messages import Answer, Detokenize, Embed, Question, Tokenize
from stoker.engine.template_file import configured_template
from stoker.errors import InvalidInput, UnsupportedParameter
from stoker.runtime.external.answers import Asked
from stoker.runtime.external.client import ServerClient, decode, encoded
from stoker.runtime.external.config import RuntimeConfig, check_engine
from stoker.runtime.vllm.adapters import PEFTAdapters, read_adapters
from stoker.runtime.vllm.answer_reader import AnswerReader
from stoker.runtime.vllm.completion import check_supported, completion_body, constraint_fields, with_stages
from stoker.runtime.vllm.embedding import Embeddings, ask_rows
from stoker.runtime.vllm.model_folder import ModelFolder, read_model_folder
from stoker.runtime.vllm.program import VLLMProgram, arguments, find_program
from stoker.runtime.vllm.wire import Version, kv_tokens
from stoker.text.chat_formats.table import check_tool_format

_ASK_S = 10.0
_NO_FILES = (
    "images and recordings are not passed on to vLLM: serve a GGUF file of a model that takes them, "
    "with its projector (--mmproj), without --runtime vllm"
)
_TRAITS = CacheTraits(can_truncate=False, can_copy=False, shares_cells=False)
"""Stoker can neither truncate nor copy KV in vLLM."""


class VLLMServed:
    """The `ServedFile` of a model in vLLM. Belongs to one event loop.

    Args:
        engine: the model, whose folder is on this disk, and the resources that it may use.
        config: which program to start, and its further options.

    Raises:
        ConfigError: the configuration demands a feature that only Stoker's own engines have.
    """

    answers_at = "/v1/completions"
    num_retained = 0

    def __init__(self, engine: EngineConfig, config: RuntimeConfig) -> None:
        check_engine(engine, "vllm")
        self._engine = engine
        self._config = config
        self._model: ModelFolder | None = None
        self._outlines: Outlines | None = None
        self._info: ModelInfo | None = None
        self._adapters = PEFTAdapters()
        self._embeddings: Embeddings | None = None
        self._client: Callable[[], ServerClient] | None = None

    @property
    def pool_tokens(self) -> int:
        """A full context for each request, which is no limit: vLLM itself preempts requests if its KV cache is full."""
        return self._prepared().context_size * self._engine.parallel

    def prepare(self) -> VLLMProgram:
        model = self._model = read_model_folder(self._engine)
        self._info = make_info(model, self._engine)
        self._outlines = Outlines(self._info, model.tokenizer)
        further = self._config.further_arguments("vllm_args")
        self._adapters = read_adapters(self._engine)
        return VLLMProgram(
            path=find_program(self._config.vllm_path),
            arguments=arguments(
                model.path,
                model.context_size,
                self._engine.parallel,
                further,
                self._adapters.arguments(),
                pooling=model.pooling,
            ),
            can_generate=model.can_generate,
            start_s=self._config.vllm_start_s,
            threads=self._engine.threads,
        )

    async def learn(self, client: Callable[[], ServerClient]) -> ModelCard:
        version = decode(await client().get("/version", _ASK_S), Version, "vLLM's version").version
        found = kv_tokens(await client().get("/metrics", _ASK_S))
        model = self._prepared()
        card = make_card(self._engine, model, version, self.pool_tokens if found is None else found)
        if not model.can_generate:
            self._client = client
            self._embeddings = Embeddings(model, card.name, (await ask_rows(client(), [[0]])).shape[1])
            card = msgspec.structs.replace(card, embedding=self._embeddings.card, can_generate=False)
        return msgspec.structs.replace(card, adapters=list(self._adapters.cards))

    async def look(self, client: ServerClient) -> None:
        """Does nothing, because no further state of vLLM is needed. See `ServedFile`."""

    async def admit(self, submit: Submit) -> Asked:
        deadline = None if submit.timeout_s is None else asyncio.get_running_loop().time() + submit.timeout_s
        return await asyncio.to_thread(self._admit, submit, deadline)

    def check(self, question: Question[Any]) -> None:
        match question:
            case Tokenize() | Detokenize():
                pass
            case Embed() if self._embeddings is not None:
                if self._adapters.chosen(question.adapters or []) is not None:
                    message = "embeddings are computed without adapters: send an empty list"
                    raise UnsupportedParameter(message, parameter="lora")
                self._embeddings.check(question)
            case Embed():
                name = self._engine.name or self._engine.model or self._prepared().name
                message = f"{name} cannot embed: its vLLM was not started for embeddings"
                advice = "Serve an embedding model, or start it with --pooling"
                raise InvalidInput(f"{message}. {advice}", parameter="model")
            case _:
                message = f"vLLM has no answer to {type(question).__name__}"
                raise UnsupportedParameter(f"{message}: serve the model without --runtime vllm")

    async def answer(self, question: Question[Any]) -> Answer:
        tokenizer = self._prepared().tokenizer
        match question:
            case Tokenize():
                return await asyncio.to_thread(answer_tokenize, tokenizer, question)
            case Detokenize():
                return await asyncio.to_thread(answer_detokenize, tokenizer, question)
            case Embed():
                assert self._embeddings is not None
                assert self._client is not None
                token_ids = await asyncio.to_thread(self._embeddings.tokens, question)
                return await self._embeddings.answer(question, token_ids, self._client())
            case _:
                raise AssertionError("it was checked")

    def _admit(self, submit: Submit, deadline: float | None) -> Asked:
        """Runs on a thread, because tokenizing a long text takes long."""
        model, info, outlines = self._prepared(), self._info, self._outlines
        assert info is not None
        assert outlines is not None
        if not model.can_generate:
            message = f"{info.name} does not generate text: its vLLM was started for embeddings"
            raise InvalidInput(f"{message}. Use /v1/embeddings, or serve another model", parameter="model")
        if submit.media:
            raise UnsupportedParameter(_NO_FILES, parameter="messages")
        sampling = with_stages(submit.sampling.completed(model.defaults, info.max_sequence_tokens))
        check_supported(submit.sampling, sampling, scores_prompt=submit.echo and sampling.logprobs is not None)
        sampling = with_text_bias(model.tokenizer, sampling, submit.text_bias)
        prompt, _ = prompt_entries(model.tokenizer, submit)
        request = Request(
            request_id=submit.request_id,
            prompt=tuple(prompt),
            sampling=sampling,
            priority=submit.priority,
            client_key=submit.client_key,
            cache_prompt=submit.cache_prompt,
        )
        request.check_fits(info)
        room = info.max_sequence_tokens - len(prompt)
        if room == 0:  # vLLM always generates a token
            raise prompt_too_long(len(prompt), info.max_sequence_tokens)
        max_tokens = room if sampling.max_tokens is None else min(sampling.max_tokens, room)
        ends = model.tokenizer.eog_token_ids()
        adapter = self._adapters.chosen(submit.adapters)
        body = completion_body(prompt, sampling, max_tokens, ends, cache_prompt=submit.cache_prompt, adapter=adapter)

        def reader() -> AnswerReader:
            outline = StreamOutline() if submit.outline is None else outlines.stream(submit.outline)
            echoed = echo(model.tokenizer, submit.prompt, request.prompt) if submit.echo else None
            return AnswerReader(
                request, model.tokenizer, ends=ends, max_tokens=max_tokens, outline=outline, echo=echoed
            )

        return Asked(
            submit=submit,
            request=request,
            max_tokens=max_tokens,
            deadline=deadline,
            body=encoded({**body, **constraint_fields(submit.outline)}),
            reader=reader,
        )

    def _prepared(self) -> ModelFolder:
        assert self._model is not None, "it was prepared"
        return self._model


def make_info(model: ModelFolder, config: EngineConfig) -> ModelInfo:
    """The facts of the model that requests are checked against."""
    return ModelInfo(
        name=config.name or config.model or model.name,
        architecture=model.architecture,
        vocab_size=model.tokenizer.vocab_size,
        eog_token_ids=model.tokenizer.eog_token_ids(),
        trained_context=model.trained_context,
        context_size=model.context_size,
        kv_tokens=model.context_size * config.parallel,
        num_slots=config.parallel,
        max_batch_tokens=model.context_size,
        traits=_TRAITS,
    )


def make_card(config: EngineConfig, model: ModelFolder, version: str, kv_size: int) -> ModelCard:
    """The card of the model.

    Args:
        config: the model's configuration.
        model: the model's files.
        version: version of vLLM.
        kv_size: size of the KV cache in tokens.
    """
    template, tokenizer = configured_template(config), model.tokenizer
    check_tool_format(config.tool_format)
    return ModelCard(
        name=config.name or config.model or model.name,
        backend="vllm",
        backend_version=version,
        architecture=model.architecture,
        path=str(model.path),
        vocab_size=tokenizer.vocab_size,
        trained_context=model.trained_context,
        context_size=model.context_size,
        kv_tokens=kv_size,
        parallel=config.parallel,
        max_queue=config.max_queue,
        chat_template=model.chat_template if template is None else template,
        tool_format=config.tool_format,
        bos_token=_spelling(tokenizer.bos_token_id, model),
        eos_token=_spelling(tokenizer.eos_token_id, model),
        num_parameters=0,
        size_bytes=model.weights_bytes,
        created=int(time.time()),
        fill_tokens=find_fill_tokens(tokenizer),
        marker_tokens=find_markers(tokenizer),
        system=config.preset.system,
        sampling=SamplingParams().completed(model.defaults, model.context_size),
    )


def _spelling(token_id: int | None, model: ModelFolder) -> str:
    if token_id is None:
        return ""
    return model.tokenizer.token_bytes(token_id, render_special=True).decode("utf-8", "replace")

"""From llama-server's own requests to `GenerationRequest`s, and back to its replies."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Sequence
from importlib.metadata import version
from typing import Any, cast

import msgspec
from msgspec import UNSET
from starlette.types import Scope

from stoker.core.params import SamplingParams
from stoker.core.slot_state import SlotState
from stoker.engine.cards import ModelCard
from stoker.engine.protocol import Output, PositionLogprobs, Prompt, TokenLogprob
from stoker.errors import InvalidInput, StokerError, UnsupportedParameter
from stoker.runtime.registry import ServedModel
from stoker.server.config import ServerConfig
from stoker.server.errors import error_event
from stoker.server.generation import Generation, GenerationRequest
from stoker.server.translate.infill import infill_prompt
from stoker.server.translate.openai_logprobs import text_positions
from stoker.server.translate.openai_reply import timings
from stoker.server.translate.request import Caller, generation_request
from stoker.server.translate.sampling import sampling_params
from stoker.server.wire.native import (
    GenerationSettings,
    InfillRequest,
    NativeChunk,
    NativeCompletionRequest,
    NativeReply,
    NativeRequest,
    ProbPosition,
    ProbToken,
    PromptObject,
    PropsReply,
    SlotReply,
)

_log = logging.getLogger(__name__)

_encode = msgspec.json.Encoder().encode


def native_request(wire: NativeCompletionRequest, caller: Caller, config: ServerConfig) -> GenerationRequest:
    """What a completion asks of a model.

    Raises:
        InvalidInput: something cannot be done as asked.
    """
    return generation_request(wire, _prompts(wire.prompt), _sampling(wire), caller, config, n=_num_choices(wire))


def infill_request(wire: InfillRequest, card: ModelCard, caller: Caller, config: ServerConfig) -> GenerationRequest:
    """What an infill asks of a model.

    Raises:
        InvalidInput: something cannot be done as asked.
        UnsupportedParameter: the model has no tokens for it.
    """
    if card.fill_tokens is None:
        message = f"{card.name} cannot fill in: its vocabulary has no tokens for the text before and after a gap"
        raise UnsupportedParameter(message, parameter="input_suffix")
    for name in ("input_prefix", "input_suffix"):
        if getattr(wire, name) is None:
            raise InvalidInput(f"`{name}` is missing", parameter=name)
    files = [(file.filename, file.text) for file in wire.input_extra or ()]
    prompt = list(infill_prompt(card, wire.input_prefix or "", wire.input_suffix or "", files))
    prompts = [[*prompt, wire.prompt] if wire.prompt else prompt]
    return generation_request(wire, prompts, _sampling(wire), caller, config, n=_num_choices(wire), parse_special=False)


def _sampling(wire: NativeRequest) -> SamplingParams:
    return sampling_params(wire, wire.n_probs or None)


def _num_choices(wire: NativeRequest) -> int | None:
    if wire.n is not None and wire.n_cmpl is not None and wire.n != wire.n_cmpl:
        raise InvalidInput("`n` and `n_cmpl` mean the same but differ", parameter="n")
    return wire.n if wire.n_cmpl is None else wire.n_cmpl


def _prompts(raw: str | PromptObject | list[str | int | PromptObject | list[int | str]] | None) -> Sequence[Prompt]:
    """A list is one prompt if there are token ids in it, else one prompt per item, as in llama-server."""
    if raw is None:
        raise InvalidInput("`prompt` is missing", parameter="prompt")
    if not isinstance(raw, list):
        return [_text(raw) if isinstance(raw, PromptObject) else raw]
    if not raw:
        raise InvalidInput("`prompt` is an empty list", parameter="prompt")
    if any(isinstance(item, int) for item in raw):
        if any(isinstance(item, list | PromptObject) for item in raw):
            raise InvalidInput("`prompt` mixes token ids and whole prompts", parameter="prompt")
        return [cast("list[int | str]", raw)]
    return [_text(item) if isinstance(item, PromptObject) else cast("Prompt", item) for item in raw]


def _text(prompt: PromptObject) -> str:
    if prompt.multimodal_data:
        raise UnsupportedParameter("images and audio are not available yet", parameter="prompt")
    return prompt.prompt_string


class NativeAnswer:
    """The answers to one request, as events or as a whole.

    Args:
        wire: the request.
        served: the model that answers.
        generation: accepted; it is read here, and closed by who opened it.
    """

    def __init__(self, wire: NativeRequest, served: ServedModel, generation: Generation) -> None:
        self._has_tokens = bool(wire.return_tokens)
        self._served = served
        self._generation = generation

    async def events(self, scope: Scope) -> AsyncGenerator[bytes, None]:
        """The stream, one item per step, without `[DONE]`. An error of the generation becomes the last event."""
        try:
            async for index, output in self._generation:
                chunk = self._chunk(index, output)
                if output.finish_reason is not None or output.text or chunk.tokens:
                    yield b"data: " + _encode(chunk) + b"\n\n"
        except StokerError as error:
            _log.warning("a stream ended with %s", error.code)
            yield error_event(error, scope)

    async def whole(self) -> NativeChunk | list[NativeChunk]:
        """One reply, or a list of them if several were asked for."""
        outputs = await self._generation.collect()
        replies = [self._chunk(index, output) for index, output in enumerate(outputs)]
        return replies[0] if len(replies) == 1 else replies

    def _chunk(self, index: int, output: Output) -> NativeChunk:
        positions = text_positions(output)
        fields: dict[str, Any] = {
            "index": index,
            "content": output.text,
            "tokens": output.token_ids if self._has_tokens else [],
            "stop": output.finish_reason is not None,
            "tokens_predicted": output.usage.completion_tokens,
            "tokens_evaluated": output.usage.prompt_tokens,
            "completion_probabilities": [_position(position) for position in positions] if positions else UNSET,
        }
        return NativeChunk(**fields) if output.finish_reason is None else self._reply(output, fields)

    def _reply(self, output: Output, fields: dict[str, Any]) -> NativeReply:
        word = output.stop_match if isinstance(output.stop_match, str) else ""
        ended = "limit" if output.finish_reason == "length" else "eos"
        return NativeReply(
            **fields,
            model=self._served.model_id,
            stop_type="word" if word else ended,
            stopping_word=word,
            tokens_cached=output.usage.cached_tokens,
            timings=timings(self._generation),
        )


def props_reply(served: ServedModel) -> PropsReply:
    """What a served model is."""
    card = served.runtime.card
    return PropsReply(
        default_generation_settings=GenerationSettings(card.context_size),
        total_slots=card.parallel,
        model_path=card.path,
        model_alias=served.model_id,
        chat_template=card.chat_template or "",
        bos_token=card.bos_token,
        eos_token=card.eos_token,
        build_info=f"stoker-{version('stoker')}-{card.backend}",
    )


def slot_reply(state: SlotState, card: ModelCard) -> SlotReply:
    """One slot, without what is in it: prompts are nobody else's business."""
    return SlotReply(
        id=state.slot,
        n_ctx=card.context_size,
        is_processing=state.request_id is not None,
        n_tokens=state.num_tokens,
        request_id=state.request_id,
        n_prompt_tokens=state.num_prompt,
        n_decoded=state.num_completion,
        replica=UNSET if state.replica is None else state.replica,
    )


def _position(position: PositionLogprobs) -> ProbPosition:
    return ProbPosition(**_token(position.chosen), top_logprobs=[ProbToken(**_token(t)) for t in position.top])


def _token(token: TokenLogprob) -> dict[str, Any]:
    text = token.token.decode("utf-8", "replace")
    return {"id": token.token_id, "token": text, "bytes": list(token.token), "logprob": token.logprob}

"""Converts llama-server's own requests to `GenerationRequest`s, and the engine's outputs to its replies."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from itertools import chain, zip_longest
from math import exp
from typing import Any, TypeAlias, cast

import msgspec
from msgspec import UNSET

from stoker.chat.capabilities import card_capabilities
from stoker.core.media import Media
from stoker.core.params import SamplingParams
from stoker.core.slot_state import SlotState
from stoker.engine.cards import ModelCard
from stoker.engine.protocol import Output, PositionLogprobs, Prompt, TokenLogprob
from stoker.engine.question_messages import Tokenize
from stoker.errors import InvalidInput, UnsupportedParameter
from stoker.runtime.base import Runtime
from stoker.runtime.registry import ServedModel
from stoker.server.answer import Delta, Writer
from stoker.server.config import ServerConfig
from stoker.server.dialects.llamacpp.types import (
    GenerationSettings,
    InfillRequest,
    Modalities,
    NativeChunk,
    NativeCompletionRequest,
    NativeReply,
    NativeRequest,
    ProbPosition,
    ProbToken,
    PromptObject,
    PropsReply,
    SlotReply,
    TemplateCaps,
)
from stoker.server.generation import Generation, GenerationRequest
from stoker.server.logprobs import text_positions
from stoker.server.request.constraints import text_plan
from stoker.server.request.infill import Gap, fitting_prompt
from stoker.server.request.lines import line_bounds
from stoker.server.request.request import Caller, generation_request
from stoker.server.request.sampling import reported_sampling, sampling_fields
from stoker.server.usage import prompt_progress, timings
from stoker.text.media_parts import MediaPart, media_from_base64, media_of_parts

_encode = msgspec.json.Encoder().encode


def native_request(wire: NativeCompletionRequest, caller: Caller, config: ServerConfig) -> GenerationRequest:
    """The generation that a completion request asks for.

    Raises:
        InvalidInput: a field is invalid.
    """
    prompts, media = prompts_with_media(wire.prompt)
    return generation_request(
        wire,
        prompts,
        _sampling(wire),
        caller,
        config,
        n=_num_choices(wire),
        n_word=_n_word(wire),
        lines=line_bounds(wire),
        plan=text_plan(wire),
        media=media,
        reports_progress=bool(wire.stream and wire.return_progress),
    )


async def infill_request(
    wire: InfillRequest, runtime: Runtime, caller: Caller, config: ServerConfig
) -> GenerationRequest:
    """The generation that an infill request asks for. Text that does not fit into the model's context is omitted.

    Raises:
        InvalidInput: a field is missing or invalid.
        UnsupportedParameter: the model's vocabulary has no tokens for filling in the middle.
        StokerError: the model cannot answer now.
    """
    card = runtime.card
    if card.fill_tokens is None:
        message = f"{card.name} does not support infill: its vocabulary has no tokens for filling in the middle"
        raise UnsupportedParameter(message, parameter="input_suffix")
    for name in ("input_prefix", "input_suffix"):
        if getattr(wire, name) is None:
            raise InvalidInput(f"`{name}` is missing", parameter=name)
    sampling = _sampling(wire)
    gap = Gap(
        prefix=wire.input_prefix or "",
        suffix=wire.input_suffix or "",
        beginning=wire.prompt or "",
        files=[(file.filename, file.text) for file in wire.input_extra or ()],
    )

    async def tokenize(text: str) -> Sequence[int]:
        return (await runtime.ask(Tokenize(text, wants_bos=False, parse_special=False))).token_ids

    prompt = await fitting_prompt(card.fill_tokens, gap, _prompt_room(card, sampling), tokenize)
    return generation_request(
        wire,
        [prompt],
        sampling,
        caller,
        config,
        n=_num_choices(wire),
        n_word=_n_word(wire),
        parse_special=False,
        lines=line_bounds(wire),
        plan=text_plan(wire),
        reports_progress=bool(wire.stream and wire.return_progress),
    )


def _prompt_room(card: ModelCard, sampling: SamplingParams) -> int:
    """Number of tokens of the context for the prompt. The answer gets at most a quarter of the context."""
    quarter = card.context_size // 4
    return card.context_size - (quarter if sampling.longest is None else max(1, min(sampling.longest, quarter)))


def _sampling(wire: NativeRequest) -> SamplingParams:
    return reported_sampling(wire, None)


def _num_choices(wire: NativeRequest) -> int | None:
    if wire.n is not None and wire.n_cmpl is not None and wire.n != wire.n_cmpl:
        raise InvalidInput("conflicting values of equivalent fields: `n`, `n_cmpl`", parameter="n")
    return wire.n if wire.n_cmpl is None else wire.n_cmpl


def _n_word(wire: NativeRequest) -> str:
    return "n" if wire.n_cmpl is None else "n_cmpl"


class LlamaCppWriter(Writer):
    """Writes the answers to one request, as events without `[DONE]` or as a whole.

    Args:
        wire: the request.
        served: the model that answers.
        generation: the accepted generation.
    """

    def __init__(self, wire: NativeRequest, served: ServedModel, generation: Generation) -> None:
        self._has_tokens = bool(wire.return_tokens)
        self._has_timings = bool(wire.timings_per_token)
        self._write_position = _drawn_position if wire.post_sampling_probs else _position
        self._names = wire.response_fields or ()
        self._own = {"n_probs": wire.n_probs or 0, "stream": bool(wire.stream)}
        self._with_new_line: set[int] = set()
        self._served = served
        self._generation = generation

    def push(self, delta: Delta) -> bytes:
        chunk = self._written(delta)
        has_news = delta.text or chunk.tokens or chunk.completion_probabilities is not UNSET or delta.progress
        return b"data: " + _encode(self._shown(chunk)) + b"\n\n" if has_news or delta.is_last else b""

    def whole(self, answers: Sequence[Delta]) -> object:
        replies = [self._shown(self._written(answer)) for answer in answers]
        return replies[0] if len(replies) == 1 else replies

    def _shown(self, chunk: NativeChunk) -> NativeChunk | dict[str, object]:
        """The fields of a reply that `response_fields` selects. In a stream, only the last part is reduced."""
        if not self._names or not isinstance(chunk, NativeReply):
            return chunk
        reply = msgspec.to_builtins(chunk)
        found = {name: _inside(reply, name.split("/")) for name in self._names}
        return {name: value for name, value in found.items() if value is not UNSET}

    def _written(self, delta: Delta) -> NativeChunk:
        output = delta.output
        positions = text_positions(output)
        if "\n" in delta.text:
            self._with_new_line.add(delta.choice)
        fields: dict[str, Any] = {
            "index": delta.choice,
            "content": delta.text,
            "tokens": output.token_ids if self._has_tokens else [],
            "stop": output.finish_reason is not None,
            "tokens_predicted": output.usage.completion_tokens,
            "tokens_evaluated": output.usage.prompt_tokens,
            "completion_probabilities": list(map(self._write_position, positions)) if positions else UNSET,
        }
        if output.finish_reason is not None:
            return self._reply(delta.choice, output, fields)
        if delta.progress is not None:
            return NativeChunk(**fields, prompt_progress=prompt_progress(delta.progress))
        return NativeChunk(**fields, timings=timings(self._generation) if self._has_timings else UNSET)

    def _reply(self, choice: int, output: Output, fields: dict[str, Any]) -> NativeReply:
        word = output.stop_match if isinstance(output.stop_match, str) else ""
        ended = "limit" if output.finish_reason == "length" else "eos"
        return NativeReply(
            **fields,
            model=self._served.model_id,
            stop_type="word" if word else ended,
            stopping_word=word,
            has_new_line=choice in self._with_new_line,
            tokens_cached=output.usage.cached_tokens,
            generation_settings=self._settings(),
            timings=timings(self._generation),
        )

    def _settings(self) -> dict[str, Any]:
        card = self._served.runtime.card
        fields = sampling_fields(self._generation.sampling.completed(card.sampling, card.context_size))
        return {"n_ctx": card.context_size, "n_predict": fields.get("max_tokens", -1), **fields, **self._own}


def props_reply(served: ServedModel) -> PropsReply:
    """The properties of a served model. The first call runs its chat template."""
    card = served.runtime.card
    can = card_capabilities(card)
    tools = can.tool_format
    parts = ("stoker", version("stoker"), card.backend, card.backend_version)
    return PropsReply(
        default_generation_settings=GenerationSettings(card.context_size, sampling_fields(card.sampling)),
        total_slots=card.parallel,
        model_path=card.path,
        model_alias=served.model_id,
        chat_template=card.chat_template or "",
        bos_token=card.bos_token,
        eos_token=card.eos_token,
        capabilities=can.names,
        tool_format=tools,
        chat_template_caps=TemplateCaps(
            supports_tools=tools is not None and tools.writes_tools,
            supports_tool_calls=tools is not None and tools.writes_calls,
            supports_parallel_tool_calls=tools is not None and tools.writes_calls and tools.max_calls is None,
        ),
        modalities=Modalities(vision="image" in card.media, audio="audio" in card.media),
        media_marker=MEDIA_MARKER,
        build_info="-".join(part for part in parts if part),
        devices=card.devices,
    )


def slot_reply(state: SlotState, card: ModelCard) -> SlotReply:
    """The JSON of one slot, without its text, because a client must not see the prompts of other clients."""
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


def _inside(value: Any, path: Sequence[str]) -> Any:
    """The value at a path of names in nested objects; UNSET if there is none."""
    for name in path:
        if not isinstance(value, dict) or name not in value:
            return UNSET
        value = cast("dict[str, Any]", value)[name]
    return value


def _position(position: PositionLogprobs) -> ProbPosition:
    return ProbPosition(**_token(position.chosen), top_logprobs=[ProbToken(**_token(t)) for t in position.top])


def _token(token: TokenLogprob) -> dict[str, Any]:
    return {**_named(token), "logprob": token.logprob}


def _drawn_position(position: PositionLogprobs) -> ProbPosition:
    return ProbPosition(**_drawn(position.chosen), top_probs=[ProbToken(**_drawn(t)) for t in position.top])


def _drawn(token: TokenLogprob) -> dict[str, Any]:
    return {**_named(token), "prob": exp(token.logprob)}


def _named(token: TokenLogprob) -> dict[str, Any]:
    return {"id": token.token_id, "token": token.token.decode("utf-8", "replace"), "bytes": list(token.token)}


MEDIA_MARKER = "<__media__>"

RawPrompt: TypeAlias = str | PromptObject | list[str | int | PromptObject | list[int | str]] | None


def prompts_with_media(raw: RawPrompt) -> tuple[Sequence[Prompt], tuple[Media, ...]]:
    """The prompts of a request, with a unique marker for each file, and the different files.

    A list with token ids is one prompt; any other list has one prompt per item, as in llama-server.

    Raises:
        InvalidInput: a prompt is missing or malformed, or a file cannot be used.
    """
    items = _items(raw)
    files: list[MediaPart] = []
    prompts = [_text(item, files) if isinstance(item, PromptObject) else cast("Prompt", item) for item in items]
    return prompts, media_of_parts(files, "prompt")


def _items(raw: RawPrompt) -> Sequence[object]:
    if raw is None:
        raise InvalidInput("`prompt` is missing", parameter="prompt")
    if not isinstance(raw, list):
        return [raw]
    if not raw:
        raise InvalidInput("`prompt` is an empty list", parameter="prompt")
    if any(isinstance(item, int) for item in raw):
        if any(isinstance(item, list | PromptObject) for item in raw):
            raise InvalidInput("`prompt` mixes token ids and whole prompts", parameter="prompt")
        return [raw]
    return raw


def _text(prompt: PromptObject, files: list[MediaPart]) -> str:
    """The prompt's text with the marker of each file at its place. Appends the prompt's files to `files`."""
    if not prompt.multimodal_data:
        return prompt.prompt_string
    texts = prompt.prompt_string.split(MEDIA_MARKER)
    if len(texts) != len(prompt.multimodal_data) + 1:
        message = f"`prompt` has {len(texts) - 1} times {MEDIA_MARKER} for {len(prompt.multimodal_data)} files"
        raise InvalidInput(message, parameter="prompt")
    own = [_part(data, f"prompt.multimodal_data[{index}]") for index, data in enumerate(prompt.multimodal_data)]
    files += own
    return "".join(chain.from_iterable(zip_longest(texts, (part.text for part in own), fillvalue="")))


def _part(data: str, where: str) -> MediaPart:
    """The file in base64 text. Its first bytes decide whether it is an image or audio."""
    return MediaPart(media_from_base64(data, None, where))

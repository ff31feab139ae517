"""Converts requests of OpenAI's chat completions and completions to `GenerationRequest`s. Uses no connection."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from msgspec import structs

from stoker.chat.planning import planned, recalled
from stoker.engine.cards import ModelCard
from stoker.engine.protocol import Prompt
from stoker.errors import InvalidInput, UnsupportedParameter
from stoker.runtime.base import Runtime
from stoker.server.config import ServerConfig
from stoker.server.dialects.openai.types import CompletionRequest
from stoker.server.generation import GenerationRequest
from stoker.server.request.chat import ChatCompletionRequest, chat_thinking, conversation, top_logprobs
from stoker.server.request.constraints import grammar_of, text_plan
from stoker.server.request.infill import infill_prompt
from stoker.server.request.lines import line_bounds
from stoker.server.request.request import Caller, generation_request
from stoker.server.request.sampling import reported_sampling


def chat_request(
    wire: ChatCompletionRequest, runtime: Runtime, caller: Caller, config: ServerConfig
) -> GenerationRequest:
    """The generation that a chat completion asks for.

    Raises:
        InvalidInput: a field is invalid, or the chat template refused the messages.
    """
    # As in llama-server, `n_probs` counts if `logprobs` is not true.
    asks_twice = wire.logprobs is True and wire.n_probs is not None
    fields = structs.replace(wire, n_probs=None) if asks_twice else wire
    sampling = reported_sampling(fields, _chat_logprobs(wire))
    asked = replace(
        conversation(wire),
        thinking=chat_thinking(wire),
        grammar=grammar_of(wire),
        reads_calls=wire.parse_tool_calls is not False,
    )
    if wire.parallel_tool_calls is False:
        asked = replace(asked, tools=replace(asked.tools, parallel=False))
    plan = planned(recalled(asked, caller.thoughts), runtime)
    reports_progress = bool(wire.stream and wire.return_progress)
    return generation_request(
        wire,
        [plan.prompt],
        sampling,
        caller,
        config,
        n=wire.n,
        lines=line_bounds(wire),
        plan=plan,
        reports_progress=reports_progress,
        traces=wire.traces,
    )


def completion_request(
    wire: CompletionRequest, card: ModelCard, caller: Caller, config: ServerConfig
) -> GenerationRequest:
    """The generation that a completion asks for.

    Raises:
        InvalidInput: a field is invalid.
    """
    sampling = reported_sampling(wire, wire.logprobs)
    prompts = _prompts(wire)
    if wire.stream and wire.best_of is not None and wire.best_of > (wire.n or 1):
        message = "`best_of` cannot be streamed: the best answer is known when all of them are complete"
        raise InvalidInput(message, parameter="best_of")
    if wire.suffix:
        prompts = [_infill(card, prompt, wire) for prompt in prompts]
    return generation_request(
        wire,
        prompts,
        sampling,
        caller,
        config,
        n=wire.n,
        best_of=wire.best_of,
        echo=bool(wire.echo),
        parse_special=not wire.suffix,
        lines=line_bounds(wire),
        plan=text_plan(wire),
        reports_progress=bool(wire.stream and wire.return_progress),
        traces=wire.traces,
    )


def _chat_logprobs(wire: ChatCompletionRequest) -> int | None:
    top = top_logprobs(wire.top_logprobs)
    if wire.logprobs:
        return top or 0
    if top:
        raise InvalidInput("`top_logprobs` needs `logprobs` to be true", parameter="top_logprobs")
    return None


def _prompts(wire: CompletionRequest) -> list[Prompt]:
    raw = wire.prompt
    if raw is None:
        raise InvalidInput("`prompt` is missing", parameter="prompt")
    if isinstance(raw, str):
        return [raw]
    if not raw:
        raise InvalidInput("`prompt` is an empty list", parameter="prompt")
    if all(isinstance(item, int) for item in raw):
        return [cast("list[int]", raw)]
    if all(isinstance(item, str) for item in raw) or all(isinstance(item, list) for item in raw):
        return cast("list[Prompt]", raw)
    raise InvalidInput("`prompt` mixes texts, token ids and lists of token ids", parameter="prompt")


def _infill(card: ModelCard, prompt: Prompt, wire: CompletionRequest) -> Prompt:
    if not isinstance(prompt, str):
        raise UnsupportedParameter("`suffix` needs a prompt in text, not in token ids", parameter="suffix")
    if wire.echo:
        raise UnsupportedParameter("`suffix` and `echo` cannot be combined", parameter="suffix")
    return infill_prompt(card, prompt, wire.suffix or "")

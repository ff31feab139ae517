"""An OpenAI request becomes the engine's requests: prompts and numbers. Nothing here touches a connection."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import cast

from stoker.core.params import SamplingParams
from stoker.engine.protocol import Submit
from stoker.errors import InvalidInput, UnsupportedParameter
from stoker.runtime.base import Runtime
from stoker.server.config import ServerConfig
from stoker.server.translate.sampling import chat_sampling, completion_sampling, seed_of_choice
from stoker.server.wire.openai import ChatCompletionRequest, CompletionRequest, GenerationRequest
from stoker.text.messages import messages_from_dicts

_NO_TEMPLATE_KWARGS = frozenset({"messages", "tools", "add_generation_prompt", "continue_final_message"})


@dataclass(frozen=True, slots=True)
class Caller:
    """What a request's surroundings say about it."""

    reply_id: str
    """The id of the whole reply; those of its choices begin with it."""
    address: str
    """Where the client is: its key for fairness if it does not name a user."""


def chat_submits(wire: ChatCompletionRequest, runtime: Runtime, caller: Caller, config: ServerConfig) -> list[Submit]:
    """One request for the engine per choice.

    Raises:
        InvalidInput: something cannot be done as asked, or the chat template refused the messages.
    """
    sampling = chat_sampling(wire)
    return _submits([_render(wire, runtime)], sampling, wire, caller, config)


def completion_submits(wire: CompletionRequest, caller: Caller, config: ServerConfig) -> list[Submit]:
    """One request for the engine per choice: those of the first prompt come first.

    Raises:
        InvalidInput: something cannot be done as asked.
    """
    sampling = completion_sampling(wire)
    prompts = _prompts(wire)
    if wire.echo:
        _check_echo(prompts, sampling)
    return _submits(prompts, sampling, wire, caller, config)


def _render(wire: ChatCompletionRequest, runtime: Runtime) -> str:
    if wire.continue_final_message and wire.add_generation_prompt:
        message = "`continue_final_message` and `add_generation_prompt` exclude each other"
        raise InvalidInput(message, parameter="continue_final_message")
    return runtime.render_chat(
        messages_from_dicts(wire.messages),
        add_generation_prompt=wire.add_generation_prompt is not False,
        continue_final_message=bool(wire.continue_final_message),
        template_kwargs=_template_kwargs(wire),
    )


def _template_kwargs(wire: ChatCompletionRequest) -> dict[str, object]:
    given: dict[str, object] = dict(wire.chat_template_kwargs or {})
    if taken := _NO_TEMPLATE_KWARGS & given.keys():
        message = f"`chat_template_kwargs` cannot set {', '.join(sorted(taken))}"
        raise InvalidInput(message, parameter="chat_template_kwargs")
    if wire.reasoning_effort is not None:
        given.setdefault("reasoning_effort", wire.reasoning_effort)
    return given


def _prompts(wire: CompletionRequest) -> list[str | list[int]]:
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
        return cast("list[str | list[int]]", raw)
    raise InvalidInput("`prompt` mixes texts, token ids and lists of token ids", parameter="prompt")


def _check_echo(prompts: Sequence[str | list[int]], sampling: SamplingParams) -> None:
    if sampling.logprobs is not None:
        message = "`echo` together with `logprobs` is not supported: the prompt's log-probabilities are not computed"
        raise UnsupportedParameter(message, parameter="echo")
    if not all(isinstance(prompt, str) for prompt in prompts):
        raise UnsupportedParameter("`echo` is not supported for prompts given as token ids", parameter="echo")


def _submits(
    prompts: Sequence[str | list[int]],
    sampling: SamplingParams,
    wire: GenerationRequest,
    caller: Caller,
    config: ServerConfig,
) -> list[Submit]:
    n = _num_choices(wire, len(prompts), config)
    timeout_s = _timeout_s(wire, config)
    return [
        Submit(
            request_id=f"{caller.reply_id}-{index * n + choice}",
            prompt=prompt,
            sampling=replace(sampling, seed=seed_of_choice(sampling, choice)),
            priority=_priority(wire),
            client_key=wire.user or wire.safety_identifier or caller.address,
            cache_prompt=wire.cache_prompt is not False,
            timeout_s=timeout_s,
        )
        for index, prompt in enumerate(prompts)
        for choice in range(n)
    ]


def _num_choices(wire: GenerationRequest, num_prompts: int, config: ServerConfig) -> int:
    n = 1 if wire.n is None else wire.n
    if n < 1:
        raise InvalidInput(f"`n` must be at least 1, not {n}", parameter="n")
    if n * num_prompts > config.max_choices:
        message = f"{num_prompts} prompts times `n` = {n} are more than {config.max_choices} answers in one request"
        raise InvalidInput(message, parameter="n" if n > 1 else "prompt")
    return n


def _timeout_s(wire: GenerationRequest, config: ServerConfig) -> float | None:
    if wire.timeout is None:
        return config.request_timeout_s
    if not (isfinite(wire.timeout) and wire.timeout > 0):
        raise InvalidInput(f"`timeout` must be a positive number of seconds, not {wire.timeout}", parameter="timeout")
    return wire.timeout if config.request_timeout_s is None else min(wire.timeout, config.request_timeout_s)


def _priority(wire: GenerationRequest) -> int:
    priority = wire.priority or 0
    if abs(priority) >= 2**31:
        raise InvalidInput("`priority` must be between -2147483647 and 2147483647", parameter="priority")
    return priority

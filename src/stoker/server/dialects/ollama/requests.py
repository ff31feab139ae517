"""An Ollama request becomes a `GenerationRequest`. Nothing here touches a connection."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from stoker.core.request import check_token_ids
from stoker.engine.protocol import Prompt
from stoker.errors import InvalidInput, UnsupportedParameter
from stoker.runtime.base import Runtime
from stoker.runtime.keep_alive import parse_keep_alive
from stoker.server.config import ServerConfig
from stoker.server.dialects.ollama.fields import OPTION_FIELDS
from stoker.server.dialects.ollama.names import own_name
from stoker.server.dialects.ollama.types import AnswerRequest, ChatRequest, GenerateRequest, Options
from stoker.server.dialects.openai.requests import top_logprobs
from stoker.server.fields import convert_fields
from stoker.server.generation import GenerationRequest
from stoker.server.request.fields import GenerationFields
from stoker.server.request.infill import infill_prompt
from stoker.server.request.request import Caller, generation_request
from stoker.server.request.sampling import sampling_params
from stoker.text.messages import Message, message_from_dict, messages_from_dicts

_WORDS = {name: f"options.{name}" for name in Options.__struct_fields__}


@dataclass(frozen=True, slots=True)
class Rendered:
    """A prompt on its way to the model."""

    prompt: Prompt
    parse_special: bool = True


def is_load(wire: GenerateRequest | ChatRequest) -> bool:
    """Nothing is asked but that the model be loaded."""
    return not (wire.prompt or wire.suffix) if isinstance(wire, GenerateRequest) else not wire.messages


def is_unload(wire: GenerateRequest | ChatRequest) -> bool:
    """Nothing is asked but that the model be unloaded.

    Raises:
        InvalidInput: `keep_alive` is no duration.
    """
    return is_load(wire) and keep_alive_of(wire.keep_alive) == 0


def keep_alive_of(keep_alive: str | float | None) -> float | None:
    """How long a model is to stay loaded afterwards, in seconds; None = the request does not say.

    Raises:
        InvalidInput: it is no duration.
    """
    return None if keep_alive is None or keep_alive == "" else parse_keep_alive(keep_alive)


def answer_request(wire: AnswerRequest, rendered: Rendered, caller: Caller, config: ServerConfig) -> GenerationRequest:
    """What a request asks of a model.

    Raises:
        InvalidInput: something cannot be done as asked.
    """
    options = convert_fields(wire.options or {}, OPTION_FIELDS, Options, "options.")
    given = {name: getattr(options, name) for name in Options.__struct_fields__}
    fields = GenerationFields(**given, model=own_name(wire.model or ""), cache_prompt=wire.cache_prompt, lora=wire.lora)
    if fields.num_predict is not None and fields.num_predict <= 0:  # only a positive number is a limit to Ollama
        fields = msgspec.structs.replace(fields, num_predict=None)
    sampling = sampling_params(fields, _logprobs(wire), _WORDS)
    return generation_request(fields, [rendered.prompt], sampling, caller, config, parse_special=rendered.parse_special)


def render_chat(wire: ChatRequest, runtime: Runtime) -> Rendered:
    """The prompt of a conversation. A last message of the assistant is the beginning of the answer.

    Raises:
        InvalidInput: the messages are malformed, or the chat template refused them.
    """
    messages = messages_from_dicts([_as_openai(raw, i) for i, raw in enumerate(wire.messages or [])])
    is_begun = messages[-1].role == "assistant"
    text = runtime.render_chat(
        messages,
        add_generation_prompt=not is_begun,
        continue_final_message=is_begun,
        template_kwargs=_template_kwargs(wire),
    )
    return Rendered(text)


def render_generate(wire: GenerateRequest, runtime: Runtime) -> Rendered:
    """The prompt of a generation, without what its `context` puts before it.

    Raises:
        InvalidInput: fields contradict each other, `context` has an id that is no token's, or the chat template refused
            the prompt.
        UnsupportedParameter: the model cannot fill in the middle.
    """
    prompt = wire.prompt or ""
    if wire.suffix:
        return Rendered(infill_prompt(runtime.card, prompt, wire.suffix), parse_special=False)
    if wire.raw:
        if wire.system or wire.context:
            name = "system" if wire.system else "context"
            raise InvalidInput(f"`raw` takes the prompt as it is: leave `{name}` away", parameter=name)
        return Rendered(prompt)
    check_token_ids("context", tuple(wire.context or ()), runtime.card.vocab_size)
    user = message_from_dict({"role": "user", "content": prompt}, "prompt")
    text = runtime.render_chat([*_system(wire), user], template_kwargs=_template_kwargs(wire))
    return Rendered(text)


def _system(wire: GenerateRequest) -> list[Message]:
    return [message_from_dict({"role": "system", "content": wire.system}, "system")] if wire.system else []


def _as_openai(raw: Mapping[str, Any], index: int) -> dict[str, Any]:
    """Ollama's messages differ in what they call a tool, and in images beside the text."""
    if raw.get("images"):
        where = f"messages[{index}].images"
        raise UnsupportedParameter(f"`{where}`: images are not supported, only text", parameter=where)
    message = {name: value for name, value in raw.items() if name not in ("images", "tool_name")}
    return message if raw.get("tool_name") is None else {**message, "name": raw["tool_name"]}


def _template_kwargs(wire: AnswerRequest) -> dict[str, object]:
    if wire.think is None or wire.think == "":
        return {}
    if wire.think is not False:
        raise UnsupportedParameter(
            "`think` is not supported here: reasoning is not told apart from the answer yet", parameter="think"
        )
    return {"enable_thinking": False}


def _logprobs(wire: AnswerRequest) -> int | None:
    top = top_logprobs(wire.top_logprobs)
    return top or 0 if wire.logprobs or top else None

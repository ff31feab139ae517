"""Checks and normalizes the arguments of `LLM` and `AsyncLLM`. Nothing is sent to the engine here."""

from __future__ import annotations

import operator
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from numbers import Integral
from pathlib import Path
from typing import Any, TypeAlias, TypedDict, cast

import msgspec

from stoker.core.keywords import check_keywords
from stoker.core.params import SamplingParams, real_number, whole_number
from stoker.engine.config import AdapterSpec, BackendName, DeviceIDs, EngineConfig, GPULayers, KVType, PoolingName
from stoker.engine.question_messages import AdapterChoice, Embed
from stoker.errors import InvalidInput
from stoker.llm.files import with_files
from stoker.llm.options import SamplingOptions
from stoker.text.messages import Message, checked_message, message_from_dict

Prompt: TypeAlias = str | list[int]
"""Text, or token ids, which are used unchanged."""
Prompts: TypeAlias = list[str] | list[list[int]] | list[Prompt]
Messages: TypeAlias = Sequence[Message | Mapping[str, object]]
"""Messages, oldest first; dicts have OpenAI's format."""
Conversation: TypeAlias = str | Messages
"""Messages, or a string as the user's only message."""
OneSampling: TypeAlias = SamplingParams | Mapping[str, Any] | None
"""Sampling parameters for one prompt, also as a dict; None = the defaults."""
Sampling: TypeAlias = OneSampling | Sequence[SamplingParams | Mapping[str, Any]]
"""Sampling parameters for all prompts, or a list with one entry for each prompt."""
Adapters: TypeAlias = str | Mapping[str, float] | None
"""The name of an adapter, or names with scales; `{}` = no adapter, None = the adapters that apply by default."""
Lora: TypeAlias = Adapters | Sequence[Adapters]
"""Adapters for all prompts, or a list with one entry for each prompt."""

NOTHING_GIVEN = SamplingParams()


class EngineOptions(TypedDict, total=False):
    """The fields of `EngineConfig` that `LLM` takes as keywords. A missing key means the default of `EngineConfig`."""

    backend: BackendName
    ctx_size: int | None
    kv_tokens: int | None
    parallel: int
    threads: int | None
    kv_type: KVType | None
    max_draft: int | None
    draft_model: str | Path
    pooling: PoolingName | None
    mmproj: str
    image_min_tokens: int | None
    image_max_tokens: int | None
    gpu_layers: GPULayers | None
    n_cpu_moe: int | None
    override_tensor: str
    provider: str
    device_id: DeviceIDs | None
    lora: Mapping[str, str | Path] | Sequence[str] | Path
    """LoRA adapters: files by name, a list of values of the option `--lora` (`NAME=PATH[:SCALE]`), or one value."""


def engine_config(model: str | Path | EngineConfig, options: EngineOptions) -> EngineConfig:
    """The configuration of a model with the given options.

    Raises:
        TypeError: there is no such option.
        InvalidInput: an option has the wrong type, or is outside its range; `fields["parameter"]` names it.
    """
    check_keywords("LLM()", options, {*EngineConfig.__struct_fields__, "progress"})
    fields: dict[str, Any] = {name: value for name, value in options.items() if name != "lora"}
    fields |= _lora_fields(options.get("lora"))
    if isinstance(model, EngineConfig):
        return msgspec.structs.replace(model, **fields)
    if not isinstance(cast("object", model), str | Path):
        complaint = "`model` must be a name, a path or an EngineConfig"
        raise InvalidInput(f"{complaint}, not {type(model).__name__}", parameter="model")
    return EngineConfig(model=str(model), **fields)


def embed_dimensions(value: object) -> int | None:
    """The checked number of dimensions; None = the full size.

    Raises:
        InvalidInput: the value is neither a whole number nor None.
    """
    return None if value is None else whole_number("dimensions", value)


def _lora_fields(lora: object) -> dict[str, Any]:
    if lora is None:
        return {}
    if isinstance(lora, str | Path):
        return {"lora": [str(lora)]}
    if isinstance(lora, Mapping):
        files = cast("Mapping[object, object]", lora)
        if all(isinstance(name, str) and isinstance(path, str | Path) for name, path in files.items()):
            specs = (AdapterSpec(name=str(name), path=os.path.expanduser(str(path))) for name, path in files.items())
            return {"adapters": tuple(specs)}
    elif _is_all(str, lora):
        return {"lora": list(cast("Collection[str]", lora))}
    raise InvalidInput("`lora` must be files of adapters by name, or a list of NAME=PATH[:SCALE]", parameter="lora")


def as_batch(prompts: Prompt | Prompts) -> tuple[list[Prompt], bool]:
    """The prompts as a list, and whether the caller gave a single prompt instead of a list.

    Raises:
        InvalidInput: a prompt is neither text nor token ids.
    """
    if isinstance(prompts, str):
        return [prompts], True
    items = _items(prompts, "prompts must be text, token ids, or a list of either")
    if items and isinstance(items[0], Integral):
        return [as_prompt(items)], True
    return [as_prompt(item) for item in items], False


def as_prompt(prompt: object) -> Prompt:
    """The prompt as text, or as a list of `int` from ids of any integer type.

    The check matters: a prompt of a wrong type would stop the engine and all its requests.

    Raises:
        InvalidInput: the prompt is neither text nor token ids.
    """
    if isinstance(prompt, str):
        return prompt
    complaint = "a prompt must be text or a list of token ids"
    items = _items(prompt, complaint)
    try:
        return [operator.index(cast("Any", item)) for item in items]
    except TypeError as error:
        raise InvalidInput(f"{complaint}: {error}", parameter="prompt") from error


def _items(values: object, complaint: str) -> list[object]:
    kind = type(values)
    if not issubclass(kind, Iterable) or issubclass(kind, bytes | bytearray | Mapping):
        raise InvalidInput(f"{complaint}, not {kind.__name__}", parameter="prompt")
    try:
        return list(cast("Iterable[object]", values))
    except TypeError as error:  # a NumPy array with zero dimensions
        raise InvalidInput(f"{complaint}: {error}", parameter="prompt") from error


def as_ranking(query: object, documents: object, *, truncate: bool) -> Embed:
    """The engine's question for reranking: how relevant each document is for a query.

    Raises:
        InvalidInput: the query is not a string, or the documents are not a list of texts.
    """
    if not isinstance(query, str):
        raise InvalidInput(f"`query` must be text, not {type(query).__name__}", parameter="query")
    if isinstance(documents, str):
        raise InvalidInput("`documents` must be a list of texts, not str", parameter="documents")
    inputs = [as_prompt(document) for document in _items(documents, "`documents` must be a list of texts")]
    return Embed(inputs, query=query, truncates=truncate, parameter="documents")


def as_conversations(messages: Conversation | Sequence[Messages]) -> tuple[list[Conversation], bool]:
    """The conversations as a list, and whether the caller gave a single conversation instead of a list.

    Raises:
        InvalidInput: the argument is not a list, or contains neither messages nor lists of messages.
    """
    if isinstance(messages, str):
        return [messages], True
    _check_list(messages, "`messages` must be a text or a list of messages")
    if not messages or isinstance(messages[0], Message | Mapping):
        return [cast("Conversation", messages)], True
    for conversation in messages:
        _check_list(conversation, "`messages` must hold messages, or lists of messages")
    return list(cast("Sequence[Messages]", messages)), False


def _check_list(messages: object, complaint: str) -> None:
    if isinstance(messages, str) or not isinstance(messages, Sequence):
        raise InvalidInput(f"{complaint}, not {type(messages).__name__}", parameter="messages")


def as_messages(conversation: Conversation, *, takes_images: bool) -> tuple[Message, ...]:
    """The checked messages of a conversation, with the content of their files.

    Args:
        conversation: the conversation as the caller gave it.
        takes_images: the model accepts images, so pages of PDF files become images.

    Raises:
        InvalidInput: there is no message, or a message is not valid.
    """
    if isinstance(conversation, str):
        conversation = [{"role": "user", "content": conversation}]
    _check_list(conversation, "`messages` must be a list")
    if not conversation:
        raise InvalidInput("`messages` must be a list with at least one message", parameter="messages")
    return tuple(
        _as_message(message, f"messages[{index}]", takes_images=takes_images)
        for index, message in enumerate(conversation)
    )


def _as_message(message: object, where: str, *, takes_images: bool) -> Message:
    if isinstance(message, Message):
        return checked_message(message, where)
    return message_from_dict(with_files(message, where, takes_images=takes_images), where)


def spread(sampling: Sampling, num_prompts: int, options: SamplingOptions | None = None) -> list[SamplingParams]:
    """The sampling parameters of each prompt; keywords in `options` take precedence over `sampling`.

    Raises:
        InvalidInput: the length of the list differs from the number of prompts, or a value has the wrong type.
    """
    if not isinstance(sampling, list | tuple):
        return [as_sampling(sampling, options)] * num_prompts
    if len(sampling) != num_prompts:
        raise InvalidInput(f"{len(sampling)} sampling params for {num_prompts} prompts", parameter="sampling")
    return [as_sampling(params, options) for params in sampling]


def spread_lora(lora: Lora, num_prompts: int) -> list[Adapters]:
    """The adapters of each prompt.

    Raises:
        InvalidInput: the length of the list differs from the number of prompts.
    """
    if not isinstance(lora, list | tuple):
        return [cast("Adapters", lora)] * num_prompts
    if len(lora) != num_prompts:
        raise InvalidInput(f"{len(lora)} choices of adapters for {num_prompts} prompts", parameter="lora")
    return list(lora)


def as_adapters(adapters: object) -> list[AdapterChoice] | None:
    """The adapters of one prompt; None = the adapters that apply by default.

    Raises:
        InvalidInput: the value is neither a name nor a mapping from names to scales.
    """
    if adapters is None:
        return None
    scales = {adapters: 1.0} if isinstance(adapters, str) else adapters
    if not isinstance(scales, Mapping):
        complaint = "`lora` must be the name of an adapter, or names with scales"
        raise InvalidInput(f"{complaint}, not {type(adapters).__name__}", parameter="lora")
    pairs = cast("Mapping[object, object]", scales).items()
    if not all(isinstance(name, str) for name, _ in pairs):
        raise InvalidInput("`lora` must map names of adapters to numbers", parameter="lora")
    return [AdapterChoice(name=str(name), scale=float(real_number("lora", scale))) for name, scale in pairs]


def as_sampling(sampling: object, options: SamplingOptions | None = None) -> SamplingParams:
    """The sampling parameters of one prompt, overridden by the keywords in `options`. None becomes `NOTHING_GIVEN`.

    Raises:
        InvalidInput: `sampling` is not a `SamplingParams`, a mapping or None, or a value has the wrong type.
    """
    if isinstance(sampling, Mapping):
        sampling = SamplingParams(**cast("Mapping[str, Any]", sampling))
    if sampling is None:
        sampling = NOTHING_GIVEN
    if not isinstance(sampling, SamplingParams):
        raise InvalidInput(f"sampling must be SamplingParams, not {type(sampling).__name__}", parameter="sampling")
    return replace(sampling, **options) if options else sampling


def _is_all(kind: type, values: object) -> bool:
    return isinstance(values, Collection) and all(isinstance(v, kind) for v in cast("Collection[object]", values))

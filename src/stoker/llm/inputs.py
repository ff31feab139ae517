"""What callers may hand to `LLM` and `AsyncLLM`, brought into one form; nothing is sent anywhere."""

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
"""Text, or token ids that are taken as they are."""
Prompts: TypeAlias = list[str] | list[list[int]] | list[Prompt]
Messages: TypeAlias = Sequence[Message | Mapping[str, object]]
"""Messages, oldest first; dicts have OpenAI's shape."""
Conversation: TypeAlias = str | Messages
"""Messages, or one text of the user."""
OneSampling: TypeAlias = SamplingParams | Mapping[str, Any] | None
"""Sampling parameters, also as a dict."""
Sampling: TypeAlias = OneSampling | Sequence[SamplingParams | Mapping[str, Any]]
"""One for all prompts, or one for each."""
Adapters: TypeAlias = str | Mapping[str, float] | None
"""The name of an adapter, or names with scales; `{}` = the model alone, None = what applies by itself."""
Lora: TypeAlias = Adapters | Sequence[Adapters]
"""One for all prompts, or one for each."""

NOTHING_GIVEN = SamplingParams()


class EngineOptions(TypedDict, total=False):
    """The fields of `EngineConfig` that `LLM` takes as keywords; not given = its defaults."""

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
    """Adapters: files by name, or texts as behind `--lora`, or one such text."""


def engine_config(model: str | Path | EngineConfig, options: EngineOptions) -> EngineConfig:
    """The configuration of a model under these options.

    Raises:
        TypeError: there is no such option.
        InvalidInput: one is of a wrong type, or outside its range; `fields["parameter"]` names it.
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
    """The same value.

    Raises:
        InvalidInput: neither a whole number nor None.
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
    """All prompts, and whether it was a single one.

    Raises:
        InvalidInput: one is neither text nor token ids.
    """
    if isinstance(prompts, str):
        return [prompts], True
    items = _items(prompts, "prompts must be text, token ids, or a list of either")
    if items and isinstance(items[0], Integral):
        return [as_prompt(items)], True
    return [as_prompt(item) for item in items], False


def as_prompt(prompt: object) -> Prompt:
    """Text as it is, token ids of any integer type as a list. A wrong one would stop the engine and all its requests.

    Raises:
        InvalidInput: neither text nor token ids.
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
    except TypeError as error:  # an array of no dimensions
        raise InvalidInput(f"{complaint}: {error}", parameter="prompt") from error


def as_ranking(query: object, documents: object, *, truncate: bool) -> Embed:
    """The question how well each document answers a query.

    Raises:
        InvalidInput: the query is no text, or the documents are no list of texts.
    """
    if not isinstance(query, str):
        raise InvalidInput(f"`query` must be text, not {type(query).__name__}", parameter="query")
    if isinstance(documents, str):
        raise InvalidInput("`documents` must be a list of texts, not str", parameter="documents")
    inputs = [as_prompt(document) for document in _items(documents, "`documents` must be a list of texts")]
    return Embed(inputs, query=query, truncates=truncate, parameter="documents")


def as_conversations(messages: Conversation | Sequence[Messages]) -> tuple[list[Conversation], bool]:
    """All conversations, and whether it was a single one.

    Raises:
        InvalidInput: it is no list, or neither messages nor lists are in it.
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
    """The messages of a conversation, checked.

    Args:
        conversation: as the caller gave it.
        takes_images: the model does; then pages of PDF files become images.

    Raises:
        InvalidInput: there is none, or one is not valid.
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
    """One for each prompt; keywords go over `sampling`.

    Raises:
        InvalidInput: there are more or fewer of them than prompts, or one holds a value of a wrong type.
    """
    if not isinstance(sampling, list | tuple):
        return [as_sampling(sampling, options)] * num_prompts
    if len(sampling) != num_prompts:
        raise InvalidInput(f"{len(sampling)} sampling params for {num_prompts} prompts", parameter="sampling")
    return [as_sampling(params, options) for params in sampling]


def spread_lora(lora: Lora, num_prompts: int) -> list[Adapters]:
    """The adapters of each prompt.

    Raises:
        InvalidInput: there are more or fewer of them than prompts.
    """
    if not isinstance(lora, list | tuple):
        return [cast("Adapters", lora)] * num_prompts
    if len(lora) != num_prompts:
        raise InvalidInput(f"{len(lora)} choices of adapters for {num_prompts} prompts", parameter="lora")
    return list(lora)


def as_adapters(adapters: object) -> list[AdapterChoice] | None:
    """The adapters of one prompt.

    Raises:
        InvalidInput: neither a name nor names with scales.
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
    """The params of one prompt, `NOTHING_GIVEN` for None, with those of the keywords.

    Raises:
        InvalidInput: something else, or a value of a wrong type.
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

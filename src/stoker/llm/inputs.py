"""What callers may hand to `LLM` and `AsyncLLM`, brought into one form; nothing is sent anywhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias, TypedDict, cast

import msgspec

from stoker.core.params import SamplingParams
from stoker.engine.config import BackendName, EngineConfig
from stoker.errors import InvalidInput
from stoker.text.messages import Message, messages_from_dicts

Prompt: TypeAlias = str | list[int]
"""Text, or token ids that are taken as they are."""
Prompts: TypeAlias = list[str] | list[list[int]] | list[Prompt]
Conversation: TypeAlias = Sequence[Message | Mapping[str, object]]
"""Messages, oldest first; dicts have OpenAI's shape."""
Sampling: TypeAlias = SamplingParams | Sequence[SamplingParams] | None
"""One for all prompts, or one for each."""

NOTHING_GIVEN = SamplingParams()
GENERATE_DEFAULTS = SamplingParams(max_tokens=512)


class EngineOptions(TypedDict, total=False):
    """The fields of `EngineConfig` that `LLM` takes as keywords; not given = its defaults."""

    backend: BackendName
    ctx_size: int | None
    kv_tokens: int | None
    parallel: int
    threads: int | None


def engine_config(model: str | Path | EngineConfig, options: EngineOptions) -> EngineConfig:
    """The configuration of a model under these options."""
    if isinstance(model, EngineConfig):
        return msgspec.structs.replace(model, **options)
    return EngineConfig(model=str(model), **options)


def as_batch(prompts: Prompt | Prompts) -> tuple[list[Prompt], bool]:
    """All prompts, and whether it was a single one."""
    if isinstance(prompts, str) or (prompts and isinstance(prompts[0], int)):
        return [cast("Prompt", prompts)], True
    return list(cast("list[Prompt]", prompts)), False


def as_conversations(messages: Conversation | Sequence[Conversation]) -> tuple[list[Conversation], bool]:
    """All conversations, and whether it was a single one."""
    if not messages or isinstance(messages[0], Message | Mapping):
        return [cast("Conversation", messages)], True
    return list(cast("Sequence[Conversation]", messages)), False


def as_messages(conversation: Conversation) -> tuple[Message, ...]:
    """The messages of a conversation, checked.

    Raises:
        InvalidInput: there is none, or one is not valid.
    """
    ready = tuple(message for message in conversation if isinstance(message, Message))
    return ready if len(ready) == len(conversation) > 0 else messages_from_dicts(conversation)


def spread(sampling: Sampling, num_prompts: int, defaults: SamplingParams) -> list[SamplingParams]:
    """One for each prompt, with `defaults` where nothing is given.

    Raises:
        InvalidInput: there are more or fewer of them than prompts.
    """
    if sampling is None or isinstance(sampling, SamplingParams):
        return [(sampling or NOTHING_GIVEN).filled_from(defaults)] * num_prompts
    if len(sampling) != num_prompts:
        raise InvalidInput(f"{len(sampling)} sampling params for {num_prompts} prompts", parameter="sampling")
    return [params.filled_from(defaults) for params in sampling]

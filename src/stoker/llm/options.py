"""The keywords of `LLM.generate` and `LLM.chat`, and their split into sampling parameters and others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any, TypeAlias, TypedDict, cast

from stoker.core.keywords import check_keywords
from stoker.core.params import SamplingParams
from stoker.llm.functions import Tool


class SamplingOptions(TypedDict, total=False):
    """The fields of `SamplingParams`, as keywords."""

    temperature: float | None
    dynatemp_range: float | None
    dynatemp_exponent: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    typical_p: float | None
    top_n_sigma: float | None
    xtc_probability: float | None
    xtc_threshold: float | None
    infill: bool | None
    dry_multiplier: float | None
    dry_base: float | None
    dry_allowed_length: int | None
    dry_penalty_last_n: int | None
    dry_sequence_breakers: Sequence[str] | None
    repetition_penalty: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    penalty_last_n: int | None
    mirostat: int | None
    mirostat_tau: float | None
    mirostat_eta: float | None
    adaptive_target: float | None
    adaptive_decay: float | None
    min_keep: int | None
    samplers: str | Sequence[str] | None
    logit_bias: Mapping[int, float] | None
    allowed_token_ids: Sequence[int] | None
    banned_token_ids: Sequence[int] | None
    seed: int | None
    max_tokens: int | None
    min_tokens: int | None
    ignore_eos: bool | None
    stop: str | Sequence[str] | None
    stop_token_ids: Sequence[int] | None
    logprobs: int | None
    post_sampling_probs: bool | None


ResponseFormat: TypeAlias = type | Mapping[str, Any]
"""The constraint on the text of an answer: a class or a dict; see `TextOptions.response_format`."""
Reasoning: TypeAlias = bool | int | str | Mapping[str, Any]
"""Whether, or how much, the model reasons; see `ChatOptions.reasoning`."""


class TextOptions(SamplingOptions, total=False):
    """The keywords of `LLM.generate` and `LLM.stream`."""

    response_format: Any
    """Constraint on the answer: a type (a dataclass, a TypedDict, a pydantic model), of which `Completion.parsed` is
    then a value; a JSON schema; OpenAI's `response_format`; or vLLM's `structured_outputs`, such as `{"regex":
    "[0-9]+"}` or `{"choice": ["yes", "no"]}`."""
    timeout: float | None
    """Maximum time for each answer, in seconds, from its start in the engine; after that, `Timeout` is raised."""


class ChatOptions(TextOptions, total=False):
    """The keywords of `LLM.chat` and `LLM.stream_chat`."""

    tools: Sequence[Tool] | None
    """Python functions, or definitions in OpenAI's format."""
    tool_choice: str | Mapping[str, Any] | Callable[..., object] | None
    """`auto`, `required`, `none`, a tool's name, one of the functions, or OpenAI's object."""
    parallel_tool_calls: bool | None
    """False = an answer has at most one call."""
    reasoning: Reasoning | None
    """False = off, True = on, a number = on with this maximum number of tokens, a string = the effort, such as `low`;
    or a dict with `enabled`, `effort` and `budget`. Default: decided by the chat template."""
    template_kwargs: Mapping[str, object] | None
    """Additional variables for the chat template."""


_SAMPLING = frozenset(field.name for field in fields(SamplingParams))
_TEXT = frozenset({"response_format", "timeout"})
_CHAT = _TEXT | {"tools", "tool_choice", "parallel_tool_calls", "reasoning", "template_kwargs"}


def text_options(function: str, options: TextOptions) -> tuple[SamplingOptions, TextOptions]:
    """Splits the keywords of `generate` into sampling parameters and all others. `function` is named in errors.

    Raises:
        TypeError: there is no such keyword.
    """
    return _split(function, options, _TEXT)


def chat_options(function: str, options: ChatOptions) -> tuple[SamplingOptions, ChatOptions]:
    """Splits the keywords of `chat` into sampling parameters and all others. `function` is named in errors.

    Raises:
        TypeError: there is no such keyword.
    """
    return cast("tuple[SamplingOptions, ChatOptions]", _split(function, options, _CHAT))


def _split(function: str, options: TextOptions, known: frozenset[str]) -> tuple[SamplingOptions, TextOptions]:
    if "stream" in options:
        raise TypeError(f"{function} takes no 'stream': `stream()` and `stream_chat()` stream the text of an answer")
    check_keywords(function, options, _SAMPLING | known | {"sampling", "lora", "progress"})
    sampling = {name: value for name, value in options.items() if name in _SAMPLING}
    others = {name: value for name, value in options.items() if name in known and value is not None}
    return cast("SamplingOptions", sampling), cast("TextOptions", others)

"""The JSON of OpenAI's chat, completions and models endpoints, with llama-server's additions; types only.

In requests `None` means "not given". What happens to fields that are not here is in `openai_fields`.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import UNSET, Meta, UnsetType

Int: TypeAlias = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
"""JSON integers have no bound; ours fit into 64 bits."""

Bias: TypeAlias = float | bool
"""A number is added to the logit; `false` bans the token."""


class StreamOptions(msgspec.Struct, frozen=True, kw_only=True):
    include_usage: bool | None = None
    """One more chunk before `[DONE]`, with the token counts."""
    continuous_usage_stats: bool | None = None
    """Token counts so far on every chunk (an addition of vLLM)."""


class GenerationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What the chat and completions endpoints have in common."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Int | None = None
    user: str | None = None
    safety_identifier: str | None = None
    priority: Int | None = None
    timeout: float | None = None
    cache_prompt: bool | None = None

    max_tokens: Int | None = None
    max_completion_tokens: Int | None = None
    n_predict: Int | None = None
    min_tokens: Int | None = None
    ignore_eos: bool | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[Int] | None = None
    seed: int | None = None
    """Unsigned or signed, in 64 bits."""

    temperature: float | None = None
    dynatemp_range: float | None = None
    dynatemp_exponent: float | None = None
    top_k: Int | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical_p: float | None = None
    top_n_sigma: float | None = None
    xtc_probability: float | None = None
    xtc_threshold: float | None = None
    dry_multiplier: float | None = None
    dry_base: float | None = None
    dry_allowed_length: Int | None = None
    dry_penalty_last_n: Int | None = None
    dry_sequence_breakers: list[str] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    repeat_penalty: float | None = None
    repeat_last_n: Int | None = None
    mirostat: Int | None = None
    mirostat_tau: float | None = None
    mirostat_eta: float | None = None
    logit_bias: dict[str, Bias] | list[tuple[Int | str, Bias]] | None = None
    allowed_token_ids: list[Int] | None = None


class ChatCompletionRequest(GenerationRequest, frozen=True, kw_only=True):
    """The body of `POST /v1/chat/completions`."""

    messages: list[dict[str, Any]] | None = None
    """`text.messages` reads them, as leniently as clients write their histories."""
    logprobs: bool | None = None
    top_logprobs: Int | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: str | None = None


class CompletionRequest(GenerationRequest, frozen=True, kw_only=True):
    """The body of `POST /v1/completions`."""

    prompt: str | list[str | Int | list[Int]] | None = None
    echo: bool | None = None
    logprobs: Int | None = None


# Replies


class ReplyHead(msgspec.Struct, frozen=True, kw_only=True):
    """What is the same in every chunk of a stream."""

    id: str
    object: str
    created: int
    model: str
    system_fingerprint: str


class PromptTokensDetails(msgspec.Struct, frozen=True):
    cached_tokens: int


class UsageReply(msgspec.Struct, frozen=True, kw_only=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class Timings(msgspec.Struct, frozen=True, kw_only=True):
    """llama-server's block, by the server's clock: waiting in the queue counts as prompt time."""

    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_token_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_token_ms: float
    predicted_per_second: float


class TopLogprob(msgspec.Struct, frozen=True):
    token: str
    logprob: float
    bytes: list[int]


class ChatLogprob(msgspec.Struct, frozen=True):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct, frozen=True):
    content: list[ChatLogprob]
    refusal: None = None


class ChatDelta(msgspec.Struct, frozen=True):
    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET


class ChatChunkChoice(msgspec.Struct, frozen=True, kw_only=True):
    """What one chunk adds to one choice."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | UnsetType = UNSET
    """The stop string or stop token id that ended the answer (an addition of vLLM)."""


class AssistantMessage(msgspec.Struct, frozen=True, kw_only=True):
    content: str
    role: str = "assistant"
    refusal: None = None


class ChatChoice(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: str | None
    stop_reason: str | int | UnsetType = UNSET


class CompletionLogprobs(msgspec.Struct, frozen=True):
    """Four lists with one item for each token. `text_offset` counts characters from the start of the text."""

    tokens: list[str] = []
    token_logprobs: list[float] = []
    top_logprobs: list[dict[str, float]] = []
    text_offset: list[int] = []


class CompletionChoice(msgspec.Struct, frozen=True, kw_only=True):
    """A whole choice, or what one chunk adds to it: they have the same shape."""

    text: str
    index: int
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | UnsetType = UNSET


ReplyChoices: TypeAlias = list[ChatChoice] | list[CompletionChoice]


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """A whole answer, not streamed."""

    id: str
    object: str
    created: int
    model: str
    system_fingerprint: str
    choices: ReplyChoices
    usage: UsageReply
    timings: Timings


class ModelMeta(msgspec.Struct, frozen=True, kw_only=True):
    """llama-server's block. Sizes are in tokens, `size` is in bytes."""

    n_vocab: int
    n_ctx_train: int
    n_ctx: int
    n_params: int
    size: int


class ModelEntry(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    created: int
    aliases: list[str]
    max_model_len: int
    meta: ModelMeta
    object: str = "model"
    owned_by: str = "stoker"


class ModelList(msgspec.Struct, frozen=True):
    data: list[ModelEntry]
    object: str = "list"

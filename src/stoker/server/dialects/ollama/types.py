"""The JSON types of Ollama's API, and tables of their fields. Durations are in nanoseconds.

In requests `None` means "not given". The tables at the end honor, refuse or ignore each known field.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from stoker.server.fields import FieldTable, Ignored, Refused, honoured
from stoker.server.request.fields import Int, Lora, SamplingFields


class AnswerRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Common fields of the two endpoints that generate text."""

    model: str | None = None
    stream: bool | None = None
    """Not given = true."""
    session_id: str | None = None
    """Name of the conversation, whose KV cache is evicted last for a while (an addition of this server)."""
    options: dict[str, Any] | None = None
    """The sampling options, see `Options`; they have a table of their own."""
    keep_alive: str | float | None = None
    """Time for which the model stays loaded afterwards: a text such as `5m`, or seconds; negative = forever, 0 = the
    model is unloaded after the answer. A pinned model stays loaded in any case."""
    think: bool | str | None = None
    """Whether the model reasons before it answers, or how much: `low`, `medium`, `high`."""
    format: str | dict[str, Any] | None = None
    """`json`, or a JSON schema that the answer matches."""
    logprobs: bool | None = None
    top_logprobs: Int | None = None
    cache_prompt: bool | None = None
    """False: the prefix cache is neither read nor written (an addition of this server)."""
    lora: Lora | None = None
    """LoRA adapters to apply, by name (an addition of this server)."""


class GenerateRequest(AnswerRequest, frozen=True, kw_only=True):
    """The body of `POST /api/generate`."""

    prompt: str | None = None
    """The prompt; empty = only load the model."""
    suffix: str | None = None
    """Text after the answer: the model fills in between `prompt` and `suffix`."""
    system: str | None = None
    context: list[Int] | None = None
    """The `context` of an earlier reply, that is, its tokens, which this prompt continues."""
    images: list[str] | None = None
    """Images in base64, which precede the prompt."""
    raw: bool | None = None
    """True: the prompt is used unchanged, without the chat template."""


class ChatRequest(AnswerRequest, frozen=True, kw_only=True):
    """The body of `POST /api/chat`."""

    messages: list[dict[str, Any]] | None = None
    """The conversation; empty = only load the model."""
    tools: list[dict[str, Any]] | None = None
    """Functions that the model may call, in OpenAI's shape."""


class Options(SamplingFields, frozen=True, kw_only=True):
    """The sampling options: the same fields as in the other APIs."""


class NameRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of requests about one model."""

    model: str | None = None
    name: str | None = None
    """Older name of `model`."""


class ShowRequest(NameRequest, frozen=True, kw_only=True):
    """The body of `POST /api/show`."""

    verbose: bool | None = None
    """True: long lists in the metadata, such as the vocabulary, are shown."""


class PullRequest(NameRequest, frozen=True, kw_only=True):
    """The body of `POST /api/pull`."""

    stream: bool | None = None
    """Not given = true."""


class CreateRequest(NameRequest, frozen=True, kw_only=True):
    """The body of `POST /api/create`."""

    base: str | None = msgspec.field(default=None, name="from")
    """The base model, which must be on this server; it may be a created one too."""
    system: str | None = None
    parameters: dict[str, Any] | None = None
    """Default settings of requests, by the names of Ollama's options."""
    stream: bool | None = None
    """Not given = true."""


class CopyRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `POST /api/copy`."""

    source: str | None = None
    destination: str | None = None


# Replies


class TokenLogprob(msgspec.Struct, frozen=True, kw_only=True):
    token: str
    logprob: float
    bytes: list[int]


class Logprob(TokenLogprob, frozen=True, kw_only=True):
    top_logprobs: list[TokenLogprob]


class AnswerReply(msgspec.Struct, frozen=True, kw_only=True):
    """A line of a stream, or the whole answer. Only the last line has counts and durations."""

    model: str
    created_at: str
    """Time in RFC 3339."""
    done: bool
    logprobs: list[Logprob] | UnsetType = UNSET
    done_reason: str | UnsetType = UNSET
    """`stop`, `length`, `load`, `unload`."""
    total_duration: int | UnsetType = UNSET
    load_duration: int | UnsetType = UNSET
    """Time until the engine accepted the request, including any time to load the model."""
    prompt_eval_count: int | UnsetType = UNSET
    """Prompt tokens, including those that were in the cache."""
    prompt_eval_duration: int | UnsetType = UNSET
    """Duration of the prefill: from the request's first step to its first token. If the engine reports no timings, from
    the acceptance, including the wait in the queue."""
    eval_count: int | UnsetType = UNSET
    eval_duration: int | UnsetType = UNSET


class GenerateReply(AnswerReply, frozen=True, kw_only=True):
    response: str
    thinking: str | UnsetType = UNSET
    """The model's reasoning before the answer."""
    context: list[int] | UnsetType = UNSET


class CalledFunction(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    name: str
    arguments: dict[str, Any]


class ToolCallReply(msgspec.Struct, frozen=True, kw_only=True):
    """A call of a function that the client runs."""

    id: str
    function: CalledFunction


class ChatMessage(msgspec.Struct, frozen=True, kw_only=True):
    role: str = "assistant"
    content: str
    thinking: str | UnsetType = UNSET
    """The model's reasoning before the answer."""
    tool_calls: list[ToolCallReply] | UnsetType = UNSET


class ChatReply(AnswerReply, frozen=True, kw_only=True):
    message: ChatMessage


class ModelDetails(msgspec.Struct, frozen=True, kw_only=True):
    parent_model: str = ""
    format: str = "gguf"
    family: str
    families: list[str]
    parameter_size: str
    """Number of parameters, such as `135M`."""
    quantization_level: str
    context_length: int
    """Length of the context that the model was trained with, in tokens."""


class TagEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A model on the server's disk."""

    name: str
    model: str
    modified_at: str
    size: int
    """Size in bytes."""
    digest: str
    """SHA-256 of a downloaded file; for other files a digest of path, size and time of change."""
    details: ModelDetails
    capabilities: Sequence[str]
    """Capabilities, as in `/api/show`."""


class TagList(msgspec.Struct, frozen=True):
    models: list[TagEntry]


class RunningEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A loaded model."""

    name: str
    model: str
    size: int
    """Planned memory in bytes, without the cache for conversations that have left the KV pool."""
    size_vram: int
    digest: str
    details: ModelDetails
    expires_at: str
    """Time at which the model is unloaded unless a request comes; in the far future if the model stays loaded."""
    context_length: int
    """Size of the context as served, in tokens."""


class RunningList(msgspec.Struct, frozen=True):
    models: list[RunningEntry]


class ThinkingReply(msgspec.Struct, frozen=True, kw_only=True):
    """The supported values of `think`."""

    values: Sequence[bool | str]
    """`false` and `true`, or levels; `true` alone if the reasoning cannot be switched off."""
    default: bool | str
    """Value for requests without `think`."""


class ShowReply(msgspec.Struct, frozen=True, kw_only=True):
    modelfile: str
    parameters: str
    """Sampling parameters that the model's file recommends or that were given at its creation, one per line; and if the
    model was loaded, `num_ctx`, the size of the context as served."""
    system: str | UnsetType = UNSET
    template: str
    """The chat template, in Jinja; if the model was loaded, the one that the server uses."""
    details: ModelDetails
    model_info: dict[str, Any]
    """The file's metadata."""
    capabilities: Sequence[str]
    """`completion`, `insert`, `tools`, `thinking`, `embedding`."""
    thinking: ThinkingReply | UnsetType = UNSET
    """Values of `think`; present if the model can reason."""
    modified_at: str
    license: str


class VersionReply(msgspec.Struct, frozen=True):
    version: str


class PullStatus(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line of the stream of `/api/pull` or `/api/create`. The last line has the status `success`."""

    status: str
    digest: str = ""
    total: int = 0
    completed: int = 0


NDJSON_MEDIA = "application/x-ndjson"

_NOT_DRAWN = "images are not generated here"
_AT_START = "it is chosen when the server starts"
_NOT_CUT = "a prompt that is too long is refused, never cut, and the context is never shifted"

_SHARED: FieldTable = {
    "truncate": Ignored(_NOT_CUT),
    "shift": Ignored(_NOT_CUT),
}
_GENERATE: FieldTable = {
    "template": Refused("the model's own chat template is used; write the whole prompt yourself with `raw`", ("",)),
    "width": Refused(_NOT_DRAWN, (0,)),
    "height": Refused(_NOT_DRAWN, (0,)),
    "steps": Refused(_NOT_DRAWN, (0,)),
}
GENERATE_FIELDS: FieldTable = honoured(GenerateRequest, _SHARED, _GENERATE)
CHAT_FIELDS: FieldTable = honoured(ChatRequest, _SHARED)

OPTION_FIELDS: FieldTable = honoured(
    Options,
    {
        "num_ctx": Ignored("the longest sequence is " + _AT_START.removeprefix("it is ") + ", with --ctx-size"),
        "num_keep": Ignored("the context is never shifted"),
        "tfs_z": Refused("tail-free sampling is not available", (0, 1)),
        "penalize_newline": Refused("penalties apply to all tokens", (True,)),
        "numa": Ignored(_AT_START),
        "num_batch": Ignored("the size of a step adapts to the measured time"),
        "num_gpu": Ignored(_AT_START),
        "main_gpu": Ignored(_AT_START),
        "low_vram": Ignored(_AT_START),
        "f16_kv": Ignored(_AT_START),
        "logits_all": Ignored("use `logprobs`"),
        "vocab_only": Ignored(_AT_START),
        "use_mmap": Ignored(_AT_START),
        "use_mlock": Ignored(_AT_START),
        "embedding_only": Ignored(_AT_START),
        "num_thread": Ignored(_AT_START),
        "draft_num_predict": Ignored(_AT_START),
    },
)
"""Policies of the fields of `options`."""

NAME_FIELDS: FieldTable = honoured(NameRequest)
SHOW_FIELDS: FieldTable = honoured(
    ShowRequest,
    {
        "system": Ignored("the model's own system prompt is shown"),
        "template": Ignored("the model's own chat template is shown"),
        "options": Ignored("the model's own parameters are shown"),
    },
)
PULL_FIELDS: FieldTable = honoured(
    PullRequest,
    {
        "insecure": Refused("TLS certificates are always checked", (False,)),
        "username": Ignored("the token of the hub is taken from the environment of the server (HF_TOKEN)"),
        "password": Ignored("the token of the hub is taken from the environment of the server (HF_TOKEN)"),
    },
)
_NO_FILES = "files are not uploaded; put them on the server, and use `stoker create` there"
CREATE_FIELDS: FieldTable = honoured(
    CreateRequest,
    {
        "template": Refused("Ollama's templates are in Go's language; `stoker create --template` takes Jinja", ("",)),
        "messages": Refused("example messages are not supported; put them into the system prompt", ([],)),
        "files": Refused(_NO_FILES, ({},)),
        "adapters": Refused(_NO_FILES, ({},)),
        "modelfile": Refused("`stoker create --file` reads it; here are `from`, `system` and `parameters`", ("",)),
        "quantize": Refused("files are not converted", ("",)),
        "license": Ignored("the license of the base model is shown"),
    },
)
COPY_FIELDS: FieldTable = honoured(CopyRequest)

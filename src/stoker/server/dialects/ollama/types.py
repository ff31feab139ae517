"""The JSON of Ollama's API; types, and tables of their fields. Durations are in nanoseconds.

In requests `None` means "not given". The tables at the end say what becomes of every known field.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from stoker.server.fields import FieldTable, Ignored, Refused, honoured
from stoker.server.request.fields import Int, Lora, SamplingFields


class AnswerRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What both endpoints that write text have in common."""

    model: str | None = None
    stream: bool | None = None
    """Not given = true."""
    session_id: str | None = None
    """An addition of ours: name of the conversation, which is evicted last from the KV pool for a while."""
    options: dict[str, Any] | None = None
    """The sampling options, see `Options`; they have a table of their own."""
    keep_alive: str | float | None = None
    """How long the model stays loaded afterwards: as text such as `5m`, or seconds; negative = for ever, 0 = it is
    unloaded after the answer. A pinned model stays in any case."""
    think: bool | str | None = None
    """Whether the model reasons before it answers, or how much: `low`, `medium`, `high`."""
    format: str | dict[str, Any] | None = None
    """`json`, or a JSON schema: the answer is JSON of it."""
    logprobs: bool | None = None
    top_logprobs: Int | None = None
    cache_prompt: bool | None = None
    """An addition of ours, like `lora`: false = the prefix cache is neither read nor written."""
    lora: Lora | None = None
    """LoRA adapters to apply, by name."""


class GenerateRequest(AnswerRequest, frozen=True, kw_only=True):
    """The body of `POST /api/generate`."""

    prompt: str | None = None
    """Empty = only load the model."""
    suffix: str | None = None
    """What follows the answer: the model fills in between."""
    system: str | None = None
    context: list[Int] | None = None
    """The `context` of an earlier reply, which this prompt continues."""
    images: list[str] | None = None
    """Files as base64 text, which stand before the prompt."""
    raw: bool | None = None
    """The prompt is used as it is, without the chat template."""


class ChatRequest(AnswerRequest, frozen=True, kw_only=True):
    """The body of `POST /api/chat`."""

    messages: list[dict[str, Any]] | None = None
    """Empty = only load the model."""
    tools: list[dict[str, Any]] | None = None
    """Functions that the model may call, in OpenAI's shape."""


class Options(SamplingFields, frozen=True, kw_only=True):
    """The sampling options: all that the other APIs have too."""


class NameRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of requests about one model."""

    model: str | None = None
    name: str | None = None
    """An older name of `model`."""


class ShowRequest(NameRequest, frozen=True, kw_only=True):
    """The body of `POST /api/show`."""

    verbose: bool | None = None
    """Lists in the metadata, such as the vocabulary, are written out."""


class PullRequest(NameRequest, frozen=True, kw_only=True):
    """The body of `POST /api/pull`."""

    stream: bool | None = None
    """Not given = true."""


class CreateRequest(NameRequest, frozen=True, kw_only=True):
    """The body of `POST /api/create`."""

    base: str | None = msgspec.field(default=None, name="from")
    """The model that it is made from, which must be here; it may have been created, too."""
    system: str | None = None
    parameters: dict[str, Any] | None = None
    """Defaults for requests, by the names of Ollama's options."""
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
    """A line of a stream, or all of it. The last line has the numbers."""

    model: str
    created_at: str
    """RFC 3339."""
    done: bool
    logprobs: list[Logprob] | UnsetType = UNSET
    done_reason: str | UnsetType = UNSET
    """`stop`, `length`, `load`, `unload`."""
    total_duration: int | UnsetType = UNSET
    load_duration: int | UnsetType = UNSET
    """Time until the model accepted the request."""
    prompt_eval_count: int | UnsetType = UNSET
    """Prompt tokens, including those that were in the cache."""
    prompt_eval_duration: int | UnsetType = UNSET
    """Time until the first token, including the wait in the queue."""
    eval_count: int | UnsetType = UNSET
    eval_duration: int | UnsetType = UNSET


class GenerateReply(AnswerReply, frozen=True, kw_only=True):
    response: str
    thinking: str | UnsetType = UNSET
    """What the model thinks before it answers."""
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
    """What the model thinks before it answers."""
    tool_calls: list[ToolCallReply] | UnsetType = UNSET


class ChatReply(AnswerReply, frozen=True, kw_only=True):
    message: ChatMessage


class ModelDetails(msgspec.Struct, frozen=True, kw_only=True):
    parent_model: str = ""
    format: str = "gguf"
    family: str
    families: list[str]
    parameter_size: str
    """Such as `135M`."""
    quantization_level: str
    context_length: int
    """As trained, in tokens."""


class TagEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A model on this disk."""

    name: str
    model: str
    modified_at: str
    size: int
    """In bytes."""
    digest: str
    """Of a download its SHA-256; of another file, that of its path, size and time."""
    details: ModelDetails
    capabilities: Sequence[str]
    """As in `/api/show`."""


class TagList(msgspec.Struct, frozen=True):
    models: list[TagEntry]


class RunningEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A loaded model."""

    name: str
    model: str
    size: int
    """In bytes: what it takes in memory by plan, without what is kept of conversations that have ended."""
    size_vram: int
    digest: str
    details: ModelDetails
    expires_at: str
    """Unless a request comes before; far away if it stays loaded."""
    context_length: int
    """In tokens, as it is served."""


class RunningList(msgspec.Struct, frozen=True):
    models: list[RunningEntry]


class ThinkingReply(msgspec.Struct, frozen=True, kw_only=True):
    """What `think` may be."""

    values: Sequence[bool | str]
    """`false` and `true`, or levels; `true` alone if the reasoning cannot be switched off."""
    default: bool | str
    """What holds for requests without `think`."""


class ShowReply(msgspec.Struct, frozen=True, kw_only=True):
    modelfile: str
    parameters: str
    """What the model's own file recommends, or what was given when the model was created, one a line."""
    system: str | UnsetType = UNSET
    template: str
    """The chat template, in Jinja."""
    details: ModelDetails
    model_info: dict[str, Any]
    """The file's metadata."""
    capabilities: Sequence[str]
    """`completion`, `insert`, `tools`, `thinking`, `embedding`."""
    thinking: ThinkingReply | UnsetType = UNSET
    """Given: the model reasons."""
    modified_at: str
    license: str


class VersionReply(msgspec.Struct, frozen=True):
    version: str


class PullStatus(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line of a pull, or of what is created. `success` is the last one."""

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
        "penalize_newline": Refused("penalties make no exceptions", (True,)),
        "numa": Ignored(_AT_START),
        "num_batch": Ignored("the size of a step follows from the time that it takes"),
        "num_gpu": Ignored(_AT_START),
        "main_gpu": Ignored(_AT_START),
        "low_vram": Ignored(_AT_START),
        "f16_kv": Ignored(_AT_START),
        "logits_all": Ignored("ask for `logprobs`"),
        "vocab_only": Ignored(_AT_START),
        "use_mmap": Ignored(_AT_START),
        "use_mlock": Ignored(_AT_START),
        "embedding_only": Ignored(_AT_START),
        "num_thread": Ignored(_AT_START),
    },
)
"""Of `options`."""

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

"""The tables that say what becomes of every known field of Ollama's request bodies; they do nothing themselves."""

from __future__ import annotations

from stoker.server.dialects.ollama.types import (
    ChatReply,
    ChatRequest,
    CopyRequest,
    GenerateReply,
    GenerateRequest,
    NameRequest,
    Options,
    PullRequest,
    PullStatus,
    RunningList,
    ShowReply,
    ShowRequest,
    TagList,
    VersionReply,
)
from stoker.server.error_types import OllamaError
from stoker.server.fields import Endpoint, FieldTable, Ignored, Refused, honoured

NDJSON_MEDIA = "application/x-ndjson"

_NO_IMAGES = "images are not available yet"
_NOT_DRAWN = "images are not generated here"
_AT_START = "it is chosen when the server starts"
_NOT_CUT = "a prompt that is too long is refused, never cut, and the context is never shifted"

_SHARED: FieldTable = {
    "truncate": Ignored(_NOT_CUT),
    "shift": Ignored(_NOT_CUT),
}
_GENERATE: FieldTable = {
    "images": Refused(_NO_IMAGES, ([],)),
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
        "system": Ignored("a model has no system prompt of its own here"),
        "template": Ignored("the model's own chat template is shown"),
        "options": Ignored("a model has no options of its own here"),
    },
)
PULL_FIELDS: FieldTable = honoured(
    PullRequest,
    {
        "insecure": Refused("models come over connections that are checked", (False,)),
        "username": Ignored("no user is known where models come from; a token is taken from the environment"),
        "password": Ignored("no user is known where models come from; a token is taken from the environment"),
    },
)
COPY_FIELDS: FieldTable = honoured(CopyRequest)

GENERATE = Endpoint(
    api="Ollama",
    method="POST",
    path="/api/generate",
    summary="Answers a prompt.",
    request=GenerateRequest,
    fields=GENERATE_FIELDS,
    nested={"options": OPTION_FIELDS},
    reply=GenerateReply,
    event=GenerateReply,
    stream_media=NDJSON_MEDIA,
    error=OllamaError,
)
CHAT = Endpoint(
    api="Ollama",
    method="POST",
    path="/api/chat",
    summary="Answers a conversation.",
    request=ChatRequest,
    fields=CHAT_FIELDS,
    nested={"options": OPTION_FIELDS},
    reply=ChatReply,
    event=ChatReply,
    stream_media=NDJSON_MEDIA,
    error=OllamaError,
)
TAGS = Endpoint(
    api="Ollama",
    method="GET",
    path="/api/tags",
    summary="Lists what is served and what lies on this disk.",
    reply=TagList,
    error=OllamaError,
)
SHOW = Endpoint(
    api="Ollama",
    method="POST",
    path="/api/show",
    summary="Says what a model on this disk is.",
    request=ShowRequest,
    fields=SHOW_FIELDS,
    reply=ShowReply,
    error=OllamaError,
)
PS = Endpoint(
    api="Ollama",
    method="GET",
    path="/api/ps",
    summary="Lists the loaded models.",
    reply=RunningList,
    error=OllamaError,
)
VERSION = Endpoint(
    api="Ollama",
    method="GET",
    path="/api/version",
    summary="Says which version of Ollama's API this is.",
    reply=VersionReply,
    error=OllamaError,
)
PULL = Endpoint(
    api="Ollama",
    method="POST",
    path="/api/pull",
    summary="Downloads a model: a name of the catalog, or hf.co/org/repo with a quantisation or file behind a colon.",
    request=PullRequest,
    fields=PULL_FIELDS,
    reply=PullStatus,
    event=PullStatus,
    stream_media=NDJSON_MEDIA,
    error=OllamaError,
    is_admin=True,
)
DELETE = Endpoint(
    api="Ollama",
    method="DELETE",
    path="/api/delete",
    summary="Deletes a downloaded model, or an alias.",
    request=NameRequest,
    fields=NAME_FIELDS,
    error=OllamaError,
    is_admin=True,
)
COPY = Endpoint(
    api="Ollama",
    method="POST",
    path="/api/copy",
    summary="Gives a model another name. Nothing is copied: a model's file never changes.",
    request=CopyRequest,
    fields=COPY_FIELDS,
    error=OllamaError,
    is_admin=True,
)
ROOT = Endpoint(api="Ollama", method="GET", path="/", summary="Says that a server is running, to probes.")

ENDPOINTS = (GENERATE, CHAT, TAGS, SHOW, PS, VERSION, PULL, DELETE, COPY, ROOT)

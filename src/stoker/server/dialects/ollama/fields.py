"""The tables that say what becomes of every known field of Ollama's request bodies; they do nothing themselves."""

from __future__ import annotations

from stoker.server.dialects.ollama.types import (
    ChatRequest,
    CopyRequest,
    GenerateRequest,
    NameRequest,
    Options,
    PullRequest,
    ShowRequest,
)
from stoker.server.fields import FieldTable, Ignored, Refused, honoured

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

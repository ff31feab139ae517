"""The JSON of models, in OpenAI's words and in those of llama-server's router.

The tables say what becomes of each field. In requests `None` means "not given".
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import UNSET, UnsetType

from stoker.chat.capabilities import ToolFormat
from stoker.server.fields import FieldTable, Ignored, honoured


class UnloadRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `POST /models/unload`."""

    model: str | None = None
    wait: bool | None = None
    """The reply comes when it is done. Not given = as soon as it is begun."""


class DownloadRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `POST /models`."""

    model: str | None = None
    """A known name, or a repository of the hub with a quantization or file: `org/repo:Q4_K_M`."""


class LoadRequest(UnloadRequest, frozen=True, kw_only=True):
    """The body of `POST /models/load`."""

    reload: bool | None = None
    """A model that is loaded is loaded again from its file, without a gap."""
    source: str | None = None
    """The name of another model: from now on `model` is one like that, without a gap."""


# What becomes of the fields

LOAD_FIELDS: FieldTable = honoured(
    LoadRequest, {"extra_args": Ignored("model settings are given when the server starts")}
)
UNLOAD_FIELDS: FieldTable = honoured(UnloadRequest)
DOWNLOAD_FIELDS: FieldTable = honoured(DownloadRequest)

# Replies


class ModelsDone(msgspec.Struct, frozen=True):
    success: bool = True


class PlannedMemory(msgspec.Struct, frozen=True, kw_only=True):
    """What a model takes, in bytes. Compute buffers are estimated."""

    total: int
    weights: int
    kv: int
    compute: int
    cache: int
    """For conversations that have left the pool, at most."""
    adapters: int
    """Of those that are loaded with the model."""


class TransferProgress(msgspec.Struct, frozen=True):
    """How much of a file has been downloaded, in bytes."""

    done: int
    total: int
    """0 = not known."""


class ModelState(msgspec.Struct, frozen=True, kw_only=True):
    """Where a model is between disk and memory."""

    value: str
    """`unloaded`, `loading` or `loaded`; `downloading` in the list of `GET /models`."""
    failed: bool | UnsetType = UNSET
    """The last attempt to load or to reload it failed."""
    error: str | UnsetType = UNSET
    """Why."""
    pinned: bool = False
    """Once loaded it stays."""
    expires_in_s: float | UnsetType = UNSET
    """Until it is unloaded unless a request comes. Not there = never."""
    progress: float | dict[str, TransferProgress] | UnsetType = UNSET
    """How far its weights are while it is loaded, from 0 to 1; how far each file is while it is downloaded. Not there =
    they are where they belong, or not known."""
    waiting: int = 0
    """Requests that wait for it to be loaded."""
    memory: PlannedMemory | UnsetType = UNSET


class LoadProgress(msgspec.Struct, frozen=True, kw_only=True):
    stages: list[str]
    """All there are, in their order."""
    current: str
    value: float | UnsetType = UNSET
    """Of the stage `load`: how far the weights are, from 0 to 1. It never falls."""


class ModelNewsData(msgspec.Struct, frozen=True, kw_only=True):
    status: str | UnsetType = UNSET
    progress: LoadProgress | UnsetType = UNSET
    memory: PlannedMemory | UnsetType = UNSET
    reason: str | UnsetType = UNSET
    """Of what was unloaded: `asked`, `expired`, `evicted`, `replaced` or `failed`."""
    error: str | UnsetType = UNSET


class ModelNews(msgspec.Struct, frozen=True, kw_only=True):
    """One event of `GET /models/sse`."""

    model: str
    event: str
    """`model_status` or `model_remove`; of downloads `download_progress`, `download_finished` or `download_failed`; or
    `models_reload`, of the model `*`: the list of models is another one."""
    data: ModelNewsData


class TransferNewsData(msgspec.Struct, frozen=True):
    progress: dict[str, TransferProgress]


class TransferNews(msgspec.Struct, frozen=True, kw_only=True):
    """The event `download_progress` of `GET /models/sse`."""

    model: str
    data: TransferNewsData
    event: str = "download_progress"


class ModelMeta(msgspec.Struct, frozen=True, kw_only=True):
    """llama-server's block. Sizes are in tokens, `size` is in bytes."""

    n_vocab: int
    n_ctx_train: int
    n_ctx: int
    n_params: int
    size: int
    n_embd: int | UnsetType = UNSET
    """Width of the hidden states, if they can be asked for."""


class ModelEntry(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    created: int
    aliases: list[str]
    path: str
    status: ModelState
    max_model_len: int | UnsetType = UNSET
    """In tokens; this and what follows are there if it is loaded."""
    meta: ModelMeta | UnsetType = UNSET
    capabilities: Sequence[str] | UnsetType = UNSET
    """In Ollama's words, of a loaded model: `completion`, `insert`, `tools`, `thinking`, `embedding`."""
    tool_format: ToolFormat | UnsetType | None = UNSET
    """How it calls tools; null = it has no chat template, or a broken one."""
    parent: str | UnsetType = UNSET
    """Of a LoRA adapter: the model that it is applied to. Its `path` is the adapter's file."""
    object: str = "model"
    owned_by: str = "stoker"


class ModelList(msgspec.Struct, frozen=True):
    data: list[ModelEntry]
    object: str = "list"

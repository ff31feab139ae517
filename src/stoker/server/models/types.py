"""The JSON types of models, as in OpenAI's API and in llama-server's router.

The tables honor, refuse or ignore each field. In requests `None` means "not given".
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
    """True: the reply comes when the model is loaded or unloaded. Not given = as soon as this has begun."""


class DownloadRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `POST /models`."""

    model: str | None = None
    """A known name, or a repository of the hub with a quantization or file: `org/repo:Q4_K_M`."""


class LoadRequest(UnloadRequest, frozen=True, kw_only=True):
    """The body of `POST /models/load`."""

    reload: bool | None = None
    """True: a loaded model is loaded again from its file, without downtime."""
    source: str | None = None
    """Name of another model, by which the model under the name `model` is replaced without downtime."""


# Policies of the fields

LOAD_FIELDS: FieldTable = honoured(
    LoadRequest, {"extra_args": Ignored("model settings are given when the server starts")}
)
UNLOAD_FIELDS: FieldTable = honoured(UnloadRequest)
DOWNLOAD_FIELDS: FieldTable = honoured(DownloadRequest)

# Replies


class ModelsDone(msgspec.Struct, frozen=True):
    success: bool = True


class PlannedMemory(msgspec.Struct, frozen=True, kw_only=True):
    """Planned memory of a model, in bytes. Compute buffers are estimated."""

    total: int
    weights: int
    kv: int
    compute: int
    cache: int
    """Maximum size of the cache for conversations that have left the KV pool."""
    adapters: int
    """Size of the LoRA adapters that are loaded with the model."""


class TransferProgress(msgspec.Struct, frozen=True):
    """Progress of the download of one file, in bytes."""

    done: int
    total: int
    """Size of the file; 0 = unknown."""


class ModelState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a model: on disk, loading, or in memory."""

    value: str
    """`unloaded`, `loading` or `loaded`; `downloading` in the list of `GET /models`."""
    failed: bool | UnsetType = UNSET
    """True: the last attempt to load or reload the model failed."""
    error: str | UnsetType = UNSET
    """Reason of the failure."""
    pinned: bool = False
    """Whether the model stays loaded once it has been loaded."""
    expires_in_s: float | UnsetType = UNSET
    """Time until the model is unloaded unless a request comes, in seconds. Absent = never."""
    progress: float | dict[str, TransferProgress] | UnsetType = UNSET
    """Loaded part of the weights, from 0 to 1; for a download, progress of each file. Absent = complete, or unknown."""
    waiting: int = 0
    """Number of requests that wait for the model to be loaded."""
    memory: PlannedMemory | UnsetType = UNSET


class LoadProgress(msgspec.Struct, frozen=True, kw_only=True):
    stages: list[str]
    """All stages of loading, in order."""
    current: str
    value: float | UnsetType = UNSET
    """Loaded part of the weights in the stage `load`, from 0 to 1. It never decreases."""


class ModelNewsData(msgspec.Struct, frozen=True, kw_only=True):
    status: str | UnsetType = UNSET
    progress: LoadProgress | UnsetType = UNSET
    memory: PlannedMemory | UnsetType = UNSET
    reason: str | UnsetType = UNSET
    """Reason why the model was unloaded: `asked`, `expired`, `evicted`, `replaced` or `failed`."""
    error: str | UnsetType = UNSET


class ModelNews(msgspec.Struct, frozen=True, kw_only=True):
    """One event of `GET /models/sse`."""

    model: str
    event: str
    """`model_status` or `model_remove`; for downloads `download_progress`, `download_finished` or `download_failed`; or
    `models_reload` for the model `*`: the list of models has changed."""
    data: ModelNewsData


class TransferNewsData(msgspec.Struct, frozen=True):
    progress: dict[str, TransferProgress]


class TransferNews(msgspec.Struct, frozen=True, kw_only=True):
    """The event `download_progress` of `GET /models/sse`."""

    model: str
    data: TransferNewsData
    event: str = "download_progress"


class ModelMeta(msgspec.Struct, frozen=True, kw_only=True):
    """llama-server's metadata of a model. `size` is in bytes, context sizes and `n_vocab` are in tokens."""

    n_vocab: int
    n_ctx_train: int
    n_ctx: int
    n_params: int
    size: int
    n_embd: int | UnsetType = UNSET
    """Number of dimensions of embeddings, if the model can compute embeddings."""


class ModelEntry(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    created: int
    aliases: list[str]
    path: str
    status: ModelState
    max_model_len: int | UnsetType = UNSET
    """Size of the context in tokens; this field, `meta`, `capabilities` and `tool_format` are present if the model is
    loaded."""
    meta: ModelMeta | UnsetType = UNSET
    capabilities: Sequence[str] | UnsetType = UNSET
    """Capabilities by Ollama's names, of a loaded model: `completion`, `insert`, `tools`, `thinking`, `embedding`."""
    tool_format: ToolFormat | UnsetType | None = UNSET
    """Format of the model's tool calls; null = the model has no chat template, or a broken one."""
    parent: str | UnsetType = UNSET
    """For a LoRA adapter, the model that it is applied to; `path` is then the adapter's file."""
    object: str = "model"
    owned_by: str = "stoker"


class ModelList(msgspec.Struct, frozen=True):
    data: list[ModelEntry]
    object: str = "list"

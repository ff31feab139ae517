"""Converts the registry's state of models to the JSON of OpenAI's model list and of llama-server's router."""

from __future__ import annotations

from collections.abc import Sequence
from math import isinf

import msgspec
from msgspec import UNSET

from stoker.chat.capabilities import card_capabilities
from stoker.engine.cards import AdapterCard
from stoker.models.memory_plan import MemoryPlan
from stoker.runtime.entry import ModelStatus
from stoker.runtime.model_events import STAGES, ModelEvent
from stoker.server.models.pulls import PullState
from stoker.server.models.types import (
    LoadProgress,
    ModelEntry,
    ModelMeta,
    ModelNews,
    ModelNewsData,
    ModelState,
    PlannedMemory,
    TransferNews,
    TransferNewsData,
    TransferProgress,
)

_encode = msgspec.json.Encoder().encode
_EVENTS = {
    "removed": "model_remove",
    "downloaded": "download_finished",
    "download_failed": "download_failed",
    "listed": "models_reload",
}
"""llama-server's names of the events that do not report a status."""


def model_entry(status: ModelStatus) -> ModelEntry:
    """The JSON of a model, loaded or not. The first call for a loaded model runs its chat template.

    Raises:
        ModelNotLoaded: the model's engine has never been ready.
    """
    spec = status.spec
    base = ModelEntry(
        id=spec.model_id, created=spec.created, aliases=list(spec.names[1:]), path=spec.path, status=_state(status)
    )
    if status.served is None:
        return base
    card = status.served.runtime.card
    meta = ModelMeta(
        n_vocab=card.vocab_size,
        n_ctx_train=card.trained_context,
        n_ctx=card.context_size,
        n_params=card.num_parameters,
        size=card.size_bytes,
        n_embd=UNSET if card.embedding is None or card.embedding.pooling == "rank" else card.embedding.size,
    )
    can = card_capabilities(card)
    return msgspec.structs.replace(
        base,
        created=card.created,
        path=card.path,
        max_model_len=card.context_size,
        meta=meta,
        capabilities=can.names,
        tool_format=can.tool_format,
    )


def loaded_adapters(status: ModelStatus) -> Sequence[AdapterCard]:
    """The LoRA adapters of a model: those that are loaded, or if the model is not, those that will be."""
    if status.adapters is not None:
        return status.adapters
    return () if status.served is None else status.served.runtime.card.adapters


def adapter_entries(status: ModelStatus) -> list[ModelEntry]:
    """The LoRA adapters of a model as models of their own, named `model:adapter` as in requests."""
    return [
        ModelEntry(
            id=f"{status.model_id}:{card.name}",
            created=status.spec.created,
            aliases=[f"{alias}:{card.name}" for alias in status.spec.names[1:]],
            path=card.path,
            status=ModelState(value=status.state),
            parent=status.model_id,
        )
        for card in loaded_adapters(status)
    ]


def download_entry(model: str, state: PullState) -> ModelEntry:
    """The JSON of a model that is being downloaded, under the name by which the client requested it."""
    progress = _transfer(state.label, state.completed_bytes, state.total_bytes or 0)
    return ModelEntry(
        id=model, created=0, aliases=[], path="", status=ModelState(value="downloading", progress=progress)
    )


def news_event(event: ModelEvent) -> bytes:
    """The bytes of one event of `GET /models/sse`."""
    return b"data: " + _encode(_transfer_news(event) if event.state == "downloading" else _news(event)) + b"\n\n"


def _news(event: ModelEvent) -> ModelNews:
    value = UNSET if event.loaded_part is None else round(event.loaded_part, 4)
    progress = LoadProgress(stages=list(STAGES), current=event.stage, value=value) if event.stage else UNSET
    data = ModelNewsData(
        status=UNSET if event.state in _EVENTS else event.state,
        progress=progress,
        memory=_memory(event.plan),
        reason=event.reason or UNSET,
        error=event.message or UNSET,
    )
    return ModelNews(model=event.model, event=_EVENTS.get(event.state, "model_status"), data=data)


def _transfer_news(event: ModelEvent) -> TransferNews:
    files = _transfer(event.file, event.completed_bytes, event.total_bytes)
    return TransferNews(model=event.model, data=TransferNewsData(files))


def _transfer(file: str, done: int, total: int) -> dict[str, TransferProgress]:
    return {file: TransferProgress(done, total)} if file else {}


def _state(status: ModelStatus) -> ModelState:
    return ModelState(
        value=status.state,
        failed=UNSET if status.error is None else True,
        error=UNSET if status.error is None else status.error.message,
        pinned=status.spec.is_pinned,
        expires_in_s=UNSET if isinf(status.expires_in_s) else status.expires_in_s,
        progress=UNSET if status.loaded_part is None else round(status.loaded_part, 4),
        waiting=status.num_waiting,
        memory=_memory(status.plan),
    )


def _memory(plan: MemoryPlan | None) -> PlannedMemory | msgspec.UnsetType:
    if plan is None:
        return UNSET
    return PlannedMemory(
        total=plan.total_bytes,
        weights=plan.weights_bytes,
        kv=plan.kv_bytes,
        compute=plan.compute_bytes,
        cache=plan.cache_bytes,
        adapters=plan.adapter_bytes,
    )

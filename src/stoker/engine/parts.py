"""Builds the parts of an engine around its scheduler from a loaded model, or substitutes for unsupported ones."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from stoker.cache.store import KVStore
from stoker.core.draft_port import DraftPort
from stoker.core.kv_cache import KVCache
from stoker.core.model_info import ModelInfo
from stoker.core.scheduler import Scheduler, SchedulerConfig
from stoker.core.speculation import Speculation
from stoker.core.stages import Mark
from stoker.engine.draft_head import HeadDrafts
from stoker.engine.draft_model import DraftModel, GuessOfSequences
from stoker.engine.embeddings import EmbeddingRequests, NoEmbeddings
from stoker.engine.loaded import Loaded
from stoker.engine.slot_files import SlotPort
from stoker.engine.transfers import NoTransfers, Transfers
from stoker.sampling.row_kernels import RowKernels
from stoker.sampling.sampler import Sampler


class NoMaxima:
    """In place of a `MaximaPort` for a backend that does not report the maxima of logits."""

    maxima = None


def transfers(
    loaded: Loaded, store: KVStore | None, scheduler: Scheduler, clock: Callable[[], float]
) -> Transfers | NoTransfers:
    if loaded.kv_port is None or store is None:
        return NoTransfers()
    return Transfers(loaded.kv_port, store, scheduler, clock)


def draft_counts(speculation: Speculation) -> dict[str, Any]:
    """The fields of `EngineStats` about drafts."""
    counts = speculation.by_source
    return {
        "num_drafts": speculation.num_drafts,
        "drafted_tokens": speculation.num_drafted,
        "accepted_tokens": speculation.num_accepted,
        "drafted_grammar_tokens": counts["grammar"].num_drafted,
        "accepted_grammar_tokens": counts["grammar"].num_accepted,
        "drafted_model_tokens": counts["model"].num_drafted,
        "accepted_model_tokens": counts["model"].num_accepted,
        "draft_model_s": 0.0 if speculation.models is None else speculation.models.seconds,
    }


def kv_counts(kv: KVCache, info: ModelInfo) -> dict[str, Any]:
    """The fields of `EngineStats` about what the KV pool holds."""
    windows, pool = kv.ledger.windows, info.windows
    held = 0 if windows is None else windows.held
    capacity, window_bytes = (0, 0) if pool is None else (pool.capacity, pool.bytes_per_cell)
    return {
        "kv_sequences": kv.num_sequences,
        "kv_window_held": held,
        "kv_window_capacity": capacity,
        "kv_held_bytes": kv.ledger.held * info.kv_bytes_per_token + held * window_bytes,
        "kv_capacity_bytes": kv.ledger.capacity * info.kv_bytes_per_token + capacity * window_bytes,
        "kv_share_bytes": info.kv_tokens * info.kv_bytes_per_token if info.most_kv_tokens else 0,
        "state_held_bytes": kv.num_sequences * info.state_bytes_per_slot,
    }


def drafting(loaded: Loaded, guess: GuessOfSequences, clock: Callable[[], float]) -> DraftPort | None:
    info = loaded.backend.info
    if loaded.draft_backend is not None:
        return DraftModel(loaded.draft_backend, info.vocab_size, guess, clock)
    if loaded.head_port is not None:
        return HeadDrafts(loaded.head_port, info.max_sequence_tokens, guess, clock)
    return None


def embeddings(loaded: Loaded, config: SchedulerConfig, clock: Callable[[], float]) -> EmbeddingRequests | NoEmbeddings:
    name = loaded.backend.info.name
    if loaded.embedder is None:
        return NoEmbeddings(name)
    return EmbeddingRequests(
        loaded.embedder,
        loaded.tokenizer,
        name=name,
        target_step_s=config.target_step_s,
        idle_step_s=config.idle_step_s,
        clock=clock,
    )


def slot_port(loaded: Loaded, scheduler: Scheduler) -> SlotPort | None:
    if loaded.kv_port is None:
        return None
    return SlotPort(loaded.backend, loaded.kv_port, scheduler, loaded.adapters)


def sampler(loaded: Loaded, kernels: RowKernels | None, mark: Mark) -> Sampler:
    info = loaded.backend.info
    return Sampler(
        vocab_size=info.vocab_size,
        eog_token_ids=info.eog_token_ids,
        token_bytes=partial(loaded.tokenizer.token_bytes, render_special=True),
        mark=mark,
        kernels=kernels,
    )

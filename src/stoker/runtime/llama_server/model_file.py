"""Reads what llama-server must be told about a GGUF file, and what it does not report. The file is read and closed."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

from stoker.backends.llama.options import AttentionOptions
from stoker.core.embedding import Pooling
from stoker.core.params import SamplingParams
from stoker.engine.config import CacheType, EngineConfig, llama_cache_types, sampling_defaults
from stoker.engine.tiers import ram_tier_mib
from stoker.models.description import ModelDescription, describe, read_pooling
from stoker.models.gguf import GGUFFile, read_gguf
from stoker.models.memory import available_memory
from stoker.models.memory_plan import MemoryNeeds, SmallerKV, head_sizes, kv_bytes_per_token, memory_needs
from stoker.models.model_defaults import model_defaults
from stoker.models.projector import find_projector, projector_bytes

logger = logging.getLogger(__name__)

_POOL_BYTES = 4 << 30
_SHORT: CacheType = "q8_0"
"""KV cache type of models that otherwise do not fit into memory."""
_BLOCK = 32
"""Block size of `_SHORT`: the numbers that share a scale. The size of a key or value must be a multiple of it."""


class Task(Enum):
    """The task that a llama-server is started for; one server has one task."""

    TEXT = "text"
    EMBEDDING = "embedding"
    RANK = "rank"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFile:
    """A GGUF file with its share of the machine. Sizes are in tokens."""

    path: Path
    facts: ModelDescription
    defaults: SamplingParams
    """Default sampling parameters: those of the preset, else the model's recommendations, else the configured ones."""
    task: Task
    pooling: Pooling | None
    """Pooling of embeddings; None = the model generates text."""
    embedding_size: int
    context_size: int
    """Maximum length of a single request."""
    total_tokens: int
    """KV cache size of all slots together."""
    is_unified: bool
    """All slots share one KV cache; else each slot has an equal part."""
    cache_types: tuple[CacheType, CacheType]
    """KV cache types of keys and of values."""
    cache_ram_mib: int
    """Memory for cached conversations that have left the slots, in MiB."""
    mmproj: Path | None = None
    """The multimodal projector, which turns images and audio into embeddings."""
    draft: Path | None = None
    """The draft model for speculative decoding."""


def read_model_file(config: EngineConfig, *, can_unify: bool) -> ModelFile:
    """Reads the file `config.model_path`, and plans its memory.

    Args:
        config: the model's configuration.
        can_unify: the llama-server binary supports a KV cache that all slots share.

    Raises:
        ModelError: the file is missing, damaged, or lacks required metadata.
        ResourceExhausted: the model does not fit into memory.
    """
    path = Path(config.model_path).absolute()
    with read_gguf(path) as gguf:
        facts = describe(gguf)
        task, pooling = _task(gguf, config)
        planned = _needs(gguf, config, task).within(available_memory())
        is_unified = task is Task.TEXT and can_unify
        part = planned.kv_tokens if is_unified else planned.kv_tokens // config.parallel
        return ModelFile(
            path=path,
            facts=facts,
            defaults=sampling_defaults(config, model_defaults(gguf)),
            task=task,
            pooling=pooling,
            embedding_size=1 if task is Task.RANK else gguf.require_int(gguf.own_key("embedding_length")),
            context_size=min(planned.ctx_size, part),
            total_tokens=planned.kv_tokens,
            is_unified=is_unified,
            cache_types=(_SHORT, _SHORT) if planned.kv_type else llama_cache_types(config, "llama-server"),
            cache_ram_mib=ram_tier_mib(config, available_memory()),
            mmproj=find_projector(path, config.mmproj) if task is Task.TEXT else None,
            draft=_find_draft(config) if task is Task.TEXT else None,
        )


def measure_model_file(config: EngineConfig) -> MemoryNeeds:
    """The memory needs of serving the file `config.model_path`. `cache_ram` counts only if it is configured.

    Raises:
        ModelError: the file is missing, damaged, or lacks required metadata.
        ConfigError: a configured size is below 1.
    """
    with read_gguf(Path(config.model_path)) as gguf:
        task, _ = _task(gguf, config)
        cache_bytes = (config.cache_ram or 0) << 20
        return replace(_needs(gguf, config, task), cache_bytes=cache_bytes, min_cache_bytes=cache_bytes)


def _task(gguf: GGUFFile, config: EngineConfig) -> tuple[Task, Pooling | None]:
    """The task and pooling: ranks for rerankers; embeddings for models made for them, or if `pooling` is set."""
    own = read_pooling(gguf)
    if own is Pooling.RANK:
        return Task.RANK, own
    is_encoder = gguf.get_bool(gguf.own_key("attention.causal")) is False
    if own is None and config.pooling is None and not is_encoder:
        return Task.TEXT, None
    return Task.EMBEDDING, Pooling(config.pooling) if config.pooling else own or Pooling.MEAN


def _find_draft(config: EngineConfig) -> Path | None:
    """The path of the draft model. If the file is missing, only a warning is logged, as by llama-server."""
    if not config.draft_model:
        return None
    path = Path(config.draft_model).expanduser().absolute()
    if not path.is_file():
        logger.warning("there is no draft model for %s: there is no file %s", config.model_path, path)
        return None
    return path


def _smaller_kv(gguf: GGUFFile, config: EngineConfig) -> SmallerKV | None:
    """The smaller KV cache type; None = the configuration fixes the type, or llama.cpp cannot use a smaller one."""
    is_chosen = any((config.kv_type, config.cache_type_k, config.cache_type_v, config.flash_attn == "off"))
    if is_chosen or any(size % _BLOCK for size in head_sizes(gguf)):
        return None
    element_bytes = AttentionOptions(type_k=_SHORT, type_v=_SHORT).element_bytes
    return SmallerKV(_SHORT, kv_bytes_per_token(gguf, element_bytes))


def _with_draft(needs: MemoryNeeds, config: EngineConfig) -> MemoryNeeds:
    """Adds the draft model's needs. Its context is as long as the model's, and its KV cache type is f16."""
    draft = Path(config.draft_model).expanduser()
    if not config.draft_model or not draft.is_file():
        return needs
    with read_gguf(draft) as gguf:
        its = memory_needs(gguf, ctx_size=needs.ctx_size, kv_tokens=needs.kv_tokens, parallel=config.parallel)
    return needs.with_draft(its)


def _needs(gguf: GGUFFile, config: EngineConfig, task: Task) -> MemoryNeeds:
    """The memory needs with a full context for each slot, up to 4 GiB of KV cache.

    Each request thus gets the KV that it may ever need: llama-server fails running requests when its KV cache is full.
    """
    type_k, type_v = llama_cache_types(config, "llama-server")
    needs = memory_needs(
        gguf,
        ctx_size=config.ctx_size,
        kv_tokens=config.kv_tokens if task is Task.TEXT else None,
        parallel=config.parallel,
        kv_element_bytes=AttentionOptions(type_k=type_k, type_v=type_v).element_bytes,
    )
    needs = replace(
        needs,
        backend="llama-server",
        pool_bytes=_POOL_BYTES,
        num_replicas=config.num_replicas,
        smaller_kv=_smaller_kv(gguf, config),
    )
    if task is Task.TEXT:
        projector = find_projector(Path(config.model_path).absolute(), config.mmproj)
        needs = replace(needs, compute_bytes=needs.compute_bytes + projector_bytes(projector))
        return _with_draft(needs, config)
    # Many embedding models have no position embeddings beyond the trained context.
    context_size = min(needs.ctx_size, gguf.require_int(gguf.own_key("context_length")))
    return replace(needs, ctx_size=context_size, kv_tokens=context_size * config.parallel)

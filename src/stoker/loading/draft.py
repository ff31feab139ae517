"""Draft models for speculative decoding: how much memory they take, and how the native executor opens them."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from stoker.backends.native import (
    NativeBackend,
    NativeNeeds,
    NativeOptions,
    drafter_bytes,
    reads_another_model,
)
from stoker.core.model_info import ModelInfo
from stoker.engine.config import EngineConfig
from stoker.errors import ConfigError, ModelUnsupported
from stoker.loading.gguf import part_progress
from stoker.models.cache import packed_dir
from stoker.models.gguf import GGUFFile, part_paths, read_gguf
from stoker.models.memory_plan import MemoryNeeds, memory_needs
from stoker.models.progress import Progress
from stoker.models.vocabulary import check_same_tokens

_SPARE_SLOTS = 4
"""Slots besides one per running sequence: for preempted sequences, and for conversations that continue."""


def drafts_by_model(config: EngineConfig) -> bool:
    """Whether a draft model is to be loaded."""
    return bool(config.draft_model) and config.max_draft != 0


def drafts_by_head(config: EngineConfig) -> bool:
    """Whether the draft head of the model is to be used, if its file has one."""
    return not config.draft_model and config.max_draft != 0


def draft_needs(config: EngineConfig, needs: MemoryNeeds, model: Sequence[GGUFFile]) -> MemoryNeeds:
    """The memory that the draft model `config.draft_model` takes in addition to the main model.

    Args:
        config: its `draft_model` is a path on this disk.
        needs: memory needs of the main model, whose context and pool sizes apply to the draft model.
        model: all files of the main model, open.

    Raises:
        ModelError: a file is missing, damaged, or the native executor does not run it.
        ConfigError: the model cannot draft.
    """
    with ExitStack() as opened:
        files = _open(config, opened)
        if reads_another_model(files[0]):
            return _reading_needs(config, needs, model, files)
        own = _needs_alone(config, files)
        return memory_needs(
            files[0],
            ctx_size=_context(files[0], needs.ctx_size),
            kv_tokens=needs.kv_tokens,
            parallel=config.parallel,
            weights_bytes=own.weights_bytes,
            kv_bytes=own.kv_bytes(None),
            context_bytes=own.context_bytes(config.threads, config.parallel + _SPARE_SLOTS),
            num_replicas=config.num_replicas,
        )


def _reading_needs(
    config: EngineConfig, needs: MemoryNeeds, model: Sequence[GGUFFile], files: Sequence[GGUFFile]
) -> MemoryNeeds:
    with _named(config):
        weights_bytes, kv_bytes = drafter_bytes(files, model, config.kv_type)
    return memory_needs(
        files[0],
        ctx_size=needs.ctx_size,
        kv_tokens=needs.kv_tokens,
        parallel=config.parallel,
        weights_bytes=weights_bytes,
        kv_bytes=kv_bytes,
        num_replicas=config.num_replicas,
    )


def reading_files(config: EngineConfig, model: GGUFFile, opened: ExitStack) -> list[GGUFFile]:
    """The files of `config.draft_model` if it reads hidden states of the main model; empty if it is a complete model.

    Args:
        config: its `draft_model` is a path on this disk.
        model: the (first) file of the main model, open.
        opened: closes the files.

    Raises:
        ModelError: a file is missing or damaged.
        ConfigError: the vocabularies differ.
    """
    if not drafts_by_model(config):
        return []
    files = _open(config, opened)
    if not reads_another_model(files[0]):
        return []
    check_same_tokens(model, files[0])
    return files


def open_draft(config: EngineConfig, model: GGUFFile, info: ModelInfo, progress: Progress | None) -> NativeBackend:
    """Loads the draft model `config.draft_model`.

    Args:
        config: its `draft_model` is a path on this disk.
        model: the (first) file of the main model, open.
        info: sizes of the main model.
        progress: receives the number of packed bytes.

    Raises:
        ModelError: a file is missing, damaged, or the native executor does not run it.
        ConfigError: the model cannot draft for the main model.
        ResourceExhausted: the model does not fit into memory.
    """
    with ExitStack() as opened:
        files = _open(config, opened)
        _needs_alone(config, files)
        check_same_tokens(model, files[0])
        options = NativeOptions(
            context_size=_context(files[0], info.context_size),
            kv_tokens=info.kv_tokens,
            num_slots=config.parallel + _SPARE_SLOTS,
            threads=config.threads,
            packed_directory=packed_dir(),
            may_copy_weights=not config.has_siblings,
        )
        with part_progress(progress, "packing the weights of the draft model") as packing:
            return NativeBackend(files, options, progress=packing)


def _open(config: EngineConfig, opened: ExitStack) -> list[GGUFFile]:
    path = Path(config.draft_model)
    if path.is_dir():
        raise ConfigError(f"--draft-model {path}: only a GGUF file can draft, not a folder", key="draft_model")
    return [opened.enter_context(read_gguf(part)) for part in part_paths(path)]


def _needs_alone(config: EngineConfig, files: Sequence[GGUFFile]) -> NativeNeeds:
    """Raises if the model cannot draft."""
    with _named(config):
        needs = NativeNeeds(files)
    if needs.state_bytes:
        message = "its recurrent layers cannot undo rejected tokens; use a model without recurrent layers"
        raise ConfigError(f"--draft-model {files[0].path.name} cannot draft: {message}", key="draft_model")
    return needs


@contextmanager
def _named(config: EngineConfig) -> Generator[None]:
    """Adds the option `--draft-model` to errors about unsupported models."""
    try:
        yield
    except ModelUnsupported as error:
        name = Path(config.draft_model).name
        raise ModelUnsupported(f"--draft-model {name}: {error.message}", **error.fields) from error


def _context(draft: GGUFFile, context_size: int) -> int:
    """The context, limited to the trained one of the draft model, beyond which its drafts are nonsense."""
    return min(context_size, draft.get_int(draft.own_key("context_length")) or context_size)

"""GGUF models on the native executor: which models it supports, how much memory they take, how they are opened."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property

from stoker.backends import llama
from stoker.backends.native import (
    BATCH_TOKENS,
    Frame,
    KVType,
    NativeBackend,
    NativeEncoder,
    NativeNeeds,
    NativeOptions,
    adapter_bytes,
    spare_kv_tokens,
)
from stoker.core.embedding import Pooling
from stoker.core.stages import Mark
from stoker.engine.loaded import Loaded
from stoker.errors import ConfigError, ModelFileInvalid, ModelUnsupported
from stoker.loading.draft import draft_needs, drafts_by_head, drafts_by_model, open_draft, reading_files
from stoker.loading.encoders import usable_projector
from stoker.loading.gguf import GGUFModel, part_progress
from stoker.loading.loader import MAX_SLOTS, asked_sizes, only_llama
from stoker.models.cache import packed_dir
from stoker.models.description import read_pooling
from stoker.models.gguf import GGUFFile, read_gguf
from stoker.models.memory import available_memory
from stoker.models.memory_plan import MemoryNeeds, SmallerKV, memory_needs
from stoker.models.progress import Progress
from stoker.models.projector import projector_bytes
from stoker.models.vocabulary import read_vocabulary, vocabulary_kind
from stoker.models.window_plan import WindowNeeds
from stoker.text.vocabulary import VocabularyTokenizer, build_tokenizer
from stoker.text.vocabulary.word_rules import rule_for

_STATES_OF_A_SLOT = 2
"""Number of recurrent states per slot with speculative decoding: one is a copy from before the draft."""

_SLOTS_WITH_CHECKPOINTS = 2
"""Factor on the usual number of slots where conversations leave checkpoints: one checkpoint per conversation."""

_DENSE_TYPES: tuple[KVType, ...] = ("q8", "q4")

logger = logging.getLogger(__name__)


class NativeLoader:
    """A GGUF model on the native executor. Satisfies `Loader`.

    Args:
        model: the model, whose files stay open while the loader is used.
        loads_libllama: whether this process may load libllama to look for a GPU; if not, a child process does.
    """

    name = "native"

    def __init__(self, model: GGUFModel, *, loads_libllama: bool) -> None:
        self._model = model
        self._config = model.config
        self._loads_libllama = loads_libllama

    def refusal(self) -> ModelUnsupported | None:
        """See `Loader`. Reasons: options of libllama, a GPU that libllama can use, unsupported layers or tokenizers."""
        try:
            self._check()
        except ModelUnsupported as error:
            return error
        return None

    def _check(self) -> None:
        if (reason := only_llama(self._config)) is not None:
            raise ModelUnsupported(reason)
        if self._config.backend == "auto" and (gpu := self._find_gpu()) is not None:
            raise ModelUnsupported(f"libllama can use a GPU here ({gpu}), and the native executor computes on CPUs")
        if self._model.prepared is None:
            check_native(self._model.files)

    @cached_property
    def _own(self) -> NativeNeeds:
        return NativeNeeds(self._model.files)

    @property
    def _num_slots(self) -> int:
        """With sliding window attention, checkpoints of conversations need slots, too."""
        usual, (_, reach) = self._model.num_slots, self._own.window_bytes(self._config.kv_type)
        return min(MAX_SLOTS, _SLOTS_WITH_CHECKPOINTS * usual) if reach else usual

    def _windows(self, context: int) -> WindowNeeds | None:
        bytes_per_token, reach = self._own.window_bytes(self._config.kv_type)
        if not 0 < reach < context:
            return None
        running = self._config.parallel * reach + BATCH_TOKENS
        return WindowNeeds(bytes_per_token=bytes_per_token, running_tokens=running)

    def _find_gpu(self) -> str | None:
        return llama.gpu_name() if self._loads_libllama else llama.gpu_name_by_child()

    def needs(self) -> MemoryNeeds:
        """See `Loader`."""
        own, slots = self._own, self._num_slots
        kv_bytes = own.kv_bytes(self._config.kv_type, with_head=drafts_by_head(self._config))
        needs = memory_needs(
            self._model.first,
            **asked_sizes(self._config),
            weights_bytes=own.weights_bytes,
            kv_bytes=kv_bytes,
            state_bytes=slots * own.state_bytes * (1 if self._config.max_draft == 0 else _STATES_OF_A_SLOT),
            spare_kv_tokens=spare_kv_tokens(slots),
            context_bytes=own.context_bytes(self._config.threads, slots),
            adapter_bytes=self._model.adapter_bytes(adapter_bytes),
            windows=self._windows,
        )
        compute_bytes = needs.compute_bytes + projector_bytes(usable_projector(self._config))
        needs = replace(needs, compute_bytes=compute_bytes, denser_kv=self._denser_kv(kv_bytes))
        if drafts_by_model(self._config):
            return needs.with_draft(draft_needs(self._config, needs, self._model.files))
        return needs

    def _denser_kv(self, own_bytes: int) -> list[SmallerKV]:
        """Smaller KV cache types, for advice when memory is short. Found now, while the files are open."""
        has_head = drafts_by_head(self._config)
        kinds = filter(self._own.can_have, _DENSE_TYPES)
        found = [SmallerKV(kind, self._own.kv_bytes(kind, with_head=has_head)) for kind in kinds]
        return [smaller for smaller in found if smaller.bytes_per_token < own_bytes]

    def open(self, progress: Progress | None, mark: Mark) -> Loaded:
        """See `Loader`. Weights are packed unless they were before. An encoder has no KV port and takes no adapters."""
        self._model.warn_of_unused_options()
        if self._own.is_encoder:
            return self._open_encoder(progress)
        tokenizer = self._model.prepared or read_tokenizer(self._model.first)
        with part_progress(progress, "packing the weights") as packing, ExitStack() as opened:
            backend = NativeBackend(
                self._model.files,
                self._options(tokenizer),
                eog_token_ids=tokenizer.eog_token_ids(),
                progress=packing,
                open_file=read_gguf,
                mark=mark,
                draft_files=reading_files(self._config, self._model.first, opened),
            )
        try:
            draft_backend = None if backend.has_draft_head else self._open_draft(backend, progress)
        except BaseException:
            backend.close()
            raise
        logger.info("%s is computed by the native executor (%s)", self._model.title, backend.kernels)
        return Loaded(
            backend=backend,
            kv_port=backend,
            lending_port=backend if backend.info.most_kv_tokens else None,
            maxima_port=backend,
            rows_port=backend,
            projector=self._model.projector,
            head_port=backend if backend.has_draft_head else None,
            draft_backend=draft_backend,
            embedder=backend.embedder,
            adapters=self._model.adapters(backend),
            backend_name=self.name,
            tokenizer=tokenizer,
            **self._model.facts,
        )

    def _open_encoder(self, progress: Progress | None) -> Loaded:
        if self._config.lora or self._config.adapters:
            raise ConfigError(f"{self._model.title} is an encoder, which does not support adapters", key="lora")
        tokenizer = self._model.prepared or read_tokenizer(self._model.first)
        options = self._options(tokenizer)
        # Many encoders have no embeddings for positions beyond the trained context.
        trained = self._model.first.require_int(self._model.first.own_key("context_length"))
        options = replace(options, context_size=min(options.context_size, trained))
        with part_progress(progress, "packing the weights") as packing:
            encoder = NativeEncoder(
                self._model.files, options, eog_token_ids=tokenizer.eog_token_ids(), progress=packing
            )
        logger.info("%s is computed by the native executor (%s)", self._model.title, encoder.kernels)
        return Loaded(
            backend=encoder, embedder=encoder, backend_name=self.name, tokenizer=tokenizer, **self._model.facts
        )

    def _open_draft(self, backend: NativeBackend, progress: Progress | None) -> NativeBackend | None:
        if not drafts_by_model(self._config):
            return None
        return open_draft(self._config, self._model.first, backend.info, progress)

    def _options(self, tokenizer: VocabularyTokenizer) -> NativeOptions:
        plan = self.needs().within(available_memory())
        projector = self._model.projector
        return NativeOptions(
            context_size=plan.ctx_size,
            kv_tokens=plan.kv_tokens,
            most_kv_tokens=self._config.most_kv_tokens,
            window_tokens=plan.window_tokens,
            num_slots=self._num_slots,
            whole_rows=0 if projector is None else projector.longest_whole,
            threads=self._config.threads,
            kv_type=self._config.kv_type,
            has_draft_head=drafts_by_head(self._config),
            packed_directory=packed_dir(),
            may_copy_weights=not self._config.has_siblings,
            pooling=self._model.pooling,
            frame=_frame(tokenizer, self._model.first),
        )


def check_native(files: Sequence[GGUFFile]) -> None:
    """Checks that the native executor supports a model, and that a tokenizer here supports its vocabulary.

    Raises:
        ModelUnsupported: one of them does not; the message says why.
        ModelFileInvalid: the file contradicts itself.
    """
    NativeNeeds(files)
    rule_for(*vocabulary_kind(files[0]))


def read_tokenizer(gguf: GGUFFile) -> VocabularyTokenizer:
    """The tokenizer of the model with this (first) file.

    Raises:
        ModelUnsupported: the kind of vocabulary is not supported.
        ModelFileInvalid: the vocabulary contradicts itself.
    """
    try:
        return build_tokenizer(read_vocabulary(gguf))
    except ModelFileInvalid as error:
        if "path" in error.fields:
            raise
        path = str(gguf.path)
        raise ModelFileInvalid(f"{path} cannot be used: {error.message}", path=path) from error


def _frame(tokenizer: VocabularyTokenizer, gguf: GGUFFile) -> Frame:
    """The tokens after a text and between two: `[SEP]` in both places; or `</s>` and `</s></s>`; or nothing."""
    special = tokenizer.special
    eos, sep = tokenizer.eos_token_id, special.ids.get("sep")
    ends = [each for each in (eos, sep) if each is not None][:1] if special.adds_eos else []
    between = [*ends, sep] if special.adds_sep and sep is not None else ends
    template = gguf.get_str("tokenizer.chat_template.rerank") if read_pooling(gguf) is Pooling.RANK else None
    return Frame(suffix=tuple(ends or between), separator=tuple(between), rank_template=template)

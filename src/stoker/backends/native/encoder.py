"""Encoders on Stoker's own kernels, such as BERT: they embed or rank, and write nothing."""

from __future__ import annotations

from collections.abc import Sequence

from stoker import _native
from stoker.backends.base import Embeddings, Logits
from stoker.backends.native.embedder import NativeEmbedder
from stoker.backends.native.file import ModelFile
from stoker.backends.native.kv_types import choose_kv_type
from stoker.backends.native.needs import plan_model
from stoker.backends.native.options import NativeOptions, embedder_options
from stoker.backends.native.threads import plan_threads, spread_memory
from stoker.backends.native.weights import PackProgress, load_weights
from stoker.backends.sizes import num_threads
from stoker.core.batch import Batch
from stoker.core.embedding import EmbeddingInfo, Piece
from stoker.core.model_info import CacheTraits, ModelInfo
from stoker.errors import BackendError


class NativeEncoder:
    """A GGUF model whose positions see ahead. Satisfies `Backend` and `Embedder`.

    An embedding does not depend on what else is embedded beside it, nor on the number of threads: it is the same to the
    bit, for one type of keys and values with all kernels, on every CPU.

    Args:
        files: all parts of the model, open; they may be closed afterwards.
        options: sizes; `context_size` is the longest sequence.
        eog_token_ids: what the tokenizer says.
        progress: told how far packing is, if the weights must be packed.

    Raises:
        ModelUnsupported: an architecture, a tensor type or a number that is not known here.
        ModelFileInvalid: the file contradicts itself.
        ConfigError: heads are too large for the type of keys and values that is wanted.
        ResourceExhausted: the weights do not fit.
    """

    def __init__(
        self,
        files: Sequence[ModelFile],
        options: NativeOptions,
        *,
        eog_token_ids: frozenset[int] = frozenset(),
        progress: PackProgress | None = None,
    ) -> None:
        spec, layout, parts = plan_model(files, options.context_size)
        kv_type = choose_kv_type(options.kv_type, spec.largest_head)
        threads = plan_threads(num_threads(options))
        is_spread = spread_memory()
        weights = load_weights(
            parts,
            layout,
            directory=options.packed_directory,
            max_bytes=options.packed_directory_bytes,
            threads=threads.count,
            progress=progress,
            may_copy=options.may_copy_weights,
            is_spread=is_spread,
        )
        self._weights = weights
        self._embedder = NativeEmbedder(spec, weights, embedder_options(options, kv_type, threads))
        self.kernels = _native.best_kernels()
        """For which instructions of this CPU the kernels are."""
        self.info = ModelInfo(
            name=parts.first.path.stem,
            architecture=spec.architecture,
            vocab_size=spec.vocab_size,
            eog_token_ids=eog_token_ids,
            trained_context=spec.trained_context,
            context_size=options.context_size,
            kv_tokens=options.context_size,
            num_slots=options.num_slots,
            max_batch_tokens=options.max_batch_tokens,
            traits=CacheTraits(can_truncate=True, can_copy=False, shares_cells=False),
            is_batch_invariant=True,
            can_generate=False,
        )

    @property
    def embedding(self) -> EmbeddingInfo:
        return self._embedder.embedding

    def embed(self, pieces: Sequence[Piece]) -> Embeddings:
        """See `Embedder.embed`."""
        return self._embedder.embed(pieces)

    def forward(self, batch: Batch) -> Logits:
        """Never has logits, as `info.can_generate` says.

        Raises:
            BackendError: always.
        """
        raise BackendError(f"{self.info.name} is an encoder: it does not generate text")

    def close(self) -> None:
        """Frees everything. Calling it twice is allowed."""
        self._embedder.close()
        self._weights.close()

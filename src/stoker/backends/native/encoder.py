"""Encoders on Stoker's own kernels, such as BERT: they embed or rank texts, and do not generate."""

from __future__ import annotations

from collections.abc import Sequence

from stoker import _native
from stoker.backends.base import Embeddings, Logits
from stoker.backends.native.embedder import NativeEmbedder
from stoker.backends.native.file import ModelFile
from stoker.backends.native.kv_types import choose_kv_type
from stoker.backends.native.needs import plan_model
from stoker.backends.native.options import NativeOptions
from stoker.backends.native.threads import plan_threads
from stoker.backends.native.weights import PackProgress, loading
from stoker.backends.sizes import num_threads
from stoker.core.batch import Batch
from stoker.core.embedding import EmbeddingInfo, Piece
from stoker.core.model_info import CacheTraits, ModelInfo
from stoker.errors import BackendError


class NativeEncoder:
    """A loaded GGUF model with bidirectional attention. Satisfies `Backend` and `Embedder`.

    An embedding is the same to the bit whatever else is embedded in the same pass, and for every number of threads. For
    one KV cache type it is the same with all kernels, on every CPU.

    Args:
        files: all parts of the model, open; they may be closed afterwards.
        options: sizes, threads and types; `context_size` is the length of the longest sequence, in tokens.
        eog_token_ids: end-of-generation tokens, as the tokenizer states them.
        progress: called with the progress of packing, if the weights must be packed.

    Raises:
        ModelUnsupported: the architecture, a tensor type or a hyperparameter is not supported here.
        ModelFileInvalid: the file contradicts itself.
        ConfigError: attention heads are too large for the KV cache type that is asked for.
        ResourceExhausted: there is no memory for the weights.
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
        self._weights = loading(options, threads, progress)(parts, layout)
        self._embedder = NativeEmbedder(spec, self._weights, options, kv_type, threads)
        self.kernels = _native.best_kernels()
        """The name of the instruction set whose kernels run on this CPU."""
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
        """An encoder has no logits (`info.can_generate` is false).

        Raises:
            BackendError: always.
        """
        raise BackendError(f"{self.info.name} is an encoder: it does not generate text")

    def close(self) -> None:
        """Frees everything. Calling it twice is allowed."""
        self._embedder.close()
        self._weights.close()

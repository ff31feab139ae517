"""Encoders on libllama, such as BERT: they embed or rank texts, and do not generate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from stoker.backends.base import Embeddings, Logits
from stoker.backends.cores import usable_cores
from stoker.backends.llama.embedder import EmbedderOptions, LlamaEmbedder
from stoker.backends.llama.native import interrupts_held
from stoker.backends.llama.options import DeviceOptions
from stoker.backends.llama.tokenizer import LlamaTokenizer
from stoker.backends.llama.weights import LoadOptions, load_weights
from stoker.core.batch import Batch
from stoker.core.embedding import EmbeddingInfo, Piece, Pooling
from stoker.core.model_info import CacheTraits, ModelInfo
from stoker.errors import BackendError

ENCODERS = frozenset(
    {
        "bert",
        "eurobert",
        "gemma-embedding",
        "jina-bert-v2",
        "jina-bert-v3",
        "modern-bert",
        "neo-bert",
        "nomic-bert",
        "nomic-bert-moe",
    }
)
"""The architectures that libllama computes without a KV cache, as in `llama_model::create_memory`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderOptions:
    """The options with which one encoder is loaded."""

    max_tokens: int
    """Length of the longest sequence, in tokens."""
    pooling: Pooling = Pooling.MEAN
    threads: int | None = None
    """CPU threads. None = one per core that this process may use."""
    devices: DeviceOptions = field(default_factory=DeviceOptions)


class LlamaEncoder:
    """A loaded GGUF model that has no KV cache. Satisfies `Backend` and `Embedder`.

    Raises:
        ModelError, ResourceExhausted: see `load_weights`.
    """

    def __init__(self, path: Path, options: EncoderOptions) -> None:
        with interrupts_held():
            weights = load_weights(path, LoadOptions(options.devices))
        self.tokenizer = LlamaTokenizer(weights)
        self._embedder = LlamaEmbedder(
            weights,
            EmbedderOptions(
                pooling=options.pooling,
                max_tokens=options.max_tokens,
                keeps_kv=False,
                threads=options.threads or usable_cores(),
            ),
        )
        self.info = _model_info(path.stem, weights.architecture, weights.trained_context, self.tokenizer, options)

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
        self.tokenizer.close()


def _model_info(
    name: str, architecture: str, trained_context: int, tokenizer: LlamaTokenizer, options: EncoderOptions
) -> ModelInfo:
    return ModelInfo(
        name=name,
        architecture=architecture,
        vocab_size=tokenizer.vocab_size,
        eog_token_ids=tokenizer.eog_token_ids(),
        trained_context=trained_context,
        context_size=options.max_tokens,
        kv_tokens=options.max_tokens,
        num_slots=1024,
        max_batch_tokens=1024,
        traits=CacheTraits(can_truncate=True, can_copy=False, shares_cells=False),
        can_generate=False,
    )

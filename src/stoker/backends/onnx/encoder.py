"""Encoders as ONNX graphs: they embed texts or score pairs of texts, and do not generate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stoker.backends.base import Embeddings, Logits
from stoker.backends.cores import usable_cores
from stoker.backends.onnx.encoder_signature import EncoderRole, EncoderSignature
from stoker.backends.onnx.file import GraphFile
from stoker.backends.onnx.runtime import Session, SessionOptions, load_errors, open_session
from stoker.backends.pooling import Pool
from stoker.core.batch import Batch, Entry
from stoker.core.embedding import EmbeddingInfo, Piece, Pooling
from stoker.core.model_info import CacheTraits, ModelInfo
from stoker.errors import BackendError, ModelNotLoaded

_NUM_SLOTS = 64
_BATCH_TOKENS = 2048
_MAX_PADDED = 1.25
"""Most positions of a run, padding included, for each of its tokens: texts of similar length share a run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OnnxEncoderOptions:
    """The options with which one encoder is loaded."""

    max_tokens: int
    """Length of the longest text, in tokens."""
    pooling: Pooling
    vocab_size: int
    suffix: tuple[Entry, ...] = ()
    """Tokens that the model expects at the end of every text."""
    separator: tuple[Entry, ...] = ()
    """Tokens that the model expects between the two texts of a pair."""
    threads: int | None = None
    """CPU threads. None = one per core that this process may use."""
    provider: str = "auto"
    device_id: int = 0
    name: str = ""
    architecture: str = "onnx"


class OnnxEncoder:
    """A loaded encoder, which computes each text in one run. Satisfies `Backend` and `Embedder`.

    Raises:
        ModelError, ResourceExhausted, ConfigError: see `open_session`.
    """

    def __init__(self, graph: GraphFile, signature: EncoderSignature, options: OnnxEncoderOptions) -> None:
        self._signature = signature
        self._separator = options.separator
        session_options = SessionOptions(
            threads=options.threads or usable_cores(), provider=options.provider, device_id=options.device_id
        )
        self._session: Session | None = open_session(graph, session_options)
        self._pool = Pool(options.pooling, signature.size) if signature.gives == "states" else None
        self.embedding = EmbeddingInfo(
            pooling=options.pooling,
            size=signature.size,
            max_tokens=options.max_tokens,
            max_batch_tokens=max(_BATCH_TOKENS, options.max_tokens),
            num_slots=_NUM_SLOTS,
            can_split=False,
            suffix=options.suffix,
            separator=options.separator,
        )
        self.info = _model_info(options)

    @property
    def provider(self) -> str:
        """The execution provider that computes: `cpu`, `cuda` …"""
        return self._open_session().provider

    def embed(self, pieces: Sequence[Piece]) -> Embeddings:
        """See `Embedder.embed`. Every piece is a whole text.

        Raises:
            BackendError: ONNX Runtime failed.
            ModelNotLoaded: the encoder was closed.
        """
        found = np.empty((len(pieces), self._signature.size), dtype=np.float32)
        for group in _groups(pieces):
            found[group] = self._run([pieces[index] for index in group])
        return found

    def forward(self, batch: Batch) -> Logits:
        """An encoder has no logits (`info.can_generate` is false).

        Raises:
            BackendError: always.
        """
        raise BackendError(f"{self.info.name} is an encoder: it does not generate text")

    def close(self) -> None:
        """Releases the session. Weights are freed with their last user. Calling it twice is allowed."""
        self._session = None

    def _open_session(self) -> Session:
        if self._session is None:
            raise ModelNotLoaded("The model was closed.")
        return self._session

    def _run(self, pieces: Sequence[Piece]) -> NDArray[np.float32]:
        """Computes texts of similar length in one run, padded at the end."""
        session, signature = self._open_session(), self._signature
        longest = max(len(piece.entries) for piece in pieces)
        feeds: dict[str, NDArray[Any]] = {
            port.name: self._values(role, pieces, longest).astype(port.type) for role, port in signature.inputs.items()
        }
        for past in signature.pasts:
            feeds[past.name] = np.zeros((len(pieces), past.num_heads, 0, past.head_size), dtype=past.type)
        try:
            (output,) = session.inner.run([signature.output], feeds)
        except load_errors() as error:
            raise BackendError(f"the forward pass failed: {' '.join(str(error).split())}") from error
        if self._pool is None:
            return output.astype(np.float32)
        states = [output[row, : len(piece.entries)] for row, piece in enumerate(pieces)]
        return self._pool.push(pieces, np.concatenate(states).astype(np.float32))

    def _values(self, role: EncoderRole, pieces: Sequence[Piece], longest: int) -> NDArray[np.int64]:
        found = np.zeros((len(pieces), longest), dtype=np.int64)
        for row, piece in zip(found, pieces, strict=True):
            length = len(piece.entries)
            match role:
                case "ids":
                    row[:length] = piece.entries
                case "mask":
                    row[:length] = 1
                case "positions":
                    row[:length] = np.arange(length)
                case "token_types":
                    row[_second_text(piece.entries, self._separator) : length] = 1
        return found


def _second_text(entries: Sequence[Entry], separator: Sequence[Entry]) -> int:
    """Index of the first token of a pair's second text; the number of tokens if there is only one text."""
    size = len(separator)
    ends = (at + size for at in range(len(entries) - size) if tuple(entries[at : at + size]) == tuple(separator))
    return next(ends, len(entries)) if size else len(entries)


def _groups(pieces: Sequence[Piece]) -> Iterator[list[int]]:
    """Groups of indices of pieces with similar lengths, which need little padding."""
    group: list[int] = []
    num_tokens = 0
    for index in sorted(range(len(pieces)), key=lambda index: -len(pieces[index].entries)):
        length = len(pieces[index].entries)
        longest = len(pieces[group[0]].entries) if group else length
        if group and longest * (len(group) + 1) > _MAX_PADDED * (num_tokens + length):
            yield group
            group, num_tokens = [], 0
        group.append(index)
        num_tokens += length
    yield group


def _model_info(options: OnnxEncoderOptions) -> ModelInfo:
    return ModelInfo(
        name=options.name,
        architecture=options.architecture,
        vocab_size=options.vocab_size,
        eog_token_ids=frozenset(),
        trained_context=options.max_tokens,
        context_size=options.max_tokens,
        kv_tokens=options.max_tokens,
        num_slots=1024,
        max_batch_tokens=1024,
        traits=CacheTraits(can_truncate=True, can_copy=False, shares_cells=False),
        can_generate=False,
    )

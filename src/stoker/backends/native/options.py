"""Options of a model on the native backend: sizes, threads, types and directories."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import get_args

from stoker.backends.native.kv_types import KVType
from stoker.backends.native.packed_file import DIRECTORY_BYTES
from stoker.backends.sizes import check_sizes
from stoker.core.embedding import Pooling
from stoker.errors import ConfigError

BATCH_TOKENS = 512
"""Default of `NativeOptions.max_batch_tokens`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """Tokens that a model expects around texts that are embedded or ranked."""

    suffix: tuple[int, ...] = ()
    """Token ids at the end of every sequence."""
    separator: tuple[int, ...] = ()
    """Token ids between the two texts of a pair."""
    rank_template: str | None = None
    """See `EmbeddingInfo.rank_template`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeOptions:
    """The options with which one model is loaded. Immutable.

    Raises:
        ConfigError: a number is out of its range.
    """

    context_size: int
    """Length of the longest single sequence, in tokens."""
    kv_tokens: int
    """Size of the KV pool that all sequences share, in tokens."""
    most_kv_tokens: int = 0
    """Largest size of the KV pool, in tokens, while other models lend memory to it; 0 = no model lends to it. Cannot be
    combined with `window_tokens`."""
    window_tokens: int = 0
    """Size in tokens of a separate KV pool for layers with a sliding window, which keeps only the positions that later
    ones still see; 0 = these layers keep all positions in the common pool."""
    num_slots: int = 64
    """Most sequences that hold KV at the same time, running and retained."""
    max_batch_tokens: int = BATCH_TOKENS
    """Most entries of one forward pass."""
    whole_rows: int = 0
    """Rows of an image that one forward pass must be able to take at once, beside one token of each sequence."""
    threads: int | None = None
    """CPU threads of the forward pass, 1 … 512. None = one per core that this process may use."""
    kv_type: KVType | None = None
    """KV cache type: of the elements of keys and values. i16, q16: 16 bits, with a scale for each vector; q8: 8 bits,
    with a scale for each 32 elements; q4: as q8, but values of 4 bits. None = i16 or q16 where the kernels of this CPU
    are faster with it, else f16."""
    packed_directory: Path | None = None
    """Directory that keeps packed weights for the next start and for other processes; None = in memory only."""
    packed_directory_bytes: int = DIRECTORY_BYTES
    """Size limit of the packed directory, in bytes; the least recently used files are deleted."""
    may_copy_weights: bool = False
    """Whether a packed file is copied into private memory with huge pages if it stays in small pages. Other processes
    cannot share that copy."""
    has_draft_head: bool = False
    """Whether the draft head in the file, if there is one, is loaded too, with keys and values of its own."""
    pooling: Pooling = Pooling.MEAN
    """How the hidden states of a sequence become its embedding."""
    frame: Frame = field(default_factory=Frame)
    """Tokens that the model expects around texts that are embedded."""

    def __post_init__(self) -> None:
        check_sizes(self)
        if self.kv_type is not None and self.kv_type not in get_args(KVType):
            raise ConfigError(
                f"`kv_type` must be one of {', '.join(get_args(KVType))}, not {self.kv_type}", parameter="kv_type"
            )

"""How a model is loaded on the native executor."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import get_args

from stoker.backends.native.embedder import EmbedderOptions, Frame
from stoker.backends.native.kv_types import KVType
from stoker.backends.native.packed_file import DIRECTORY_BYTES
from stoker.backends.native.threads import Threads
from stoker.backends.sizes import check_sizes
from stoker.core.embedding import Pooling
from stoker.errors import ConfigError

BATCH_TOKENS = 512
"""Most entries of one forward pass, unless something else is asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeOptions:
    """How a model is loaded.

    Raises:
        ConfigError: a number is out of its range.
    """

    context_size: int
    """Longest single sequence, in tokens."""
    kv_tokens: int
    """Cells of the pool that all sequences share, in tokens."""
    most_kv_tokens: int = 0
    """Cells of the pool while other models lend it theirs, at most; 0 = no model does. Not together with
    `window_tokens`."""
    window_tokens: int = 0
    """Cells of the pool of layers with a window, which keep no more of a sequence than they will see; 0 = they keep all
    of it, like the other layers."""
    num_slots: int = 64
    """Most sequences that hold KV, running and retained."""
    max_batch_tokens: int = BATCH_TOKENS
    """Most entries of one forward pass."""
    whole_rows: int = 0
    """Rows of an image that one forward pass takes at once, beside a token of each sequence."""
    threads: int | None = None
    """CPU threads of the forward pass, 1 … 512. None = one per core that this process may use."""
    kv_type: KVType | None = None
    """Of the elements of keys and values; i16 and q16: 16 bits, with a scale for each vector; q8: 8 bits, with one for
    each 32; q4: likewise, but values of 4 bits. Not given: i16 or q16 where the kernels of this CPU are faster with
    it, else f16."""
    packed_directory: Path | None = None
    """Where packed weights are kept for the next start and for other processes; None = in memory alone."""
    packed_directory_bytes: int = DIRECTORY_BYTES
    """How much the directory may hold; what was not used for longest goes."""
    may_copy_weights: bool = False
    """A packed file whose file system has no huge pages is read into memory, which has them; no other process shares
    that."""
    has_draft_head: bool = False
    """Whether the draft head of the file, if it has one, is loaded, too, with keys and values of its own."""
    pooling: Pooling = Pooling.MEAN
    """How sequences are embedded."""
    frame: Frame = field(default_factory=Frame)
    """What the model wants around texts that are embedded."""

    def __post_init__(self) -> None:
        check_sizes(self)
        if self.kv_type is not None and self.kv_type not in get_args(KVType):
            raise ConfigError(
                f"`kv_type` must be one of {', '.join(get_args(KVType))}, not {self.kv_type}", parameter="kv_type"
            )


def embedder_options(options: NativeOptions, kv_type: KVType, threads: Threads) -> EmbedderOptions:
    """Of an embedder that computes as the model does that is loaded so."""
    return EmbedderOptions(
        pooling=options.pooling,
        frame=options.frame,
        max_tokens=options.context_size,
        kv_type=kv_type,
        threads=threads,
    )

"""The seam between deciding and computing: what every forward-pass backend offers, and no more."""

from __future__ import annotations

from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from stoker.core.batch import Batch
from stoker.core.model_info import ModelInfo

Logits: TypeAlias = NDArray[np.float32]
"""`(batch.num_rows, vocab_size)`, rows in chunk order. Valid until the next `forward`; the caller may write to it."""


class Backend(Protocol):
    """A loaded model with its KV cache. One thread calls it; it decides nothing."""

    @property
    def info(self) -> ModelInfo: ...

    def forward(self, batch: Batch) -> Logits:
        """Applies `batch.ops` in order, computes every chunk, and returns the rows asked for.

        Raises:
            BackendError: nothing of this batch was computed; its operations may have been applied.
                The caller empties the slots it touched before it goes on.
        """
        ...

    def close(self) -> None:
        """Frees everything. Calling it twice is allowed."""
        ...

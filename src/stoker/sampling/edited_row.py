"""Edits a row of logits with numpy before compiled code samples from it, and restores the row afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import numpy as np
from numpy.typing import NDArray

from stoker.sampling.candidates import Row
from stoker.sampling.edits import Edit
from stoker.sampling.row_kernels import RowKernels


class EditedRow:
    """A row whose few edited logits are changed in place and restored: copying a wide row would cost more.

    If one of these logits is NaN or +inf, the row is not edited, because an edit could hide that the row is invalid.
    """

    def __init__(
        self, row: Row, edits: Sequence[Edit], maxima: NDArray[np.float32] | None, kernels: RowKernels
    ) -> None:
        self._row = row
        self._maxima = maxima
        self._kernels = kernels
        self._token_ids = edits[0].token_ids if len(edits) == 1 else np.concatenate([edit.token_ids for edit in edits])
        self._before = row[self._token_ids]
        self._edits = edits

    def apply(self) -> None:
        """Makes the edits."""
        if self._before.max() < inf:
            with np.errstate(over="ignore"):
                for edit in self._edits:
                    edit.apply(self._row)
            self._renew_maxima()

    def undo(self) -> None:
        """Restores the logits."""
        self._row[self._token_ids] = self._before
        self._renew_maxima()

    def _renew_maxima(self) -> None:
        if self._maxima is not None:
            self._kernels.renew(self._row, self._maxima, self._token_ids)

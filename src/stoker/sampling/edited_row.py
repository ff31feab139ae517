"""Edits of a row that numpy makes before compiled code chooses from it."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import numpy as np
from numpy.typing import NDArray

from stoker.sampling.candidates import Row
from stoker.sampling.edits import Edit
from stoker.sampling.row_kernels import RowKernels


class EditedRow:
    """The few logits of a row that its edits change, changed in their place: a copy of a wide row costs more than that.

    A row that holds NaN or +inf there stays as it is: an edit could hide it.
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
        """Changes the logits."""
        if self._before.max() < inf:
            with np.errstate(over="ignore"):
                for edit in self._edits:
                    edit.apply(self._row)
            self._renew_maxima()

    def undo(self) -> None:
        """Puts them back."""
        self._row[self._token_ids] = self._before
        self._renew_maxima()

    def _renew_maxima(self) -> None:
        if self._maxima is not None:
            self._kernels.renew(self._row, self._maxima, self._token_ids)

"""KV of one context as bytes, and back. It decides nothing, and knows nothing of what the bytes mean.

libllama saves the state of a whole sequence, not of a range of positions. A range is therefore first given to a
scratch sequence, which costs no cell and no copying; an import goes the same way back.

```
    export    slot ── seq_cp(start, end) ──► scratch ── get_data ──► bytes
    import    bytes ── set_data ──► scratch ── seq_cp ──► slot (and its twin)
```

Memory that cannot be cut (recurrent, hybrid, with rows of images that share positions) has no ranges: there the slot
itself is saved and restored, whole. Most hybrids have ranges without states, see `hybrid_bytes`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from ctypes import POINTER, c_uint8

import numpy as np

from stoker.backends.llama.native import library, log_lines
from stoker.core.tiers import KVBytes
from stoker.errors import BackendError

LENGTH = struct.Struct("<Q")
"""In front of each piece."""


class SequenceBytes:
    """Exports from and imports into the sequences of one context.

    Args:
        context: the `llama_context`; its owner outlives this object.
        memory: its memory.
        sequences_of: the native sequences of a slot; what is imported is given to all of them.
        scratch: a sequence for this object alone; None = the memory cannot be cut.
        window: of sliding-window attention; 0 = none.
        counts_entries: a sequence has as many positions as entries.
    """

    def __init__(
        self,
        context: int,
        memory: int,
        sequences_of: Callable[[int], tuple[int, ...]],
        scratch: int | None,
        window: int,
        *,
        counts_entries: bool = True,
    ) -> None:
        self._lib = library()
        self._context = context
        self._memory = memory
        self._sequences_of = sequences_of
        self._scratch = scratch
        self._counts_entries = counts_entries
        # Of a sequence libllama saves only what its last position sees, and a window may also be a fixed chunk.
        self._piece = max(1, window // 2) if window else 2**31

    def export(self, slot: int, start: int, end: int, *, has_state: bool = True) -> KVBytes:
        """The KV of positions `start … end-1` of a slot.

        Raises:
            BackendError: libllama refuses.
        """
        if self._scratch is None:
            return self._get(slot)
        pieces: list[memoryview] = []
        for first, behind in self._pieces(start, end):
            self._lib.llama_memory_seq_cp(self._memory, slot, self._scratch, first, behind)
            try:
                pieces.append(self._get(self._scratch))
            finally:
                self._clear_scratch()
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def import_(self, slot: int, start: int, end: int, state: KVBytes, *, has_state: bool = True) -> None:
        """Appends positions `start … end-1` to a slot that holds `start`.

        Raises:
            BackendError: they are not in these bytes, or there is no room; the slot is as before.
        """
        if self._scratch is None:
            self._import_whole(slot, end, state)
            return
        at = 0
        try:
            for first, behind in self._pieces(start, end):
                piece, at = _next_piece(state, at)
                self._set(self._scratch, piece, first, behind)
                for sequence in self._sequences_of(slot):
                    self._lib.llama_memory_seq_cp(self._memory, self._scratch, sequence, first, behind)
                self._clear_scratch()
        except BackendError:
            self._clear_scratch()
            for sequence in self._sequences_of(slot):
                self._lib.llama_memory_seq_rm(self._memory, sequence, start, -1)
            raise

    def _import_whole(self, slot: int, end: int, state: KVBytes) -> None:
        try:
            piece, _ = _next_piece(state, 0)
            self._set(slot, piece, None, end if self._counts_entries else None)
        except BackendError:
            self._lib.llama_memory_seq_rm(self._memory, slot, -1, -1)
            raise

    def _pieces(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Ranges that one window can see, cut where chunks of a window begin."""
        while start < end:
            behind = min(end, (start // self._piece + 1) * self._piece)
            yield start, behind
            start = behind

    def _get(self, sequence: int) -> memoryview:
        size = self._lib.llama_state_seq_get_size(self._context, sequence)
        piece = bytearray(LENGTH.size + size)
        LENGTH.pack_into(piece, 0, size)
        with log_lines.capture_errors() as errors:
            target = (c_uint8 * size).from_buffer(piece, LENGTH.size)
            written = self._lib.llama_state_seq_get_data(self._context, target, size, sequence)
        if size == 0 or written != size:
            raise BackendError(f"libllama cannot save a sequence: {'; '.join(errors) or 'no reason given'}")
        return memoryview(piece).toreadonly()

    def _set(self, sequence: int, piece: memoryview, first: int | None, behind: int | None) -> None:
        buffer = np.frombuffer(piece, dtype=np.uint8)
        with log_lines.capture_errors() as errors:
            source = buffer.ctypes.data_as(POINTER(c_uint8))
            read = self._lib.llama_state_seq_set_data(self._context, source, len(buffer), sequence)
        if read != len(buffer):
            raise BackendError(f"libllama cannot restore a sequence: {'; '.join(errors) or 'no reason given'}")
        found = self._lib.llama_memory_seq_pos_max(self._memory, sequence) + 1
        lowest = self._lib.llama_memory_seq_pos_min(self._memory, sequence)
        if behind not in (None, found) or first not in (None, lowest):
            raise BackendError(
                f"the saved sequence holds positions {lowest} … {found - 1}, not {first} … before {behind}"
            )

    def _clear_scratch(self) -> None:
        self._lib.llama_memory_seq_rm(self._memory, self._scratch, -1, -1)


def _next_piece(state: KVBytes, at: int) -> tuple[memoryview, int]:
    """The piece that begins at a byte, and the offset after it."""
    behind = at + LENGTH.size
    if behind > len(state):
        raise BackendError("exported KV is cut short")
    end = behind + LENGTH.unpack_from(state, at)[0]
    if end > len(state):
        raise BackendError("exported KV is cut short")
    return memoryview(state)[behind:end], end

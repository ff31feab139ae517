"""Export and import of a context's KV as bytes, whose meaning only libllama knows.

libllama saves the state of a whole sequence, not of a range of positions. An export therefore first shares the range
with a scratch sequence, which costs no cell and no copy; an import goes through a scratch sequence, too.

```
    export    slot ── seq_cp(start, end) ──► scratch ── get_data ──► bytes
    import    bytes ── set_data ──► scratch ── seq_cp ──► slot (and its twin)
```

Memory that cannot be cut (recurrent, hybrid, with rows of images that share positions) has no ranges: the whole slot
is saved and restored. Most hybrids have ranges without states, see `hybrid_bytes`.
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
"""The length of a piece in bytes, in front of each piece."""


class SequenceBytes:
    """Exports KV from and imports KV into the sequences of one context.

    Args:
        context: the `llama_context`; its owner outlives this object.
        memory: the `llama_memory_t` of the context.
        sequences_of: returns the native sequences of a slot, all of which get what is imported.
        scratch: a sequence that only this object uses; None = only whole slots can be exported.
        window: size of the attention window in positions; 0 = there is none.
        counts_entries: whether a sequence has as many positions as entries.
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
        # libllama saves only positions that a sequence's last position sees, and a window may also be a fixed chunk.
        self._piece = max(1, window // 2) if window else 2**31

    def export(self, slot: int, start: int, end: int, *, has_state: bool = True) -> KVBytes:
        """The KV of positions `start … end-1` of a slot.

        Raises:
            BackendError: libllama cannot save the sequence.
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
            BackendError: the bytes are not these positions, or there is no room; the slot is unchanged.
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
        """Splits a range into parts that one window covers, at multiples of the part size."""
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

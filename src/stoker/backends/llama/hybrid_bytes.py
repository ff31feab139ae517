"""Export and import of a hybrid model's KV: keys and values of a range, with or without the recurrent state.

libllama saves a sequence as

```
    | head | keys and values of the layers with attention | states of the recurrent layers |
```

and, with a flag, only the head and the states. An export without a state therefore cuts the states off, and its import
appends the states of an empty sequence. Ranges go through a scratch sequence, as in `kv_bytes`.
"""

from __future__ import annotations

from ctypes import c_uint8

from stoker.backends.llama.kv_bytes import LENGTH, SequenceBytes
from stoker.core.tiers import KVBytes
from stoker.errors import BackendError

_HEAD_BYTES = 8
"""Size of the head: a magic number, and the number of the sequence."""


class HybridBytes(SequenceBytes):
    """`SequenceBytes` for a hybrid model: no windows, and some layers keep a recurrent state instead of KV."""

    def export(self, slot: int, start: int, end: int, *, has_state: bool = True) -> KVBytes:
        """The KV of positions `start … end-1` of a slot, with `has_state` also its state, which must be that at `end`.

        Raises:
            BackendError: libllama cannot save the sequence.
        """
        assert self._scratch is not None
        self._lib.llama_memory_seq_cp(self._memory, slot, self._scratch, start, end)
        try:
            piece = self._get(self._scratch)[LENGTH.size :]
            if has_state:
                return piece
            return bytes(piece[: len(piece) - len(self._state(self._scratch))])
        finally:
            self._clear_scratch()

    def import_(self, slot: int, start: int, end: int, state: KVBytes, *, has_state: bool = True) -> None:
        """Appends positions `start … end-1` to a slot that holds `start`. Without its state the slot is unusable.

        Raises:
            BackendError: the bytes are not these positions, or there is no room; the slot is unchanged.
        """
        assert self._scratch is not None
        piece = memoryview(state) if has_state else memoryview(b"".join((state, self._state(self._scratch))))
        try:
            # libllama tells the first position only if there is no state, and the last one only if there is a state.
            self._set(self._scratch, piece, None if has_state else start, end if has_state else None)
            for sequence in self._sequences_of(slot):
                self._lib.llama_memory_seq_cp(self._memory, self._scratch, sequence, start, end)
        finally:
            self._clear_scratch()

    def _state(self, sequence: int) -> bytes:
        """The states of the recurrent layers, without the head; for an empty sequence, too, these are some bytes."""
        flag = self._lib.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY
        size = self._lib.llama_state_seq_get_size_ext(self._context, sequence, flag)
        target = (c_uint8 * size)()
        if self._lib.llama_state_seq_get_data_ext(self._context, target, size, sequence, flag) != size:
            raise BackendError("libllama cannot save the state of a sequence")
        return bytes(target)[_HEAD_BYTES:]

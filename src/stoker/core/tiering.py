"""Decides which KV is exported to the tiers (RAM, disk) and which is imported. The engine moves it, the tiers keep it.

KV is exported soon after it is computed, and not only when its cells are needed: an eviction then costs nothing, and a
killed process loses little. While requests compute and no KV must be evicted soon, exports get a small part of the
time; the rest is exported while the engine is idle. An export costs about a hundredth of a prefill (docs/lab).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain as joined

from stoker.core.batch import AdapterSet, Entry, Transfer
from stoker.core.blocks import BLOCK_ENTRIES, Chain, root_key
from stoker.core.kv_cache import KVCache
from stoker.core.model_info import ModelInfo
from stoker.core.portions import BlocksAndStates, Portions, Ranges, States
from stoker.core.sequence import Sequence
from stoker.core.step_cost import Rate
from stoker.core.tiers import Tiers
from stoker.core.token_budget import TokenBudget

_FIRST_GUESS = 32 * BLOCK_ENTRIES
"""Number of entries to move in one step before any transfer was measured."""
_EXPORT_SHARE = 0.02
"""Fraction of step time for exports that could wait until the engine is idle."""
_MAX_CREDIT_S = 0.01


class Tiering:
    """Exports and imports of one scheduler. Without tiers, or with a backend that cannot export, there are none.

    Args:
        budget: knows the cost of computing a token; KV is restored only if that is cheaper.
    """

    def __init__(self, info: ModelInfo, kv: KVCache, budget: TokenBudget, tiers: Tiers | None) -> None:
        self._kv = kv
        self._budget = budget
        self._tiers = tiers if info.traits.can_export else None
        self._portions: Portions | None = None
        if self._tiers is not None:
            self._portions = _portions(self._tiers, info)
        self._retained: dict[int, Chain] = {}
        """Keys of the KV in each retained slot. Items of slots that were reused since are stale, and never read."""
        self._imports, self._exports = Rate(), Rate()
        self._credit_s = 0.0
        """Time, in seconds, that may be spent on exports that are not urgent while requests compute."""

    def open(self, sequence: Sequence) -> None:
        """Registers a new request: computes the keys of its KV, and starts reading blocks from disk into RAM."""
        request = sequence.request
        if self._portions is None or self._tiers is None or not request.cache_prompt:
            return
        sequence.chain = Chain(root_key(request.adapters))
        self._portions.prepare(sequence.chain, sequence.entries)
        limit = len(sequence.entries) - 1
        resident = self._kv.find_reuse(sequence.entries, limit, sequence.cache_key).length if limit else 0
        marks = sequence.chain.marks.values() if self._portions.exports_while_running else ()
        self._tiers.touch((*sequence.chain.keys, *marks))
        missing, length = self._portions.absent(sequence.chain, resident, limit)
        if not missing:
            return
        read_entry_s = self._tiers.read_s(missing) / max(1, length - resident)
        if self._is_worth(read_entry_s + (self._imports.entry_s or 0.0)):
            self._tiers.fetch(missing)
            sequence.fetched_keys = missing
            is_cut = isinstance(self._portions, Ranges)
            sequence.num_from_disk = min(length - resident, BLOCK_ENTRIES * len(missing) if is_cut else length)

    def is_coming(self, sequence: Sequence) -> bool:
        """KV of the sequence is still being read from disk."""
        if not sequence.fetched_keys or self._tiers is None:
            return False
        if not self._tiers.is_coming(sequence.fetched_keys):
            sequence.fetched_keys = []
        return bool(sequence.fetched_keys)

    def restorable(self, sequence: Sequence, resident: int, limit: int) -> int:
        """Length of the prefix in RAM; 0 if it exceeds `resident` by less than a block, or computing is cheaper."""
        if sequence.chain is None or self._portions is None:
            return 0
        length = self._portions.ready(sequence.chain, limit)
        return length if length >= resident + BLOCK_ENTRIES and self._is_worth(self._imports.entry_s) else 0

    def start_of(self, resident: int) -> int:
        """Length of the resident prefix that a restoration keeps: it continues at the start of a portion."""
        assert self._portions is not None
        return self._portions.start_of(resident)

    def imports(self, sequence: Sequence, max_entries: int) -> list[Transfer]:
        """The next imports for a sequence: up to `max_entries`, but at least one portion; all if `restores_whole`."""
        assert sequence.chain is not None
        assert sequence.slot is not None
        assert self._portions is not None
        found: list[Transfer] = []
        start, end = sequence.num_computed, sequence.num_restorable
        for transfer in self._portions.imports(sequence.slot, sequence.chain, start, end):
            if found and transfer.end - start > max_entries and not self.restores_whole:
                break
            found.append(transfer)
        return found

    @property
    def restores_whole(self) -> bool:
        """See `Portions.restores_whole`."""
        return self._portions is not None and self._portions.restores_whole

    def num_importable(self, seconds: float) -> int:
        """Number of entries that can be restored in `seconds`; at least one block."""
        return max(BLOCK_ENTRIES, self._imports.affordable(seconds, _FIRST_GUESS))

    def next_stop(self, sequence: Sequence) -> int | None:
        """The next length at which a chunk of a running sequence must end, so that its state can be exported."""
        if sequence.chain is None or self._portions is None:
            return None
        return self._portions.next_stop(sequence.chain, sequence.num_computed)

    def retain(self, slot: int, sequence: Sequence) -> None:
        """Registers a slot that becomes retained with the computed entries of a sequence."""
        self._retained.pop(slot, None)  # it described the former content
        if sequence.chain is not None and self._portions is not None and sequence.num_computed:
            entries = sequence.entries[: sequence.num_computed]
            self._retained[slot] = self._portions.retain(sequence.chain, entries)

    def adopt(self, slot: int, entries: list[Entry], adapters: AdapterSet) -> None:
        """Registers an empty slot filled from outside with entries that any request with these adapters may read."""
        self._retained.pop(slot, None)
        if self._portions is not None:
            self._retained[slot] = self._portions.retain(Chain(root_key(adapters)), entries)

    def may_export(self, *, is_busy: bool) -> bool:
        """Whether `exports` may return something: KV may be due, and exports have not used up their share of time."""
        if self._portions is None or self._tiers is None:
            return False
        if self._portions.exports_while_running:
            return True
        if is_busy and self._credit_s <= 0:
            return self._kv.is_half_full
        return self._is_pressing

    def earn(self, step_s: float) -> None:
        """Adds a small part of a step's duration to the time for exports that are not urgent."""
        self._credit_s = min(self._credit_s + _EXPORT_SHARE * step_s, _MAX_CREDIT_S)

    def exports(self, running: Iterable[Sequence], seconds: float, *, is_busy: bool = False) -> list[Transfer]:
        """The exports to run before the next step: about `seconds` of them, at least one portion if any is due.

        If requests are computing, no KV must be evicted soon, and exports have used up their share of the time, only
        states that exist at the present length alone are exported.
        """
        if self._portions is None:
            return []
        running = list(running)
        now = [*self._due_now(running)] if self._portions.exports_while_running else []
        if is_busy and self._credit_s <= 0 and not self._kv.is_half_full:
            return now
        max_entries = max(BLOCK_ENTRIES, self._exports.affordable(seconds, _FIRST_GUESS))
        return [*now, *_first(joined(self._due_of_retained(), self._due_of_running(running)), max_entries)]

    def observe_import(self, num_entries: int, seconds: float) -> None:
        """Learns how long importing took."""
        self._imports.observe(num_entries, seconds)

    def observe_export(self, num_entries: int, seconds: float) -> None:
        """Learns how long exporting took."""
        self._exports.observe(num_entries, seconds)
        self._credit_s = max(self._credit_s - seconds, -_MAX_CREDIT_S)

    def _due_now(self, running: Iterable[Sequence]) -> Iterator[Transfer]:
        """Exports of recurrent states, which a slot holds only at its present length."""
        assert self._portions is not None
        for sequence in running:
            if sequence.chain is not None and sequence.slot is not None:
                yield from self._portions.exports_now(sequence.slot, sequence.chain, sequence.num_computed)
        for slot in self._left() if self._is_pressing else ():
            yield from self._portions.exports_now(slot, self._retained[slot], self._kv.tree.length(slot))

    def _due_of_running(self, running: Iterable[Sequence]) -> Iterator[Transfer]:
        assert self._portions is not None
        if not self._is_pressing:
            return
        for sequence in running:
            if sequence.chain is not None and sequence.slot is not None:
                self._portions.grow(sequence.chain, sequence.entries)
                yield from self._portions.exports(sequence.slot, sequence.chain, sequence.num_computed)

    def _due_of_retained(self) -> Iterator[Transfer]:
        assert self._portions is not None
        for slot in self._left() if self._is_pressing else ():
            yield from self._portions.exports(slot, self._retained[slot], self._kv.tree.length(slot))
            del self._retained[slot]  # a retained slot does not grow

    def _left(self) -> list[int]:
        """Retained slots with KV that may be due. KV of checkpoints is exported from the sequences that left them."""
        return [
            slot for slot in self._kv.retained if slot in self._retained and not self._kv.retained.is_checkpoint(slot)
        ]

    @property
    def _is_pressing(self) -> bool:
        """KV should be exported now: it may be evicted soon, or a disk protects it against the end of the process."""
        assert self._tiers is not None
        return self._tiers.is_durable or self._kv.is_half_full

    def _is_worth(self, entry_s: float | None) -> bool:
        """Whether restoring, at `entry_s` seconds per entry, is cheaper than computing; True if a cost is unknown."""
        if entry_s is None or self._budget.token_s is None or entry_s < self._budget.token_s:
            return True
        self._imports.fade()
        return False


def _portions(tiers: Tiers, info: ModelInfo) -> Portions:
    if info.traits.can_truncate:
        return Ranges(tiers)
    return (BlocksAndStates if info.traits.exports_apart else States)(tiers, info.eog_token_ids)


def _first(transfers: Iterable[Transfer], max_entries: int) -> list[Transfer]:
    """The first transfers with `max_entries` entries in total, or all. Takes no further transfer from the iterator."""
    found: list[Transfer] = []
    num_entries = 0
    for transfer in transfers:
        found.append(transfer)
        num_entries += transfer.num_entries
        if num_entries >= max_entries:
            break
    return found

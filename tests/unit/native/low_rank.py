"""Random adapters for tiny decoders: as the C++ side takes them, and what they make of the weights."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stoker import _native
from tests.unit.native.packed import aligned
from tests.unit.native.tiny import Built

PARTS = ("query", "key", "value", "output", "gate", "up", "down")
BLOCK, TILE = 8, 16


@dataclass(frozen=True)
class LowRank:
    """The change of one matrix."""

    place: int
    name: str
    a: NDArray[np.float32]
    """`(rank, inputs)`; of the embedding `(vocabulary, rank)`."""
    b: NDArray[np.float32]
    """`(outputs, rank)`"""
    scale: float

    @property
    def product(self) -> NDArray[np.float64]:
        """What is added to the matrix."""
        a, b = self.a.astype(np.float64), self.b.astype(np.float64)
        return self.scale * (a @ b.T if self.place == 0 else b @ a)


def random_adapter(
    built: Built, seed: int, *, rank: int, half: bool = False, only: tuple[int, ...] = ()
) -> list[LowRank]:
    """Of all matrices, or of some by place. Half: of numbers that half floats can hold."""
    rng, t = np.random.default_rng(seed), built.tiny
    names = ["embedding", "head", *(f"{i}.{part}" for i in range(t.num_layers) for part in PARTS)]
    found: list[LowRank] = []
    for place, name in enumerate(names):
        if (only and place not in only) or (place == 1 and t.is_tied):
            continue
        outputs, inputs = built.floats[name].shape
        a = rng.normal(0, inputs**-0.5, (rank, inputs))
        b = rng.normal(0, 0.7, (outputs, rank))
        if place == 0:
            a, b = rng.normal(0, 1, (outputs, rank)), rng.normal(0, 0.3, (inputs, rank))
        kind = np.float16 if half else np.float32
        found.append(LowRank(place, name, *(m.astype(kind).astype(np.float32) for m in (a, b)), scale=1 / rank))
    return found


def load(decoder: _native.Decoder, number: int, adapter: list[LowRank], *, half: bool = False) -> None:
    """Gives an adapter to a decoder."""
    parts: list[bytes] = []
    changes: list[tuple[int, int, bool, float, int, int]] = []
    for change in adapter:
        kind = np.float16 if half and change.place else np.float32
        missing = -change.b.shape[1] % BLOCK
        a = np.pad(change.a, [(0, 0), (0, missing)] if change.place == 0 else [(0, missing), (0, 0)])
        b = np.pad(change.b, [(0, -len(change.b) % TILE), (0, missing)])
        tiles = b.reshape(-1, TILE, b.shape[1]).transpose(0, 2, 1)
        offsets: list[int] = []
        for matrix in (a, tiles):
            offsets.append(sum(map(len, parts)))
            data = np.ascontiguousarray(matrix.astype(kind)).tobytes()
            parts.append(data + bytes(-len(data) % 64))
        changes.append((change.place, b.shape[1], kind is np.float16, change.scale, offsets[0], offsets[1]))
    data = b"".join(parts)
    memory = aligned(len(data))
    memory[:] = np.frombuffer(data, np.uint8)
    decoder.load_adapter(number, memory, changes)


def merged(built: Built, *adapters: tuple[list[LowRank], float]) -> Built:
    """The same decoder with other weights, for the reference only. A tied head keeps those that it has."""
    floats = dict(built.floats)
    if built.tiny.is_tied:
        floats["head"] = floats["embedding"]
    for adapter, scale in adapters:
        for change in adapter:
            floats[change.name] = floats[change.name] + scale * change.product
    return Built(built.tiny, floats=floats)

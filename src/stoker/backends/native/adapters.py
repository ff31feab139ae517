"""LoRA adapters for the C++ decoder: packs a checked file into memory, and translates the adapter sets of a batch.

```
packed memory of an adapter, for each matrix that it changes; ranks are padded with zeros to a multiple of 8
    A  [rank][inputs]               for the embedding: [token][rank]
    B  [tile of 16 outputs][rank][16]
```
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from stoker import _native
from stoker.backends.native.file import ModelFile
from stoker.backends.native.huge_pages import prefer_huge_pages
from stoker.backends.native.layer_parts import Linear
from stoker.backends.native.layout import ALIGNMENT, can_be_plain
from stoker.backends.native.plain_rows import plain_rows
from stoker.backends.native.spec import DecoderSpec
from stoker.core.batch import Chunk
from stoker.errors import AdapterInvalid, ModelError, ResourceExhausted

OpenFile: TypeAlias = Callable[[Path], AbstractContextManager[ModelFile]]
"""Opens a GGUF file; raises ModelError if it cannot."""

Uses: TypeAlias = tuple[NDArray[np.int32], NDArray[np.float32]]
"""Uses of adapters in a batch, in the order of the chunks: index of the chunk and number of the adapter, `(uses, 2)`;
scales, `(uses,)`."""

_Change: TypeAlias = tuple[int, int, bool, float, int, int]
"""One changed matrix, for `stoker._native.Decoder.load_adapter`: place, rank, is_half, scale, offset of A and of B."""

_Matrix: TypeAlias = NDArray[np.floating[Any]]

_EMBEDDING, _HEAD = 0, 1
_EMBEDDED = "token_embd.weight"
_RANK_BLOCK = 8
_TILE = 16
_STEP_ROWS, _STAGE_MATRICES = 512, 3
"""Limits of the buffer for products with A: rows of a step, and matrices at the same time."""


def adapter_bytes(file: ModelFile) -> int:
    """Bytes of a packed adapter, and of the buffer for rows of a step. Approximate: parts of a fused tensor are padded
    separately, which is not counted.

    Args:
        file: an adapter in GGUF.
    """
    rank = max((entry.shape[0] for name, entry in file.tensors.items() if name.endswith(".lora_b")), default=0)
    return sum(_packed_bytes(file, name) for name in _names(file)) + _STEP_ROWS * _STAGE_MATRICES * 4 * rank


class NativeAdapters:
    """The loaded adapters of one decoder, by the keys that name their content. The decoder's owner owns this object.

    Args:
        spec: the description of the model.
        open_file: opens the files of adapters.
    """

    def __init__(self, spec: DecoderSpec, open_file: OpenFile) -> None:
        self._places = _places(spec)
        self._open_file = open_file
        self._numbers: dict[str, int] = {}
        self._next_number = 0

    def load(self, decoder: _native.Decoder, key: str, path: Path) -> None:
        """See `AdapterPort.load_adapter`."""
        assert key not in self._numbers, "loaded twice"
        try:
            with self._open_file(path) as file:
                memory, changes = _pack(file, self._places)
            decoder.load_adapter(self._next_number, memory, changes)
        except ModelError as error:
            raise AdapterInvalid(error.message, path=str(path)) from error
        except (LookupError, ValueError) as error:  # the file has changed since it was checked
            raise AdapterInvalid(f"the adapter {path} does not fit the model: {error}", path=str(path)) from error
        except (MemoryError, OSError) as error:
            raise ResourceExhausted(f"there is no memory for the adapter {path}", path=str(path)) from error
        self._numbers[key] = self._next_number
        self._next_number += 1

    def unload(self, decoder: _native.Decoder, key: str) -> None:
        """See `AdapterPort.unload_adapter`."""
        decoder.unload_adapter(self._numbers.pop(key))

    def uses(self, chunks: Sequence[Chunk]) -> Uses | tuple[None, None]:
        """The adapters and scales with which the chunks of a batch are computed; two None if no chunk has adapters."""
        found = [
            (index, self._numbers[key], scale) for index, chunk in enumerate(chunks) for key, scale in chunk.adapters
        ]
        if not found:
            return None, None
        pairs = np.array([(index, number) for index, number, _ in found], dtype=np.int32)
        return pairs, np.array([scale for _, _, scale in found], dtype=np.float32)


@dataclass(frozen=True, slots=True)
class _Place:
    """One matrix of the decoder, by the number that C++ gives it (`DecoderSpec` of native/spec.hpp)."""

    number: int
    linear: Linear


def _places(spec: DecoderSpec) -> Mapping[str, list[_Place]]:
    """The matrices in each tensor of the model's file, by its name. A tied output head has no adapters of its own."""
    layers = [linear for layer in spec.layers for linear in layer.places]
    found: dict[str, list[_Place]] = {}
    for number, linear in enumerate((spec.embedding, spec.head, *layers)):
        if linear is not None and (number != _HEAD or not spec.is_tied):
            found.setdefault(linear.weight, []).append(_Place(number, linear))
    placed = {place.linear for places in found.values() for place in places}
    for linear in set(spec.linears) - placed:  # adapters would change only a part of its tensor
        found.pop(linear.weight, None)
    return found


class _Packer:
    """Concatenates arrays; each begins at a multiple of ALIGNMENT bytes."""

    def __init__(self) -> None:
        self._parts: list[NDArray[np.uint8]] = []
        self._end = 0

    def put(self, values: _Matrix) -> int:
        """Appends the values, and returns their offset."""
        offset = self._end
        self._parts.append(np.ascontiguousarray(values).reshape(-1).view(np.uint8))
        self._end += -(-values.nbytes // ALIGNMENT) * ALIGNMENT
        return offset

    def memory(self) -> mmap:
        """A copy of all arrays in new memory."""
        memory, at = mmap(-1, self._end, flags=MAP_PRIVATE | MAP_ANONYMOUS), 0
        prefer_huge_pages(memory)
        for part in self._parts:
            memory[at : at + len(part)] = part.data
            at += -(-len(part) // ALIGNMENT) * ALIGNMENT
        return memory


def _pack(file: ModelFile, places: Mapping[str, list[_Place]]) -> tuple[mmap, list[_Change]]:
    """Packs a file that `stoker.models.lora` has checked for this model."""
    for name in _names(file):
        if name not in places:
            raise AdapterInvalid(
                f"the adapter {file.path} does not fit the model: the native executor computes `{name}` without "
                "adapters, like all expert matrices and gates; --backend llama may support them",
                path=str(file.path),
            )
    packer = _Packer()
    alpha = file.get_float("adapter.lora.alpha") or 0.0
    changes = [change for name in _names(file) for change in _changes(file, name, places[name], alpha, packer)]
    return packer.memory(), changes


def _names(file: ModelFile) -> Iterator[str]:
    return (name.removesuffix(".lora_a") for name in file.tensors if name.endswith(".lora_a"))


def _packed_bytes(file: ModelFile, name: str) -> int:
    """Packed bytes of A and B of a matrix that an adapter changes; 0 if these are invalid."""
    a, b = file.tensors[f"{name}.lora_a"], file.tensors.get(f"{name}.lora_b")
    if b is None or len(a.shape) != 2 or len(b.shape) != 2:
        return 0
    rank, outputs = b.shape
    inputs = a.shape[0] * a.shape[1] // max(rank, 1)  # for an embedding: tokens
    is_half = a.type.name == b.type.name == "F16" and name != _EMBEDDED
    rank += -rank % _RANK_BLOCK
    outputs += -outputs % _TILE
    return rank * (inputs + outputs) * (2 if is_half else 4)


def _changes(file: ModelFile, name: str, places: Sequence[_Place], alpha: float, packer: _Packer) -> Iterator[_Change]:
    a, b = _rows(file, f"{name}.lora_a"), _rows(file, f"{name}.lora_b")
    rank = b.shape[1]
    scale = alpha / rank if alpha else 1.0
    is_looked_up = places[0].number == _EMBEDDING
    is_half = a.dtype == b.dtype == np.float16 and not is_looked_up
    kind = np.float16 if is_half else np.float32
    a = _with_ranks(a.astype(kind, copy=False), axis=1 if is_looked_up else 0)
    b = _with_ranks(b.astype(kind, copy=False), axis=1)
    placed_a = packer.put(a)
    for place in places:
        linear = place.linear
        outputs = b if is_looked_up else b[linear.rows_in_file()]
        yield place.number, b.shape[1], is_half, scale, placed_a, packer.put(_tiles(outputs))


def _with_ranks(matrix: _Matrix, axis: int) -> _Matrix:
    """A copy whose rank is padded with zeros to a multiple of `_RANK_BLOCK`."""
    missing = -matrix.shape[axis] % _RANK_BLOCK
    return np.pad(matrix, [(0, missing if index == axis else 0) for index in range(2)])


def _tiles(b: _Matrix) -> _Matrix:
    """`(outputs, rank)` as `(tiles, rank, 16)`."""
    whole = np.pad(b, [(0, -len(b) % _TILE), (0, 0)])
    return whole.reshape(-1, _TILE, b.shape[1]).transpose(0, 2, 1)


def _rows(file: ModelFile, name: str) -> _Matrix:
    """The rows of a tensor: F16 as float16, other types as float32."""
    entry = file.tensors[name]
    data = bytes(file.tensor_data(name))  # no view may outlive the open file, not even in a traceback
    if not can_be_plain(entry):
        raise AdapterInvalid(
            f"the adapter {file.path} cannot be used: the native executor has no kernels for `{name}`, of type "
            f"{entry.type.name} with rows of {entry.shape[0]}",
            path=str(file.path),
        )
    return plain_rows(entry, data)

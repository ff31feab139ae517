"""The packed weights of a model: several threads pack them once; later starts map them from a shared file.

This module fills the file, or memory instead. `packed_file` defines the file's location and format.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from stoker import _native
from stoker.backends.native.architectures import describe_decoder
from stoker.backends.native.file import ModelFile, ModelParts
from stoker.backends.native.huge_pages import lies_in_small_pages, prefer_huge_pages
from stoker.backends.native.layer_parts import Linear, Norm
from stoker.backends.native.layout import F32, Layout, PlacedMatrix, PlacedVector, plan_layout
from stoker.backends.native.options import NativeOptions
from stoker.backends.native.packed_file import DIRECTORY_BYTES, PackedStore, Sink, fingerprint
from stoker.backends.native.packed_threads import Reading, Writing, copy_packed
from stoker.backends.native.plain_rows import plain_rows
from stoker.backends.native.threads import Threads, spread_memory
from stoker.errors import ModelFileInvalid, ResourceExhausted

PackProgress: TypeAlias = Callable[[int, int], None]
"""Called by the loading thread with the number of bytes packed so far, and the number to pack in total."""

_TILE_ROWS = 16
_PIECE_BYTES = 2 << 20
"""Approximate size of the piece that a thread packs at a time, in packed bytes."""


@dataclass(frozen=True, slots=True, eq=False)
class Weights:
    """A model's packed weights, in a read-only or private mapping that lives as long as this object or its decoders."""

    memory: mmap
    layout: Layout
    is_shared: bool
    """Whether the memory is a mapped file, which other processes with the same model share."""
    writing: Writing | None = None
    """The thread that writes the packed file for the next start; None = there is such a file, or none is wanted."""
    reading: Reading | None = None
    """Reads the mapped file ahead of its use; None = the memory is not a mapped file."""

    def close(self) -> None:
        """Stops reading ahead, and waits a limited time for an unfinished file. The last user frees the memory."""
        if self.reading is not None:
            self.reading.close()
        if self.writing is not None:
            self.writing.close()


def load_weights(
    parts: ModelParts,
    layout: Layout,
    *,
    directory: Path | None,
    max_bytes: int,
    threads: int,
    progress: PackProgress | None = None,
    may_copy: bool = False,
    is_spread: bool = False,
) -> Weights:
    """Maps the packed weights of a model, and packs them first if necessary.

    Args:
        parts: the files of the model, open.
        layout: the place of each matrix and vector.
        directory: directory of packed files; None = pack into memory only.
        max_bytes: size limit of the directory, including this model; the least recently used files are deleted.
        threads: number of threads that pack.
        progress: called with the progress, if something must be packed.
        may_copy: whether the memory may be private to this process. A file in small pages is then copied into memory
            with huge pages; newly packed weights stay in memory, while a thread writes the file.
        is_spread: memory is interleaved over several NUMA nodes; with `may_copy`, a file is copied into such memory.

    Raises:
        ModelFileInvalid: the file was changed while it was loaded.
        ResourceExhausted: there is room neither in the directory nor in memory.
    """
    before = _identities(parts)

    def fill(sink: Sink) -> None:
        _pack_all(parts, layout, sink, threads, progress)

    if directory is None:
        return Weights(_in_memory(layout.num_bytes, fill), layout, is_shared=False)
    store, name = PackedStore(directory, max_bytes), fingerprint(parts, layout)
    found = store.find(name, layout.num_bytes)
    if found is None and may_copy:
        memory = _in_memory(layout.num_bytes, fill)
        _check_unchanged(parts, before)
        return Weights(memory, layout, is_shared=False, writing=Writing(store, name, memory))
    found = found or store.open(name, layout.num_bytes, fill)
    _check_unchanged(parts, before)
    if found is None:
        return Weights(_in_memory(layout.num_bytes, fill), layout, is_shared=False)
    store.read_in_huge_pages(name)
    if may_copy and (is_spread or lies_in_small_pages(found)):
        copied = _in_memory(layout.num_bytes, partial(copy_packed, found))
        found.close()  # its pages in the system's page cache serve the next start
        return Weights(copied, layout, is_shared=False)
    return Weights(found, layout, is_shared=True, reading=Reading(found))


def loading(
    options: NativeOptions, threads: Threads, progress: PackProgress | None
) -> Callable[[ModelParts, Layout], Weights]:
    """`load_weights` as the options of a model say."""
    return partial(
        load_weights,
        directory=options.packed_directory,
        max_bytes=options.packed_directory_bytes,
        threads=threads.count,
        progress=progress,
        may_copy=options.may_copy_weights,
        is_spread=spread_memory(),
    )


def pack_weights(
    files: Sequence[ModelFile],
    *,
    directory: Path,
    max_bytes: int = DIRECTORY_BYTES,
    threads: int,
    progress: PackProgress | None = None,
) -> bool:
    """Packs a model for later starts, unless it is packed already. For the arguments see `load_weights`.

    Returns:
        Whether the directory has the packed file now; if not, the log says why.

    Raises:
        ModelUnsupported: the native backend does not support the model.
        ModelFileInvalid: the file contradicts itself.
    """
    parts = ModelParts(files)
    layout = plan_layout(describe_decoder(parts, 1), parts)

    def fill(sink: Sink) -> None:
        _pack_all(parts, layout, sink, threads, progress)

    return PackedStore(directory, max_bytes).open(fingerprint(parts, layout), layout.num_bytes, fill) is not None


class _Memory:
    """A sink that writes to private memory of this process."""

    def __init__(self, num_bytes: int) -> None:
        try:
            self.memory = mmap(-1, num_bytes, flags=MAP_PRIVATE | MAP_ANONYMOUS)
        except (OSError, ValueError, OverflowError) as error:
            raise ResourceExhausted(
                f"the packed weights need {num_bytes >> 20} MiB of memory: {error}", needed_bytes=num_bytes
            ) from error
        prefer_huge_pages(self.memory)

    def write(self, offset: int, piece: memoryview) -> None:
        self.memory[offset : offset + len(piece)] = piece


def _in_memory(num_bytes: int, fill: Callable[[Sink], None]) -> mmap:
    sink = _Memory(num_bytes)
    fill(sink)
    return sink.memory


def _check_unchanged(parts: ModelParts, before: list[tuple[int, int, int]]) -> None:
    if _identities(parts) != before:
        path = parts.first.path
        raise ModelFileInvalid(f"{path} was changed while it was being loaded", path=str(path))


def _identities(parts: ModelParts) -> list[tuple[int, int, int]]:
    found = [file.path.stat() for file in parts.files]
    return [(status.st_ino, status.st_size, status.st_mtime_ns) for status in found]


@dataclass(frozen=True, slots=True)
class _Piece:
    """Some tiles of one matrix, and their offset in packed memory: one task of a packing thread."""

    type: int
    source: memoryview
    rows: int
    columns: int
    offset: int
    num_bytes: int

    def pack(self, sink: Sink) -> int:
        packed = memoryview(bytearray(self.num_bytes))
        _native.pack(self.type, self.source, self.rows, self.columns, packed)
        sink.write(self.offset, packed)
        return self.num_bytes


def _pack_all(parts: ModelParts, layout: Layout, sink: Sink, threads: int, progress: PackProgress | None) -> None:
    """Writes every matrix and vector of the layout once. The gaps between them are zero already."""
    for values, place in _vectors(parts, layout):
        sink.write(place.offset, memoryview(values.tobytes()))
    done, total = 0, sum(place.num_bytes for place in _placed_once(layout).values())
    with ThreadPoolExecutor(max_workers=threads, thread_name_prefix="stoker-pack") as pool:
        pending: set[Future[int]] = set()
        try:
            for piece in _pieces(parts, layout):
                pending.add(pool.submit(piece.pack, sink))
                if len(pending) > 2 * threads:
                    finished, pending = wait(pending, return_when=FIRST_COMPLETED)
                    done += sum(future.result() for future in finished)
                    if progress is not None:
                        progress(done, total)
            done += sum(future.result() for future in pending)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
    if progress is not None:
        progress(done, total)


def _pieces(parts: ModelParts, layout: Layout) -> Iterator[_Piece]:
    for linear, place in _placed_once(layout).items():
        data, picked = parts.tensor_data(linear.weight), linear
        row_bytes = len(data) // prod(parts.tensors[linear.weight].shape[1:])
        if linear.turned_columns:
            data, row_bytes = _turned(parts, linear, place)
            picked = replace(linear, first_row=0, run=0, turned_columns=0)
        tile_bytes = _native.packed_bytes(place.type, _TILE_ROWS, place.columns)
        step = _TILE_ROWS * max(1, _PIECE_BYTES // tile_bytes)
        for row in range(0, place.rows, step):
            rows = min(step, place.rows - row)
            yield _Piece(
                type=place.type,
                source=_rows_of(data, row_bytes, picked, row, rows),
                rows=rows,
                columns=place.columns,
                offset=place.offset + row // _TILE_ROWS * tile_bytes,
                num_bytes=_native.packed_bytes(place.type, rows, place.columns),
            )


def _rows_of(data: memoryview, row_bytes: int, linear: Linear, row: int, count: int) -> memoryview:
    """The bytes of some rows of a matrix; a copy only if the rows are not consecutive in the file."""
    if linear.run:
        every_row = np.frombuffer(data, dtype=np.uint8).reshape(-1, row_bytes)
        return every_row[linear.rows_in_file()[row : row + count]].reshape(-1).data
    start = (linear.first_row + row) * row_bytes
    return data[start : start + count * row_bytes]


def _turned(parts: ModelParts, linear: Linear, place: PlacedMatrix) -> tuple[memoryview, int]:
    """The transposes of the runs of rows, as floats, and the bytes of a row of a transpose."""
    rows = plain_rows(parts.tensors[linear.weight], parts.tensor_data(linear.weight))[linear.rows_in_file()]
    turned = rows.reshape(-1, linear.num_columns, linear.turned_columns).transpose(0, 2, 1)
    values = np.ascontiguousarray(turned, dtype=np.float32 if place.type == F32 else np.float16)
    return memoryview(values.tobytes()), values.itemsize * linear.num_columns


def _placed_once(layout: Layout) -> dict[Linear, PlacedMatrix]:
    """The matrices without a tied output head, whose place is that of the embedding."""
    by_offset = {place.offset: (linear, place) for linear, place in layout.matrices.items()}
    return dict(by_offset.values())


def _norm_weights(parts: ModelParts, norm: Norm) -> NDArray[np.float32]:
    if norm.weight is None:
        return np.ones(norm.size, dtype=np.float32)
    found = [plain_rows(parts.tensors[name], parts.tensor_data(name)).reshape(-1) for name in norm.parts]
    return np.concatenate(found, dtype=np.float32)


def _vectors(parts: ModelParts, layout: Layout) -> Iterator[tuple[NDArray[np.float32], PlacedVector]]:
    for norm, place in layout.norms.items():
        with np.errstate(invalid="ignore"):  # a damaged file may hold any numbers
            values = _norm_weights(parts, norm) * np.float32(norm.scale)
        if norm.bias is not None:
            values = np.concatenate([values, parts.floats(norm.bias)])
        yield values.reshape(-1, norm.taps).T if norm.taps else values, place
    for linear, place in layout.biases.items():
        assert linear.bias is not None
        yield parts.floats(linear.bias)[linear.rows_in_file()], place
    for linear, place in layout.scales.items():
        assert linear.scale is not None
        yield parts.floats(linear.scale), place

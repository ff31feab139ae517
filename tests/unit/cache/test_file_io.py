from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from stoker.cache import file_io
from stoker.cache.arena import Arena
from stoker.cache.block_file import ALIGNED_FROM_BYTES, HEADER_BYTES, PAGE_BYTES, BadBlockFile, decode, encode_header
from stoker.cache.file_io import BlockFiles, create

OURS, KEY = b"1" * 32, b"k" * 16
SIZES = [0, 1, ALIGNED_FROM_BYTES - 1, ALIGNED_FROM_BYTES, ALIGNED_FROM_BYTES + 1, ALIGNED_FROM_BYTES + PAGE_BYTES - 1]
needs_vectors = pytest.mark.skipif(not hasattr(os, "readv"), reason="this system cannot")


@pytest.fixture
def files() -> BlockFiles:
    return BlockFiles(Arena())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "block"


def some(num_bytes: int) -> bytes:
    return bytes(index * 31 % 251 for index in range(num_bytes))


def in_pages(state: bytes) -> memoryview:
    """As exports give it."""
    memory = Arena().take(len(state))
    if state:
        memory[:] = state
    return memory.toreadonly()


def write(files: BlockFiles, path: Path, state: bytes | memoryview) -> int:
    with create(str(path)) as file:
        return files.write(file, OURS, KEY, state)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("is_direct", [True, False])
@pytest.mark.parametrize("place", [bytes, in_pages])
def test_every_way_writes_the_same_and_reads_it(
    files: BlockFiles,
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    size: int,
    is_direct: bool,
    place: Callable[[bytes], bytes | memoryview],
) -> None:
    state = some(size)
    write(files, path, some(ALIGNED_FROM_BYTES + 77))  # what lay in the pages before does not matter
    path.unlink()
    if not is_direct:
        monkeypatch.setattr(file_io, "_set_direct", lambda file, *, is_on: False)
    assert write(files, path, place(state)) == path.stat().st_size
    content = path.read_bytes()
    assert bytes(decode(content, OURS, KEY)) == state
    assert len(content) == HEADER_BYTES + size or len(content) % PAGE_BYTES == 0
    assert bytes(files.read(path, OURS, KEY)) == state
    monkeypatch.undo()
    assert bytes(files.read(path, OURS, KEY)) == state


def _refusing(number: int) -> Callable[..., int]:
    def refuse(*_: object) -> int:
        raise OSError(number, "sectors are larger here, or it is compressed")

    return refuse


def _half(call: Callable[[int, Sequence[memoryview]], int]) -> Callable[[int, Sequence[memoryview]], int]:
    return lambda file, parts: call(file, parts[:1])


@needs_vectors
@pytest.mark.parametrize("name", ["writev", "readv"])
@pytest.mark.parametrize("refusal", [errno.EINVAL, errno.EOPNOTSUPP, None])
def test_a_disk_that_does_not_do_it_at_once_gets_it_the_usual_way(
    files: BlockFiles, path: Path, monkeypatch: pytest.MonkeyPatch, name: str, refusal: int | None
) -> None:
    state = some(ALIGNED_FROM_BYTES + 5)
    monkeypatch.setattr(os, name, _half(getattr(os, name)) if refusal is None else _refusing(refusal))
    write(files, path, in_pages(state))
    assert bytes(files.read(path, OURS, KEY)) == state
    monkeypatch.undo()
    assert bytes(files.read(path, OURS, KEY)) == state


@needs_vectors
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_disk_that_fails_is_an_os_error(
    files: BlockFiles, path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def fail(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    state = some(ALIGNED_FROM_BYTES)
    write(files, path, in_pages(state))
    monkeypatch.setattr(os, "writev", fail)
    monkeypatch.setattr(os, "readv", fail)
    monkeypatch.setattr(file_io, "_set_direct", lambda file, *, is_on: True)
    with pytest.raises(OSError, match=os.strerror(code)):
        files.read(path, OURS, KEY)
    path.unlink()
    with pytest.raises(OSError, match=os.strerror(code)):
        write(files, path, in_pages(state))


def test_a_packed_block_of_whole_pages_is_read_too(files: BlockFiles, path: Path) -> None:
    """Those that the version before has left are packed, whatever their size."""
    state = some(2 * ALIGNED_FROM_BYTES - HEADER_BYTES)
    path.write_bytes(encode_header(OURS, KEY, state) + state)
    assert bytes(files.read(path, OURS, KEY)) == state


@pytest.mark.parametrize("is_direct", [True, False])
@pytest.mark.parametrize("place", [HEADER_BYTES, PAGE_BYTES - 1, PAGE_BYTES, -2, -1])
def test_no_damage_goes_unnoticed(
    files: BlockFiles, path: Path, monkeypatch: pytest.MonkeyPatch, is_direct: bool, place: int
) -> None:
    write(files, path, in_pages(some(ALIGNED_FROM_BYTES + 5)))
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)
    if not is_direct:
        monkeypatch.setattr(file_io, "_set_direct", lambda file, *, is_on: False)
    with pytest.raises(BadBlockFile, match="damaged"):
        files.read(path, OURS, KEY)

"""Files of saved slots, whose names clients choose. It decides nothing and knows no backend.

```
    header of `block_file`, version 4    KV               entries of the KV
    with the key of the entries          `length` bytes   msgpack: [entries, [[adapter, scale], …]]
```
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from io import FileIO
from pathlib import Path

import msgspec

from stoker.cache.arena import new_memory
from stoker.cache.block_file import HEADER_BYTES, SLOT, BadBlockFile, decode_header, encode_header
from stoker.cache.file_io import opened, read_all, write_all
from stoker.core.batch import AdapterSet
from stoker.core.blocks import Chain, root_key
from stoker.core.tiers import KVBytes
from stoker.errors import InvalidInput, ModelError, ResourceExhausted, reason_of

NOTES = ".weights.json"
"""Name of the file with digests of weights in the folder of slots; clients cannot choose such a name."""
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}", re.ASCII)
_MAX_CONTENTS_BYTES = 64 * 2**20
"""Maximum size of the encoded entries; more than any context needs."""


@dataclass(frozen=True, slots=True)
class SlotImage:
    """The content of a slot: its entries, and their KV as the backend exported it."""

    entries: tuple[int, ...]
    state: KVBytes
    adapters: AdapterSet = ()
    """Adapters with which the KV was computed."""

    @property
    def key(self) -> bytes:
        """The key of the KV: a hash of the entries and the adapters."""
        return Chain(root_key(self.adapters)).key_at(self.entries, len(self.entries))


class _Contents(msgspec.Struct, frozen=True, array_like=True):
    """The entries and adapters of the KV."""

    entries: tuple[int, ...]
    adapters: AdapterSet


_decoder = msgspec.msgpack.Decoder(_Contents)


def take_memory(num_bytes: int) -> memoryview:
    """Memory for the KV of one slot, which may be a large part of all memory.

    Raises:
        ResourceExhausted: there is not enough memory.
    """
    try:
        return memoryview(new_memory(max(1, num_bytes)))[:num_bytes]
    except (OSError, MemoryError) as error:
        raise ResourceExhausted(f"there is no memory for a copy of {num_bytes} bytes of KV") from error


class SlotFiles:
    """The saved slots of one model in a folder. Every method may wait for the disk; one thread calls them.

    Args:
        folder: the folder, created when the first file is written.
        identify: returns the model's fingerprint; may read all weights.
    """

    def __init__(self, folder: Path, identify: Callable[[], bytes]) -> None:
        self._folder = folder
        self._identify = identify
        self._fingerprint = b""

    def write(self, filename: str, image: SlotImage) -> int:
        """Writes a file atomically, and replaces an older one of this name. Returns its size in bytes.

        Raises:
            InvalidInput: the name is not permitted.
            ModelError: the files of the model have changed since it was loaded.
            ResourceExhausted: the disk is full, or the folder cannot be written to; nothing has changed.
        """
        path, fingerprint = self._path(filename), self._identity()
        contents = msgspec.msgpack.encode(_Contents(image.entries, image.adapters))
        state = memoryview(image.state).cast("B")
        parts = [encode_header(fingerprint, image.key, state, SLOT), state, contents]
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._write(path, [memoryview(part) for part in parts])
        except OSError as error:
            raise ResourceExhausted(f"{filename} cannot be written: {reason_of(error)}") from error
        return sum(map(len, parts))

    def read(self, filename: str) -> tuple[SlotImage, int]:
        """The content of a file, and its size in bytes.

        Raises:
            InvalidInput: the file does not exist, belongs to another model, has another version, or is damaged.
            ModelError: see `write`.
            ResourceExhausted: there is not enough memory for the content.
        """
        path = self._path(filename)
        try:
            with opened(os.path.realpath(path)) as (file, size):
                return _image(file, size, self._identity()), size
        except FileNotFoundError:
            raise InvalidInput(f"there is no saved slot {filename}", parameter="filename") from None
        except (OSError, BadBlockFile, msgspec.DecodeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise InvalidInput(f"{filename} cannot be restored: {reason}", parameter="filename") from error

    def _path(self, filename: str) -> Path:
        if not _NAME.fullmatch(filename):
            message = "`filename` must be up to 128 letters, digits, `_`, `-` and `.`, and not begin with a `.` or `-`"
            raise InvalidInput(message, parameter="filename")
        return self._folder / filename

    def _identity(self) -> bytes:
        if not self._fingerprint:
            try:
                self._fingerprint = self._identify()
            except OSError as error:
                raise ModelError(
                    f"the model of this slot cannot be identified: {error}; load the model again"
                ) from error
        return self._fingerprint

    def _write(self, path: Path, parts: list[memoryview]) -> None:
        descriptor, temporary = tempfile.mkstemp(prefix=".", suffix=".tmp", dir=self._folder)
        try:
            with FileIO(descriptor, "wb") as file:
                write_all(file, parts)
            os.replace(temporary, path)
        except OSError:
            with suppress(OSError):
                os.unlink(temporary)
            raise


def _image(file: FileIO, size: int, fingerprint: bytes) -> SlotImage:
    header = decode_header(file.read(HEADER_BYTES), size, (SLOT,))
    if header.fingerprint != fingerprint:
        raise BadBlockFile("it was saved with another model, or with another KV cache type")
    end = header.begin + header.num_bytes
    if size - end > _MAX_CONTENTS_BYTES:
        raise BadBlockFile("it has more tokens than any context")
    file.seek(end)
    contents = _decoder.decode(file.read(size - end))
    image = SlotImage(contents.entries, b"", contents.adapters)
    if not image.entries or image.key != header.key:
        raise BadBlockFile("its tokens are not those that it was saved with")
    state = take_memory(header.num_bytes)
    file.seek(header.begin)
    read_all(file, state)
    header.check_content(state)
    return replace(image, state=state.toreadonly())

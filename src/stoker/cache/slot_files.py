"""What a slot held, as a file of its own that somebody asked for by name; it decides nothing and knows no backend.

The content is that of a block's file, see `block_file`: fingerprint and checksums come with it. The key is that of the
entries, and what stands behind the header are the entries and then the KV.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from stoker.cache.block_file import HEADER_BYTES, BadBlockFile, decode, decode_header, encode_header
from stoker.core.blocks import Chain, root_key
from stoker.core.tiers import KVBytes
from stoker.errors import InvalidInput, ResourceExhausted

NOTES = ".weights.json"
"""Where the folder notes the digests of weights; no name that a client may choose."""
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}", re.ASCII)


@dataclass(frozen=True, slots=True)
class SlotImage:
    """Entries, and their KV as the backend gave it."""

    entries: tuple[int, ...]
    state: KVBytes

    @property
    def key(self) -> bytes:
        """The name of the entries, computed without adapters."""
        return Chain(root_key(())).key_at(self.entries, len(self.entries))


class _Content(msgspec.Struct, frozen=True, array_like=True):
    entries: list[int]
    state: memoryview


_decoder = msgspec.msgpack.Decoder(_Content)


class SlotFiles:
    """Files of one model in a folder. Every method may take as long as the disk likes; one thread calls them.

    Args:
        folder: made when the first file is written.
        identify: the model's fingerprint; may read all of its weights.
    """

    def __init__(self, folder: Path, identify: Callable[[], bytes]) -> None:
        self._folder = folder
        self._identify = identify
        self._fingerprint = b""

    def write(self, filename: str, image: SlotImage) -> int:
        """Writes a file, over an older one of this name; a reader sees all of it or nothing. Returns its size in bytes.

        Raises:
            InvalidInput: that is no name for a file here.
            ResourceExhausted: the disk is full, or the folder cannot be written to; nothing has changed.
        """
        path = self._path(filename)
        content = msgspec.msgpack.encode(_Content(list(image.entries), memoryview(image.state)))
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._write(path, encode_header(self._identity(), image.key, content), content)
        except OSError as error:
            raise ResourceExhausted(f"{filename} cannot be written: {error.strerror}") from error
        return HEADER_BYTES + len(content)

    def read(self, filename: str) -> tuple[SlotImage, int]:
        """What a file holds, and its size in bytes.

        Raises:
            InvalidInput: there is no such file; it is another model's, or damaged.
        """
        path = self._path(filename)
        try:
            content = path.read_bytes()
            return _image(content, self._identity()), len(content)
        except FileNotFoundError:
            raise InvalidInput(f"there is no saved slot {filename}", parameter="filename") from None
        except (OSError, BadBlockFile, msgspec.DecodeError) as error:
            raise InvalidInput(f"{filename} cannot be restored: {error}", parameter="filename") from error

    def _path(self, filename: str) -> Path:
        if not _NAME.fullmatch(filename):
            message = "`filename` must be up to 128 letters, digits, `_`, `-` and `.`, and not begin with a `.` or `-`"
            raise InvalidInput(message, parameter="filename")
        return self._folder / filename

    def _identity(self) -> bytes:
        self._fingerprint = self._fingerprint or self._identify()
        return self._fingerprint

    def _write(self, path: Path, head: bytes, content: bytes) -> None:
        descriptor, temporary = tempfile.mkstemp(prefix=".", suffix=".tmp", dir=self._folder)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(head)
                file.write(content)
            os.replace(temporary, path)
        except OSError:
            with suppress(OSError):
                os.unlink(temporary)
            raise


def _image(content: bytes, fingerprint: bytes) -> SlotImage:
    header = decode_header(content[:HEADER_BYTES], len(content))
    if header.fingerprint != fingerprint:
        raise BadBlockFile("it was saved with another model, or with KV of another kind")
    parts = _decoder.decode(decode(content, fingerprint, header.key))
    image = SlotImage(tuple(parts.entries), parts.state)
    if not image.entries or image.key != header.key:
        raise BadBlockFile("its tokens are not those that it was saved with")
    return image

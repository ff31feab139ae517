"""The file format of a KV block: encodes and decodes it, and checks everything. It opens no file.

```
    magic  version  fingerprint  key   length  xxh3        crc32           KV
    8      4        32           16    8       8 (of KV)   4 (of all       `length` bytes
                                                            before)
```

Numbers are little-endian. Any change of the format or of the meaning of a field gets a new version number.
Version 2 is for small blocks and is packed as drawn. Version 3 pads the KV with zeros: the KV begins at offset 4096 and
the file ends at a multiple of 4096, so that it can be written and read with direct I/O, without the page cache.
Version 4 is not a block, but a saved slot: it is packed, and the entries and adapters follow the KV.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

from xxhash import xxh3_64

from stoker.core.tiers import KVBytes

PACKED, ALIGNED, SLOT = 2, 3, 4
"""Versions that this module can read."""
BLOCKS = PACKED, ALIGNED
PAGE_BYTES = 4096
ALIGNED_FROM_BYTES = 64 * 1024
"""Minimum size of KV that is aligned; for smaller KV, the zeros would waste too much."""
FINGERPRINT_BYTES = 32
KEY_BYTES = 16
_HASHED_AT_ONCE_BYTES = 16 * 2**20
"""Number of bytes that are hashed at a time, while the GIL is held."""
_MAGIC = b"STOKERKV"
_FIELDS = struct.Struct(f"<8sI{FINGERPRINT_BYTES}s{KEY_BYTES}sQQ")
_CHECK = struct.Struct("<I")
HEADER_BYTES = _FIELDS.size + _CHECK.size


class BadBlockFile(Exception):
    """The content is not a block that this version can read; the message says why."""


@dataclass(frozen=True, slots=True)
class Header:
    fingerprint: bytes
    key: bytes
    num_bytes: int
    """Length of the KV."""
    checksum: int
    begin: int
    """Offset of the KV in the file."""

    def check_names(self, fingerprint: bytes, key: bytes) -> None:
        """Raises BadBlockFile if the header belongs to another block or model."""
        if (self.fingerprint, self.key) != (fingerprint, key):
            raise BadBlockFile("another block under this name")

    def check_content(self, state: KVBytes) -> None:
        """Raises BadBlockFile if the KV does not match the checksum."""
        if _digest(state) != self.checksum:
            raise BadBlockFile("its content is damaged")


def whole_pages(num_bytes: int) -> int:
    """The size rounded up to a multiple of `PAGE_BYTES`."""
    return -(-num_bytes // PAGE_BYTES) * PAGE_BYTES


def encode_header(fingerprint: bytes, key: bytes, state: KVBytes, version: int = PACKED) -> bytes:
    """The header of the file of a block, including the checksum of its KV."""
    assert len(fingerprint) == FINGERPRINT_BYTES
    assert len(key) == KEY_BYTES
    fields = _FIELDS.pack(_MAGIC, version, fingerprint, key, len(state), _digest(state))
    return fields + _CHECK.pack(zlib.crc32(fields))


def decode_header(head: bytes | memoryview, file_bytes: int, known: tuple[int, ...] = BLOCKS) -> Header:
    """Decodes the header of a file of `file_bytes` bytes.

    Args:
        known: versions that are accepted.

    Raises:
        BadBlockFile: the file is foreign, newer, damaged or truncated.
    """
    if len(head) < HEADER_BYTES:
        raise BadBlockFile("cut short")
    fields = head[: _FIELDS.size]
    magic, version, fingerprint, key, num_bytes, checksum = _FIELDS.unpack(fields)
    if magic != _MAGIC:
        raise BadBlockFile("no block of a Stoker cache")
    if version not in known:
        names = " and ".join(map(str, known))
        raise BadBlockFile(f"format {version}, while this version of Stoker knows {names}")
    if zlib.crc32(fields) != _CHECK.unpack_from(head, _FIELDS.size)[0]:
        raise BadBlockFile("its header is damaged")
    whole = PAGE_BYTES + whole_pages(num_bytes) if version == ALIGNED else HEADER_BYTES + num_bytes
    if file_bytes < whole or (file_bytes > whole and version != SLOT):
        raise BadBlockFile(f"{file_bytes} bytes instead of {whole}")
    return Header(fingerprint, key, num_bytes, checksum, PAGE_BYTES if version == ALIGNED else HEADER_BYTES)


def check_padding(*parts: bytes | memoryview) -> None:
    """Raises BadBlockFile if the padding is not all zeros."""
    if any(part != bytes(len(part)) for part in parts):
        raise BadBlockFile("its content is damaged")


def decode(content: bytes | memoryview, fingerprint: bytes, key: bytes) -> KVBytes:
    """Decodes the KV in the content of a file.

    Raises:
        BadBlockFile: the content is damaged, or is not this block of this model.
    """
    header = decode_header(content[:HEADER_BYTES], len(content))
    header.check_names(fingerprint, key)
    whole, end = memoryview(content), header.begin + header.num_bytes
    check_padding(whole[HEADER_BYTES : header.begin], whole[end:])
    state = whole[header.begin : end]
    header.check_content(state)
    return state


def _digest(state: KVBytes) -> int:
    view, digest = memoryview(state).cast("B"), xxh3_64()
    for begin in range(0, len(view), _HASHED_AT_ONCE_BYTES):
        digest.update(view[begin : begin + _HASHED_AT_ONCE_BYTES])
    return digest.intdigest()

"""One block as the content of one file, and back, with everything checked. It opens no file.

```
    magic  version  fingerprint  key   length  xxh3        crc32           KV
    8      4        32           16    8       8 (of KV)   4 (of all       `length` bytes
                                                            before)
```

Numbers are little-endian. A version is never reused: any change of the format or of what the fields mean is a new one.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

from xxhash import xxh3_64_intdigest

from stoker.core.tiers import KVBytes

VERSION = 2
FINGERPRINT_BYTES = 32
KEY_BYTES = 16
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
    """Of the KV."""
    checksum: int

    def check_names(self, fingerprint: bytes, key: bytes) -> None:
        """Raises BadBlockFile if this is another block, or of another model."""
        if (self.fingerprint, self.key) != (fingerprint, key):
            raise BadBlockFile("another block under this name")

    def check_content(self, state: KVBytes) -> None:
        """Raises BadBlockFile if this is not the KV that was written."""
        if xxh3_64_intdigest(state) != self.checksum:
            raise BadBlockFile("its content is damaged")


def encode_header(fingerprint: bytes, key: bytes, state: KVBytes) -> bytes:
    """What stands before the KV in a file."""
    assert len(fingerprint) == FINGERPRINT_BYTES
    assert len(key) == KEY_BYTES
    fields = _FIELDS.pack(_MAGIC, VERSION, fingerprint, key, len(state), xxh3_64_intdigest(state))
    return fields + _CHECK.pack(zlib.crc32(fields))


def decode_header(head: bytes | memoryview, file_bytes: int) -> Header:
    """The header of a file of this size.

    Raises:
        BadBlockFile: it is foreign, newer, damaged or cut short.
    """
    if len(head) < HEADER_BYTES:
        raise BadBlockFile("cut short")
    fields = head[: _FIELDS.size]
    magic, version, fingerprint, key, num_bytes, checksum = _FIELDS.unpack(fields)
    if magic != _MAGIC:
        raise BadBlockFile("no block of a Stoker cache")
    if version != VERSION:
        raise BadBlockFile(f"format {version}, while this version of Stoker knows {VERSION}")
    if zlib.crc32(fields) != _CHECK.unpack_from(head, _FIELDS.size)[0]:
        raise BadBlockFile("its header is damaged")
    if file_bytes != HEADER_BYTES + num_bytes:
        raise BadBlockFile(f"{file_bytes} bytes instead of {HEADER_BYTES + num_bytes}")
    return Header(fingerprint, key, num_bytes, checksum)


def decode(content: bytes | memoryview, fingerprint: bytes, key: bytes) -> KVBytes:
    """The KV in a file that should hold this block of this model.

    Raises:
        BadBlockFile: it does not, or it is damaged.
    """
    header = decode_header(content[:HEADER_BYTES], len(content))
    header.check_names(fingerprint, key)
    state = memoryview(content)[HEADER_BYTES:]
    header.check_content(state)
    return state

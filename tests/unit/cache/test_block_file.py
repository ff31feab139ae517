from __future__ import annotations

import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from stoker.cache.block_file import (
    ALIGNED,
    HEADER_BYTES,
    PACKED,
    PAGE_BYTES,
    SLOT,
    BadBlockFile,
    decode,
    decode_header,
    encode_header,
)

OURS, KEY = bytes(range(32)), bytes(range(16))
STATE = b"keys and values" * 20


def content(version: int = PACKED, state: bytes = STATE) -> bytes:
    head = encode_header(OURS, KEY, state, version)
    if version != ALIGNED:
        return head + state
    return head.ljust(PAGE_BYTES, b"\0") + state.ljust(PAGE_BYTES, b"\0")


@pytest.mark.parametrize("version", [PACKED, ALIGNED])
def test_what_was_written_is_read(version: int) -> None:
    assert bytes(decode(content(version), OURS, KEY)) == STATE
    assert decode_header(content(version), len(content(version))).num_bytes == len(STATE)


@given(st.data())
def test_no_flipped_bit_and_no_cut_goes_unnoticed(data: st.DataObject) -> None:
    version = data.draw(st.sampled_from([PACKED, ALIGNED]))
    whole = bytearray(content(version))
    if data.draw(st.booleans()):
        whole[data.draw(st.integers(0, len(whole) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    else:
        del whole[data.draw(st.integers(0, len(whole) - 1)) :]
    with pytest.raises(BadBlockFile):
        decode(bytes(whole), OURS, KEY)


def test_a_block_of_another_model_or_name_is_refused() -> None:
    for fingerprint, key in [(bytes(32), KEY), (OURS, bytes(16))]:
        with pytest.raises(BadBlockFile, match="another block"):
            decode(content(), fingerprint, key)


def test_a_newer_format_says_so_although_nothing_else_of_it_is_known() -> None:
    newer = b"STOKERKV" + struct.pack("<I", SLOT + 1) + b"who knows" * 20
    with pytest.raises(BadBlockFile, match=f"format {SLOT + 1}"):
        decode_header(newer[:HEADER_BYTES], len(newer))


def test_a_saved_slot_is_no_block() -> None:
    with pytest.raises(BadBlockFile, match=f"format {SLOT}"):
        decode(content(SLOT), OURS, KEY)


def test_a_foreign_file_says_so() -> None:
    with pytest.raises(BadBlockFile, match="no block"):
        decode(b"PK\x03\x04" * 100, OURS, KEY)


@pytest.mark.parametrize("version", [2, 3, 4])
def test_the_layout_of_a_version_does_not_change(version: int) -> None:
    """Files of these versions lie on disks: whoever changes the layout raises the version."""
    numbers = struct.pack("<QQ", len(STATE), xxh3_64_intdigest(STATE))
    fields = b"STOKERKV" + struct.pack("<I", version) + OURS + KEY + numbers
    head = fields + struct.pack("<I", zlib.crc32(fields))
    aligned = head + bytes(4096 - len(head)) + STATE + bytes(4096 - len(STATE))
    whole = {2: head + STATE, 3: aligned, 4: head + STATE + b"what it is of"}
    assert whole[version].startswith(content(version))
    assert decode_header(head, len(whole[version]), (version,)).begin == whole[version].index(STATE)

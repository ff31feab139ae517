from __future__ import annotations

import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from stoker.cache.block_file import HEADER_BYTES, VERSION, BadBlockFile, decode, decode_header, encode_header

OURS, KEY = bytes(range(32)), bytes(range(16))
STATE = b"keys and values" * 20


def content(state: bytes = STATE) -> bytes:
    return encode_header(OURS, KEY, state) + state


def test_what_was_written_is_read() -> None:
    assert bytes(decode(content(), OURS, KEY)) == STATE
    assert decode_header(content(), len(content())).num_bytes == len(STATE)


@given(st.data())
def test_no_flipped_bit_and_no_cut_goes_unnoticed(data: st.DataObject) -> None:
    whole = bytearray(content())
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
    newer = b"STOKERKV" + struct.pack("<I", VERSION + 1) + b"who knows" * 20
    with pytest.raises(BadBlockFile, match=f"format {VERSION + 1}"):
        decode_header(newer[:HEADER_BYTES], len(newer))


def test_a_foreign_file_says_so() -> None:
    with pytest.raises(BadBlockFile, match="no block"):
        decode(b"PK\x03\x04" * 100, OURS, KEY)


def test_the_layout_of_version_2_does_not_change() -> None:
    """Files of this version lie on disks: whoever changes the layout raises the version."""
    fields = b"STOKERKV" + struct.pack("<I", 2) + OURS + KEY + struct.pack("<QQ", len(STATE), xxh3_64_intdigest(STATE))
    assert content() == fields + struct.pack("<I", zlib.crc32(fields)) + STATE

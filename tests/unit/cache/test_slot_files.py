"""Slots as files: named, whole, one model's, and checked."""

from __future__ import annotations

import errno
import os
import struct
import tracemalloc
import zlib
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import msgspec
import pytest

from stoker.cache import slot_files
from stoker.cache.block_file import HEADER_BYTES, SLOT, decode_header, encode_header
from stoker.cache.fingerprint import WeightFile, fingerprint
from stoker.cache.slot_files import SlotFiles, SlotImage, take_memory
from stoker.errors import InvalidInput, ModelError, ResourceExhausted

IMAGE = SlotImage((5, 6, 7), b"state of three")


def files(folder: Path, model: bytes = b"a") -> SlotFiles:
    return SlotFiles(folder, lambda: model * 32)


def test_what_is_written_is_read(tmp_path: Path):
    num_bytes = files(tmp_path / "made").write("a.bin", IMAGE)
    image, num_read = files(tmp_path / "made").read("a.bin")
    assert (image.entries, bytes(image.state)) == (IMAGE.entries, IMAGE.state)
    assert num_bytes == num_read == (tmp_path / "made" / "a.bin").stat().st_size
    assert [path.name for path in (tmp_path / "made").iterdir()] == ["a.bin"], "no temporary file is left"


def test_what_the_kv_was_computed_with_is_read_too(tmp_path: Path):
    adapters = (("9f2c", 1.0), ("a001", -0.3))
    files(tmp_path).write("a", replace(IMAGE, adapters=adapters))
    assert files(tmp_path).read("a")[0].adapters == adapters


def test_kv_is_neither_copied_when_it_is_written_nor_twice_when_it_is_read(tmp_path: Path):
    state, slack = take_memory(32 * 2**20), 2**20
    state[::4096] = bytes(range(256)) * (len(state) // 4096 // 256)
    tracemalloc.start()
    try:
        files(tmp_path).write("a", SlotImage((1,), state))
        image, _ = files(tmp_path).read("a")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert image.state == state
    assert peak < slack, "besides the memory of the system that holds it"


def test_sizes_beyond_four_gibibytes_are_known(tmp_path: Path):
    """No file of this size is written here: only what is asked for is shown."""
    files(tmp_path).write("a", IMAGE)
    head = bytearray((tmp_path / "a").read_bytes()[:HEADER_BYTES])
    struct.pack_into("<Q", head, HEADER_BYTES - 20, 2**33)
    struct.pack_into("<I", head, HEADER_BYTES - 4, zlib.crc32(head[:-4]))
    assert decode_header(bytes(head), HEADER_BYTES + 2**33 + 20, (SLOT,)).num_bytes == 2**33


def test_a_second_save_replaces_the_first(tmp_path: Path):
    files(tmp_path).write("a", IMAGE)
    files(tmp_path).write("a", SlotImage((1,), b"other"))
    assert files(tmp_path).read("a")[0].entries == (1,)


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../a", "a/b", "/etc/passwd", ".weights.json", "-a", "a\0", "a" * 129, "ä", "a b", "a\n"]
)
def test_names_that_lead_elsewhere_are_refused(tmp_path: Path, name: str):
    for attempt in (lambda: files(tmp_path).write(name, IMAGE), lambda: files(tmp_path).read(name)):
        with pytest.raises(InvalidInput) as refusal:
            attempt()
        assert refusal.value.fields["parameter"] == "filename"
    assert list(tmp_path.iterdir()) == []


def test_no_such_file(tmp_path: Path):
    with pytest.raises(InvalidInput, match="no saved slot"):
        files(tmp_path).read("a")


def test_another_models_file_is_refused(tmp_path: Path):
    files(tmp_path, b"a").write("a", IMAGE)
    with pytest.raises(InvalidInput, match="another model"):
        files(tmp_path, b"b").read("a")


def test_a_file_of_an_older_version_says_so(tmp_path: Path):
    """Entries and KV were one message."""
    content = msgspec.msgpack.encode([list(IMAGE.entries), IMAGE.state])
    (tmp_path / "a").write_bytes(encode_header(b"a" * 32, IMAGE.key, content) + content)
    with pytest.raises(InvalidInput, match=r"cannot be restored: format 2, .* knows 4"):
        files(tmp_path).read("a")


@pytest.mark.parametrize(
    "contents",
    [
        b"",
        b"\xc1",
        msgspec.msgpack.encode([]),
        msgspec.msgpack.encode([[], []]),
        msgspec.msgpack.encode([[1, "2"], []]),
        msgspec.msgpack.encode([[5, 6, 7], [["9f2c", 1.0]]]),
        msgspec.msgpack.encode([[5, 6, 8], []]),
        msgspec.msgpack.encode([[5, 6, 7], []]) + b"\0",
        b"\xdd\xff\xff\xff\xff",
        b"\x92" * 100_000,
        bytes(65 * 2**20),
    ],
    ids=lambda contents: f"{len(contents)} bytes, {contents[:8].hex()}",
)
def test_made_up_contents_are_refused(tmp_path: Path, contents: bytes):
    head = encode_header(b"a" * 32, IMAGE.key, IMAGE.state, SLOT)
    (tmp_path / "a").write_bytes(head + IMAGE.state + contents)
    with pytest.raises(InvalidInput, match="cannot be restored"):
        files(tmp_path).read("a")


def test_kv_that_no_memory_holds_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def fail(num_bytes: int) -> NoReturn:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    files(tmp_path).write("a", IMAGE)
    monkeypatch.setattr(slot_files, "new_memory", fail)
    with pytest.raises(ResourceExhausted, match="no memory for a copy of 14 bytes"):
        files(tmp_path).read("a")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are none here")
def test_what_is_no_plain_file_is_not_waited_for(tmp_path: Path):
    os.mkfifo(tmp_path / "a")
    with pytest.raises(InvalidInput, match="no plain file"):
        files(tmp_path).read("a")


def test_a_link_to_a_saved_slot_is_followed(tmp_path: Path):
    files(tmp_path / "elsewhere").write("a", IMAGE)
    (tmp_path / "b").symlink_to(tmp_path / "elsewhere" / "a")
    assert files(tmp_path).read("b")[0].entries == IMAGE.entries


def test_every_damage_is_noticed(tmp_path: Path):
    files(tmp_path).write("a", IMAGE)
    content = (tmp_path / "a").read_bytes()
    damaged = [content[:-1], content + b"x", b"", b"text"]
    damaged += [content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :] for at in range(len(content))]
    for bad in damaged:
        (tmp_path / "a").write_bytes(bad)
        with pytest.raises(InvalidInput, match="cannot be restored"):
            files(tmp_path).read("a")


def test_a_model_that_was_replaced_since_is_named(tmp_path: Path):
    weights = tmp_path / "m.gguf"
    weights.write_bytes(b"weights")
    loaded = WeightFile.of(weights)
    files(tmp_path).write("a", IMAGE)
    for change in (lambda: os.utime(weights, (1, 1)), weights.unlink):
        change()
        slots = SlotFiles(tmp_path, lambda: fingerprint([loaded], "f16", tmp_path / "notes"))
        for attempt in (lambda slots=slots: slots.write("b", IMAGE), lambda slots=slots: slots.read("a")):
            with pytest.raises(ModelError, match=r"m\.gguf.*load the model again"):
                attempt()
    assert not (tmp_path / "b").exists()


def test_an_error_without_a_number_is_told_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def fail(*_: object) -> None:
        raise OSError("the disk is on fire")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(ResourceExhausted, match="on fire"):
        files(tmp_path).write("a", IMAGE)
    assert list(tmp_path.iterdir()) == []


def test_folder_that_cannot_be_written(tmp_path: Path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ResourceExhausted, match="cannot be written"):
        files(tmp_path / "file").write("a", IMAGE)

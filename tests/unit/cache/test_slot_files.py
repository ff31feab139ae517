"""Slots as files: named, whole, one model's, and checked."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.cache.slot_files import SlotFiles, SlotImage
from stoker.errors import InvalidInput, ResourceExhausted

IMAGE = SlotImage((5, 6, 7), b"state of three")


def files(folder: Path, model: bytes = b"a") -> SlotFiles:
    return SlotFiles(folder, lambda: model * 32)


def test_what_is_written_is_read(tmp_path: Path):
    num_bytes = files(tmp_path / "made").write("a.bin", IMAGE)
    image, num_read = files(tmp_path / "made").read("a.bin")
    assert (image.entries, bytes(image.state)) == (IMAGE.entries, IMAGE.state)
    assert num_bytes == num_read == (tmp_path / "made" / "a.bin").stat().st_size
    assert [path.name for path in (tmp_path / "made").iterdir()] == ["a.bin"], "no temporary file is left"


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


def test_every_damage_is_noticed(tmp_path: Path):
    files(tmp_path).write("a", IMAGE)
    content = (tmp_path / "a").read_bytes()
    damaged = [content[:-1], content + b"x", b"", b"text"]
    damaged += [content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :] for at in range(len(content))]
    for bad in damaged:
        (tmp_path / "a").write_bytes(bad)
        with pytest.raises(InvalidInput, match="cannot be restored"):
            files(tmp_path).read("a")


def test_folder_that_cannot_be_written(tmp_path: Path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ResourceExhausted, match="cannot be written"):
        files(tmp_path / "file").write("a", IMAGE)

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from stoker.cache.fingerprint import WeightFile, fingerprint


def taken(*paths: Path, kv_format: str = "f16", notes: Path) -> bytes:
    return fingerprint([WeightFile.of(path) for path in paths], kv_format, notes)


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    path.write_bytes(os.urandom(5000))
    return path


def test_a_copy_is_the_same_and_one_changed_byte_is_not(weights: Path, tmp_path: Path) -> None:
    notes = tmp_path / "notes.json"
    copy = tmp_path / "copy.gguf"
    copy.write_bytes(weights.read_bytes())
    assert taken(weights, notes=notes) == taken(copy, notes=notes)
    copy.write_bytes(weights.read_bytes()[:-1] + b"!")
    assert taken(weights, notes=notes) != taken(copy, notes=notes)


def test_the_format_and_the_order_of_parts_count(weights: Path, tmp_path: Path) -> None:
    notes, second = tmp_path / "notes.json", tmp_path / "second"
    second.write_bytes(b"part")
    assert taken(weights, notes=notes) != taken(weights, kv_format="q8_0", notes=notes)
    assert taken(weights, second, notes=notes) != taken(second, weights, notes=notes)


def test_unchanged_files_are_not_read_again(weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notes = tmp_path / "new folder" / "notes.json"
    first = taken(weights, notes=notes)
    monkeypatch.setattr("hashlib.file_digest", None)
    assert taken(weights, notes=notes) == first


def test_a_file_that_changed_in_place_is_read_again(weights: Path, tmp_path: Path) -> None:
    notes = tmp_path / "notes.json"
    first = taken(weights, notes=notes)
    content = bytearray(weights.read_bytes())
    content[17] ^= 1
    weights.write_bytes(content)
    assert taken(weights, notes=notes) != first


@pytest.mark.parametrize("content", [b"", b"not json", b'{"a": 1}', b'["list"]'])
def test_damaged_notes_are_no_notes(weights: Path, tmp_path: Path, content: bytes) -> None:
    notes = tmp_path / "notes.json"
    first = taken(weights, notes=notes)
    notes.write_bytes(content)
    assert taken(weights, notes=notes) == first


def test_weights_that_were_replaced_after_loading_have_no_fingerprint(weights: Path, tmp_path: Path) -> None:
    loaded = WeightFile.of(weights)
    weights.write_bytes(b"something else")
    with pytest.raises(OSError, match="replaced"):
        fingerprint([loaded], "f16", tmp_path / "notes.json")


def test_notes_that_cannot_be_written_do_no_harm(weights: Path) -> None:
    assert taken(weights, notes=weights / "no folder" / "notes.json")


def test_machines_with_other_files_at_one_path_keep_their_own_notes(weights: Path, tmp_path: Path) -> None:
    notes = tmp_path / "notes.json"
    there = tmp_path / "there"
    there.write_bytes(b"another file, as another machine has it")
    fingerprint([WeightFile.of(weights)], "f16", notes)
    mine = json.loads(notes.read_text())
    os.replace(there, weights)
    fingerprint([WeightFile.of(weights)], "f16", notes)
    both = json.loads(notes.read_text())
    assert len(both) == 2
    assert mine.items() <= both.items(), "neither overwrites the other's"

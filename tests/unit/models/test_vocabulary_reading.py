"""The vocabulary is read from the metadata as it stands, and one that cannot be is refused with its key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFWriter

from stoker.core.vocabulary import TokenType, Vocabulary
from stoker.errors import ModelFileInvalid
from stoker.models import vocabulary as room
from stoker.models.gguf import read_gguf
from stoker.models.vocabulary import read_vocabulary
from tests.gguf_values import write_values

TOKENS: list[bytes] = [b"<s>", b"a", "ä▁".encode(), b"\xff", b"cut\0off", b""]


def read(path: Path, **arrays: Any) -> Vocabulary:
    """A file with a vocabulary of six tokens, in which `arrays` replace or add keys after `tokenizer.ggml.`."""
    writer = GGUFWriter(path, "llama")
    values: dict[str, Any] = {"model": "llama", "tokens": TOKENS} | arrays
    write_values(writer, {f"tokenizer.ggml.{key}": value for key, value in values.items()})
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with read_gguf(path) as gguf:
        return read_vocabulary(gguf)


def test_everything_a_file_can_say(tmp_path: Path) -> None:
    found = read(
        tmp_path / "a.gguf",
        pre="qwen2",
        token_type=[3, 1, 1, 6, 1, 5],
        scores=[0.0, -1.5, 2.0, 0.0, 0.0, 0.0],
        merges=["a b", "b c"],
        bos_token_id=0,
        prefix_token_id=1,
        fim_pre_token_id=2,
        eos_token_id=6,
        add_bos_token=True,
        add_space_prefix=False,
    )
    assert list(found.tokens) == ["<s>", "a", "ä▁", "\udcff", "cut", "[EMPTY_5]"]
    assert (found.model, found.pre_tokenizer, found.architecture) == ("llama", "qwen2", "llama")
    assert list(found.types) == [3, 1, 1, 6, 1, 5]
    assert list(found.scores) == [0.0, -1.5, 2.0, 0.0, 0.0, 0.0]
    assert found.merges == ["a b", "b c"]
    assert found.special_ids == {"bos": 0, "fim_pre": 1}
    assert (found.add_bos, found.add_eos, found.add_space_prefix) == (True, None, False)


def test_what_a_file_does_not_say(tmp_path: Path) -> None:
    found = read(tmp_path / "a.gguf")
    assert list(found.types) == [TokenType.NORMAL] * 6
    assert (list(found.scores), found.merges, dict(found.special_ids), found.pre_tokenizer) == ([], None, {}, "")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"model": None}, "ggml.model` is missing"),
        ({"model": 3}, "ggml.model` should be a string"),
        ({"tokens": None}, "no vocabulary"),
        ({"tokens": "all"}, "ggml.tokens` should be an array"),
        ({"tokens": [1, 2]}, "not strings"),
        ({"tokens": [b"a", b"b", b"a"]}, "tokens 0 and 2 are both 'a'"),
        ({"tokens": [b"a\0b", b"a\0c"]}, "tokens 0 and 1 are both 'a'"),
        ({"tokens": [b"a" * 70_000]}, "70000 bytes"),
        ({"token_type": [1, 1]}, "2 elements for 6 tokens"),
        ({"token_type": [0.5] * 6}, "wrong kind"),
        ({"token_type": ["a"] * 6}, "not numbers"),
        ({"scores": [0.0, 1.0]}, "2 elements for 6 tokens"),
        ({"scores": [float("nan")] * 6}, "not finite"),
        ({"scores": [float("inf")] * 6}, "not finite"),
        ({"merges": [1, 2]}, "not strings"),
        ({"merges": ["a" * 70_000]}, "70000 bytes"),
        ({"bos_token_id": "a"}, "bos_token_id` should be an integer"),
        ({"add_bos_token": 1}, "add_bos_token` should be a boolean"),
    ],
    ids=str,
)
def test_vocabularies_that_cannot_be(tmp_path: Path, values: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelFileInvalid, match=message):
        read(tmp_path / "a.gguf", **values)


@pytest.mark.parametrize("key", ["tokens", "merges"])
def test_no_file_makes_us_hold_more_than_any_model_has(
    tmp_path: Path, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, f"_MAX_{key.upper()}", 5)
    with pytest.raises(ModelFileInvalid, match="and 5 are allowed"):
        read(
            tmp_path / "a.gguf", **{key: [str(n) for n in range(6)], "tokens": ["a"] if key == "merges" else ["b"] * 6}
        )

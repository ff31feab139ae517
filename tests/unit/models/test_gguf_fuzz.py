"""Damaged files: each is read, or refused by name; nothing else happens."""

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stoker.errors import ModelFileInvalid
from stoker.models.description import describe
from stoker.models.gguf import GGUFArray, GGUFFile, read_gguf
from stoker.models.gguf_types import ValueType
from stoker.models.memory_plan import memory_needs
from stoker.models.model_defaults import model_defaults
from tests.unit.models.tiny_gguf import SHAPE, write_tiny_gguf

few = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("fuzz") / "whole.gguf"
    words, numbers = ["a", "bc", "", "def"], [1, 2, 3]
    write_tiny_gguf(path, **SHAPE, tokenizer__ggml__tokens=words, some__numbers=numbers, general__sampling__temp=0.5)
    return path.read_bytes()


def use_all_of(gguf: GGUFFile) -> None:
    """Touches everything that the file holds, as a caller would."""
    for value in gguf.metadata.values():
        if isinstance(value, GGUFArray) and value.element_type is ValueType.STRING:
            assert len(value.byte_strings()) == len(value)
        elif isinstance(value, GGUFArray) and value.element_type is not ValueType.ARRAY:
            with suppress(ModelFileInvalid):
                assert value.numbers().shape == (len(value),)
    for name, info in gguf.tensors.items():
        with gguf.tensor_data(name) as data:
            assert len(data) == info.num_bytes
    with suppress(ModelFileInvalid):
        describe(gguf)
    with suppress(ModelFileInvalid):
        model_defaults(gguf)
    with suppress(ModelFileInvalid):
        memory_needs(gguf, ctx_size=None, kv_tokens=None, parallel=1).within(2**200)


def read_damaged(path: Path, damaged: bytes) -> None:
    path.write_bytes(damaged)
    with suppress(ModelFileInvalid), read_gguf(path) as gguf:
        use_all_of(gguf)


def test_the_whole_file_can_be_used(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "whole.gguf"
    path.write_bytes(content)
    with read_gguf(path) as gguf:
        use_all_of(gguf)
        assert describe(gguf).vocab_size == 4


@few
@given(data=st.data())
def test_changed_bytes(tmp_path: Path, content: bytes, data: st.DataObject) -> None:
    damaged = bytearray(content)
    for _ in range(data.draw(st.integers(1, 6))):
        damaged[data.draw(st.integers(4, len(content) - 1))] = data.draw(st.integers(0, 255))
    read_damaged(tmp_path / "m.gguf", bytes(damaged))


@few
@given(data=st.data())
def test_numbers_replaced_by_extreme_ones(tmp_path: Path, content: bytes, data: st.DataObject) -> None:
    at = data.draw(st.integers(4, len(content) - 8))
    width = data.draw(st.sampled_from([4, 8]))
    extreme = data.draw(st.sampled_from([0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63 - 1, 2**63, 2**64 - 1]))
    number = (extreme % 2 ** (8 * width)).to_bytes(width, "little")
    read_damaged(tmp_path / "m.gguf", content[:at] + number + content[at + width :])


@few
@given(data=st.data())
def test_pieces_removed_and_repeated(tmp_path: Path, content: bytes, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(content)))
    end = data.draw(st.integers(start, min(len(content), start + 64)))
    times = data.draw(st.integers(0, 3))
    read_damaged(tmp_path / "m.gguf", content[:start] + content[start:end] * times + content[end:])


@few
@given(tail=st.binary(max_size=200))
def test_anything_behind_the_magic(tmp_path: Path, tail: bytes) -> None:
    read_damaged(tmp_path / "m.gguf", b"GGUF\x03\x00\x00\x00" + tail)

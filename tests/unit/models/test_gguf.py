"""The reader against files of the reference writer, and against files that lie."""

import re
import struct
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFWriter
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType, LlamaFileType

from stoker.errors import ModelFileInvalid, ModelFileNotFound
from stoker.models import gguf_parse
from stoker.models.description import describe
from stoker.models.gguf import part_paths, read_gguf
from stoker.models.gguf_types import FILE_TYPE_NAMES, TENSOR_TYPES, ValueType
from tests.unit.models.tiny_gguf import write_tiny_gguf

U32, I32, BOOL, STRING, ARRAY = (
    ValueType.UINT32,
    ValueType.INT32,
    ValueType.BOOL,
    ValueType.STRING,
    ValueType.ARRAY,
)


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def entry(key: bytes, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def array(kind: int, count: int, elements: bytes = b"") -> bytes:
    return struct.pack("<IQ", kind, count) + elements


def tensor(name: bytes = b"w", shape: tuple[int, ...] = (8,), kind: int = 0, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


def build(*entries: bytes, tensors: tuple[bytes, ...] = (), body: bytes = b"", version: int = 3) -> bytes:
    head = struct.pack("<4sIQQ", b"GGUF", version, len(tensors), len(entries)) + b"".join(entries) + b"".join(tensors)
    return head + bytes(-len(head) % 32) + body


def refusal(path: Path, content: bytes) -> ModelFileInvalid:
    path.write_bytes(content)
    with pytest.raises(ModelFileInvalid) as caught:
        read_gguf(path)
    assert str(path) in caught.value.message
    assert caught.value.fields["path"] == str(path)
    return caught.value


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.gguf"


def test_reads_what_the_reference_writer_wrote(path: Path) -> None:
    writer = GGUFWriter(path, "llama")
    writer.add_uint8("a.u8", 200)
    writer.add_int8("a.i8", -3)
    writer.add_uint64("a.u64", 2**63)
    writer.add_int64("a.i64", -(2**40))
    writer.add_float32("a.f32", 0.5)
    writer.add_float64("a.f64", 0.1)
    writer.add_bool("a.yes", True)
    writer.add_string("a.text", "çà et là")
    writer.add_array("a.ints", [1, 2, 3])
    writer.add_array("a.floats", [0.25, 0.5])
    writer.add_array("a.bools", [True, False])
    writer.add_array("a.words", ["x", "", "ü"])
    writer.add_custom_alignment(64)
    first, second = np.arange(12, dtype=np.float32).reshape(3, 4), np.arange(5, dtype=np.float16)
    writer.add_tensor("first", first)
    writer.add_tensor("second", second)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    with read_gguf(path) as gguf:
        assert (gguf.version, gguf.architecture, gguf.alignment) == (3, "llama", 64)
        assert gguf.get_int("a.u8") == 200
        assert gguf.get_int("a.i8") == -3
        assert gguf.get_int("a.u64") == 2**63
        assert gguf.get_int("a.i64") == -(2**40)
        assert gguf.get_float("a.f32") == 0.5
        assert gguf.get_float("a.f64") == 0.1
        assert gguf.get_float("a.u8") == 200
        assert gguf.get_bool("a.yes") is True
        assert gguf.get_str("a.text") == "çà et là"
        assert gguf.get_ints("a.ints") == [1, 2, 3]
        assert gguf.get_ints("a.u8") == [200]
        floats, bools, words = (gguf.get_array(f"a.{name}") for name in ("floats", "bools", "words"))
        assert floats is not None
        assert bools is not None
        assert words is not None
        assert floats.numbers().tolist() == [0.25, 0.5]
        assert bools.numbers().tolist() == [1, 0]
        assert words.strings() == ["x", "", "ü"]
        assert words.byte_strings() == [b"x", b"", "ü".encode()]
        assert len(words) == 3
        assert list(gguf.tensors) == ["first", "second"]
        info = gguf.tensors["first"]
        assert (info.shape, info.type.name, info.num_elements, info.num_bytes) == ((4, 3), "F32", 12, 48)
        assert info.offset % 64 == 0
        with gguf.tensor_data("first") as data:
            assert np.array_equal(np.frombuffer(data, np.float32).reshape(3, 4), first)
        with gguf.tensor_data("second") as data:
            assert np.array_equal(np.frombuffer(data, np.float16), second)


def test_error_while_a_view_exists_is_not_hidden_by_the_closing_of_the_file(path: Path):
    views: list[memoryview] = []
    with pytest.raises(KeyboardInterrupt), read_gguf(write_tiny_gguf(path)) as gguf:  # noqa: PT012
        views.append(gguf.header_data())
        raise KeyboardInterrupt
    assert bytes(views[0][:4]) == b"GGUF"
    with pytest.raises(BufferError), read_gguf(path) as gguf:
        views.append(gguf.header_data())


def test_a_missing_key_is_none_and_a_wrong_type_is_an_error(path: Path) -> None:
    gguf = read_gguf(write_tiny_gguf(path, a__text="x", a__number=1, a__flag=True, a__words=["x"]))
    for get in (gguf.get_str, gguf.get_int, gguf.get_float, gguf.get_bool, gguf.get_array, gguf.get_ints):
        assert get("nothing") is None
    wrong = [
        (gguf.get_str, "a.number"),
        (gguf.get_int, "a.flag"),
        (gguf.get_float, "a.flag"),
        (gguf.get_float, "a.text"),
        (gguf.get_bool, "a.number"),
        (gguf.get_array, "a.text"),
        (gguf.get_ints, "a.words"),
        (gguf.require_int, "nothing"),
        (gguf.tensor_data, "nothing"),
    ]
    for get, key in wrong:
        with pytest.raises(ModelFileInvalid, match=key):
            get(key)


def test_arrays_of_arrays(path: Path) -> None:
    inner = [array(I32, 2, struct.pack("<ii", 1, 2)), array(STRING, 1, text(b"x"))]
    path.write_bytes(build(entry(b"deep", ARRAY, array(ARRAY, 2, b"".join(inner))), entry(b"n", U32, bytes(4))))
    gguf = read_gguf(path)
    deep = gguf.get_array("deep")
    assert deep is not None
    numbers, words = deep.arrays()
    assert numbers.numbers().tolist() == [1, 2]
    assert words.strings() == ["x"]
    assert gguf.get_int("n") == 0


def test_a_decoder_refuses_elements_of_another_type(path: Path) -> None:
    path.write_bytes(
        build(
            entry(b"words", ARRAY, array(STRING, 1, text(b"\xff"))),
            entry(b"numbers", ARRAY, array(U32, 1, bytes(4))),
            entry(b"flags", ARRAY, array(BOOL, 1, b"\x02")),
        )
    )
    gguf = read_gguf(path)
    words, numbers, flags = (gguf.get_array(key) for key in ("words", "numbers", "flags"))
    assert words is not None
    assert numbers is not None
    assert flags is not None
    assert words.byte_strings() == [b"\xff"]
    for decode in (words.strings, words.numbers, words.arrays, numbers.strings, numbers.arrays, flags.numbers):
        with pytest.raises(ModelFileInvalid, match=r"words|numbers|flags"):
            decode()


def test_version_2_is_read(path: Path) -> None:
    path.write_bytes(build(entry(b"n", U32, struct.pack("<I", 7)), tensors=(tensor(),), body=bytes(32), version=2))
    gguf = read_gguf(path)
    assert gguf.get_int("n") == 7
    assert gguf.tensors["w"].num_bytes == 32


def test_a_missing_file(tmp_path: Path) -> None:
    for missing in (tmp_path / "nothing.gguf", tmp_path / "a" / "b.gguf"):
        with pytest.raises(ModelFileNotFound, match="there is no file") as caught:
            read_gguf(missing)
        assert caught.value.fields["path"] == str(missing)


def test_a_directory_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(ModelFileInvalid, match="is a directory"):
        read_gguf(tmp_path)


def test_a_device_is_not_waited_for() -> None:
    with pytest.raises(ModelFileInvalid, match="not a regular file"):
        read_gguf("/dev/zero")


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"", "it is empty"),
        (b"GG", "truncated after 2 bytes"),
        (b"This is a story about a model.\n" * 100, "not a GGUF file: it is a text file"),
        (b"\nEntry not found\n\n", "it is a text file: 'Entry not found'"),
        (b'{"error":"Invalid username or password."}', """text file: '{"error":"Invalid username or password."}'"""),
        ("\ufeff\nNicht gefunden — ü".encode(), "it is a text file: 'Nicht gefunden — ü'"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00", "Git LFS pointer"),
        (b"\n<!DOCTYPE html><html>404</html>", "it is a web page"),
        (b"\xef\xbb\xbf<!DOCTYPE html><html></html>", "it is a web page"),
        (b"<!-- sorry -->\n<html></html>", "it is a web page"),
        (b"PK\x03\x04rest", "zip archive"),
        (b"\x1f\x8b\x08\x00", "it is compressed"),
        (b"7z\xbc\xaf\x27\x1c\x00", "it is compressed"),
        (b"BZh91AY&SY", "it is compressed"),
        (b"\xfd7zXZ\x00\x00", "it is compressed"),
        (b"model.gguf".ljust(257, b"\0") + b"ustar\x0000", "it is a tar archive"),
        (b"\x80\x02}q\x00.", "PyTorch checkpoint"),
        (b'\x40\x00\x00\x00\x00\x00\x00\x00{"w":{"dtype"', "safetensors file"),
        (b'\x40\x00\x00\x00\x00\x00\x00\x00{ "w":{"dtype"', "safetensors file"),
        (b"tjgg\x01\x00\x00\x00", "older than GGUF"),
        (b"\x00\x01\x02\x03\x04", "instead of b'GGUF'"),
    ],
)
def test_a_file_that_is_no_gguf_says_what_it_seems_to_be(path: Path, content: bytes, what: str) -> None:
    assert what in refusal(path, content).message


def test_truncated_data_says_how_much_is_missing(path: Path) -> None:
    content = write_tiny_gguf(path, num_bytes=4096).read_bytes()
    data_bytes = 4096
    error = refusal(path, content[: -data_bytes + 96])
    assert error.fields["missing_bytes"] == data_bytes - 96
    assert f"{data_bytes - 96} bytes are missing" in error.message


def test_a_header_cut_anywhere_is_truncated(path: Path) -> None:
    content = build(
        entry(b"name", STRING, text(b"x" * 20)),
        entry(b"words", ARRAY, array(STRING, 3, text(b"abc") * 3)),
        entry(b"numbers", ARRAY, array(U32, 3, bytes(12))),
        tensors=(tensor(),),
        body=bytes(32),
    )
    for length in range(4, len(content)):
        assert "truncated" in refusal(path, content[:length]).message, length
    path.write_bytes(content)
    assert len(read_gguf(path).metadata) == 3


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
        (build(version=1), "version is 1"),
        (build(version=4), "version is 4"),
        (struct.pack("<4sIQQ", b"GGUF", 3, 0, 2**63), "metadata entries"),
        (struct.pack("<4sIQQ", b"GGUF", 3, 2**40, 0), "tensors"),
        (build(entry(b"k", 13, bytes(8))), "unknown value type 13"),
        (build(entry(b"k", ARRAY, array(99, 1))), "unknown value type 99"),
        (build(entry(b"k", BOOL, b"\x02")), "neither 0 nor 1"),
        (build(entry(b"", U32, bytes(4))), "empty name"),
        (build(entry(b"\xff\xfe", U32, bytes(4))), "not UTF-8"),
        (build(entry(b"k", U32, bytes(4)), entry(b"k", U32, bytes(4))), "appears twice"),
        (build(entry(b"k", STRING, struct.pack("<Q", 2**62))), "a length that no file has"),
        (build(entry(b"k", STRING, struct.pack("<Q", 2**64 - 1))), "a length that no file has"),
        (build(entry(b"k", ARRAY, array(U32, 2**62))), "a length that no file has"),
        (build(entry(b"k", ARRAY, array(STRING, 2, struct.pack("<Q", 2**64 - 1)))), "a length that no file has"),
        (build(entry(b"k", ARRAY, array(STRING, 2**60))), "more elements than any model has"),
        (build(entry(b"k", ARRAY, array(ARRAY, 2**30))), "more elements than any model has"),
        (build(entry(b"k", ARRAY, array(ARRAY, 1) * 50)), "nests arrays deeper"),
        (build(entry(b"general.alignment", U32, struct.pack("<I", 3))), "not a power of two"),
        (build(entry(b"general.alignment", U32, struct.pack("<I", 0))), "not a power of two"),
        (build(entry(b"general.alignment", STRING, text(b"32"))), "not a power of two"),
        (build(tensors=(tensor(kind=999),)), "type 999"),
        (build(tensors=(tensor(shape=()),)), "0 dimensions"),
        (build(tensors=(tensor(shape=(1, 1, 1, 1, 1)),)), "5 dimensions"),
        (build(tensors=(tensor(shape=(8, 0)),)), "cannot have the shape"),
        (build(tensors=(tensor(shape=(33,), kind=2),)), "cannot have the shape"),
        (build(tensors=(tensor(shape=(2**62, 2**62)),)), "a length that no file has"),
        (build(tensors=(tensor(offset=2**63),)), "a length that no file has"),
        (build(tensors=(tensor(offset=4),), body=bytes(64)), "not aligned"),
        (build(tensors=(tensor(b"a"), tensor(b"b")), body=bytes(64)), "overlaps"),
        (build(tensors=(tensor(b"a"), tensor(b"a", offset=32)), body=bytes(64)), "the same name"),
    ],
)
def test_a_lie_is_named(path: Path, content: bytes, what: str) -> None:
    assert what in refusal(path, content).message


def test_long_strings_are_refused_before_they_are_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf_parse, "_MAX_STRING_BYTES", 100)
    assert "101 bytes long" in refusal(path, build(entry(b"k", STRING, text(b"x" * 101)))).message


def test_a_stray_byte_in_a_description_is_replaced(path: Path) -> None:
    path.write_bytes(build(entry(b"general.description", STRING, text(b"caf\xe9"))))
    assert read_gguf(path).get_str("general.description") == "caf\ufffd"


def test_without_an_architecture_there_is_no_own_key(path: Path) -> None:
    path.write_bytes(build())
    with pytest.raises(ModelFileInvalid, match=r"general\.architecture"):
        read_gguf(path).own_key("block_count")


def test_nothing_is_open_after_close(path: Path) -> None:
    gguf = read_gguf(write_tiny_gguf(path))
    gguf.close()
    gguf.close()
    with pytest.raises(ValueError, match="closed"):
        gguf.tensor_data("output.weight")


def test_part_paths(tmp_path: Path) -> None:
    assert part_paths(tmp_path / "m.gguf") == [tmp_path / "m.gguf"]
    expected = [tmp_path / f"m-0000{number}-of-00003.gguf" for number in (1, 2, 3)]
    assert part_paths(tmp_path / "m-00002-of-00003.gguf") == expected
    expected = [tmp_path / f"m-0000{number}-OF-00002.GGUF" for number in (1, 2)]
    assert part_paths(tmp_path / "m-00001-OF-00002.GGUF") == expected, "as the name is written"
    for impossible in ("m-00000-of-00003.gguf", "m-00004-of-00003.gguf", "m-00001-of-00000.gguf"):
        assert part_paths(tmp_path / impossible) == [tmp_path / impossible], "a name like any other"


def test_sizes_of_types_are_those_of_the_reference() -> None:
    ours = {number: (kind.name, kind.block_size, kind.block_bytes) for number, kind in TENSOR_TYPES.items()}
    theirs = {kind.value: (kind.name, *GGML_QUANT_SIZES[kind]) for kind in GGMLQuantizationType}
    assert {number: theirs[number] for number in ours if number in theirs} == {n: ours[n] for n in ours if n in theirs}
    assert set(theirs) <= set(ours)


def test_names_of_file_types_are_those_of_the_reference() -> None:
    theirs = {kind.value: kind.name.removeprefix("MOSTLY_").removeprefix("ALL_") for kind in LlamaFileType}
    del theirs[LlamaFileType.GUESSED.value]
    assert theirs.items() <= FILE_TYPE_NAMES.items()


def test_a_real_llama(smollm2_path: Path) -> None:
    with read_gguf(smollm2_path) as gguf:
        tokens, merges = gguf.get_array("tokenizer.ggml.tokens"), gguf.get_array("tokenizer.ggml.merges")
        assert gguf.architecture == "llama"
        assert tokens is not None
        assert merges is not None
        assert tokens.strings()[:3] == ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
        assert len(tokens.byte_strings()) == 49152
        assert all(" " in merge for merge in merges.strings())
        assert len(gguf.tensors) == 272


def test_a_real_gemma(gemma3_path: Path) -> None:
    with read_gguf(gemma3_path) as gguf:
        scores = gguf.get_array("tokenizer.ggml.scores")
        assert gguf.architecture == "gemma3"
        assert scores is not None
        assert scores.numbers().dtype == np.float32
        assert scores.numbers().shape == (262144,)
        assert gguf.tensors["token_embd.weight"].shape == (640, 262144)


@pytest.mark.parametrize(
    ("architecture", "kind", "what"),
    [
        ("llama", "adapter", "it is an adapter; name the model"),
        ("clip", "clip-vision", "projector (mmproj)"),
        ("controlvector", "model", "it is a control vector"),
        ("llama", "imatrix", "importance matrix"),
        ("llama", "model", "`llama.context_length` is missing"),
    ],
)
def test_files_beside_a_model_are_told_from_it(path: Path, architecture: str, kind: str, what: str) -> None:
    with (
        read_gguf(write_tiny_gguf(path, architecture=architecture, general__type=kind)) as gguf,
        pytest.raises(ModelFileInvalid, match=re.escape(what)),
    ):
        describe(gguf)


@pytest.mark.parametrize(
    ("name", "part", "hint"),
    [
        ("m.gguf", 1, "part 2 of 3 of a split model.*NAME-00002-of-00003"),
        ("m-00001-of-00003.gguf", 1, "m-00002-of-00003"),
        ("m-00002-of-00002.gguf", 1, "m-00002-of-00003"),
        ("m-00002-of-00003.gguf", 1, None),
    ],
)
def test_a_part_of_a_model_is_called_like_one(tmp_path: Path, name: str, part: int, hint: str | None) -> None:
    path = write_tiny_gguf(tmp_path / name, split__no=part, split__count=3)
    if hint is None:
        read_gguf(path).close()
        return
    with pytest.raises(ModelFileInvalid, match=hint):
        read_gguf(path)


def test_parts_that_were_merged_are_none(path: Path) -> None:
    with read_gguf(write_tiny_gguf(path, split__no=0, split__count=0)) as gguf:
        assert list(part_paths(gguf.path)) == [path]
        assert gguf.tensors

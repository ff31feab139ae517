"""A GGUF file as it lies on disk: its metadata by name, its tensors as views. Nothing is computed from them here.

The format: <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from mmap import ACCESS_READ, mmap
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import NoReturn

from stoker.errors import ModelFileInvalid, ModelFileNotFound, reason_of
from stoker.models.gguf_parse import GGUFArray, HeaderParser, MetadataValue, TensorInfo

__all__ = [
    "GGUFArray",
    "GGUFFile",
    "MetadataValue",
    "TensorInfo",
    "is_model_name",
    "model_stem",
    "models_in",
    "part_paths",
    "read_gguf",
]

_MAGIC = b"GGUF"
_PROJECTOR = "mmproj"
_PART_NAME = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.IGNORECASE)
_NO_MODELS = {
    "adapter": "it is an adapter; name the model that it was made for, and the adapter with --lora",
    "clip": "it is the projector (mmproj) of a multimodal model, and not the model",
    "mmproj": "it is the projector (mmproj) of a multimodal model, and not the model",
    "controlvector": "it is a control vector; name the model that it was made for, and this with --control-vector",
    "imatrix": "it is an importance matrix, which is used to quantize a model",
}
"""Other files in this format, by `general.architecture` or `general.type`."""
_HEAD_BYTES = 512
"""Bytes that are looked at to tell what kind of file a file in another format is."""
_MAX_QUOTED = 200
_BOM = b"\xef\xbb\xbf"
_OLD = "it is in a format older than GGUF; convert the model again"
_COMPRESSED = "it is compressed; unpack it first"
_CHECKPOINT = "it is a PyTorch checkpoint; get the model as GGUF"
_OTHERS = {
    b"version https://git-lfs": "it is a Git LFS pointer; fetch the real file with `git lfs pull`",
    _MAGIC[::-1]: "it is a big-endian GGUF, and only little-endian files are supported",
    **dict.fromkeys((b"lmgg", b"tjgg", b"fmgg", b"algg"), _OLD),
    b"PK\x03\x04": "it is a zip archive, perhaps a PyTorch checkpoint; get the model as GGUF",
    **dict.fromkeys((b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05"), _CHECKPOINT),
    **dict.fromkeys((b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"BZh", b"\xfd7zXZ\0", b"7z\xbc\xaf"), _COMPRESSED),
}
"""Files in other formats, by what they begin with."""


@dataclass(frozen=True, slots=True, eq=False)
class GGUFFile:
    """An open GGUF file; its header is checked, its data is mapped read-only and paged in when touched.

    Use it as a context manager, or leave closing to the garbage collector. Views of tensors must be released
    before `close`.
    """

    path: Path
    version: int
    alignment: int
    data_offset: int
    metadata: Mapping[str, MetadataValue]
    tensors: Mapping[str, TensorInfo]
    """In the order of the file."""
    size_bytes: int
    _buffer: mmap = field(repr=False)

    def __enter__(self) -> GGUFFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            self.close()
        except BufferError:
            # The frames of `error` may hold views. The file is unmapped with them, and must not hide the error.
            if error is None:
                raise

    def close(self) -> None:
        """Unmaps the file. Calling it twice is allowed."""
        self._buffer.close()

    def tensor_data(self, name: str) -> memoryview:
        """The packed bytes of a tensor: a read-only view of `num_bytes` bytes into the file, no copy.

        Raises:
            ModelFileInvalid: no tensor of this name.
        """
        info = self.tensors.get(name)
        if info is None:
            self._fail(f"it has no tensor `{name}`")
        return memoryview(self._buffer)[info.offset : info.offset + info.num_bytes]

    def header_data(self) -> memoryview:
        """The bytes of metadata and tensor list, before the data: a read-only view into the file, no copy."""
        return memoryview(self._buffer)[: self.data_offset]

    @property
    def architecture(self) -> str:
        """`general.architecture`, the prefix of the model's own keys.

        Raises:
            ModelFileInvalid: it is missing.
        """
        found = self.get_str("general.architecture")
        return found if found else self._fail_missing("general.architecture")

    def own_key(self, suffix: str) -> str:
        """The key of a number of this architecture: `context_length` -> `llama.context_length`."""
        return f"{self.architecture}.{suffix}"

    def get_str(self, key: str) -> str | None:
        """A string, or None if the key is missing. All getters raise ModelFileInvalid for a value of another type."""
        value = self.metadata.get(key)
        return value if value is None or isinstance(value, str) else self._fail_type(key, "a string")

    def get_bool(self, key: str) -> bool | None:
        value = self.metadata.get(key)
        return value if value is None or isinstance(value, bool) else self._fail_type(key, "a boolean")

    def get_int(self, key: str) -> int | None:
        value = self.metadata.get(key)
        if isinstance(value, bool) or not isinstance(value, int | None):
            self._fail_type(key, "an integer")
        return value

    def get_float(self, key: str) -> float | None:
        """A floating-point number or an integer."""
        value = self.metadata.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float | None):
            self._fail_type(key, "a number")
        return value

    def get_array(self, key: str) -> GGUFArray | None:
        value = self.metadata.get(key)
        return value if value is None or isinstance(value, GGUFArray) else self._fail_type(key, "an array")

    def is_array(self, key: str) -> bool:
        """Whether the key is there and is an array."""
        return isinstance(self.metadata.get(key), GGUFArray)

    def get_ints(self, key: str) -> list[int] | None:
        """An array of integers; a single integer counts as an array of one."""
        value = self.metadata.get(key)
        if not isinstance(value, GGUFArray):
            single = self.get_int(key)
            return None if single is None else [single]
        numbers = value.numbers()
        return [int(n) for n in numbers.tolist()] if numbers.dtype.kind in "iu" else self._fail_type(key, "integers")

    def get_floats(self, key: str) -> list[float] | None:
        """An array of numbers; a single number counts as an array of one."""
        value = self.metadata.get(key)
        if not isinstance(value, GGUFArray):
            single = self.get_float(key)
            return None if single is None else [single]
        return [float(n) for n in value.numbers().tolist()]

    def require_int(self, key: str) -> int:
        """An integer.

        Raises:
            ModelFileInvalid: it is missing or something else.
        """
        value = self.get_int(key)
        return self._fail_missing(key) if value is None else value

    def _fail_missing(self, key: str) -> NoReturn:
        """What no model lacks is missing: most often because the file is none, and says so."""
        kind = self.metadata.get("general.type")
        other = _NO_MODELS.get(str(self.metadata.get("general.architecture"))) or _NO_MODELS.get(str(kind))
        self._fail(f"`{key}` is missing" if other is None else other)

    def _fail_type(self, key: str, expected: str) -> NoReturn:
        value = self.metadata[key]
        kind = f"array of {value.element_type.name.lower()}" if isinstance(value, GGUFArray) else type(value).__name__
        self._fail(f"`{key}` should be {expected}, but is of type {kind}")

    def _fail(self, what: str) -> NoReturn:
        raise ModelFileInvalid(f"{self.path} cannot be used: {what}", path=str(self.path))


def read_gguf(path: str | Path) -> GGUFFile:
    """Opens a GGUF file (version 2 or 3, little-endian) and reads its header.

    Arrays of the metadata are not decoded, tensors are not touched. The header is checked against the size of the
    file, so that nothing in the result points outside it.

    Raises:
        ModelFileNotFound: there is no such file.
        ModelFileInvalid: it is truncated, no GGUF, or contradicts itself; `fields["missing_bytes"]` if truncated.
    """
    path = Path(path)
    buffer = _map(path)
    try:
        header = HeaderParser(buffer, path).parse()
        _check_part(path, header.metadata)
    except ModelFileInvalid:
        buffer.close()
        raise
    return GGUFFile(
        path=path,
        version=header.version,
        alignment=header.alignment,
        data_offset=header.data_offset,
        metadata=MappingProxyType(header.metadata),
        tensors=MappingProxyType(header.tensors),
        size_bytes=len(buffer),
        _buffer=buffer,
    )


def part_paths(path: Path) -> list[Path]:
    """All files of a model that is split as `name-00001-of-00003.gguf`, in order; `[path]` if it is not split."""
    match = _counted(path)
    if match is None:
        return [path]
    before, after = path.name[: match.start("number")], path.name[match.end("number") :]
    return [path.with_name(f"{before}{number:05d}{after}") for number in range(1, int(match["count"]) + 1)]


def model_stem(path: Path) -> str:
    """The file's name without its ending, and without the number of its part."""
    match = _counted(path)
    return path.stem if match is None else match["stem"]


def is_model_name(name: str) -> bool:
    """Whether a file with this name counts as a model in its folder: hidden files and projectors do not."""
    lower = name.lower()
    return lower.endswith(".gguf") and not lower.startswith(".") and _PROJECTOR not in lower


def models_in(folder: Path) -> list[Path]:
    """The models directly in a folder, sorted by name; of a split model, the first of its parts that is there."""
    names = next((files for _, _, files in os.walk(folder)), ())  # no names if the folder cannot be read
    paths = sorted((folder / name for name in names if is_model_name(name)), reverse=True)
    return sorted({part_paths(path)[0]: path for path in paths}.values())


def _counted(path: Path) -> re.Match[str] | None:
    """The name of a part; one that counts impossibly is a name like any other."""
    match = _PART_NAME.fullmatch(path.name)
    return match if match is not None and 1 <= int(match["number"]) <= int(match["count"]) else None


def _check_part(path: Path, metadata: Mapping[str, MetadataValue]) -> None:
    """A part of a split model says which one it is; only by their names do the parts find each other.

    Raises:
        ModelFileInvalid: its name says something else.
    """
    count, index = metadata.get("split.count"), metadata.get("split.no")
    if not isinstance(count, int) or not isinstance(index, int) or count < 2:  # parts that were merged say 0
        return
    match = _PART_NAME.fullmatch(path.name)
    if match is None or (int(match["number"]), int(match["count"])) != (index + 1, count):
        name = f"{match['stem'] if match else 'NAME'}-{index + 1:05d}-of-{count:05d}.gguf"
        raise ModelFileInvalid(
            f"{path} is part {index + 1} of {count} of a split model, and its name does not say so: all parts must "
            f"be in one folder, and this one must be called {name}",
            path=str(path),
        )


def _map(path: Path) -> mmap:
    """Maps a regular file that begins like a GGUF."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            kind = "a directory" if stat.S_ISDIR(status.st_mode) else "not a regular file"
            raise ModelFileInvalid(f"{path} is {kind}, not a GGUF file", path=str(path))
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
            _check_magic(path, head)
            return mmap(file.fileno(), 0, access=ACCESS_READ)
    except (FileNotFoundError, NotADirectoryError):
        raise ModelFileNotFound(f"there is no file {path}", path=str(path)) from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise ModelFileInvalid(f"{path} cannot be read: {reason_of(error)}", path=str(path)) from error


def _check_magic(path: Path, head: bytes) -> None:
    if head.startswith(_MAGIC):
        return
    raise ModelFileInvalid(f"{path} is not a GGUF file: {_what_it_is(head)}", path=str(path))


def _what_it_is(head: bytes) -> str:
    """A guess, for the error message, at what a file is that should be a GGUF; `head` is all of a shorter one."""
    known = next((what for beginning, what in _OTHERS.items() if head.startswith(beginning)), None)
    if not head:
        return "it is empty"
    if known is not None:
        return known
    if head.removeprefix(_BOM).lstrip().lower().startswith((b"<!doctype", b"<!--", b"<html", b"<?xml")):
        return "it is a web page, perhaps an error page saved in place of the model"
    if head[4:9] == b"\0\0\0\0{":  # behind the length of the header, in 8 bytes
        return "it is a safetensors file; get the model as GGUF, or convert it with llama.cpp's convert_hf_to_gguf.py"
    if head[257:262] == b"ustar":
        return "it is a tar archive; unpack it first"
    if _MAGIC.startswith(head):
        return f"it is truncated after {len(head)} bytes"
    return _text_said(head) if _is_text(head) else f"it begins with {head[:4]!r} instead of {_MAGIC!r}"


def _text_said(head: bytes) -> str:
    """A short text may be a server's answer, which says what went wrong."""
    lines = head.removeprefix(_BOM).decode("utf-8", "replace").split("\n")
    first = next((line.strip() for line in lines if line.strip()), "")
    return f"it is a text file: {first[:_MAX_QUOTED]!r}" if first and len(head) < _HEAD_BYTES else "it is a text file"


def _is_text(head: bytes) -> bool:
    return all(byte >= 0x20 or byte in b"\t\n\r\f" for byte in head)

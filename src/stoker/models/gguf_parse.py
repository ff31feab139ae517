"""Reads the header of a GGUF file and believes nothing in it: every count, length and offset is held against the file.

Big arrays are only walked over, not decoded. What a hostile file can cost is bounded by the constants below.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from math import prod
from mmap import mmap
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TypeAlias

from stoker.errors import ModelFileInvalid
from stoker.lazy import lazy_module
from stoker.models.gguf_types import SCALAR_FORMATS, TENSOR_TYPES, TensorType, ValueType

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
else:
    np = lazy_module("numpy")  # most of what is asked of a file are single values

_MAX_METADATA = 1 << 16
_MAX_TENSORS = 1 << 17
_MAX_KEY_BYTES = 65535
_MAX_STRING_BYTES = 16 << 20
_MAX_WALKED = 1 << 24
"""Strings that all arrays together may hold: walking over them costs about 0.1 µs each."""
_WALK_COST_OF_ARRAY = 64
_MAX_DEPTH = 4
_MAX_DIMS = 4
_DEFAULT_ALIGNMENT = 32
_MAX_ALIGNMENT = 1 << 20
_IMPLAUSIBLE = 1 << 40
"""A length that asks for more than this beyond the end is a lie, not a truncation."""

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_SCALARS = {kind: struct.Struct(layout) for kind, layout in SCALAR_FORMATS.items()}


@dataclass(frozen=True, slots=True)
class GGUFArray:
    """An array in the metadata, decoded only when asked. Valid until its file is closed.

    Raises:
        ModelFileInvalid: from every decoder, if the elements are of another type.
    """

    key: str
    element_type: ValueType
    count: int
    start: int
    """First byte of the elements in the file."""
    num_bytes: int
    _parser: HeaderParser = field(repr=False, compare=False)
    _depth: int = 0

    def __len__(self) -> int:
        return self.count

    def numbers(self) -> NDArray[np.generic]:
        """A copy of shape `(count,)` in the file's own type; booleans as uint8 0 and 1."""
        dtype = SCALAR_FORMATS.get(self.element_type)
        if dtype is None:
            self._parser.fail(f"`{self.key}` holds {self.element_type.name.lower()}s, not numbers")
        values = np.frombuffer(self._parser.buffer, dtype=dtype, count=self.count, offset=self.start).copy()
        if self.element_type is ValueType.BOOL and (values > 1).any():
            self._parser.fail(f"`{self.key}` holds booleans that are neither 0 nor 1")
        return values

    def byte_strings(self) -> list[bytes]:
        """All elements of an array of strings as they stand in the file."""
        if self.element_type is not ValueType.STRING:
            self._parser.fail(f"`{self.key}` holds {self.element_type.name.lower()}s, not strings")
        elements = self._parser.buffer[self.start : self.start + self.num_bytes]
        unpack, position = _U64.unpack_from, 0
        found: list[bytes] = []
        for _ in range(self.count):
            begin = position + 8
            position = begin + unpack(elements, position)[0]
            found.append(elements[begin:position])
        return found

    def strings(self) -> list[str]:
        """All elements of an array of strings, which must be UTF-8."""
        try:
            return [text.decode() for text in self.byte_strings()]
        except UnicodeDecodeError as error:
            self._parser.fail(f"`{self.key}` holds a string that is not UTF-8 ({error.reason})")

    def arrays(self) -> list[GGUFArray]:
        """The elements of an array of arrays."""
        if self.element_type is not ValueType.ARRAY:
            self._parser.fail(f"`{self.key}` holds {self.element_type.name.lower()}s, not arrays")
        parser = HeaderParser(self._parser.buffer, self._parser.path, self.start)
        return [parser.array(self.key, self._depth + 1) for _ in range(self.count)]


MetadataValue: TypeAlias = int | float | bool | str | GGUFArray


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where one tensor lies. `shape` is in the file's order: the first dimension is the contiguous one."""

    name: str
    shape: tuple[int, ...]
    type: TensorType
    offset: int
    """From the beginning of the file, in bytes."""
    num_bytes: int

    @property
    def num_elements(self) -> int:
        return prod(self.shape)


@dataclass(frozen=True, slots=True)
class Header:
    """All of a GGUF file but its tensor data."""

    version: int
    alignment: int
    data_offset: int
    metadata: dict[str, MetadataValue]
    tensors: dict[str, TensorInfo]


class HeaderParser:
    """A position in a mapped file, and how to read the next thing there."""

    def __init__(self, buffer: mmap, path: Path, position: int = 0) -> None:
        self.buffer = buffer
        self.path = path
        self._position = position
        self._size = len(buffer)
        self._walks_left = _MAX_WALKED

    def parse(self) -> Header:
        """Reads the whole header.

        Raises:
            ModelFileInvalid: the message names the path, what is wrong, and how much is missing.
        """
        version = self._version()
        num_tensors, num_metadata = self._u64(), self._u64()
        self._check_count("tensors", num_tensors, _MAX_TENSORS)
        self._check_count("metadata entries", num_metadata, _MAX_METADATA)
        metadata = self._metadata(num_metadata)
        alignment = self._alignment(metadata)
        raw = [self._tensor() for _ in range(num_tensors)]
        data_offset = -(-self._position // alignment) * alignment
        return Header(version, alignment, data_offset, metadata, self._placed(raw, data_offset, alignment))

    def fail(self, what: str) -> NoReturn:
        raise ModelFileInvalid(f"{self.path} is not a valid GGUF file: {what}", path=str(self.path))

    def array(self, key: str, depth: int = 0) -> GGUFArray:
        """Reads an array's head and moves behind its elements."""
        if depth >= _MAX_DEPTH:
            self.fail(f"`{key}` nests arrays deeper than {_MAX_DEPTH}")
        element_type, count = self._value_type(key), self._u64()
        start = self._position
        if element_type is ValueType.STRING:
            self._walk_strings(key, count)
        elif element_type is ValueType.ARRAY:
            self._spend(key, count * _WALK_COST_OF_ARRAY)
            for _ in range(count):
                self.array(key, depth + 1)
        else:
            self._take(count * _SCALARS[element_type].size)
        return GGUFArray(key, element_type, count, start, self._position - start, self, depth)

    def _version(self) -> int:
        self._take(4)
        version = self._u32()
        if version & 0xFFFF == 0:
            self.fail("it is big-endian, and only little-endian files are supported")
        if version not in (2, 3):
            self.fail(f"its format version is {version}, and only versions 2 and 3 are supported")
        return version

    def _metadata(self, count: int) -> dict[str, MetadataValue]:
        found: dict[str, MetadataValue] = {}
        for _ in range(count):
            key = self._key()
            if key in found:
                self.fail(f"the metadata key `{key}` appears twice")
            found[key] = self._value(key)
        return found

    def _alignment(self, metadata: dict[str, MetadataValue]) -> int:
        value = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= _MAX_ALIGNMENT:
            self.fail(f"`general.alignment` is {value!r}, not a power of two")
        if value & (value - 1):
            self.fail(f"`general.alignment` is {value}, not a power of two")
        return value

    def _tensor(self) -> TensorInfo:
        name = self._key()
        num_dims = self._u32()
        if not 1 <= num_dims <= _MAX_DIMS:
            self.fail(f"tensor `{name}` has {num_dims} dimensions, not 1 to {_MAX_DIMS}")
        shape = tuple(self._u64() for _ in range(num_dims))
        number, offset = self._u32(), self._u64()
        kind = TENSOR_TYPES.get(number)
        if kind is None:
            self.fail(f"tensor `{name}` has type {number}, which this version does not know")
        if min(shape) == 0 or shape[0] % kind.block_size:
            self.fail(f"tensor `{name}` of type {kind.name} cannot have the shape {list(shape)}")
        return TensorInfo(name, shape, kind, offset, prod(shape) // kind.block_size * kind.block_bytes)

    def _placed(self, raw: list[TensorInfo], data_offset: int, alignment: int) -> dict[str, TensorInfo]:
        """Tensors with absolute offsets, after a look at whether they can lie there."""
        placed: dict[str, TensorInfo] = {}
        end = data_offset if raw else self._position
        for info in sorted(raw, key=lambda info: info.offset):
            start = data_offset + info.offset
            if info.offset % alignment:
                self.fail(f"tensor `{info.name}` is not aligned to {alignment} bytes")
            if start < end:
                self.fail(f"tensor `{info.name}` overlaps another one")
            end = start + info.num_bytes
            placed[info.name] = TensorInfo(info.name, info.shape, info.type, start, info.num_bytes)
        if len(placed) != len(raw):
            self.fail("two tensors have the same name")
        if end > self._size:
            self._fail_truncated(end)
        return {info.name: placed[info.name] for info in raw}

    def _value(self, key: str) -> MetadataValue:
        kind = self._value_type(key)
        if kind is ValueType.ARRAY:
            return self.array(key)
        if kind is ValueType.STRING:
            # Descriptions come from many tools; a stray byte in one is no reason to refuse a model.
            return self._string(key, _MAX_STRING_BYTES).decode(errors="replace")
        scalar = _SCALARS[kind]
        (value,) = scalar.unpack_from(self.buffer, self._take(scalar.size))
        if kind is not ValueType.BOOL:
            return value
        if value > 1:
            self.fail(f"`{key}` is a boolean that is neither 0 nor 1")
        return bool(value)

    def _value_type(self, key: str) -> ValueType:
        number = self._u32()
        if number not in _VALUE_TYPES:
            self.fail(f"`{key}` has the unknown value type {number}")
        return _VALUE_TYPES[number]

    def _key(self) -> str:
        raw = self._string("a name", _MAX_KEY_BYTES)
        try:
            key = raw.decode()
        except UnicodeDecodeError:
            self.fail(f"a name at byte {self._position - len(raw)} is not UTF-8")
        if not key:
            self.fail(f"an empty name at byte {self._position}")
        return key

    def _string(self, key: str, limit: int) -> bytes:
        length = self._u64()
        start = self._take(length)
        if length > limit:
            self.fail(f"{key} is {length} bytes long, and {limit} are allowed")
        return self.buffer[start : start + length]

    def _walk_strings(self, key: str, count: int) -> None:
        self._spend(key, count)
        buffer, unpack, position = self.buffer, _U64.unpack_from, self._position
        try:
            for _ in range(count):
                position += 8 + unpack(buffer, position)[0]
        except (struct.error, OverflowError):  # the position is behind the end, perhaps by more than fits an offset
            self._fail_truncated(position + 8)
        self._position = position  # perhaps behind the end: then whatever is read next, or the last check, says so

    def _spend(self, key: str, walks: int) -> None:
        self._walks_left -= walks
        if self._walks_left < 0:
            self.fail(f"`{key}` claims more elements than any model has")

    def _check_count(self, what: str, count: int, limit: int) -> None:
        if count > limit:
            self.fail(f"it claims {count} {what}, and {limit} are allowed")

    def _u32(self) -> int:
        return _U32.unpack_from(self.buffer, self._take(4))[0]

    def _u64(self) -> int:
        return _U64.unpack_from(self.buffer, self._take(8))[0]

    def _take(self, num_bytes: int) -> int:
        """Where the next `num_bytes` start; moves behind them."""
        start = self._position
        self._position = start + num_bytes
        if self._position > self._size:
            self._fail_truncated(self._position)
        return start

    def _fail_truncated(self, needed: int) -> NoReturn:
        missing = needed - self._size
        if missing > _IMPLAUSIBLE:
            self.fail("it claims a length that no file has")
        raise ModelFileInvalid(
            f"{self.path} is truncated: at least {missing} bytes are missing ({self._size} are there). "
            f"Get the file again.",
            path=str(self.path),
            missing_bytes=missing,
        )


_VALUE_TYPES = {kind.value: kind for kind in ValueType}

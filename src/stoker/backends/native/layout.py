"""The place of every matrix and vector of a model in packed memory, and checks of the file's tensors. It packs nothing.

```
packed memory:  | matrix | matrix | … | vector | vector | …       each begins at a multiple of ALIGNMENT bytes
```
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from logging import getLogger

from stoker import _native
from stoker.backends.native.file import FLOAT_TYPES, ModelParts, TensorEntry
from stoker.backends.native.layer_parts import Linear, Norm
from stoker.backends.native.spec import DecoderSpec
from stoker.errors import ModelFileInvalid, ModelUnsupported

ALIGNMENT = 64
F32, F16 = 0, 1
"""GGML's numbers of these tensor types."""
_VECTOR_GRANULE = 16
"""Vectors are padded with zeros to a multiple of this many floats."""
_NO_WEIGHTS = frozenset({"I8", "I16", "I32", "I64"})
"""Types that no engine computes weights of; some of them make libllama abort the process."""
_NO_TEXT = ("v.", "mm.", "a.", "audio.", "vision.")
"""Prefixes of the names of tensors that only images and audio need."""
_FURTHER_TOKENS = ".nextn."
_DIVISORS = "rope_freqs.weight"

logger = getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PlacedMatrix:
    """The place of a matrix in packed memory. `type` is GGML's number; rows are outputs, columns inputs."""

    type: int
    rows: int
    columns: int
    offset: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class PlacedVector:
    """The place of a vector of float32 in packed memory. `size` counts floats, without padding."""

    size: int
    offset: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Layout:
    """The place of every part of a model in packed memory, in the order of the computation."""

    matrices: Mapping[Linear, PlacedMatrix]
    norms: Mapping[Norm, PlacedVector]
    biases: Mapping[Linear, PlacedVector]
    """The bias of each matrix that has one."""
    scales: Mapping[Linear, PlacedVector]
    """The scale of each matrix that has one."""
    num_bytes: int
    lent: Mapping[str, PlacedMatrix] = field(default_factory=dict[str, PlacedMatrix])
    """In a draft head's layout: the matrices of `DecoderSpec.lent`, in the packed memory of the target model."""


def can_be_plain(entry: TensorEntry) -> bool:
    """Whether the elements of a tensor can be converted to floats."""
    return entry.type.name in FLOAT_TYPES or _native.can_pack(entry.type.number, entry.shape[0])


def plan_layout(spec: DecoderSpec, parts: ModelParts, lender: Layout | None = None) -> Layout:
    """Assigns a place to every matrix and vector that `spec` names.

    Args:
        spec: the model, or a draft head in a file of its own.
        parts: the files of that model or draft head.
        lender: layout of the target model, whose matrices a draft head uses (`DecoderSpec.lent`).

    Raises:
        ModelFileInvalid: a tensor is missing, or its shape differs from the metadata.
        ModelUnsupported: a tensor's type has no kernel; or the file has tensors that the model does not use.
    """
    _check_all_are_used(spec, parts)
    place = _Place()
    num_rows = Counter[str]()
    for linear in spec.linears:
        num_rows[linear.weight] += linear.num_rows_in_file
    matrices = {linear: place.matrix(linear, _check_linear(parts, linear, num_rows)) for linear in spec.linears}
    norms: dict[Norm, PlacedVector] = {}
    for norm in spec.norms:
        if norm not in norms:
            size = norm.size // max(1, len(norm.parts))
            first = norm.taps or size // norm.num_stacked
            for name in (*norm.parts, norm.bias):
                if name is not None:
                    _check_vector(parts, name, first, size // first)
            norms[norm] = place.vector(norm.num_floats)
    biases = {linear: place.vector(linear.num_rows) for linear in matrices if linear.bias}
    lent = {} if lender is None else {name: lender.matrices[getattr(spec, name)] for name in spec.lent}
    scales = {linear: place.vector(1) for linear in matrices if linear.scale}
    return Layout(matrices, norms, biases, scales, place.end, lent)


def _packed_type(linear: Linear, entry: TensorEntry) -> int:
    """Transposes are packed as floats: a quantized block of a row would be spread over many rows."""
    if not linear.turned_columns:
        return entry.type.number
    return F32 if entry.type.name in ("F32", "BF16") else F16


class _Place:
    """Allocates places in packed memory one after the other. `end` is the next free byte."""

    def __init__(self) -> None:
        self.end = 0

    def matrix(self, linear: Linear, entry: TensorEntry) -> PlacedMatrix:
        kind = _packed_type(linear, entry)
        num_bytes = _native.packed_bytes(kind, linear.num_rows, linear.num_columns)
        return PlacedMatrix(kind, linear.num_rows, linear.num_columns, self._take(num_bytes), num_bytes)

    def vector(self, size: int) -> PlacedVector:
        num_bytes = 4 * _VECTOR_GRANULE * -(-size // _VECTOR_GRANULE)
        return PlacedVector(size, self._take(num_bytes), num_bytes)

    def _take(self, num_bytes: int) -> int:
        offset = self.end
        self.end += -(-num_bytes // ALIGNMENT) * ALIGNMENT
        return offset


def _check_all_are_used(spec: DecoderSpec, parts: ModelParts) -> None:
    linears = spec.linears
    used = {name for linear in linears for name in (linear.weight, linear.bias, linear.scale)} | spec.unused
    used |= {name for norm in spec.norms for name in (*norm.parts, norm.bias)}
    more = sorted(parts.tensors.keys() - used)
    unknown = [name for name in more if not _changes_nothing(parts, name)]
    if more and not unknown:
        logger.debug("%s: %d tensors are not used, such as `%s`", parts.first.path.name, len(more), more[0])
    if unknown:
        more = f" and {len(unknown) - 3} more" if len(unknown) > 3 else ""
        path = parts.first.path
        raise ModelUnsupported(
            f"the native executor cannot run {path}: it does not support the tensors {', '.join(unknown[:3])}{more}",
            path=str(path),
        )


def _changes_nothing(parts: ModelParts, name: str) -> bool:
    """Whether a tensor that the architecture does not use can be ignored without changing logits of texts."""
    if name == _DIVISORS and parts.tensors[name].type.name in FLOAT_TYPES:
        return bool((parts.floats(name) == 1).all())
    is_of_inputs = name.endswith(".input_scale")  # for activations that GPUs round to four bits
    return name.startswith(_NO_TEXT) or (name.startswith("blk.") and (_FURTHER_TOKENS in name or is_of_inputs))


def _check_linear(parts: ModelParts, linear: Linear, num_rows: Counter[str]) -> TensorEntry:
    """Checks that the matrices of a tensor cover all of its rows; otherwise a part of it would be lost."""
    rows, stacked = num_rows[linear.weight] // linear.num_stacked, linear.num_stacked
    entry = _tensor(parts, linear.weight, (linear.columns_in_file, rows, stacked))
    if entry.type.name in _NO_WEIGHTS:
        path = parts.first.path
        raise ModelFileInvalid(
            f"{path} cannot be used: `{linear.weight}` is of type {entry.type.name}, not a weight type",
            path=str(path),
        )
    if not _native.can_pack(entry.type.number, linear.columns_in_file):
        path = parts.first.path
        raise ModelUnsupported(
            f"the native executor cannot run {path}: it has no kernels for `{linear.weight}`, of type "
            f"{entry.type.name} with rows of {linear.columns_in_file}",
            path=str(path),
        )
    if linear.bias:
        _check_vector(parts, linear.bias, rows, stacked)
    if linear.scale:
        _check_vector(parts, linear.scale, 1)
    return entry


def _check_vector(parts: ModelParts, name: str, *shape: int) -> None:
    """A vector of several rows may be of any type, because converters quantize it like a matrix."""
    entry = _tensor(parts, name, shape)
    if not can_be_plain(entry) or (entry.type.name not in FLOAT_TYPES and len(_without_ones(shape)) == 1):
        path = parts.first.path
        raise ModelUnsupported(
            f"the native executor cannot run {path}: the vector `{name}` is of type {entry.type.name}, not a float",
            path=str(path),
        )


def _without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(size for size in shape if size != 1)


def _tensor(parts: ModelParts, name: str, shape: tuple[int, ...]) -> TensorEntry:
    entry = parts.tensors.get(name)
    path = parts.first.path
    if entry is None:
        raise ModelFileInvalid(f"{path} cannot be used: it has no tensor `{name}`", path=str(path))
    wanted = _without_ones(shape)
    if _without_ones(entry.shape) != wanted:
        raise ModelFileInvalid(
            f"{path} cannot be used: tensor `{name}` has the shape {list(entry.shape)}, not {list(wanted)}",
            path=str(path),
        )
    return entry

"""The roles of a decoder graph's inputs and outputs, from their names, types and shapes. No session is needed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Literal, NoReturn, TypeAlias

import numpy as np

from stoker.backends.onnx.file import GraphFile, GraphValue
from stoker.errors import ModelFileInvalid, ModelUnsupported

_PAST = re.compile(r"past(?:_key_values)?[._](\d+)[._](key|value)|past_(keys?|values?)(?:_self)?[._](\d+)")
_PRESENT = re.compile(r"present(?:_key_values)?[._](\d+)[._](key|value)|present_(keys?|values?)(?:_self)?[._](\d+)")
_OURS = "stoker.rows"
"""Name of an input that Stoker adds to graphs; no exporter uses this name."""
_INPUTS = {
    "input_ids": ("ids", 2),
    "inputs_embeds": ("embeds", 3),
    "attention_mask": ("mask", 2),
    "position_ids": ("positions", 2),
    "cache_position": ("cache_positions", 1),
    "num_logits_to_keep": ("kept_rows", None),
    "logits_to_keep": ("kept_rows", None),
    _OURS: ("rows", 1),
    "token_type_ids": ("token_types", 2),
    "use_cache_branch": ("cache_branch", 1),
    "seqlens_k": ("last_positions", None),
    "total_sequence_length": ("total", None),
}
"""The role and the number of dimensions of each input, by the name that exporters use; None = any number."""
_INTEGERS = ("int64", "int32")
_KV_TYPES = ("float32", "float16")
_TYPES = {"use_cache_branch": ("bool",), "inputs_embeds": _KV_TYPES}
"""Types of inputs that are not integers."""
_AXES = 3
"""With M-RoPE, which rotates rows of images by their places: dimensions of `position_ids`, and size of the first."""
_IN_PLACE = ("com.microsoft", "GroupQueryAttention")
_KNOWN_DOMAINS = {"", "ai.onnx.ml", "com.microsoft", "com.microsoft.nchwc", "com.ms.internal.nhwc", "org.pytorch.aten"}

Role: TypeAlias = Literal[
    "ids",
    "embeds",
    "mask",
    "positions",
    "cache_positions",
    "kept_rows",
    "rows",
    "token_types",
    "cache_branch",
    "last_positions",
    "total",
]
_OF_CACHES: frozenset[Role] = frozenset({"cache_branch", "last_positions", "total"})
"""Roles of inputs that have a meaning only with a KV cache."""
Chunks: TypeAlias = Literal["any", "first", "never"]
"""Whether one run can compute several tokens of a sequence: always, only from its beginning on, or never."""


@dataclass(frozen=True, slots=True)
class Port:
    """One input or output of a graph, with a known role."""

    name: str
    type: np.dtype[np.generic]
    rank: int
    """Number of dimensions."""


@dataclass(frozen=True, slots=True)
class KVTensor:
    """Input (`past`) and output (`present`) of a layer's keys or values, `(sequences, heads, positions, head size)`."""

    past: str
    present: str
    num_heads: int
    head_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """The roles of all inputs and outputs of a decoder graph, and what its runs can compute."""

    inputs: dict[Role, Port]
    logits: Port
    vocab_size: int
    gives_all_rows: bool
    """Whether the graph returns logits of every position; otherwise it returns those of the last position only."""
    kv: tuple[KVTensor, ...]
    """Keys and values in turn, layer by layer. Empty = the graph has no KV cache, and takes whole sequences."""
    kv_type: np.dtype[np.generic]
    is_in_place: bool
    """Whether every attention writes new positions into the buffer that holds the old ones."""
    chunks: Chunks = "any"
    one_sequence: bool = False
    """Whether a run can compute only one sequence."""
    row_width: int = 0
    """Elements of an input embedding that the graph takes in place of a token id; 0 = it takes token ids."""

    @property
    def has_axes(self) -> bool:
        """Whether a position consists of a time, a row and a column (M-RoPE)."""
        return "positions" in self.inputs and self.inputs["positions"].rank == _AXES

    @property
    def can_pad(self) -> bool:
        """Whether one run can compute sequences of different lengths."""
        if "cache_positions" in self.inputs or self.one_sequence or not self.kv:
            return False
        return self.is_in_place or {"mask", "positions"} <= self.inputs.keys()

    @property
    def can_choose_rows(self) -> bool:
        """Whether an input tells the graph which rows of logits to compute."""
        return not {"kept_rows", "rows"}.isdisjoint(self.inputs)

    @property
    def can_give_all_rows(self) -> bool:
        """Whether one run can return several rows of logits of a sequence."""
        return self.gives_all_rows or self.can_choose_rows

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of KV for one token, over all layers."""
        return self.kv_type.itemsize * sum(tensor.num_heads * tensor.head_size for tensor in self.kv)


@dataclass(frozen=True, slots=True)
class _Value:
    name: str
    type: str
    shape: tuple[int | str, ...]


@dataclass(frozen=True, slots=True)
class _Usual:
    """A graph whose inputs and outputs have the names that exporters usually give."""

    path: Path
    inputs: tuple[GraphValue, ...]
    outputs: tuple[GraphValue, ...]
    operators: Mapping[tuple[str, str], int]


def read_signature(
    graph: GraphFile,
    *,
    names: Mapping[str, str] = MappingProxyType({}),
    num_kv_heads: int | None = None,
    head_size: int | None = None,
    vocab_size: int | None = None,
    hidden_size: int | None = None,
) -> Signature:
    """Determines the role of every input and output of a decoder graph.

    Args:
        graph: the file.
        names: the usual name of each input or output that has another name in this graph, by that name.
        num_kv_heads: number of heads of keys and values; this and the other sizes apply where the graph has none.
        head_size: elements of a head of keys and values.
        vocab_size: columns of the logits.
        hidden_size: elements of an input embedding.

    Raises:
        ModelUnsupported: the role of an input is unknown, or the domain of an operator; the message names it.
        ModelFileInvalid: the graph contradicts itself.
    """
    usual = _Usual(graph.path, _renamed(graph.inputs, names), _renamed(graph.outputs, names), graph.operators)
    found = _place(usual, num_kv_heads, head_size, vocab_size, hidden_size)
    own = {usual: name for name, usual in names.items()}
    return replace(
        found,
        inputs={role: replace(port, name=own.get(port.name, port.name)) for role, port in found.inputs.items()},
        logits=replace(found.logits, name=own.get(found.logits.name, found.logits.name)),
        kv=tuple(
            replace(kv, past=own.get(kv.past, kv.past), present=own.get(kv.present, kv.present)) for kv in found.kv
        ),
    )


def _renamed(values: Sequence[GraphValue], names: Mapping[str, str]) -> tuple[GraphValue, ...]:
    return tuple(_Value(names.get(value.name, value.name), value.type, value.shape) for value in values)


def _place(
    graph: _Usual,
    num_kv_heads: int | None,
    head_size: int | None,
    vocab_size: int | None,
    hidden_size: int | None,
) -> Signature:
    _check_operators(graph)
    roles: dict[Role, Port] = {}
    pasts: dict[tuple[int, str], GraphValue] = {}
    for value in graph.inputs:
        layer = _layer(_PAST, value.name)
        if layer is not None:
            pasts[layer] = value
        else:
            role = _role(graph, value)
            roles[role] = Port(value.name, np.dtype(value.type), len(value.shape))
    if {"ids", "embeds"}.isdisjoint(roles):
        _refuse(graph, "it has neither `input_ids` nor `inputs_embeds`: it is not a language model")
    if "embeds" in roles and not pasts:
        _refuse(
            graph, "it takes `inputs_embeds`, but no `past_key_values.…`: such graphs are computed with a cache only"
        )
    if not pasts and (with_cache := sorted(roles.keys() & _OF_CACHES)):
        _refuse(
            graph, f"it has no inputs `past_key_values.…`, but `{roles[with_cache[0]].name}`, which belongs to a cache"
        )
    logits, columns = _logits(graph, vocab_size)
    kv_type = _kv_type(graph, list(pasts.values()))
    is_in_place = bool(pasts) and graph.operators.get(_IN_PLACE, 0) * 2 >= len(pasts)
    if is_in_place and {"mask", "last_positions"}.isdisjoint(roles):
        _refuse(graph, "its GroupQueryAttention takes no lengths: it has neither `attention_mask` nor `seqlens_k`")
    return Signature(
        inputs=roles,
        logits=Port(logits.name, np.dtype(logits.type), len(logits.shape)),
        vocab_size=columns,
        gives_all_rows=logits.shape[1] != 1,
        kv=_pair(graph, pasts, num_kv_heads, head_size),
        kv_type=kv_type,
        is_in_place=is_in_place,
        chunks=_chunks(graph),
        one_sequence=_has_one_sequence(graph),
        row_width=_row_width(graph, hidden_size) if "embeds" in roles else 0,
    )


def _row_width(graph: _Usual, hidden_size: int | None) -> int:
    width = _number(_entries(graph).shape[2], hidden_size)
    if width is None:
        _refuse(graph, "neither its input `inputs_embeds` nor `config.json` says how wide it is")
    return width


def _chunks(graph: _Usual) -> Chunks:
    """A graph with two branches takes several tokens only at first: the other branch was traced with a single token."""
    if any(value.name == "use_cache_branch" for value in graph.inputs):
        return "first"
    return "never" if _entries(graph).shape[1] == 1 else "any"


def _has_one_sequence(graph: _Usual) -> bool:
    found = _entries(graph)
    if any(isinstance(size, int) and size != 1 for size in found.shape[:2]):
        shape = list(found.shape)
        _refuse(graph, f"its input `{found.name}` is {shape}: sizes that cannot vary, but for 1, are not supported")
    return found.shape[0] == 1


def _entries(graph: _Usual) -> GraphValue:
    """The input for entries, `(sequences, entries)` of token ids, or `(sequences, entries, width)` of embeddings."""
    return next(value for value in graph.inputs if value.name in ("input_ids", "inputs_embeds"))


def _check_operators(graph: _Usual) -> None:
    unknown = sorted(f"{domain}:{name}" for domain, name in graph.operators if domain not in _KNOWN_DOMAINS)
    if unknown:
        _refuse(graph, f"it needs custom operators that ONNX Runtime does not have: {', '.join(unknown)}")


def _role(graph: _Usual, value: GraphValue) -> Role:
    found = _INPUTS.get(value.name)
    if found is None:
        known = ", ".join(f"`{name}`" for name in _INPUTS if name != _OURS)
        _refuse(graph, f"its input `{value.name}` has no known meaning (known: {known}, `past_key_values.N.key`)")
    role, rank = found
    if (
        role == "positions"
        and len(value.shape) == _AXES
        and (isinstance(value.shape[0], str) or value.shape[0] == _AXES)
    ):
        rank = _AXES
    if value.type not in _TYPES.get(value.name, _INTEGERS) or (rank is not None and len(value.shape) != rank):
        _refuse(graph, f"its input `{value.name}` is {value.type} {list(value.shape)}, which is not understood")
    return role  # pyright: ignore[reportReturnType] - the table's strings are roles


def _layer(pattern: re.Pattern[str], name: str) -> tuple[int, str] | None:
    """Number of the layer and kind of the tensor: `past_key_values.3.key` -> (3, "key"). None = not a KV tensor."""
    match = pattern.fullmatch(name)
    if match is None:
        return None
    return int(match[1] or match[4]), (match[2] or match[3]).removesuffix("s")


def _logits(graph: _Usual, vocab_size: int | None) -> tuple[GraphValue, int]:
    value = next((value for value in graph.outputs if value.name == "logits"), None)
    if value is None:
        names = ", ".join(output.name for output in graph.outputs)
        _refuse(graph, f"it has no output `logits` (its outputs: {names})")
    columns = value.shape[-1] if len(value.shape) == 3 else None
    columns = columns if isinstance(columns, int) else vocab_size
    if value.type not in _KV_TYPES or columns is None:
        _refuse(graph, f"its output `logits` is {value.type} {list(value.shape)}, which is not understood")
    return value, columns


def _pair(
    graph: _Usual, pasts: dict[tuple[int, str], GraphValue], num_kv_heads: int | None, head_size: int | None
) -> tuple[KVTensor, ...]:
    presents = {layer: value for value in graph.outputs if (layer := _layer(_PRESENT, value.name)) is not None}
    found: list[KVTensor] = []
    for layer in sorted(pasts):
        past, present = pasts[layer], presents.get(layer)
        if present is None:
            _fail(graph, f"its input `{past.name}` has no output of its kind")
        if len(past.shape) != 4:
            _refuse(graph, f"its input `{past.name}` is {list(past.shape)}, not (sequences, heads, positions, size)")
        if isinstance(past.shape[2], int):
            _refuse(graph, f"its input `{past.name}` is {list(past.shape)}: its number of positions cannot vary")
        _check_alike(graph, past, present)
        heads, size = _number(past.shape[1], num_kv_heads), _number(past.shape[3], head_size)
        if heads is None or size is None:
            _refuse(graph, f"neither its input `{past.name}` nor `config.json` says how many heads of which size")
        found.append(KVTensor(past.name, present.name, heads, size))
    return tuple(found)


def _check_alike(graph: _Usual, past: GraphValue, present: GraphValue) -> None:
    pairs = [(past.shape[axis], present.shape[axis]) for axis in (1, 3)] if len(present.shape) == 4 else []
    if past.type != present.type or any(isinstance(b, int) and isinstance(a, int) and a != b for a, b in pairs):
        what = (
            f"`{past.name}` is {past.type} {list(past.shape)}, `{present.name}` is {present.type} {list(present.shape)}"
        )
        _fail(graph, what)


def _number(dimension: int | str, fallback: int | None) -> int | None:
    return dimension if isinstance(dimension, int) else fallback


def _kv_type(graph: _Usual, pasts: Sequence[GraphValue]) -> np.dtype[np.generic]:
    kinds = {value.type for value in pasts} or {"float32"}
    if len(kinds) != 1 or not kinds <= set(_KV_TYPES):
        _refuse(graph, f"its keys and values are {', '.join(sorted(kinds))}; known are {' and '.join(_KV_TYPES)}")
    return np.dtype(kinds.pop())


def _refuse(graph: _Usual, what: str) -> NoReturn:
    raise ModelUnsupported(f"{graph.path} cannot be run: {what}", path=str(graph.path))


def _fail(graph: _Usual, what: str) -> NoReturn:
    raise ModelFileInvalid(f"{graph.path} contradicts itself: {what}", path=str(graph.path))

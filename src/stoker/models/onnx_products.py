"""Lets a graph compute its packed products with an operator of Stoker's, not ONNX Runtime's. The file stays as it is.

```
com.microsoft:MatMulNBits(x, codes, scales)  ──>  stoker:BlockProduct(x, codes, scales)     inputs, attributes: the same
```
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import cast

from stoker.models.onnx_graph import OnnxGraph
from stoker.models.protobuf import Field, Message, fields, spell

_GRAPH, _OPERATOR_SET, _NODE, _INITIALIZER = 7, 8, 1, 5
_INPUT, _OPERATOR, _ATTRIBUTE, _DOMAIN = 1, 4, 5, 7
_FLOAT, _UINT8, _EXTERNAL = 1, 2, 1
_PACKED = "MatMulNBits"
_OURS, _OUR_DOMAIN = "BlockProduct", "stoker"
_BLOCKS: Mapping[int, tuple[int, ...]] = {4: (32, 64, 128), 8: (16, 32, 64, 128)}
"""Sizes of blocks that there are kernels for, by the bits of a code."""
_MIN_INPUTS = 32
_UNDERSTOOD = {"bits", "block_size", "K", "N", "accuracy_level"}
"""Any other attribute may say that the codes lie otherwise, as `weight_prepacked` does."""
_EXACT = 1
"""The `accuracy_level` that asks for inputs that are not rounded."""
_MAX_FILE_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class _Constant:
    kind: int
    size: int
    """In elements."""
    is_beside: bool
    """In another file, so that it is mapped: packing it anew does not leave two copies in memory."""


def own_products(graph: OnnxGraph) -> OnnxGraph:
    """The same graph with `own_content`: itself with our operator; as it was, if it has no product that this can take.

    Not taken are products with zero points, without rounding, with blocks of other sizes, and those whose codes lie in
    the file itself, where two copies of them would stay in memory; ONNX Runtime computes those.

    Args:
        graph: read from a file without an error.
    """
    has_some = ("com.microsoft", _PACKED) in graph.operators and len(graph.weight_files) > 1
    if not has_some or _size(graph) > _MAX_FILE_BYTES:
        return graph
    data = memoryview(graph.content or graph.path.read_bytes())
    place = next(field for field in fields(data) if field.number == _GRAPH)
    changed = _changed(cast(memoryview, place.value))
    if changed is None:
        return graph
    domain = spell(_OPERATOR_SET, spell(1, _OUR_DOMAIN) + spell(2, 1))
    return replace(
        graph, own_content=data[: place.begin].tobytes() + spell(_GRAPH, changed) + data[place.end :] + domain
    )


def _size(graph: OnnxGraph) -> int:
    return len(graph.content) if graph.content else Path(graph.path).stat().st_size


def _changed(graph: memoryview) -> bytes | None:
    parts = list(fields(graph))
    constants = dict(_constant(part) for part in parts if part.number == _INITIALIZER)
    taken = {part for part in parts if part.number == _NODE and _can_take(part.message, constants)}
    if not taken:
        return None
    return b"".join(_with_ours(part) if part in taken else graph[part.begin : part.end] for part in parts)


def _constant(part: Field) -> tuple[str, _Constant]:
    tensor = part.message
    return tensor.text(8), _Constant(tensor.integer(2), prod(tensor.integers(1)), tensor.integer(14) == _EXTERNAL)


def _can_take(node: Message, constants: Mapping[str, _Constant]) -> bool:
    inputs = node.texts(_INPUT)
    while inputs and not inputs[-1]:
        inputs.pop()
    if node.text(_OPERATOR) != _PACKED or len(inputs) != 3:
        return False
    sizes = {attribute.text(1): attribute.integer(3) for attribute in node.messages(_ATTRIBUTE)}
    if not sizes.keys() <= _UNDERSTOOD:
        return False
    bits, block, columns, rows = (sizes.get(name, 0) for name in ("bits", "block_size", "K", "N"))
    if block not in _BLOCKS.get(bits, ()) or columns % max(block, _MIN_INPUTS) or sizes.get("accuracy_level") == _EXACT:
        return False
    codes, scales = constants.get(inputs[1]), constants.get(inputs[2])
    if codes is None or scales is None or not codes.is_beside:
        return False
    return (codes.kind, codes.size) == (_UINT8, rows * columns * bits // 8) and (scales.kind, scales.size) == (
        _FLOAT,
        rows * columns // block,
    )


def _with_ours(part: Field) -> bytes:
    view = cast(memoryview, part.value)
    kept = (view[field.begin : field.end] for field in fields(view) if not _is_left_out(field))
    return spell(_NODE, b"".join(kept) + spell(_OPERATOR, _OURS) + spell(_DOMAIN, _OUR_DOMAIN))


def _is_left_out(field: Field) -> bool:
    """Names of the other operator, and inputs without a name: those behind the third, which ours does not have."""
    return field.number in (_OPERATOR, _DOMAIN) or (field.number == _INPUT and not field.value)

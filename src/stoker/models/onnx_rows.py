"""Makes a graph give the logits of chosen positions only, where it would give those of all. The file stays as it is.

```
hidden (B, S, H) ──────────────────> head ──> logits (B, S, V)
hidden (B, S, H) ──> Gather(rows) ──> head ──> logits (B, R, V)        what is computed instead
```

Of a prompt only the last position matters, and in small models the head is half of all arithmetic.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from stoker.models.onnx_graph import GraphValue, OnnxGraph
from stoker.models.protobuf import Field, edited, fields, spell

ROWS = "stoker.rows"
"""The input that says which positions, `(R,)`."""

_CHOSEN = "stoker.chosen"
_COUNT = "stoker.num_rows"
_GRAPH, _NODE, _CONSTANT, _INPUT, _OUTPUT = 7, 1, 5, 11, 12
_HEADS = {"MatMul", "MatMulNBits", "MatMulInteger", "MatMulIntegerToFloat", "DynamicQuantizeMatMul", "FusedMatMul"}
_ELEMENTWISE = {"Cast", "Mul", "Div", "Add", "Tanh", "Identity"}
_QUANTISING = {"DynamicQuantizeLinear", "QuantizeLinear", "DequantizeLinear"}
_ROW_BY_ROW = _ELEMENTWISE | _QUANTISING
"""What may stand before the head and between it and the logits: no position needs another one's numbers. (Those that
find a scale for all positions find a better one for fewer.)"""
_MAX_STEPS = 12
_MAX_FILE_BYTES = 256 << 20
_INT64, _INTEGER = 7, 2
"""`TensorProto.INT64`, `AttributeProto.INT`."""


@dataclass(frozen=True, slots=True)
class _Node:
    field: Field
    operator: str
    inputs: list[str]
    """Names of the inputs that are present."""
    outputs: list[str]


@dataclass(frozen=True, slots=True)
class _End:
    """The part of a graph that turns positions into logits."""

    source: str
    """All that it takes from the rest."""
    readers: list[_Node]
    """Who takes it there, in their order."""


def choose_rows(graph: OnnxGraph) -> OnnxGraph:
    """The same graph with an input `ROWS` and, as `content`, the changed file; as it was, if its end is not understood.

    Args:
        graph: read from a file without an error.
    """
    logits = next((value for value in graph.outputs if value.name == "logits"), None)
    has_choice = any("logits_to_keep" in value.name for value in graph.inputs)
    is_small = graph.path.stat().st_size <= _MAX_FILE_BYTES
    if logits is None or len(logits.shape) != 3 or logits.shape[1] == 1 or has_choice or not is_small:
        return graph
    content = _rewritten(graph.path)
    if content is None:
        return graph
    return replace(graph, inputs=(*graph.inputs, GraphValue(ROWS, "int64", (_COUNT,))), content=content)


def _rewritten(path: Path) -> bytes | None:
    data = memoryview(path.read_bytes())
    place = next(field for field in fields(data) if field.number == _GRAPH)
    graph = cast(memoryview, place.value)
    parts = list(fields(graph))
    end = _find_end(parts)
    output = next(part for part in parts if part.number == _OUTPUT and part.message.text(1) == "logits")
    if end is None:
        return None
    edits = {node.field: _with_chosen(node, end.source) for node in end.readers}
    edits[end.readers[0].field] = _gather(end.source) + edits[end.readers[0].field]
    edits[output] = _with_rows(output)
    changed = b"".join(edits.get(part, graph[part.begin : part.end]) for part in parts)
    changed += spell(_INPUT, _value_info(ROWS, _INT64, spell(1, spell(2, _COUNT))))
    return bytes(data[: place.begin]) + spell(_GRAPH, changed) + bytes(data[place.end :])


def _find_end(parts: list[Field]) -> _End | None:
    """From the logits backwards, the last first, until behind the head all comes from one tensor."""
    names = {part.message.text(8) for part in parts if part.number == _CONSTANT}
    nodes = [_node(part) for part in parts if part.number == _NODE]
    for node in nodes:
        if names.issuperset(node.inputs):
            names.update(node.outputs)
    order = {name: index for index, node in enumerate(nodes) for name in node.outputs}
    open_names, found, has_head = {"logits"}, list[_Node](), False
    while open_names <= order.keys() and len(found) < _MAX_STEPS:
        if has_head and len(open_names) == 1:
            source = open_names.pop()
            return _End(source, [node for node in reversed(found) if source in node.inputs])
        node = nodes[max(order[name] for name in open_names)]
        is_head = node.operator in _HEADS and node.inputs[1] in names
        if not is_head and node.operator not in _ROW_BY_ROW:
            return None
        has_head |= is_head
        found.append(node)
        open_names = (open_names - set(node.outputs)) | {name for name in node.inputs if name not in names}
    return None


def _node(part: Field) -> _Node:
    message = part.message
    return _Node(part, message.text(4), [name for name in message.texts(1) if name], message.texts(2))


def _gather(source: str) -> bytes:
    axis = spell(1, "axis") + spell(3, 1) + spell(20, _INTEGER)
    node = spell(1, source) + spell(1, ROWS) + spell(2, _CHOSEN) + spell(4, "Gather") + spell(5, axis)
    return spell(_NODE, node)


def _with_chosen(node: _Node, source: str) -> bytes:
    """The node with the chosen rows in the place of all."""
    view, names = cast(memoryview, node.field.value), {source.encode(): _CHOSEN.encode()}
    return spell(_NODE, edited(view, 1, lambda name: names.get(bytes(name), bytes(name))))


def _with_rows(output: Field) -> bytes:
    """The output's shape says that its rows are others than those of the input."""
    tensor = next(next(output.message.messages(2)).messages(1))
    dims = [dim for shape in tensor.messages(2) for dim in shape.messages(1)]
    sizes: list[Mapping[int, str | int]] = [{2: dim.text(2)} if dim.text(2) else {1: dim.integer(1)} for dim in dims]
    sizes[1] = {2: _COUNT}
    shape = b"".join(spell(1, b"".join(spell(*pair) for pair in size.items())) for size in sizes)
    return spell(_OUTPUT, _value_info("logits", tensor.integer(1), shape))


def _value_info(name: str, kind: int, dims: bytes) -> bytes:
    return spell(1, name) + spell(2, spell(1, spell(1, kind) + spell(2, dims)))

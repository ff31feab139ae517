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
from stoker.models.protobuf import Field, Message, fields, spell

ROWS = "stoker.rows"
"""The input that says which positions, `(R,)`."""

_CHOSEN = "stoker.chosen"
_COUNT = "stoker.num_rows"
_GRAPH, _NODE, _INPUT, _OUTPUT = 7, 1, 11, 12
_HEADS = {"MatMul", "MatMulNBits"}
_ELEMENTWISE = {"Cast", "Mul", "Div", "Add", "Tanh", "Identity"}
"""What may stand between the head and the logits."""
_MAX_STEPS = 8
_MAX_FILE_BYTES = 256 << 20
_INT64, _INTEGER = 7, 2
"""`TensorProto.INT64`, `AttributeProto.INT`."""


@dataclass(frozen=True, slots=True)
class _Node:
    field: Field
    operator: str
    inputs: list[str]


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
    head = _find_head(parts)
    output = next(part for part in parts if part.number == _OUTPUT and _message(part).text(1) == "logits")
    if head is None:
        return None
    edits = {head.field: _gather(head.inputs[0]) + _with_first_input(head), output: _with_rows(output)}
    changed = b"".join(edits.get(part, graph[part.begin : part.end]) for part in parts)
    changed += spell(_INPUT, _value_info(ROWS, _INT64, spell(1, spell(2, _COUNT))))
    return bytes(data[: place.begin]) + spell(_GRAPH, changed) + bytes(data[place.end :])


def _find_head(parts: list[Field]) -> _Node | None:
    """The product that makes the logits, if nothing but elementwise steps comes after it."""
    producers: dict[str, _Node] = {}
    for part in parts:
        if part.number == _NODE:
            message = _message(part)
            node = _Node(part, message.text(4), message.texts(1))
            producers |= dict.fromkeys(message.texts(2), node)
    name = "logits"
    for _ in range(_MAX_STEPS):
        node = producers.get(name)
        if node is None or node.operator in _HEADS:
            return node if node is not None and node.inputs[0] in producers else None
        computed = [source for source in node.inputs if source in producers]
        if node.operator not in _ELEMENTWISE or len(computed) != 1:
            return None
        name = computed[0]
    return None


def _gather(source: str) -> bytes:
    axis = spell(1, "axis") + spell(3, 1) + spell(20, _INTEGER)
    node = spell(1, source) + spell(1, ROWS) + spell(2, _CHOSEN) + spell(4, "Gather") + spell(5, axis)
    return spell(_NODE, node)


def _with_first_input(head: _Node) -> bytes:
    view = cast(memoryview, head.field.value)
    names = iter([_CHOSEN, *head.inputs[1:]])
    changed = b"".join(
        spell(1, next(names)) if field.number == 1 else bytes(view[field.begin : field.end]) for field in fields(view)
    )
    return spell(_NODE, changed)


def _with_rows(output: Field) -> bytes:
    """The output's shape says that its rows are others than those of the input."""
    tensor = next(next(_message(output).messages(2)).messages(1))
    dims = [dim for shape in tensor.messages(2) for dim in shape.messages(1)]
    sizes: list[Mapping[int, str | int]] = [{2: dim.text(2)} if dim.text(2) else {1: dim.integer(1)} for dim in dims]
    sizes[1] = {2: _COUNT}
    shape = b"".join(spell(1, b"".join(spell(*pair) for pair in size.items())) for size in sizes)
    return spell(_OUTPUT, _value_info("logits", tensor.integer(1), shape))


def _value_info(name: str, kind: int, dims: bytes) -> bytes:
    return spell(1, name) + spell(2, spell(1, spell(1, kind) + spell(2, dims)))


def _message(field: Field) -> Message:
    return Message(cast(memoryview, field.value))

"""The roles of inputs and outputs of an encoder's graph, which maps whole texts to states, embeddings or scores."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, NoReturn, TypeAlias

import numpy as np

from stoker.backends.onnx.file import GraphFile, GraphValue
from stoker.backends.onnx.signature import Port
from stoker.errors import ModelUnsupported

Gives: TypeAlias = Literal["states", "embedding", "score"]
"""What an encoder returns: hidden states of all tokens, one embedding for each text, or one number for each text."""

EncoderRole: TypeAlias = Literal["ids", "mask", "token_types", "positions"]

_INPUTS: Mapping[str, EncoderRole] = MappingProxyType(
    {
        "input_ids": "ids",
        "attention_mask": "mask",
        "token_type_ids": "token_types",
        "position_ids": "positions",
    }
)
_PAST = re.compile(r"past(?:_key_values)?[._]\d+[._](?:key|value)")
_POOLED = "sentence_embedding"
_STATES = ("last_hidden_state", "token_embeddings", "hidden_states")
_SCORES = "logits"
_INTEGERS = ("int64", "int32")
_FLOATS = ("float32", "float16")


@dataclass(frozen=True, slots=True)
class EmptyPast:
    """An input for past keys or values, which some encoders have although no text has a past. It gets 0 positions."""

    name: str
    type: np.dtype[np.generic]
    num_heads: int
    head_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderSignature:
    """The inputs and the output with which an encoder is run."""

    inputs: Mapping[EncoderRole, Port]
    pasts: tuple[EmptyPast, ...]
    output: str
    gives: Gives
    size: int
    """Elements of one embedding; 1 for a score."""


def is_encoder(graph: GraphFile) -> bool:
    """Whether the outputs of a graph are hidden states, embeddings or scores of texts, and not logits of tokens."""
    outputs = {value.name: value for value in graph.outputs}
    scores = outputs.get(_SCORES)
    if scores is not None:
        return len(scores.shape) == 2
    return not outputs.keys().isdisjoint((_POOLED, *_STATES))


def read_encoder_signature(
    graph: GraphFile, *, size: int | None, num_kv_heads: int | None, head_size: int | None, takes_states: bool
) -> EncoderSignature:
    """Determines the role of every input, and the output to use.

    Args:
        graph: an encoder.
        size: elements of an embedding; this and the other sizes apply where the graph does not state them.
        num_kv_heads: number of heads of past keys and values, which some graphs take.
        head_size: elements of a head of past keys and values.
        takes_states: whether hidden states are preferred to embeddings that the graph pools.

    Raises:
        ModelUnsupported: the role of an input is unknown, or the shape of the output; the message names it.
    """
    inputs: dict[EncoderRole, Port] = {}
    pasts: list[EmptyPast] = []
    for value in graph.inputs:
        if _PAST.fullmatch(value.name):
            pasts.append(_past(graph, value, num_kv_heads, head_size))
        else:
            inputs[_role(graph, value)] = Port(value.name, np.dtype(value.type), 2)
    if "ids" not in inputs:
        _refuse(graph, "it has no input `input_ids`")
    output, gives = _output(graph, takes_states=takes_states)
    columns = output.shape[-1] if isinstance(output.shape[-1], int) else size
    if columns is None or (gives == "score" and columns != 1):
        _refuse(graph, f"its output `{output.name}` is {output.type} {list(output.shape)}, which is not an embedding")
    return EncoderSignature(inputs=inputs, pasts=tuple(pasts), output=output.name, gives=gives, size=columns)


def _output(graph: GraphFile, *, takes_states: bool) -> tuple[GraphValue, Gives]:
    outputs = {value.name: value for value in graph.outputs}
    states: list[tuple[str, Gives]] = [(name, "states") for name in _STATES]
    pooled: list[tuple[str, Gives]] = [(_POOLED, "embedding")]
    scores: list[tuple[str, Gives]] = [(_SCORES, "score")]
    wanted = [*scores, *states, *pooled] if takes_states else [*scores, *pooled, *states]
    name = next(name for name, _ in wanted if name in outputs)
    gives: Gives = dict(wanted)[name]
    value = outputs[name]
    if len(value.shape) != (3 if gives == "states" else 2) or value.type not in _FLOATS:
        _refuse(graph, f"its output `{name}` is {value.type} {list(value.shape)}, which is not understood")
    return value, gives


def _role(graph: GraphFile, value: GraphValue) -> EncoderRole:
    role = _INPUTS.get(value.name)
    if role is None:
        known = ", ".join(f"`{name}`" for name in _INPUTS)
        _refuse(graph, f"its input `{value.name}` has no known meaning (known: {known})")
    varies = not any(isinstance(size, int) and size != 1 for size in value.shape)
    if value.type not in _INTEGERS or len(value.shape) != 2 or not varies:
        _refuse(graph, f"its input `{value.name}` is {value.type} {list(value.shape)}, which is not understood")
    return role


def _past(graph: GraphFile, value: GraphValue, num_kv_heads: int | None, head_size: int | None) -> EmptyPast:
    sizes = [(value.shape[1], num_kv_heads), (value.shape[3], head_size)] if len(value.shape) == 4 else []
    found = [given if isinstance(given, int) else known for given, known in sizes]
    if value.type not in _FLOATS or len(found) != 2 or found[0] is None or found[1] is None:
        _refuse(graph, f"its input `{value.name}` is {value.type} {list(value.shape)}, which is not understood")
    return EmptyPast(value.name, np.dtype(value.type), found[0], found[1])


def _refuse(graph: GraphFile, what: str) -> NoReturn:
    raise ModelUnsupported(f"{graph.path} cannot be run: {what}", path=str(graph.path))

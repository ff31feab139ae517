"""Metadata of GGUF files that tests write: each value in the type that writers of models give it."""

from collections.abc import Mapping
from typing import Any

from gguf import GGUFWriter


def write_values(writer: GGUFWriter, values: Mapping[str, Any]) -> None:
    """Adds whatever is not None; what is neither a text nor a number is an array."""
    for key, value in values.items():
        if isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif value is not None:
            writer.add_array(key, value)

"""Small, valid GGUF files written by the reference writer."""

from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFWriter

from tests.gguf_values import write_values


def write_tiny_gguf(path: Path, *, architecture: str = "llama", num_bytes: int = 256, **values: Any) -> Path:
    """A model without sense, with one tensor of `num_bytes` bytes. `values` are metadata: `a__b` is the key `a.b`."""
    writer = GGUFWriter(path, architecture)
    write_values(writer, {name.replace("__", "."): value for name, value in values.items()})
    writer.add_tensor("output.weight", np.arange(num_bytes // 4, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


SHAPE: dict[str, Any] = {
    "llama__block_count": 2,
    "llama__context_length": 2048,
    "llama__embedding_length": 64,
    "llama__attention__head_count": 8,
    "llama__attention__head_count_kv": 2,
    "llama__feed_forward_length": 128,
    "llama__vocab_size": 100,
}
"""The metadata of a small llama: head size 8, 128 bytes of KV per token."""

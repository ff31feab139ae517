"""Small projectors (mmproj) with random weights, as real GGUF files that libmtmd loads; and images to give them."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFWriter
from PIL import Image

ROWS = 4
"""What an image becomes."""
_WIDTH, _HIDDEN, _LAYERS, _SIDE, _PATCH = 64, 128, 2, 28, 14


def write_projector(path: Path, size: int, *, seed: int = 0) -> Path:
    """A LLaVA projector for a text model with embeddings of `size` numbers."""
    rng = np.random.default_rng(seed)
    writer = GGUFWriter(path, "clip")
    _write_head(writer, size)

    def matrix(name: str, *shape: int, scale: float = 1.0) -> None:
        values = rng.standard_normal(shape) * scale / np.sqrt(shape[-1])
        writer.add_tensor(f"{name}.weight", values.astype(np.float32))

    def vector(name: str, length: int, value: float = 0.0) -> None:
        writer.add_tensor(name, np.full(length, value, np.float32))

    patches = (_SIDE // _PATCH) ** 2
    writer.add_tensor("v.position_embd.weight", (rng.standard_normal((patches, _WIDTH)) * 0.02).astype(np.float32))
    kernel = rng.standard_normal((_WIDTH, 3, _PATCH, _PATCH)) / np.sqrt(3 * _PATCH * _PATCH)
    writer.add_tensor("v.patch_embd.weight", kernel.astype(np.float16))
    vector("v.patch_embd.bias", _WIDTH)
    for layer in range(_LAYERS):
        block = f"v.blk.{layer}"
        for name in ("attn_q", "attn_k", "attn_v", "attn_out"):
            matrix(f"{block}.{name}", _WIDTH, _WIDTH)
            vector(f"{block}.{name}.bias", _WIDTH)
        matrix(f"{block}.ffn_up", _HIDDEN, _WIDTH)
        vector(f"{block}.ffn_up.bias", _HIDDEN)
        matrix(f"{block}.ffn_down", _WIDTH, _HIDDEN)
        vector(f"{block}.ffn_down.bias", _WIDTH)
        for name in ("ln1", "ln2"):
            vector(f"{block}.{name}.weight", _WIDTH, 1.0)
            vector(f"{block}.{name}.bias", _WIDTH)
    vector("v.post_ln.weight", _WIDTH, 1.0)
    vector("v.post_ln.bias", _WIDTH)
    matrix("mm.0", size, _WIDTH)
    vector("mm.0.bias", size)
    matrix("mm.2", size, size, scale=0.3)
    vector("mm.2.bias", size)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _write_head(writer: GGUFWriter, size: int) -> None:
    writer.add_bool("clip.has_vision_encoder", True)
    writer.add_string("clip.projector_type", "mlp")
    writer.add_bool("clip.use_gelu", True)
    sizes = {"embedding_length": _WIDTH, "feed_forward_length": _HIDDEN, "block_count": _LAYERS}
    sizes |= {"projection_dim": size, "image_size": _SIDE, "patch_size": _PATCH, "attention.head_count": 4}
    for name, value in sizes.items():
        writer.add_uint32(f"clip.vision.{name}", value)
    writer.add_float32("clip.vision.attention.layer_norm_epsilon", 1e-6)
    writer.add_array("clip.vision.image_mean", [0.5] * 3)
    writer.add_array("clip.vision.image_std", [0.5] * 3)


def picture(color: str | tuple[int, ...], size: tuple[int, int] = (28, 28), format: str = "PNG", **save: Any) -> bytes:
    """An image file of one color."""
    file = io.BytesIO()
    mode = "RGBA" if isinstance(color, tuple) and len(color) == 4 else "RGB"
    Image.new(mode, size, color).save(file, format, **save)
    return file.getvalue()


def base64_of(data: bytes) -> str:
    return base64.b64encode(data).decode()


def data_url(data: bytes, media_type: str = "image/png") -> str:
    return f"data:{media_type};base64,{base64_of(data)}"

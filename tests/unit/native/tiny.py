"""Tiny random decoders: as the C++ side takes them, and in float64 NumPy, slow and obvious."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import erf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stoker import _native
from tests.unit.native import streams
from tests.unit.native.mixers import mixed, mixer_shapes, recurrence
from tests.unit.native.packed import aligned, file_bytes, pack

F64 = NDArray[np.float64]
PAGE = 32
_erf = np.vectorize(erf, otypes=[np.float64])


@dataclass(frozen=True, kw_only=True)
class Tiny:
    """The sizes and features of a decoder; `types` are given to its matrices in turn."""

    types: Sequence[str] = ("F32",)
    vocab_size: int = 50
    hidden_size: int = 64
    num_heads: int = 4
    num_kv_heads: int = 2
    head_size: int = 16
    feed_forward_size: int = 96
    num_layers: int = 2
    windows: Sequence[int] = (0,)
    has_chunks: bool = False
    """Windows do not slide, and queries of layers without one grow with their position."""
    activation: str = "silu"
    pairs: str = "halves"
    rope_dim: int = 16
    attention_softcap: float = 0.0
    logit_softcap: float = 0.0
    embedding_scale: float = 1.0
    sharpness: float = 1.0
    """Scores of attention are multiplied with it."""
    has_biases: bool = False
    has_head_bias: bool = False
    has_head_norms: bool = False
    has_post_norms: bool = False
    is_tied: bool = True
    num_experts: int = 0
    used_experts: int = 3
    expert_size: int = 64
    routing: str = "softmax"
    weighs_input: bool = False
    """Of experts, instead of what they give."""
    has_sinks: bool = False
    mixers: Sequence[str] = ("attention",)
    """Of the layers in turn."""
    are_beside: bool = False
    """Each other layer is beside the one before, which has no feed-forward."""
    has_gates: bool = False
    """Of what attention gives."""
    norm: str = "rms"
    is_encoder: bool = False
    """Positions see ahead, what norms give takes the place of the stream, and embeddings have a norm, too."""
    has_positions: bool = False
    """Vectors for positions, and one for all tokens, are added to embeddings."""
    has_sub_norms: bool = False
    """Of what attention gives, and of what `down` takes."""
    has_scales: bool = False
    """Of all matrices in layers."""
    has_slopes: bool = False
    """Scores fall with the distance."""
    has_streams: bool = False
    """Of each token, with inputs for each layer."""
    num_positions: int = 2048
    seed: int = 1

    def mixer(self, layer: int) -> str:
        return self.mixers[layer % len(self.mixers)]

    @property
    def attention_scale(self) -> float:
        return self.sharpness * self.head_size**-0.5


ATTENTIONS = {
    "plain": Tiny(),
    "sharp": Tiny(head_size=64, sharpness=8),
    "capped": Tiny(head_size=48, windows=(7, 0), attention_softcap=2.0),
    "many queries": Tiny(num_heads=14, num_kv_heads=1, head_size=80, rope_dim=80),
}
"""In which codes of keys and values are looked at."""


@dataclass
class Built:
    """The packed memory, its description, and the weights as floats by the same names."""

    tiny: Tiny
    description: dict[str, Any] = field(default_factory=dict[str, Any])
    floats: dict[str, F64] = field(default_factory=dict[str, F64])
    memory: NDArray[np.uint8] = field(default_factory=lambda: aligned(0))

    def open(self, **options: Any) -> _native.Decoder:
        num_states = 4 if set(self.tiny.mixers) - set(_WITHOUT_STATE) else 0
        defaults: dict[str, Any] = {"num_pages": 80, "max_batch_tokens": 600, "num_threads": 1, "kv_type": "f32"}
        defaults["num_states"] = num_states
        return _native.Decoder(self.description, self.memory.data, **(defaults | options))


class Builder:
    def __init__(self, tiny: Tiny) -> None:
        self.tiny, self.rng = tiny, np.random.default_rng(tiny.seed)
        self.pieces, self.end, self.num_matrices = list[NDArray[np.uint8]](), 0, 0
        self.floats: dict[str, F64] = {}

    def place(self, data: NDArray[np.uint8]) -> int:
        offset = self.end
        padded = np.zeros(-(-len(data) // 64) * 64, np.uint8)
        padded[: len(data)] = data
        self.pieces.append(padded)
        self.end += len(padded)
        return offset

    def vector(self, name: str, size: int, *, wanted: bool = True, around: float = 0.0) -> int:
        if not wanted:
            return -1
        values = (around + 0.3 * self.rng.standard_normal(size)).astype(np.float32)
        self.floats[name] = values.astype(np.float64)
        return self.place(values.view(np.uint8))

    def matrix(self, name: str, rows: int, columns: int) -> tuple[int, int, int, int, int, int]:
        kind = self.tiny.types[self.num_matrices % len(self.tiny.types)]
        self.num_matrices += 1
        source = file_bytes(kind, rows, columns, self.rng)
        if kind == "F32":
            values = source.view(np.float32)
            values *= np.float32(columns**-0.5)
        packed = pack(kind, source, columns)
        self.floats[name] = packed.weights.astype(np.float64)
        has_biases = {"embedding": False, "head": self.tiny.has_head_bias}.get(name, self.tiny.has_biases)
        bias = self.vector(f"{name}.bias", rows, wanted=has_biases)
        scale = self.vector(f"{name}.scale", 1, wanted=self.tiny.has_scales and "." in name, around=1)
        return (packed.type, rows, columns, self.place(packed.packed), bias, scale)


def build(tiny: Tiny) -> Built:
    b, t = Builder(tiny), tiny
    layers = [_layer(b, i) for i in range(t.num_layers)]
    embedding = b.matrix("embedding", t.vocab_size, t.hidden_size)
    description = {
        **{name: getattr(t, name) for name in _PLAIN},
        "norm_eps": 1e-5,
        "query_scales": query_scales(t).astype(np.float32) if t.has_chunks else None,
        "sees_ahead": t.is_encoder,
        "replaces_stream": t.is_encoder,
        "embedding_norm": norm(b, "embedding_norm", True, t.hidden_size, t.is_encoder),
        "num_embedded_positions": t.num_positions if t.has_positions else 0,
        "positions": b.vector("positions", t.num_positions * t.hidden_size, wanted=t.has_positions),
        "token_type": b.vector("token_type", t.hidden_size, wanted=t.has_positions),
        "distance_slopes": slopes(t).astype(np.float32) if t.has_slopes else None,
        "join": None,
        "lent": [],
        "extracted_layers": [],
        **(streams.ends(b) if t.has_streams else {"streams": None, "layer_inputs": None}),
        "embedding": embedding,
        "head": embedding if t.is_tied else b.matrix("head", t.vocab_size, t.hidden_size),
        "output_norm": norm(b, "output_norm", True, t.hidden_size),
        "input_scale": 1.0,
        "input_limit": 0.0,
        "deep_layers": 0,
        "ropes": [{"pairs": t.pairs, "dim": t.rope_dim, "table": rope_table(t), "axes": []}],
        "layers": layers,
    }
    memory = aligned(b.end)
    memory[:] = np.concatenate(b.pieces)
    return Built(t, description, b.floats, memory)


def norm(b: Builder, name: str, is_of_stream: bool, size: int, wanted: bool = True) -> int:
    """With a bias behind it, if all of the stream have one."""
    biased = 2 if is_of_stream and b.tiny.norm.endswith("_biased") else 1
    return b.vector(name, biased * size, wanted=wanted, around=1)


def slopes(t: Tiny) -> F64:
    return 0.5 ** np.arange(1, t.num_heads + 1, dtype=np.float64)


def query_scales(t: Tiny) -> F64:
    return 1 + np.arange(t.num_positions) // 8 / 8


def _layer(b: Builder, i: int) -> dict[str, Any]:
    t = b.tiny
    heads, kv, hidden, inner = (
        t.num_heads * t.head_size,
        t.num_kv_heads * t.head_size,
        t.hidden_size,
        t.feed_forward_size,
    )
    matrices = {
        "query": (heads, hidden), "key": (kv, hidden), "value": (kv, hidden), "output": (hidden, heads),
        "gate": (inner, hidden), "up": (inner, hidden), "down": (hidden, inner),
        **({"mixed_gate": (heads, hidden)} if t.has_gates else {}),
    }  # fmt: skip
    has_feed_forward = i % 2 == 1 or not t.are_beside
    missing = ("gate", "up", "down") if not has_feed_forward else ("up",) if t.activation in _WITHOUT_UP else ()
    matrices = {name: shape for name, shape in matrices.items() if name not in missing}
    is_recurrent = t.mixer(i) not in _WITHOUT_STATE
    if is_recurrent:
        left_out = ("query", "key") if t.mixer(i) == "mamba" else ()
        matrices = {name: shape for name, shape in matrices.items() if name not in left_out}
        matrices |= mixer_shapes(t.mixer(i), hidden)
    if t.mixer(i) in ("none", "linear"):
        matrices = {name: shape for name, shape in matrices.items() if name in ("gate", "up", "down")}
        matrices |= {"query": (hidden, hidden)} if t.mixer(i) == "linear" else {}
    stream, head = (True, t.hidden_size), (False, t.head_size)
    norms = {
        "attention_norm": (*stream, i > 0 or not t.is_encoder), "feed_forward_norm": (*stream, True),
        "query_norm": (*head, t.has_head_norms), "key_norm": (*head, t.has_head_norms),
        "mixed_norm": (False, heads, t.has_sub_norms and t.mixer(i) == "attention"),
        "inner_norm": (False, inner, t.has_sub_norms and has_feed_forward),
        "post_attention_norm": (*stream, t.has_post_norms and t.mixer(i) != "none"),
        "post_feed_forward_norm": (*stream, t.has_post_norms),
    }  # fmt: skip
    return {
        **dict.fromkeys(("query", "key", "value", "output", "mixed_gate", "gate", "up", "down")),
        **dict.fromkeys(("inject_gate", "inject_output", "latent")),
        "inject_norm": -1,
        "streams": None,
        "gate_cut": float("-inf"),
        "output_scale": 1.0,
        "output_norm": -1,
        "norms_values": False,
        "kv_layer": i,
        "lent_layer": -1,
        **{name: b.matrix(f"{i}.{name}", *shape) for name, shape in matrices.items()},
        **{name: norm(b, f"{i}.{name}", *shape) for name, shape in norms.items()},
        "recurrence": recurrence(b, i, t.mixer(i)) if is_recurrent else None,
        "num_heads": 0 if t.mixer(i) in ("none", "linear") else t.num_heads,
        "num_kv_heads": t.num_kv_heads,
        "head_size": t.head_size,
        "feed_forward_size": inner if has_feed_forward else 0,
        "is_beside": t.are_beside and i % 2 == 1,
        "head_norms": "before_rope",
        "sinks": b.vector(f"{i}.sinks", t.num_heads, wanted=t.has_sinks),
        "experts": _experts(b, i) if t.num_experts else None,
        "is_parallel": False,
        "xielu": _XIELU,
        "rope": 0,
        "window": t.windows[i % len(t.windows)],
        "is_chunked": t.has_chunks and t.windows[i % len(t.windows)] > 0,
        "scales_queries": t.windows[i % len(t.windows)] == 0,
        **(streams.of_layer(b, i) if t.has_streams else {}),
    }


def _experts(b: Builder, i: int) -> dict[str, Any]:
    """With a bias for the choice, groups, and a gate for the block beside them."""
    t, count = b.tiny, b.tiny.num_experts
    shapes = {
        "router": (count, t.hidden_size), "gate": (count * t.expert_size, t.hidden_size),
        "up": (count * t.expert_size, t.hidden_size), "down": (count * t.hidden_size, t.expert_size),
        "shared_gate": (1, t.hidden_size),
    }  # fmt: skip
    return {
        "count": count, "used": t.used_experts, "size": t.expert_size, "num_groups": 4, "used_groups": 2,
        "routing": t.routing, "is_normalised": True, "scale": 1.5, "weighs_input": t.weighs_input, "is_ahead": False,
        "selection_bias": b.vector(f"{i}.selection_bias", count),
        **dict.fromkeys(("router_norm", "norm", "block_norm", "post_norm", "output_scales"), -1),
        **{name: b.matrix(f"{i}.experts.{name}", *shape) for name, shape in shapes.items()},
    }  # fmt: skip


_WITHOUT_UP = ("relu_squared", "gelu_alone", "gelu_tanh_alone", "xielu")
_WITHOUT_STATE = ("attention", "none", "linear")
_OF_PARTS = ("query_norm", "key_norm", "mixed_norm", "inner_norm")
"""Norms that are not of the stream."""
_XIELU = (0.8, 0.6, 0.5, -1e-6)
_PLAIN = (
    "vocab_size", "hidden_size", "norm", "activation", "attention_scale", "attention_softcap", "embedding_scale",
    "logit_softcap",
)  # fmt: skip


def rope_table(t: Tiny) -> NDArray[np.float32]:
    frequencies = 10000.0 ** (-np.arange(0, t.rope_dim, 2) / max(t.rope_dim, 1))
    angles = np.arange(t.num_positions)[:, None] * frequencies
    return np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


class Reference:
    """The whole sequence at once, without a cache, in float64."""

    def __init__(self, built: Built) -> None:
        self.t, self.w = built.tiny, built.floats
        self.table = rope_table(built.tiny).astype(np.float64)
        self.sinks = np.full(built.tiny.num_heads, -np.inf)
        """Of the layer that is computed."""

    def hidden(self, token_ids: Sequence[int]) -> F64:
        t = self.t
        x = self.w["embedding"][list(token_ids)] * t.embedding_scale
        if t.has_positions:
            x = x + self.w["token_type"] + self.w["positions"].reshape(-1, t.hidden_size)[: len(x)]
        x = before = self.norm("embedding_norm", x)
        for i in range(t.num_layers):
            before = x if i % 2 == 0 or not t.are_beside else before
            n = self.norm(f"{i}.attention_norm", before)
            x = n if t.is_encoder else x
            x = x + self.norm(f"{i}.post_attention_norm", self.mixed(i, n))
            if t.are_beside and i % 2 == 0:
                continue
            m = self.norm(f"{i}.feed_forward_norm", x)
            x = m if t.is_encoder else x
            gate = self.linear(f"{i}.gate", m)
            up = gate if t.activation in _WITHOUT_UP else self.linear(f"{i}.up", m)
            y = self.linear(f"{i}.down", self.norm(f"{i}.inner_norm", self.activate(gate, up)))
            if t.num_experts:
                y = y / (1 + np.exp(-self.linear(f"{i}.experts.shared_gate", m))) + self.experts(i, m)
            x = x + self.norm(f"{i}.post_feed_forward_norm", y)
        return self.norm("output_norm", x)

    def mixed(self, i: int, n: F64) -> F64:
        mixer = self.t.mixer(i)
        if mixer in ("none", "linear"):
            return self.linear(f"{i}.query", n) if mixer == "linear" else np.zeros_like(n)
        is_recurrent = mixer not in _WITHOUT_STATE
        y = mixed(self, i, mixer, n) if is_recurrent else self.norm(f"{i}.mixed_norm", self.attention(i, n))
        return self.linear(f"{i}.output", y)

    def logits(self, token_ids: Sequence[int]) -> F64:
        y = self.linear("embedding" if self.t.is_tied else "head", self.hidden(token_ids))
        cap = self.t.logit_softcap
        return cap * np.tanh(y / cap) if cap else y

    def linear(self, name: str, x: F64) -> F64:
        return x @ self.w[name].T * self.w.get(f"{name}.scale", 1.0) + self.w.get(f"{name}.bias", 0.0)

    def norm(self, name: str, x: F64) -> F64:
        if name not in self.w:
            return x
        weight = self.w[name]
        if self.t.norm.startswith("layer") and not name.endswith(_OF_PARTS):
            x = x - x.mean(-1, keepdims=True)
        bias = weight[x.shape[-1] :] if len(weight) > x.shape[-1] else 0.0
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * weight[: x.shape[-1]] + bias

    def activate(self, gate: F64, up: F64) -> F64:
        if self.t.activation == "relu_squared":
            return np.maximum(gate, 0) ** 2
        if self.t.activation in ("gelu", "gelu_alone"):
            found = 0.5 * gate * (1 + _erf(gate / np.sqrt(2)))
            return found if self.t.activation == "gelu_alone" else found * up
        if self.t.activation == "silu":
            return gate / (1 + np.exp(-gate)) * up
        if self.t.activation == "xielu":
            below, above, slope, end = _XIELU
            negative = below * (np.expm1(np.minimum(gate, end)) - gate)
            return np.where(gate > 0, above * gate**2, negative) + slope * gate
        if self.t.activation == "swiglu_clamped":
            gate, up = np.minimum(gate, 7), np.clip(up, -7, 7)
            return gate / (1 + np.exp(-1.702 * gate)) * (up + 1)
        found = 0.5 * gate * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)))
        return found if self.t.activation == "gelu_tanh_alone" else found * up

    def experts(self, i: int, m: F64) -> F64:
        scores = self.linear(f"{i}.experts.router", m)
        if self.t.routing == "softmax":
            scores = np.exp(scores - scores.max(-1, keepdims=True))
            scores /= scores.sum(-1, keepdims=True)
        elif self.t.routing == "sigmoid":
            scores = 1 / (1 + np.exp(-scores))
        return np.stack([self.of_row(i, row, row_scores) for row, row_scores in zip(m, scores, strict=True)])

    def of_row(self, i: int, row: F64, scores: F64) -> F64:
        count, size, hidden = self.t.num_experts, self.t.expert_size, self.t.hidden_size
        values = (scores + self.w[f"{i}.selection_bias"]).reshape(4, -1)
        best = np.argsort(-np.sort(values, -1)[:, -2:].sum(-1), kind="stable")[:2]
        values[[group for group in range(4) if group not in best]] = -np.inf
        chosen = np.argsort(-values.reshape(-1), kind="stable")[: self.t.used_experts]
        weights = scores[chosen]
        if self.t.routing == "softmax_of_chosen":
            weights = np.exp(weights - weights.max())
        elif self.t.routing == "sigmoid_of_chosen":
            weights = 1 / (1 + np.exp(-weights))
        weights = 1.5 * weights / weights.sum()
        gate, up = (self.linear(f"{i}.experts.{name}", row).reshape(count, size) for name in ("gate", "up"))
        if self.t.weighs_input:
            by_expert = np.ones((count, 1))
            by_expert[chosen, 0], weights = weights, np.ones_like(weights)
            gate, up = gate * by_expert, up * by_expert
        down = self.w[f"{i}.experts.down"].reshape(count, hidden, size)
        bias = np.asarray(self.w.get(f"{i}.experts.down.bias", np.zeros(count * hidden))).reshape(count, hidden)
        results = [down[e] @ self.activate(gate[e], up[e]) + bias[e] for e in chosen]
        return sum((w * y for w, y in zip(weights, results, strict=True)), np.zeros(hidden))

    def attention(self, i: int, x: F64) -> F64:
        t, n = self.t, len(x)
        q = self.rotate(self.norm(f"{i}.query_norm", self.heads(self.linear(f"{i}.query", x))))
        k = self.rotate(self.norm(f"{i}.key_norm", self.heads(self.linear(f"{i}.key", x))))
        v = self.heads(self.linear(f"{i}.value", x))
        k, v = (np.repeat(a, t.num_heads // t.num_kv_heads, axis=1) for a in (k, v))
        past = np.arange(n)[:, None] - np.arange(n)[None, :]
        window = t.windows[i % len(t.windows)]
        self.sinks = self.w.get(f"{i}.sinks", self.sinks)
        if t.has_chunks and window:
            past = np.where(np.arange(n)[:, None] // window == np.arange(n)[None, :] // window, past, -1)
        elif t.has_chunks:
            q = q * query_scales(t)[:n, None, None]
        seen = np.abs(past) <= (window // 2 if window else n) if t.is_encoder else (past >= 0) & (past < (window or n))
        y = self.attend(q * t.attention_scale, k, v, seen)
        return y / (1 + np.exp(-self.linear(f"{i}.mixed_gate", x))) if t.has_gates else y

    def attend(self, q: F64, k: F64, v: F64, seen: NDArray[np.bool_]) -> F64:
        """Of `(positions, heads, head size)` each, and `(queries, keys)`."""
        cap = self.t.attention_softcap
        scores = np.einsum("ihd,jhd->hij", q, k)
        if cap:
            scores = cap * np.tanh(scores / cap)
        if self.t.has_slopes:
            distance = np.abs(np.arange(len(q))[:, None] - np.arange(len(k))[None, :])
            scores = scores - slopes(self.t)[:, None, None] * distance
        scores = np.where(seen, scores, -np.inf)
        sinks = self.sinks[:, None, None]
        most = np.maximum(scores.max(-1, keepdims=True), sinks)
        weights = np.exp(scores - most)
        weights /= weights.sum(-1, keepdims=True) + np.exp(sinks - most)
        return np.einsum("hij,jhd->ihd", weights, v).reshape(len(q), -1)

    def heads(self, x: F64) -> F64:
        return x.reshape(len(x), -1, self.t.head_size)

    def rotate(self, x: F64) -> F64:
        half = self.t.rope_dim // 2
        if not half:
            return x
        cosine, sine = (self.table[: len(x), i][:, None, :] for i in (0, 1))
        a = slice(0, 2 * half, 2) if self.t.pairs == "adjacent" else slice(0, half)
        b = slice(1, 2 * half, 2) if self.t.pairs == "adjacent" else slice(half, 2 * half)
        out = x.copy()
        out[..., a] = x[..., a] * cosine - x[..., b] * sine
        out[..., b] = x[..., b] * cosine + x[..., a] * sine
        return out


@dataclass
class Slots:
    """Sequences in a decoder, each with pages of its own."""

    decoder: _native.Decoder
    built: Built
    pages_each: int = 20
    tables: NDArray[np.int32] = field(init=False)
    lengths: dict[int, int] = field(default_factory=dict[int, int])
    adapters: dict[int, Sequence[tuple[int, float]]] = field(default_factory=dict[int, Sequence[tuple[int, float]]])
    """With which each slot is computed, and their scales."""

    def __post_init__(self) -> None:
        # Scattered, so that nothing works by accident of neighbouring pages.
        self.tables = np.arange(self.pages_each * 4, dtype=np.int32).reshape(self.pages_each, 4).T.copy()

    def step(self, chunks: Iterable[tuple[int, Sequence[int], int]]) -> NDArray[np.float32]:
        """Chunks of (slot, token ids, rows wanted); all their rows of logits."""
        chunks = list(chunks)
        rows = np.array([(s, self.lengths.get(s, 0), len(ids), n) for s, ids, n in chunks], np.int32).reshape(-1, 4)
        tokens = np.array([i for _, ids, _ in chunks for i in ids], np.int32)
        logits = np.full((int(rows[:, 3].sum()), self.built.tiny.vocab_size), np.nan, np.float32)
        maxima = np.full((len(logits), _native.num_maxima(logits.shape[1])), np.nan, np.float32)
        uses = [(i, *use) for i, (slot, _, _) in enumerate(chunks) for use in self.adapters.get(slot, ())]
        adapters = np.array([use[:2] for use in uses], np.int32).reshape(-1, 2)
        scales = np.array([use[2] for use in uses], np.float32)
        self.decoder.forward(tokens, rows, self.tables, logits, maxima=maxima, adapters=adapters, scales=scales)
        np.testing.assert_array_equal(maxima, maxima_of(logits))
        for s, ids, _ in chunks:
            self.lengths[s] = self.lengths.get(s, 0) + len(ids)
        return logits

    def all_logits(self, slot: int, token_ids: Sequence[int], sizes: Sequence[int] = (600,)) -> NDArray[np.float32]:
        """In chunks of these sizes, the last one repeated."""
        found, at, index = list[NDArray[np.float32]](), 0, 0
        while at < len(token_ids):
            size = sizes[min(index, len(sizes) - 1)]
            ids = token_ids[at : at + size]
            found.append(self.step([(slot, ids, len(ids))]))
            at, index = at + size, index + 1
        return np.concatenate(found)


def maxima_of(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    """The largest logit of each block of 64; +inf where a block holds what is no number."""
    blocks = [logits[:, i : i + 64].max(1) for i in range(0, logits.shape[1], 64)]
    return np.nan_to_num(np.stack(blocks, 1), nan=np.inf, posinf=np.inf, neginf=-np.inf)


def token_ids(count: int, tiny: Tiny, seed: int = 5) -> list[int]:
    return np.random.default_rng(seed).integers(0, tiny.vocab_size, count).tolist()


_TEXT_PAGES = 80


def embedded(built: Built, texts: Sequence[Sequence[int]], **options: Any) -> list[NDArray[np.float32]]:
    """The hidden states of each text, all computed in one pass."""
    decoder = built.open(max_batch_tokens=2600, num_pages=_TEXT_PAGES, **options)
    tables = np.full((len(texts), _TEXT_PAGES), -1, np.int32)
    free = list(range(_TEXT_PAGES))[::-1]
    for slot, text in enumerate(texts):
        for page in range(-(-len(text) // 32)):
            tables[slot, page] = free.pop()
    chunks = np.array([[slot, 0, len(text), 0] for slot, text in enumerate(texts)], np.int32)
    tokens = np.array([token for text in texts for token in text], np.int32)
    hidden = np.empty((len(tokens), built.tiny.hidden_size), np.float32)
    decoder.forward(tokens, chunks, tables, np.empty((0, built.tiny.vocab_size), np.float32), hidden)
    decoder.close()
    return np.split(hidden, np.cumsum([len(text) for text in texts])[:-1])

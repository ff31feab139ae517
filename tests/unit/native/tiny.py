"""Tiny random decoders: as the C++ side takes them, and in float64 NumPy, slow and obvious."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stoker import _native
from tests.unit.native.packed import aligned, file_bytes, pack

F64 = NDArray[np.float64]
PAGE = 32


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
    activation: str = "silu"
    pairs: str = "halves"
    rope_dim: int = 16
    attention_softcap: float = 0.0
    logit_softcap: float = 0.0
    embedding_scale: float = 1.0
    sharpness: float = 1.0
    """Scores of attention are multiplied with it."""
    has_biases: bool = False
    has_head_norms: bool = False
    has_post_norms: bool = False
    is_tied: bool = True
    num_experts: int = 0
    used_experts: int = 3
    expert_size: int = 64
    routing: str = "softmax"
    has_sinks: bool = False
    num_positions: int = 2048
    seed: int = 1

    @property
    def attention_scale(self) -> float:
        return self.sharpness * self.head_size**-0.5


@dataclass
class Built:
    """The packed memory, its description, and the weights as floats by the same names."""

    tiny: Tiny
    description: dict[str, Any] = field(default_factory=dict[str, Any])
    floats: dict[str, F64] = field(default_factory=dict[str, F64])
    memory: NDArray[np.uint8] = field(default_factory=lambda: aligned(0))

    def open(self, **options: Any) -> _native.Decoder:
        defaults: dict[str, Any] = {"num_pages": 80, "max_batch_tokens": 600, "num_threads": 1, "kv_type": "f32"}
        return _native.Decoder(self.description, self.memory.data, **(defaults | options))


class _Builder:
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

    def matrix(self, name: str, rows: int, columns: int) -> tuple[int, int, int, int, int]:
        kind = self.tiny.types[self.num_matrices % len(self.tiny.types)]
        self.num_matrices += 1
        source = file_bytes(kind, rows, columns, self.rng)
        if kind == "F32":
            values = source.view(np.float32)
            values *= np.float32(columns**-0.5)
        packed = pack(kind, source, columns)
        self.floats[name] = packed.weights.astype(np.float64)
        bias = self.vector(f"{name}.bias", rows, wanted=self.tiny.has_biases and name not in ("embedding", "head"))
        return (packed.type, rows, columns, self.place(packed.packed), bias)


def build(tiny: Tiny) -> Built:
    b, t = _Builder(tiny), tiny
    layers = [_layer(b, i) for i in range(t.num_layers)]
    embedding = b.matrix("embedding", t.vocab_size, t.hidden_size)
    description = {
        **{name: getattr(t, name) for name in _PLAIN},
        "norm_eps": 1e-5,
        "norm": "rms",
        "query_scales": None,
        "embedding": embedding,
        "head": embedding if t.is_tied else b.matrix("head", t.vocab_size, t.hidden_size),
        "output_norm": b.vector("output_norm", t.hidden_size, around=1),
        "ropes": [{"pairs": t.pairs, "dim": t.rope_dim, "table": rope_table(t)}],
        "layers": layers,
    }
    memory = aligned(b.end)
    memory[:] = np.concatenate(b.pieces)
    return Built(t, description, b.floats, memory)


def _layer(b: _Builder, i: int) -> dict[str, Any]:
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
    }  # fmt: skip
    norms = {
        "attention_norm": (hidden, True), "feed_forward_norm": (hidden, True),
        "query_norm": (t.head_size, t.has_head_norms), "key_norm": (t.head_size, t.has_head_norms),
        "post_attention_norm": (hidden, t.has_post_norms), "post_feed_forward_norm": (hidden, t.has_post_norms),
    }  # fmt: skip
    return {
        **{name: b.matrix(f"{i}.{name}", *shape) for name, shape in matrices.items()},
        **{name: b.vector(f"{i}.{name}", size, wanted=wanted, around=1) for name, (size, wanted) in norms.items()},
        "num_heads": t.num_heads,
        "num_kv_heads": t.num_kv_heads,
        "head_size": t.head_size,
        "feed_forward_size": inner,
        "head_norms": "before_rope",
        "sinks": b.vector(f"{i}.sinks", t.num_heads, wanted=t.has_sinks),
        "experts": _experts(b, i) if t.num_experts else None,
        "is_parallel": False,
        "rope": 0,
        "window": t.windows[i % len(t.windows)],
    }


def _experts(b: _Builder, i: int) -> dict[str, Any]:
    """With a bias for the choice, groups, and a gate for the block beside them."""
    t, count = b.tiny, b.tiny.num_experts
    shapes = {
        "router": (count, t.hidden_size), "gate": (count * t.expert_size, t.hidden_size),
        "up": (count * t.expert_size, t.hidden_size), "down": (count * t.hidden_size, t.expert_size),
        "shared_gate": (1, t.hidden_size),
    }  # fmt: skip
    return {
        "count": count, "used": t.used_experts, "size": t.expert_size, "num_groups": 4, "used_groups": 2,
        "routing": t.routing, "is_normalised": True, "scale": 1.5,
        "selection_bias": b.vector(f"{i}.selection_bias", count),
        **{name: b.matrix(f"{i}.experts.{name}", *shape) for name, shape in shapes.items()},
    }  # fmt: skip


_PLAIN = (
    "vocab_size", "hidden_size", "activation", "attention_scale", "attention_softcap", "embedding_scale",
    "logit_softcap",
)  # fmt: skip


def rope_table(t: Tiny) -> NDArray[np.float32]:
    frequencies = 10000.0 ** (-np.arange(0, t.rope_dim, 2) / t.rope_dim)
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
        for i in range(t.num_layers):
            y = self.linear(f"{i}.output", self.attention(i, self.norm(f"{i}.attention_norm", x)))
            x = x + self.norm(f"{i}.post_attention_norm", y)
            m = self.norm(f"{i}.feed_forward_norm", x)
            y = self.linear(f"{i}.down", self.activate(self.linear(f"{i}.gate", m), self.linear(f"{i}.up", m)))
            if t.num_experts:
                y = y / (1 + np.exp(-self.linear(f"{i}.experts.shared_gate", m))) + self.experts(i, m)
            x = x + self.norm(f"{i}.post_feed_forward_norm", y)
        return self.norm("output_norm", x)

    def logits(self, token_ids: Sequence[int]) -> F64:
        y = self.hidden(token_ids) @ self.w["embedding" if self.t.is_tied else "head"].T
        cap = self.t.logit_softcap
        return cap * np.tanh(y / cap) if cap else y

    def linear(self, name: str, x: F64) -> F64:
        return x @ self.w[name].T + self.w.get(f"{name}.bias", 0.0)

    def norm(self, name: str, x: F64) -> F64:
        if name not in self.w:
            return x
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * self.w[name]

    def activate(self, gate: F64, up: F64) -> F64:
        if self.t.activation == "silu":
            return gate / (1 + np.exp(-gate)) * up
        if self.t.activation == "swiglu_clamped":
            gate, up = np.minimum(gate, 7), np.clip(up, -7, 7)
            return gate / (1 + np.exp(-1.702 * gate)) * (up + 1)
        return 0.5 * gate * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3))) * up

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
        weights = 1.5 * weights / weights.sum()
        gate, up = (self.linear(f"{i}.experts.{name}", row).reshape(count, size) for name in ("gate", "up"))
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
        window = t.windows[i % len(t.windows)] or n
        self.sinks = self.w.get(f"{i}.sinks", self.sinks)
        return self.attend(q * t.attention_scale, k, v, (past >= 0) & (past < window))

    def attend(self, q: F64, k: F64, v: F64, seen: NDArray[np.bool_]) -> F64:
        """Of `(positions, heads, head size)` each, and `(queries, keys)`."""
        cap = self.t.attention_softcap
        scores = np.einsum("ihd,jhd->hij", q, k)
        if cap:
            scores = cap * np.tanh(scores / cap)
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

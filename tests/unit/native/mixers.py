"""Recurrent layers of tiny decoders: as the C++ side takes them, and in float64 NumPy, one position after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from tests.unit.native.tiny import Builder, Reference

F64 = NDArray[np.float64]
TAPS, KEY_HEADS, HEADS, KEY_SIZE, VALUE_SIZE = 4, 2, 4, 32, 48
KEYS, VALUES = KEY_HEADS * KEY_SIZE, HEADS * VALUE_SIZE
CHANNELS, LOW = 96, 64
"""Of Mamba 1; and of what decays and gates are made of that two matrices make."""
EPS, STREAM_EPS = 1e-4, 1e-5


def mixer_shapes(mixer: str, hidden: int) -> dict[str, tuple[int, int]]:
    """Of the matrices that a layer has in place of those of attention."""
    if mixer == "short_conv":
        return dict.fromkeys(("query", "key", "value", "output"), (hidden, hidden))
    if mixer == "mamba":
        return {**dict.fromkeys(("value", "mixed_gate"), (CHANNELS, hidden)), "output": (hidden, CHANNELS)}
    keys, gate = (HEADS * KEY_SIZE, LOW) if mixer == "kda" else (KEYS, VALUES)
    return {
        "query": (keys, hidden), "key": (keys, hidden), "value": (VALUES, hidden), "mixed_gate": (gate, hidden),
        "output": (hidden, VALUES),
    }  # fmt: skip


_MATRICES: dict[str, dict[str, tuple[int, int]]] = {
    "short_conv": {},
    "delta_net": {"decay": (HEADS, 0), "beta": (HEADS, 0)},
    "mamba2": {"decay": (HEADS, 0)},
    "kda": {
        "decay": (LOW, 0),
        "beta": (HEADS, 0),
        "wide_decay": (HEADS * KEY_SIZE, LOW),
        "wide_gate": (VALUES, LOW),
    },
    "mamba": {"low": (LOW + 2 * KEY_SIZE, CHANNELS), "wide_decay": (CHANNELS, LOW)},
}
"""Rows and columns, 0 of these = as many as the layer is wide."""
_COUNTS = {
    "short_conv": (0, 0, 0, 0, 0),
    "delta_net": (HEADS, KEY_HEADS, KEY_SIZE, VALUE_SIZE, VALUE_SIZE),
    "mamba2": (HEADS, KEY_HEADS, KEY_SIZE, VALUE_SIZE, VALUES // 2),
    "kda": (HEADS, HEADS, KEY_SIZE, VALUE_SIZE, VALUE_SIZE),
    "mamba": (CHANNELS, 1, KEY_SIZE, 1, 0),
}
"""Heads, heads of keys, the size of a key and of a value, and of what has a norm."""


def recurrence(b: Builder, i: int, mixer: str) -> dict[str, Any]:
    """What a layer's description says of it."""
    hidden = b.tiny.hidden_size
    is_short, is_mamba, is_kda = (mixer == name for name in ("short_conv", "mamba", "kda"))
    is_delta = mixer in ("delta_net", "kda")
    keys = HEADS * KEY_SIZE if is_kda else KEYS
    channels = hidden if is_short else CHANNELS if is_mamba else 2 * keys + VALUES
    rates = CHANNELS * KEY_SIZE if is_mamba else HEADS
    norms = {"low_norm": LOW, "key_norm": KEY_SIZE, "query_norm": KEY_SIZE}
    names = ("num_heads", "num_key_heads", "key_size", "value_size", "norm_size")
    return {
        "mixer": mixer,
        "taps": TAPS,
        "are_interleaved": mixer == "delta_net",
        **dict(zip(names, _COUNTS[mixer], strict=True)),
        "norm_eps": EPS,
        "convolution": b.vector(f"{i}.convolution", TAPS * channels),
        "convolution_bias": b.vector(f"{i}.convolution_bias", channels, wanted=mixer in ("mamba2", "mamba")),
        "step_bias": b.vector(f"{i}.step_bias", keys if is_kda else HEADS, wanted=not is_short and not is_mamba),
        "decay_rate": b.vector(f"{i}.decay_rate", rates, wanted=not is_short, around=-1),
        "skip": b.vector(f"{i}.skip", CHANNELS if is_mamba else HEADS, wanted=mixer in ("mamba2", "mamba")),
        "norm": b.vector(
            f"{i}.norm", VALUE_SIZE if is_delta else VALUES, wanted=not is_short and not is_mamba, around=1
        ),
        **{name: b.vector(f"{i}.{name}", size, wanted=is_mamba, around=1) for name, size in norms.items()},
        **dict.fromkeys(("decay", "beta", "low", "wide_decay", "wide_gate")),
        **{
            name: b.matrix(f"{i}.{name}", rows, columns or hidden) for name, (rows, columns) in _MATRICES[mixer].items()
        },
    }


def mixed(r: Reference, i: int, mixer: str, x: F64) -> F64:
    """What the mixer of layer `i` gives, before the output."""
    if mixer == "mamba":
        return scanned_channels(r, i, x)
    query, key, value = (r.linear(f"{i}.{name}", x) for name in ("query", "key", "value"))
    if mixer == "short_conv":
        return key * convolved(r, i, query * value)
    is_delta = mixer in ("delta_net", "kda")
    parts = [query, key, value] if is_delta else [value, key, query]
    borders = np.cumsum([part.shape[1] for part in parts])[:-1]
    parts = np.split(silu(convolved(r, i, np.concatenate(parts, axis=-1))), borders, axis=-1)
    q, k, v = parts if is_delta else reversed(parts)
    found = scan(r, i, mixer, q.reshape(len(x), -1, KEY_SIZE), k.reshape(len(x), -1, KEY_SIZE), v, x)
    gate = r.linear(f"{i}.mixed_gate", x)
    gate = sigmoid(r.linear(f"{i}.wide_gate", gate)) if mixer == "kda" else silu(gate)
    if is_delta:
        heads = found.reshape(-1, HEADS, VALUE_SIZE)
        return (heads / size_of(heads) * r.w[f"{i}.norm"]).reshape(len(x), -1) * gate
    groups = (found * gate).reshape(-1, 2, VALUES // 2)
    return (groups / size_of(groups)).reshape(len(x), -1) * r.w[f"{i}.norm"]


def scanned_channels(r: Reference, i: int, x: F64) -> F64:
    gate, v = r.linear(f"{i}.mixed_gate", x), silu(convolved(r, i, r.linear(f"{i}.value", x)))
    parts = np.split(r.linear(f"{i}.low", v), [LOW, LOW + KEY_SIZE], axis=-1)
    names = ("low_norm", "key_norm", "query_norm")
    low, b, c = (part / size_of(part, STREAM_EPS) * r.w[f"{i}.{name}"] for name, part in zip(names, parts, strict=True))
    step, rates = np.logaddexp(0, r.linear(f"{i}.wide_decay", low)), r.w[f"{i}.decay_rate"].reshape(KEY_SIZE, -1)
    state, found = np.zeros((KEY_SIZE, CHANNELS)), np.empty_like(v)
    for row in range(len(x)):
        state = state * np.exp(step[row] * rates) + np.outer(b[row], step[row] * v[row])
        found[row] = c[row] @ state
    return (found + v * r.w[f"{i}.skip"]) * silu(gate)


def scan(r: Reference, i: int, mixer: str, q: F64, k: F64, v: F64, x: F64) -> F64:
    is_delta, is_kda = mixer in ("delta_net", "kda"), mixer == "kda"
    decay = r.linear(f"{i}.decay", x)
    step = np.logaddexp(0, (r.linear(f"{i}.wide_decay", decay) if is_kda else decay) + r.w[f"{i}.step_bias"])
    decay = np.exp(step.reshape(len(x), HEADS, -1) * r.w[f"{i}.decay_rate"][:, None])
    if is_delta:
        q, k = (part / np.sqrt((part**2).sum(-1, keepdims=True) + EPS) for part in (q, k))
        q = q / np.sqrt(KEY_SIZE)
        step = sigmoid(r.linear(f"{i}.beta", x))
    found = np.empty_like(v)
    for head in range(HEADS):
        at = head if is_kda else head % 2 if is_delta else head // 2
        columns = slice(head * VALUE_SIZE, (head + 1) * VALUE_SIZE)
        state = np.zeros((KEY_SIZE, VALUE_SIZE))
        for row in range(len(x)):
            state *= decay[row, head][:, None]
            recalled = k[row, at] @ state if is_delta else 0.0
            state += np.outer(k[row, at], step[row, head] * (v[row, columns] - recalled))
            found[row, columns] = q[row, at] @ state
    return found if is_delta else found + v * np.repeat(r.w[f"{i}.skip"], VALUE_SIZE)


def convolved(r: Reference, i: int, x: F64) -> F64:
    weights = r.w[f"{i}.convolution"].reshape(TAPS, -1)
    padded = np.concatenate([np.zeros((TAPS - 1, x.shape[1])), x])
    y = sum((padded[tap : tap + len(x)] * weights[tap] for tap in range(TAPS)), np.zeros_like(x))
    return y + r.w.get(f"{i}.convolution_bias", 0.0)


def size_of(x: F64, eps: float = EPS) -> F64:
    return np.sqrt((x * x).mean(-1, keepdims=True) + eps)


def sigmoid(x: F64) -> F64:
    return 1 / (1 + np.exp(-x))


def silu(x: F64) -> F64:
    return x / (1 + np.exp(-x))

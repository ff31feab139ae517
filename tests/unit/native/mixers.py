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
EPS = 1e-4


def mixer_shapes(mixer: str, hidden: int) -> dict[str, tuple[int, int]]:
    """Of the matrices that a layer has in place of those of attention."""
    if mixer == "short_conv":
        return dict.fromkeys(("query", "key", "value", "output"), (hidden, hidden))
    return {
        "query": (KEYS, hidden), "key": (KEYS, hidden), "value": (VALUES, hidden), "mixed_gate": (VALUES, hidden),
        "output": (hidden, VALUES),
    }  # fmt: skip


def recurrence(b: Builder, i: int, mixer: str) -> dict[str, Any]:
    """What a layer's description says of it."""
    hidden = b.tiny.hidden_size
    is_short, is_delta = mixer == "short_conv", mixer == "delta_net"
    channels = hidden if is_short else 2 * KEYS + VALUES
    return {
        "mixer": mixer,
        "taps": TAPS,
        "are_interleaved": is_delta,
        "num_heads": 0 if is_short else HEADS,
        "num_key_heads": 0 if is_short else KEY_HEADS,
        "key_size": 0 if is_short else KEY_SIZE,
        "value_size": 0 if is_short else VALUE_SIZE,
        "norm_size": VALUE_SIZE if is_delta else 0 if is_short else VALUES // 2,
        "norm_eps": EPS,
        "convolution": b.vector(f"{i}.convolution", TAPS * channels),
        "convolution_bias": b.vector(f"{i}.convolution_bias", channels, wanted=mixer == "mamba2"),
        "step_bias": b.vector(f"{i}.step_bias", HEADS, wanted=not is_short),
        "decay_rate": b.vector(f"{i}.decay_rate", HEADS, wanted=not is_short, around=-1),
        "skip": b.vector(f"{i}.skip", HEADS, wanted=mixer == "mamba2"),
        "norm": b.vector(f"{i}.norm", VALUE_SIZE if is_delta else VALUES, wanted=not is_short, around=1),
        "decay": None if is_short else b.matrix(f"{i}.decay", HEADS, hidden),
        "beta": b.matrix(f"{i}.beta", HEADS, hidden) if is_delta else None,
    }


def mixed(r: Reference, i: int, mixer: str, x: F64) -> F64:
    """What the mixer of layer `i` gives, before the output."""
    query, key, value = (r.linear(f"{i}.{name}", x) for name in ("query", "key", "value"))
    if mixer == "short_conv":
        return key * convolved(r, i, query * value)
    parts = [query, key, value] if mixer == "delta_net" else [value, key, query]
    borders = np.cumsum([part.shape[1] for part in parts])[:-1]
    parts = np.split(silu(convolved(r, i, np.concatenate(parts, axis=-1))), borders, axis=-1)
    q, k, v = parts if mixer == "delta_net" else reversed(parts)
    scanned = scan(r, i, mixer, q.reshape(-1, KEY_HEADS, KEY_SIZE), k.reshape(-1, KEY_HEADS, KEY_SIZE), v, x)
    gate = silu(r.linear(f"{i}.mixed_gate", x))
    if mixer == "delta_net":
        heads = scanned.reshape(-1, HEADS, VALUE_SIZE)
        return (heads / size_of(heads) * r.w[f"{i}.norm"]).reshape(len(x), -1) * gate
    groups = (scanned * gate).reshape(-1, 2, VALUES // 2)
    return (groups / size_of(groups)).reshape(len(x), -1) * r.w[f"{i}.norm"]


def scan(r: Reference, i: int, mixer: str, q: F64, k: F64, v: F64, x: F64) -> F64:
    is_delta = mixer == "delta_net"
    step = np.logaddexp(0, r.linear(f"{i}.decay", x) + r.w[f"{i}.step_bias"])
    decay = np.exp(step * r.w[f"{i}.decay_rate"])
    if is_delta:
        q, k = (part / np.sqrt((part**2).sum(-1, keepdims=True) + EPS) for part in (q, k))
        q = q / np.sqrt(KEY_SIZE)
        step = 1 / (1 + np.exp(-r.linear(f"{i}.beta", x)))
    found = np.empty_like(v)
    for head in range(HEADS):
        at, columns = head % 2 if is_delta else head // 2, slice(head * VALUE_SIZE, (head + 1) * VALUE_SIZE)
        state = np.zeros((KEY_SIZE, VALUE_SIZE))
        for row in range(len(x)):
            state *= decay[row, head]
            recalled = k[row, at] @ state if is_delta else 0.0
            state += np.outer(k[row, at], step[row, head] * (v[row, columns] - recalled))
            found[row, columns] = q[row, at] @ state
    return found if is_delta else found + v * np.repeat(r.w[f"{i}.skip"], VALUE_SIZE)


def convolved(r: Reference, i: int, x: F64) -> F64:
    weights = r.w[f"{i}.convolution"].reshape(TAPS, -1)
    padded = np.concatenate([np.zeros((TAPS - 1, x.shape[1])), x])
    y = sum((padded[tap : tap + len(x)] * weights[tap] for tap in range(TAPS)), np.zeros_like(x))
    return y + r.w.get(f"{i}.convolution_bias", 0.0)


def size_of(x: F64) -> F64:
    return np.sqrt((x * x).mean(-1, keepdims=True) + EPS)


def silu(x: F64) -> F64:
    return x / (1 + np.exp(-x))

"""The mixers of recurrent layers in float64 NumPy, one position after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from tests.reference.native_reference import NativeReference

F64 = NDArray[np.float64]


def mixed(model: NativeReference, index: int, x: F64) -> F64 | None:
    """What the mixer of a layer gives for its normed input; None if that is plain attention."""
    block = f"blk.{index}"
    if f"{block}.shortconv.conv.weight" in model.tensors:
        return short_conv(model, block, x)
    if f"{block}.ssm_f_a.weight" in model.tensors:
        return kda(model, block, x)
    if f"{block}.ssm_x.weight" in model.tensors:
        return mamba1(model, block, x)
    if f"{block}.ssm_in.weight" in model.tensors and model.architecture != "qwen3next":
        return mamba2(model, block, x)
    if f"{block}.ssm_conv1d.weight" in model.tensors:
        return delta_net(model, block, x)
    return None


def short_conv(model: NativeReference, block: str, x: F64) -> F64:
    b, c, x = np.split(model.linear(f"{block}.shortconv.in_proj", x), 3, axis=-1)
    y = convolved(model.weight(f"{block}.shortconv.conv.weight"), b * x)
    return model.linear(f"{block}.shortconv.out_proj", c * y)


def delta_net(model: NativeReference, block: str, x: F64) -> F64:
    length, size, num_keys = len(x), model.key("ssm.state_size"), model.key("ssm.group_count")
    num_heads = model.key("ssm.time_step_rank")
    inputs, z = delta_inputs(model, block, x)
    qkv = silu(convolved(model.weight(f"{block}.ssm_conv1d.weight"), inputs))
    q, k, v = np.split(qkv, [num_keys * size, 2 * num_keys * size], axis=-1)
    q, k = (unit(part.reshape(length, num_keys, size), model.eps) for part in (q, k))
    each = num_heads // num_keys
    is_next = model.architecture == "qwen3next"
    q, k = (np.repeat(part, each, axis=1) if is_next else np.tile(part, (1, each, 1)) for part in (q, k))
    v = v.reshape(length, num_heads, size)
    if is_next:
        gates = model.linear(f"{block}.ssm_ba", x).reshape(length, num_keys, 2, each)
        beta, alpha = (gates[:, :, part].reshape(length, num_heads) for part in (0, 1))
    else:
        beta, alpha = (model.linear(f"{block}.ssm_{part}", x) for part in ("beta", "alpha"))
    beta = 1 / (1 + np.exp(-beta))
    decay = decays(model, block, softplus(alpha + model.weight(f"{block}.ssm_dt.bias")))
    state, y = np.zeros((num_heads, size, size)), np.empty_like(v)
    for at in range(length):
        state *= decay[at, :, None, None]
        change = beta[at, :, None] * (v[at] - np.einsum("hkv,hk->hv", state, k[at]))
        state += k[at, :, :, None] * change[:, None, :]
        y[at] = np.einsum("hkv,hk->hv", state, q[at]) / np.sqrt(size)
    y = model.norm(f"{block}.ssm_norm", y) * silu(z.reshape(length, num_heads, size))
    return model.linear(f"{block}.ssm_out", y.reshape(length, -1))


def delta_inputs(model: NativeReference, block: str, x: F64) -> tuple[F64, F64]:
    """Queries, keys and values behind one another; and gates. Old files have them by heads of keys."""
    if f"{block}.ssm_in.weight" not in model.tensors:
        return model.linear(f"{block}.attn_qkv", x), model.linear(f"{block}.attn_gate", x)
    size, num_keys = model.key("ssm.state_size"), model.key("ssm.group_count")
    values = model.key("ssm.inner_size") // num_keys
    together = model.linear(f"{block}.ssm_in", x).reshape(len(x), num_keys, -1)
    parts = np.split(together, [size, 2 * size, 2 * size + values], axis=-1)
    *qkv, z = (part.reshape(len(x), -1) for part in parts)
    return np.concatenate(qkv, axis=-1), z


def mamba2(model: NativeReference, block: str, x: F64) -> F64:
    length, size, num_groups = len(x), model.key("ssm.state_size"), model.key("ssm.group_count")
    num_heads, inner = model.key("ssm.time_step_rank"), model.key("ssm.inner_size")
    keys = num_groups * size
    z, xbc, step = np.split(model.linear(f"{block}.ssm_in", x), [inner, 2 * inner + 2 * keys], axis=-1)
    convolution = convolved(model.weight(f"{block}.ssm_conv1d.weight"), xbc)
    values, b, c = np.split(
        silu(convolution + model.weight(f"{block}.ssm_conv1d.bias")), [inner, inner + keys], axis=-1
    )
    b, c = (np.repeat(part.reshape(length, num_groups, size), num_heads // num_groups, axis=1) for part in (b, c))
    values, step = values.reshape(length, num_heads, -1), softplus(step + model.weight(f"{block}.ssm_dt.bias"))
    decay = decays(model, block, step)
    state, y = np.zeros((num_heads, size, inner // num_heads)), np.empty_like(values)
    for at in range(length):
        state = state * decay[at, :, None, None] + b[at, :, :, None] * (step[at, :, None] * values[at])[:, None, :]
        y[at] = np.einsum("hkv,hk->hv", state, c[at])
    y = (y + values * model.weight(f"{block}.ssm_d")).reshape(length, inner) * silu(z)
    if f"{block}.ssm_norm.weight" in model.tensors:
        y = model.norm(f"{block}.ssm_norm", y.reshape(length, num_groups, -1)).reshape(length, inner)
    return model.linear(f"{block}.ssm_out", y)


def kda(model: NativeReference, block: str, x: F64) -> F64:
    length, size = len(x), model.key("kda.head_dim")
    parts = [silu(convolved(conv(model, block, part), model.linear(f"{block}.attn_{part}", x))) for part in "qkv"]
    q, k, v = (part.reshape(length, -1, size) for part in parts)
    q, k = unit(q, model.eps), unit(k, model.eps)
    step = model.linear(f"{block}.ssm_f_b", model.linear(f"{block}.ssm_f_a", x)) + model.weight(f"{block}.ssm_dt.bias")
    decay = np.exp(softplus(step).reshape(length, -1, size) * model.weight(f"{block}.ssm_a").reshape(-1, 1))
    beta = sigmoid(model.linear(f"{block}.ssm_beta", x))
    state, y = np.zeros((v.shape[1], size, size)), np.empty_like(v)
    for at in range(length):
        state *= decay[at, :, :, None]
        change = beta[at, :, None] * (v[at] - np.einsum("hkv,hk->hv", state, k[at]))
        state += k[at, :, :, None] * change[:, None, :]
        y[at] = np.einsum("hkv,hk->hv", state, q[at]) / np.sqrt(size)
    gate = model.linear(f"{block}.ssm_g_b", model.linear(f"{block}.ssm_g_a", x))
    y = model.norm(f"{block}.ssm_norm", y) * sigmoid(gate).reshape(y.shape)
    return model.linear(f"{block}.attn_output", y.reshape(length, -1))


def conv(model: NativeReference, block: str, part: str) -> F64:
    weights = model.weight(f"{block}.ssm_conv1d_{part}.weight")
    return weights.reshape(-1, weights.shape[-1])


def mamba1(model: NativeReference, block: str, x: F64) -> F64:
    size, rank = model.key("ssm.state_size"), model.key("ssm.time_step_rank")
    x, z = np.split(model.linear(f"{block}.ssm_in", x), 2, axis=-1)
    x = convolved(model.weight(f"{block}.ssm_conv1d.weight"), x) + model.weight(f"{block}.ssm_conv1d.bias")
    x = silu(x)
    low, b, c = np.split(x @ model.weight(f"{block}.ssm_x.weight").T, [rank, rank + size], axis=-1)
    if model.architecture == "jamba":
        parts = (("dt", low), ("b", b), ("c", c))
        low, b, c = (model.norm(f"{block}.ssm_{name}_norm", part) for name, part in parts)
    elif model.key("ssm.dt_b_c_rms", False):
        low, b, c = (part / np.sqrt((part * part).mean(-1, keepdims=True) + model.eps) for part in (low, b, c))
    step = softplus(model.linear(f"{block}.ssm_dt", low))
    rates, state, y = model.weight(f"{block}.ssm_a"), np.zeros((x.shape[1], size)), np.empty_like(x)
    for at in range(len(x)):
        state = state * np.exp(step[at, :, None] * rates) + (step[at] * x[at])[:, None] * b[at]
        y[at] = state @ c[at]
    y = (y + x * model.weight(f"{block}.ssm_d")) * silu(z)
    return model.linear(f"{block}.ssm_out", y)


def convolved(weights: F64, x: F64) -> F64:
    """Each channel with its last inputs, which are zeros before the first."""
    taps = weights.shape[1]
    padded = np.concatenate([np.zeros((taps - 1, x.shape[1])), x])
    return sum((padded[tap : tap + len(x)] * weights[:, tap] for tap in range(taps)), np.zeros_like(x))


def decays(model: NativeReference, block: str, step: F64) -> F64:
    return np.exp(step * model.weight(f"{block}.ssm_a").reshape(-1))


def unit(x: F64, eps: float) -> F64:
    return x / np.sqrt((x * x).sum(-1, keepdims=True) + eps)


def sigmoid(x: F64) -> F64:
    return 1 / (1 + np.exp(-x))


def silu(x: F64) -> Any:
    return x / (1 + np.exp(-x))


def softplus(x: F64) -> Any:
    return np.logaddexp(0, x)

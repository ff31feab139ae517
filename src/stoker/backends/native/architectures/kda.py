"""Describes layers with Kimi Delta Attention (KDA), in the form that architectures have in files."""

from __future__ import annotations

from typing import Any

from stoker.backends.native.architectures.common import query_key_value
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.kinds import Mixer
from stoker.backends.native.layer_parts import Norm, Recurrence
from stoker.backends.native.spec import Heads

_MAX_TAPS, _MAX_SIZE = 8, 1 << 12
_GRANULE = 32
"""The head size must be a multiple of this, because it is the number of columns of matrices of gates and decays."""


def kda(model: Hyperparameters, index: int) -> dict[str, Any]:
    """The parts of a layer with Kimi Delta Attention, as fields of `Layer`. Queries, keys and values have the same head
    size.

    Args:
        model: the file.
        index: index of the layer.

    Raises:
        ModelFileInvalid: the layer has no heads.
        ModelUnsupported: the kernels do not support this head size.
    """
    block, hidden, num = f"blk.{index}", model.hidden_size, model.heads[index].num
    size = model.integer("kda.head_dim", high=_MAX_SIZE)
    if not num:
        model.fail(f"layer {index} has no heads")
    if size % _GRANULE:
        model.refuse(f"a delta net with heads of {size}")
    query, key, value = query_key_value(model, block, Heads(num=num, num_kv=num, size=size))
    return {
        "heads": None,
        "recurrence": _recurrence(model, block, num, size),
        "query": query,
        "key": key,
        "value": value,
        "mixed_gate": model.linear(f"{block}.ssm_g_a", size, hidden),
        "output": model.linear(f"{block}.attn_output", hidden, num * size),
    }


def _recurrence(model: Hyperparameters, block: str, num: int, size: int) -> Recurrence:
    taps = model.integer("ssm.conv_kernel", low=2, high=_MAX_TAPS)
    first, *behind = (f"{block}.ssm_conv1d_{part}.weight" for part in "qkv")
    return Recurrence(
        mixer=Mixer.KDA,
        taps=taps,
        convolution=Norm(weight=first, size=3 * taps * num * size, taps=taps, behind=tuple(behind)),
        num_heads=num,
        num_key_heads=num,
        key_size=size,
        value_size=size,
        decay=model.linear(f"{block}.ssm_f_a", size, model.hidden_size),
        wide_decay=model.linear(f"{block}.ssm_f_b", num * size, size),
        wide_gate=model.linear(f"{block}.ssm_g_b", num * size, size),
        beta=model.linear(f"{block}.ssm_beta", num, model.hidden_size),
        step_bias=model.vector(f"{block}.ssm_dt.bias", num * size),
        decay_rate=model.vector(f"{block}.ssm_a", num),
        norm=model.norm(f"{block}.ssm_norm", size),
        norm_size=size,
        norm_eps=model.norm_eps,
    )

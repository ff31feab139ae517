"""Layers with experts, as most architectures that have them write them down."""

from __future__ import annotations

from typing import Any

from stoker.backends.native.architectures.common import layer
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.spec import Experts, Layer, Routing

_ROUTINGS = {1: Routing.SOFTMAX, 2: Routing.SIGMOID, 3: Routing.SOFTMAX_OF_CHOSEN}
"""By GGUF's numbers."""


def expert_layer(
    model: Hyperparameters, index: int, *, size: int = 0, shared_size: int = 0, routing: Any = None, **more: Any
) -> Layer:
    """A layer with experts, and beside them, if it has a size, the block that all rows share.

    Args:
        model: the file.
        index: which layer.
        size: of the feed-forward of one expert; 0 = as the file says.
        shared_size: of the block that all rows share; 0 = there is none.
        routing: whatever is different, by the names of `Experts`.
        more: whatever else is, by those of `Layer`.
    """
    block, hidden = f"blk.{index}", model.hidden_size
    gate, up, down = None, None, None
    if shared_size:
        gate = model.linear(f"{block}.ffn_gate_shexp", shared_size, hidden)
        up = model.linear(f"{block}.ffn_up_shexp", shared_size, hidden)
        down = model.linear(f"{block}.ffn_down_shexp", hidden, shared_size)
    found = experts(model, index, size=size or expert_size(model), **(routing or {}))
    return layer(model, index, **{"experts": found, "gate": gate, "up": up, "down": down, **more})


def experts(model: Hyperparameters, index: int, *, size: int, **more: Any) -> Experts:
    """The experts of a layer.

    Args:
        model: the file.
        index: which layer.
        size: of the feed-forward of one.
        more: whatever is different, by the names of `Experts`.

    Raises:
        ModelUnsupported: their matrices are put together in another way.
    """
    block, hidden, count = f"blk.{index}", model.hidden_size, model.num_experts
    if not model.has(f"{block}.ffn_gate_exps.weight") or not model.has(f"{block}.ffn_up_exps.weight"):
        model.refuse("it has no tensor for the gates of all experts of a layer, and one for their `up`")
    if size % 32:
        model.refuse(f"experts of {size} elements (multiples of 32 can)")
    used = model.integer("expert_used_count", high=count)
    more = {"scale": model.optional_number("expert_weights_scale") or 1.0, **_groups(model, used), **more}
    return Experts(
        count=count,
        used=used,
        size=size,
        router=model.linear(f"{block}.ffn_gate_inp", count, hidden),
        gate=model.stacked(f"{block}.ffn_gate_exps", size, hidden),
        up=model.stacked(f"{block}.ffn_up_exps", size, hidden),
        down=model.stacked(f"{block}.ffn_down_exps", hidden, size),
        **more,
    )


def expert_size(model: Hyperparameters) -> int:
    """What all experts of the file have.

    Raises:
        ModelUnsupported: it differs from layer to layer.
    """
    sizes = set(model.counts_of_layers("expert_feed_forward_length"))
    return sizes.pop() if len(sizes) == 1 else model.refuse("experts differ in size from layer to layer")


def routing_of(model: Hyperparameters, default: Routing) -> Routing:
    """What the file says, or `default` where it says nothing.

    Raises:
        ModelUnsupported: something else.
    """
    number = model.integer("expert_gating_func", 0, low=0)
    if number and number not in _ROUTINGS:
        model.refuse(f"its routing number {number}")
    return _ROUTINGS.get(number, default)


def _groups(model: Hyperparameters, used: int) -> dict[str, int]:
    """Those of which experts are chosen.

    Raises:
        ModelFileInvalid: there are not enough experts in them.
    """
    num_groups = model.integer("expert_group_count", 0, low=0) or 1
    used_groups = model.integer("expert_group_used_count", 0, low=0) or 1
    if model.num_experts % num_groups or not used <= model.num_experts // num_groups * min(used_groups, num_groups):
        model.fail(f"{used} of {model.num_experts} experts cannot be of {used_groups} of {num_groups} groups")
    return {"num_groups": num_groups, "used_groups": min(used_groups, num_groups)}

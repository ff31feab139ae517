"""Layers with experts, as most architectures that have them write them down."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from stoker.backends.native.architectures.common import layer
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.kinds import Routing
from stoker.backends.native.layer_parts import Experts, Linear
from stoker.backends.native.spec import Layer

_ROUTINGS = {1: Routing.SOFTMAX, 2: Routing.SIGMOID, 3: Routing.SOFTMAX_OF_CHOSEN}
"""By GGUF's numbers."""


def expert_layer(
    model: Hyperparameters,
    index: int,
    *,
    size: int = 0,
    shared_size: int = 0,
    routing: Mapping[str, Any] | None = None,
    **more: Any,
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
    parts = expert_parts(model, index, size=size, shared_size=shared_size, routing=routing)
    return layer(model, index, **parts | more)


def layer_behind_dense(
    model: Hyperparameters, index: int, *, shared_size: int, routing: Mapping[str, Any], **more: Any
) -> Layer:
    """A layer with experts, or a dense one if it is among the first, which the file counts; arguments as of
    `expert_layer`."""
    if index < model.integer("leading_dense_block_count", 0, low=0):
        return layer(model, index, experts=None, **more)
    return expert_layer(model, index, shared_size=shared_size, routing=routing, **more)


def chosen_as_said(model: Hyperparameters, index: int, default: Routing) -> dict[str, Any]:
    """How experts are chosen and weighted, by the names of `Experts`, as the file says."""
    bias = f"blk.{index}.exp_probs_b.bias"
    return {
        "routing": routing_of(model, default),
        "is_normalised": model.flag("expert_weights_norm", default=False),
        "selection_bias": model.vector(bias, model.num_experts) if model.has(bias) else None,
    }


def size_of_shared(model: Hyperparameters) -> int:
    """Of the block beside the experts, where it is as large as so many of them."""
    return model.integer("expert_shared_count", 0, low=0) * expert_size(model)


def expert_parts(
    model: Hyperparameters, index: int, *, size: int = 0, shared_size: int = 0, routing: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The experts and the block beside them, by the names of `Layer`; arguments as of `expert_layer`."""
    block, hidden = f"blk.{index}", model.hidden_size
    gate, up, down = None, None, None
    if shared_size:
        gate = model.linear(f"{block}.ffn_gate_shexp", shared_size, hidden)
        up = model.linear(f"{block}.ffn_up_shexp", shared_size, hidden)
        down = model.linear(f"{block}.ffn_down_shexp", hidden, shared_size)
    found = experts(model, index, size=size or expert_size(model), **(routing or {}))
    return {"experts": found, "gate": gate, "up": up, "down": down}


def experts(model: Hyperparameters, index: int, *, size: int, has_up: bool = True, **more: Any) -> Experts:
    """The experts of a layer.

    Args:
        model: the file.
        index: which layer.
        size: of the feed-forward of one.
        has_up: beside the gate; the file calls a gate that is alone `up`.
        more: whatever is different, by the names of `Experts`.

    Raises:
        ModelUnsupported: their matrices are put together in another way.
    """
    block, hidden, count = f"blk.{index}", model.hidden_size, model.num_experts
    if not size or size % 32:
        model.refuse(f"experts of {size} elements (multiples of 32 can)")
    gate, up = _gates(model, block, size, has_up=has_up)
    used = model.integer("expert_used_count", high=count)
    more = {"scale": model.optional_number("expert_weights_scale") or 1.0, **_groups(model, used), **more}
    return Experts(
        count=count,
        used=used,
        size=size,
        router=model.linear(f"{block}.ffn_gate_inp", count, hidden),
        gate=gate,
        up=up,
        down=model.stacked(f"{block}.ffn_down_exps", hidden, size),
        **more,
    )


def _gates(model: Hyperparameters, block: str, size: int, *, has_up: bool) -> tuple[Linear, Linear | None]:
    """
    ```
    blk.0.ffn_gate_up_exps:  | expert 0: rows of gate | rows of up | expert 1: rows of gate | …
    ```
    """
    gate, up, both = (f"{block}.ffn_{part}_exps" for part in ("gate", "up", "gate_up"))
    if model.has(f"{both}.weight"):
        all_rows = replace(model.stacked(both, size, model.hidden_size), run=size)
        return all_rows, replace(all_rows, first_row=size)
    if not model.has(f"{up}.weight") or model.has(f"{gate}.weight") != has_up:
        model.refuse("it has no tensor for the gates of all experts of a layer, and one for their `up`")
    plain = model.stacked(up, size, model.hidden_size)
    return (model.stacked(gate, size, model.hidden_size), plain) if has_up else (plain, None)


def expert_size(model: Hyperparameters) -> int:
    """What all experts of the file have; unless it says so, as much of the dense size as each that is used gets.

    Raises:
        ModelUnsupported: it differs from layer to layer.
    """
    used = model.integer("expert_used_count", high=model.num_experts)
    usual = [size // used for size in model.feed_forward_sizes]
    sizes = set(model.counts_of_layers("expert_feed_forward_length", usual))
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
    """The sizes of the groups from which experts are chosen.

    Raises:
        ModelFileInvalid: there are not enough experts in them.
    """
    num_groups = model.integer("expert_group_count", 0, low=0) or 1
    used_groups = model.integer("expert_group_used_count", 0, low=0) or 1
    if model.num_experts % num_groups or not used <= model.num_experts // num_groups * min(used_groups, num_groups):
        model.fail(f"{used} of {model.num_experts} experts cannot be of {used_groups} of {num_groups} groups")
    return {"num_groups": num_groups, "used_groups": min(used_groups, num_groups)}

"""Tiny decoders whose tokens have several streams (native/pass_alt_up.cpp), as the C++ side takes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.unit.native.tiny import Builder

COUNT, RANK, WIDTH = 4, 32, 32


def ends(b: Builder) -> dict[str, Any]:
    """What belongs to no layer, by the names of the description."""
    t, hidden = b.tiny, b.tiny.hidden_size
    squares, all_layers = ((COUNT - 1) * hidden, hidden), WIDTH * t.num_layers
    return {
        "streams": {name: b.matrix(f"streams.{name}", *squares) for name in ("split", "join")},
        "layer_inputs": {
            "size": WIDTH,
            "table": b.matrix("layer_inputs.table", t.vocab_size, all_layers),
            "projection": b.matrix("layer_inputs.projection", all_layers, hidden),
            "norm": b.vector("layer_inputs.norm", WIDTH, around=1),
            "norm_eps": 1e-5,
            "table_scale": 2.0,
        },
    }


def of_layer(b: Builder, i: int) -> dict[str, Any]:
    """What a layer does with them, and with what tokens have for it. Gates of the first are cut."""
    hidden = b.tiny.hidden_size
    vectors = {"router": COUNT * hidden, "predict": COUNT**3, "correct": COUNT**2}
    norms = ("router_norm", "scale", "norm")
    return {
        "streams": {
            "narrow": b.matrix(f"{i}.streams.narrow", RANK, hidden),
            "wide": b.matrix(f"{i}.streams.wide", hidden, RANK),
            **{name: b.vector(f"{i}.streams.{name}", size) for name, size in vectors.items()},
            **{name: b.vector(f"{i}.streams.{name}", hidden, around=1) for name in norms},
        },
        "gate_cut": 0.5 if i == 0 else float("-inf"),
        "inject_gate": b.matrix(f"{i}.inject_gate", WIDTH, hidden),
        "inject_output": b.matrix(f"{i}.inject_output", hidden, WIDTH),
        "inject_norm": b.vector(f"{i}.inject_norm", hidden, around=1),
    }

"""Tiny models in which a token follows from the one before it, and files that draft just that for them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tests.tiny_drafters import TinyAssistant, TinyEagle
from tests.tiny_models import TinyModel

EXPERTS = TinyModel(
    architecture="glm4moe", num_layers=2, num_draft_heads=1, num_experts=8, num_dense=1, shared_size=64, has_head=False
)


def without_layers(model: TinyModel) -> dict[str, NDArray[np.float32]]:
    """Tensors with which a token follows from the one before it, for the model and for its head alike."""
    hidden, heads = model.hidden_size, model.num_heads * model.head_size
    found: dict[str, NDArray[np.floating]] = {}
    for index in range(model.num_layers + model.num_draft_heads):
        found[f"blk.{index}.attn_output.weight"] = np.zeros((hidden, heads))
        found[f"blk.{index}.ffn_down.weight"] = np.zeros((hidden, model.feed_forward_size))
    stem = f"blk.{model.num_layers}.nextn"
    found[f"{stem}.eh_proj.weight"] = np.eye(hidden, 2 * hidden)
    found[f"{stem}.enorm.weight"] = found[f"{stem}.shared_head_norm.weight"] = np.ones(hidden)
    found["output_norm.weight"] = np.ones(hidden)
    rng = np.random.default_rng(3)
    found["output.weight"] = rng.normal(0, 1, (model.vocab_size, hidden))
    return {name: values.astype(np.float32) for name, values in found.items()}


def predictable_with_head() -> TinyModel:
    """A model in which a token follows from the one before it, with a head that says so."""
    plain = replace(EXPERTS, num_dense=4, has_head=True)
    return replace(plain, vectors=without_layers(plain))


def predictable(num_layers: int = 2) -> TinyModel:
    """A model in which a token follows from the one before it."""
    plain = replace(EXPERTS, num_layers=num_layers, num_dense=num_layers, num_draft_heads=0, has_head=True)
    vectors, head = without_layers(replace(plain, num_draft_heads=1)), f"blk.{num_layers}."
    return replace(plain, vectors={name: values for name, values in vectors.items() if not name.startswith(head)})


def right_eagle(model: TinyModel) -> TinyEagle:
    """One that says what this model says: attention finds the entry itself, and gives its embedding."""
    hidden = model.hidden_size
    own, nothing = np.eye(hidden), np.zeros((hidden, hidden))
    vectors = {
        "blk.0.attn_norm.weight": np.ones(hidden),
        "blk.0.attn_norm_2.weight": np.full(hidden, 1e-4),
        "blk.0.attn_q.weight": np.concatenate([8 * own, nothing], axis=1),
        "blk.0.attn_k.weight": np.concatenate([8 * own, nothing], axis=1),
        "blk.0.attn_v.weight": np.concatenate([own, nothing], axis=1),
        "blk.0.attn_output.weight": 100 * own,
        "blk.0.ffn_down.weight": np.zeros((hidden, 96)),
        "output_norm.weight": np.ones(hidden),
    }
    return TinyEagle(
        target=model,
        num_kv_heads=4,
        has_embedding=False,
        has_head=False,
        norm_before_residual=True,
        vectors={name: values.astype(np.float32) for name, values in vectors.items()},
    )


def predictable_gemma(num_layers: int = 4) -> TinyModel:
    """A Gemma 4 in which a token follows from the one before it."""
    plain = TinyModel(architecture="gemma4", num_layers=num_layers, keys={"final_logit_softcapping": None})
    hidden, vectors = plain.hidden_size, dict[str, NDArray[np.float32]]()
    for index in range(plain.num_layers):
        heads = plain.num_heads * plain.head_size * (1 + index % 2)
        vectors[f"blk.{index}.attn_output.weight"] = np.zeros((hidden, heads), np.float32)
        vectors[f"blk.{index}.ffn_down.weight"] = np.zeros((hidden, plain.feed_forward_size), np.float32)
        vectors[f"blk.{index}.proj.weight"] = np.zeros((hidden, 32), np.float32)
    vectors["output_norm.weight"] = np.ones(hidden, np.float32)
    vectors["output.weight"] = np.random.default_rng(3).normal(0, 1, (plain.vocab_size, hidden)).astype(np.float32)
    return replace(plain, vectors=vectors)


def right_assistant(model: TinyModel) -> TinyAssistant:
    """One that says what this model says: nothing but the embedding counts."""
    hidden = model.hidden_size
    assistant = TinyAssistant(target=model, hidden_size=hidden)
    vectors = {
        "nextn.pre_projection.weight": np.eye(hidden, 2 * hidden, dtype=np.float32),
        "output_norm.weight": np.ones(hidden, np.float32),
        "token_embd.weight": model.vectors["output.weight"],
    }
    for index in range(len(assistant.windowed)):
        heads = assistant.num_heads * assistant.size_of(index)
        vectors[f"blk.{index}.attn_output.weight"] = np.zeros((hidden, heads), np.float32)
        vectors[f"blk.{index}.ffn_down.weight"] = np.zeros((hidden, assistant.feed_forward_size), np.float32)
    return replace(assistant, vectors=vectors)

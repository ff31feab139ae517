"""What tiny models with a latent vector in place of keys and values (DeepSeek V2) have besides."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.tiny_models import TinyModel

Shapes = list[tuple[str, tuple[int, ...]]]

RANK, ROTATED, PLAIN, VALUE = 64, 16, 32, 48
"""Of the vector, of what is rotated, of a head's query without that, and of what a head gives."""


WITH_LATENT = ("deepseek2", "kimi-linear", "minicpm3")


def latent_keys(model: TinyModel) -> dict[str, Any]:
    rank = model.keys.get("attention.kv_lora_rank", RANK)
    if has_plain_heads(model):
        return {**plm_keys(model), "attention.q_lora_rank": 32}
    is_hybrid = model.architecture == "kimi-linear"
    keys_of_layers = [min(1, model.heads_of(index)[1]) for index in range(model.num_layers)]
    return {
        "attention.head_count_kv": keys_of_layers if is_hybrid else 1,
        "attention.key_length": rank + ROTATED,
        "attention.value_length": rank,
        "attention.key_length_mla": PLAIN + ROTATED,
        "attention.value_length_mla": VALUE,
        "attention.kv_lora_rank": rank,
        "attention.q_lora_rank": None if is_hybrid else 32,
        "rope.dimension_count": ROTATED,
    }


def has_plain_heads(model: TinyModel) -> bool:
    """One matrix makes the keys and values of all heads."""
    return model.is_old or model.architecture == "minicpm3"


def plm_keys(model: TinyModel) -> dict[str, Any]:
    return {
        "attention.head_count_kv": model.num_heads,
        "attention.key_length": PLAIN + ROTATED,
        "attention.value_length": VALUE,
        "attention.kv_lora_rank": RANK,
        "rope.dimension_count": ROTATED,
    }


def with_one_matrix(model: TinyModel, shapes: Shapes) -> Shapes:
    """Likewise, where one matrix makes the keys and values of all heads from the vector (PLM)."""
    hidden, num = model.hidden_size, model.num_heads
    plain = [(name, shape) for name, shape in shapes if not name.startswith("attn_") or name == "attn_norm.weight"]
    return [
        *plain,
        ("attn_q.weight", (num * (PLAIN + ROTATED), hidden)),
        ("attn_kv_a_mqa.weight", (RANK + ROTATED, hidden)),
        ("attn_kv_a_norm.weight", (RANK,)),
        ("attn_kv_b.weight", (num * (PLAIN + VALUE), RANK)),
        ("attn_output.weight", (hidden, num * VALUE)),
    ]


def with_latent(model: TinyModel, shapes: Shapes) -> Shapes:
    """The tensors of a layer, given those that it would have with plain attention."""
    hidden, num, rank = model.hidden_size, model.num_heads, model.keys.get("attention.kv_lora_rank", RANK)
    queries = num * (PLAIN + ROTATED)
    plain = [(name, shape) for name, shape in shapes if not name.startswith("attn_") or name == "attn_norm.weight"]
    narrow = {**latent_keys(model), **model.keys}["attention.q_lora_rank"]
    query: Shapes = [("attn_q.weight", (queries, hidden))]
    if narrow:
        query = [
            ("attn_q_a.weight", (narrow, hidden)),
            ("attn_q_a_norm.weight", (narrow,)),
            ("attn_q_b.weight", (queries, narrow)),
        ]
    of_heads: Shapes = [("attn_k_b.weight", (num, rank, PLAIN)), ("attn_v_b.weight", (num, VALUE, rank))]
    if has_plain_heads(model):
        of_heads = [("attn_kv_b.weight", (num * (PLAIN + VALUE), rank))]
    return [
        *plain,
        *query,
        ("attn_kv_a_mqa.weight", (rank + ROTATED, hidden)),
        ("attn_kv_a_norm.weight", (rank,)),
        *of_heads,
        ("attn_output.weight", (hidden, num * VALUE)),
    ]

"""Describes latent attention (MLA), where keys and values are one latent vector per position. Files have either
separate matrices for each head (*prepared*), or one matrix that computes the keys and values of all heads.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.layer_parts import Latent, Linear
from stoker.backends.native.spec import Heads


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Sizes of the latent vector and of a head."""

    vector: int
    plain: int
    """Elements of a head's query that are not rotated; those that are follow them."""
    rotated: int
    value: int
    """Elements of the result of a head."""
    is_prepared: bool
    """The file has separate matrices for each head."""

    @classmethod
    def of_prepared(cls, model: Hyperparameters) -> Sizes:
        """The sizes in a prepared file, whose heads attend to the latent vector.

        Raises:
            ModelUnsupported: the kernels do not support these sizes.
            ModelFileInvalid: sizes contradict one another.
        """
        vector, rotated = model.integer("attention.kv_lora_rank"), model.integer("rope.dimension_count")
        has_one_key = all(heads.num_kv <= 1 for heads in model.heads)  # or none, in layers without attention
        if model.head_size != vector + rotated or not has_one_key:
            model.fail(
                f"a key of {model.head_size} elements cannot be {vector} latent ones and {rotated} that are rotated"
            )
        query, value = model.integer("attention.key_length_mla"), model.integer("attention.value_length_mla")
        return cls._checked(model, vector, query, rotated, value, is_prepared=True)

    @classmethod
    def of_plain_heads(cls, model: Hyperparameters) -> Sizes:
        """The sizes in a file whose heads are computed from the latent vector. Errors: see `of_prepared`."""
        vector, rotated = model.integer("attention.kv_lora_rank"), model.integer("rope.dimension_count")
        value = model.integer("attention.value_length", model.head_size)
        return cls._checked(model, vector, model.head_size, rotated, value, is_prepared=False)

    @classmethod
    def _checked(
        cls, model: Hyperparameters, vector: int, query: int, rotated: int, value: int, *, is_prepared: bool
    ) -> Sizes:
        plain = query - rotated
        if plain <= 0:
            model.fail(f"of {query} elements of a head {rotated} are rotated")
        if vector % 32 or rotated % 16 or plain % 32:
            model.refuse(f"latent vectors of {vector} with heads of {plain} and {rotated} elements")
        return cls(vector=vector, plain=plain, rotated=rotated, value=value, is_prepared=is_prepared)


def latent_attention(model: Hyperparameters, index: int, sizes: Sizes) -> dict[str, Any]:
    """The attention of a layer, as fields of `Layer`. Queries may have a low rank (`q_lora_rank`)."""
    block, hidden, num = f"blk.{index}", model.hidden_size, model.heads[index].num
    rank = model.integer("attention.q_lora_rank", 0, low=0)
    if sizes.value % 16 or num * sizes.value % 32 or rank % 32:
        model.refuse(f"{num} heads that give {sizes.value} elements, of queries of {rank} numbers")
    all_queries = num * (sizes.plain + sizes.rotated)
    query, narrow = model.linear(f"{block}.attn_q", all_queries, hidden), None
    if rank:
        query = model.linear(f"{block}.attn_q_a", rank, hidden)
        narrow = model.linear(f"{block}.attn_q_b", all_queries, rank)
    wide, out = _matrices_of_heads(model, block, num, sizes)
    latent = Latent(
        size=sizes.vector,
        plain=sizes.plain,
        rotated=sizes.rotated,
        value=sizes.value,
        narrow=narrow,
        wide=wide,
        out=out,
        query_norm=model.norm(f"{block}.attn_q_a_norm", rank) if rank else None,
        norm=model.norm(f"{block}.attn_kv_a_norm", sizes.vector),
    )
    return {
        "heads": Heads(num=num, num_kv=1, size=sizes.vector + sizes.rotated),
        "latent": latent,
        "query": query,
        "key": model.linear(f"{block}.attn_kv_a_mqa", sizes.vector + sizes.rotated, hidden),
        "value": None,
        "output": model.linear(f"{block}.attn_output", hidden, num * sizes.value),
    }


def _matrices_of_heads(model: Hyperparameters, block: str, num: int, sizes: Sizes) -> tuple[Linear, Linear]:
    """`Latent.wide` and `Latent.out`. In a file that is not prepared:

    ```
    attn_kv_b   | head 0: rows of keys, not rotated | rows of values | head 1 | …
    ```
    """
    if sizes.is_prepared:
        wide = model.linear(f"{block}.attn_k_b", num * sizes.vector, sizes.plain)
        out = model.linear(f"{block}.attn_v_b", num * sizes.value, sizes.vector)
        return replace(wide, num_stacked=num), replace(out, num_stacked=num)
    out = model.linear(f"{block}.attn_kv_b", num * sizes.value, sizes.vector, first_row=sizes.plain)
    wide = replace(
        out,
        num_rows=num * sizes.vector,
        num_columns=sizes.plain,
        first_row=0,
        run=sizes.plain,
        gap=sizes.value,
        turned_columns=sizes.vector,
    )
    return wide, replace(out, run=sizes.value, gap=sizes.plain)

"""What the architectures ask of a file: its numbers, checked, and which tensors it has. It decides no architecture."""

from __future__ import annotations

from dataclasses import replace
from math import isfinite
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from stoker.backends.native.file import FLOAT_TYPES, ModelParts
from stoker.backends.native.rope import RopeScaling
from stoker.backends.native.spec import Heads, Linear, Norm
from stoker.errors import ModelFileInvalid, ModelUnsupported

_MAX_LAYERS = 512
_MAX_SIZE = 1 << 22
"""Of a vector anywhere in a model: far above what exists, far below what would exhaust the memory."""
_MAX_EXPERTS = 1024
_MAX_CONTEXT = 2**31 - 1
_MAX_HEAD_SIZE = 512
_HEAD_GRANULE, _ROW_GRANULE = 16, 32
"""What the length of a head, and of a row that is multiplied with a matrix, is a multiple of."""
_SCALINGS = ("none", "linear", "yarn", "longrope")


class Hyperparameters:
    """The sizes that every decoder has, and access to the rest.

    Args:
        parts: the files of the model.
        context_size: longest sequence that will be computed, in tokens.

    Raises:
        ModelFileInvalid: a number is missing or impossible.
        ModelUnsupported: a head size that the kernels do not have.
    """

    def __init__(self, parts: ModelParts, context_size: int) -> None:
        self._file = parts.first
        self._parts = parts
        self.context_size = context_size
        self._num_blocks = self.integer("block_count", high=_MAX_LAYERS)
        further = self.integer("nextn_predict_layers", 0, low=0, high=self._num_blocks - 1)
        self.num_layers = self._num_blocks - further
        """Without those that guess further tokens."""
        self.hidden_size = self.integer("embedding_length")
        num_heads = self.counts_of_layers("attention.head_count")
        self.num_heads = max(num_heads)
        num_kv_heads = self.counts_of_layers("attention.head_count_kv", num_heads)
        self.num_experts = self.integer("expert_count", 0, low=0, high=_MAX_EXPERTS)
        self.feed_forward_sizes = self.counts_of_layers("feed_forward_length", self._expert_sizes())
        self.norm_eps = self.number(
            "attention.layer_norm_rms_epsilon", self.optional_number("attention.layer_norm_epsilon")
        )
        self.trained_context = self._trained_context()
        self.head_size = self.integer("attention.key_length", max(1, self.hidden_size // self.num_heads))
        self.heads = [
            Heads(num=num, num_kv=num_kv, size=self.head_size)
            for num, num_kv in zip(num_heads, num_kv_heads, strict=True)
        ]
        """Of each layer."""
        self.vocab_size = self._vocab_size()
        self._check()

    def integer(self, suffix: str, default: int | None = None, *, low: int = 1, high: int = _MAX_SIZE) -> int:
        """An own number of the architecture, within a range.

        Raises:
            ModelFileInvalid: it is not, or it is missing and there is no default.
        """
        key = self._file.own_key(suffix)
        value = self._file.require_int(key) if default is None else self._file.get_int(key)
        if value is None:
            assert default is not None
            return default
        return value if low <= value <= high else self.fail(f"`{key}` is {value}, not {low} … {high}")

    def number(self, suffix: str, default: float | None = None) -> float:
        """A finite, positive float.

        Raises:
            ModelFileInvalid: it is not, or it is missing and there is no default.
        """
        key = self._file.own_key(suffix)
        value = self._file.get_float(key)
        if value is None:
            return self.fail(f"`{key}` is missing") if default is None else default
        return value if isfinite(value) and value > 0 else self.fail(f"`{key}` is {value}")

    def optional_number(self, suffix: str) -> float | None:
        """The same, or None if it is not there or 0."""
        key = self._file.own_key(suffix)
        return self.number(suffix) if self._file.get_float(key) else None

    def flag(self, suffix: str, *, default: bool) -> bool:
        """Yes or no."""
        value = self._file.get_bool(self._file.own_key(suffix))
        return default if value is None else value

    def counts_of_layers(self, suffix: str, default: list[int] | None = None) -> list[int]:
        """A count for each layer, which a file gives once for all or once for each.

        Raises:
            ModelFileInvalid: it is out of its range, or there are not as many as layers.
        """
        key = self._file.own_key(suffix)
        values = self._file.get_ints(key)
        if not values:
            return self.fail(f"`{key}` is missing") if default is None else default
        if len(values) not in (1, self.num_layers, self._num_blocks):
            self.fail(f"`{key}` has {len(values)} entries for {self.num_layers} layers")
        for value in values:
            if not 1 <= value <= _MAX_SIZE:
                self.fail(f"`{key}` is {value}")
        return values[: self.num_layers] if len(values) > 1 else values * self.num_layers

    def lists(self, suffix: str) -> bool:
        """Whether the file has a list of this name."""
        return self._file.is_array(self._file.own_key(suffix))

    def sections(self, suffix: str, count: int) -> list[int]:
        """So many integers, or fewer that are filled up with zeros.

        Raises:
            ModelFileInvalid: there are none, or more.
        """
        key = self._file.own_key(suffix)
        found = self._file.get_ints(key) or []
        if not 1 <= len(found) <= count:
            self.fail(f"`{key}` has {len(found)} entries, not 1 … {count}")
        return found + [0] * (count - len(found))

    def flags_of_layers(self, suffix: str) -> list[bool] | None:
        """What a file says of each layer, yes or no; None if it does not list them.

        Raises:
            ModelFileInvalid: not as many as there are layers, or neither booleans nor integers.
        """
        key = self._file.own_key(suffix)
        if not self.lists(suffix):
            return None
        flags = self._file.get_ints(key) or []
        if len(flags) != self.num_layers:
            self.fail(f"`{key}` has {len(flags)} entries for {self.num_layers} layers")
        return [flag != 0 for flag in flags]

    def rope_dim(self) -> int:
        """How many elements of a head are rotated."""
        dim = self.integer("rope.dimension_count", self.head_size)
        if dim % 2 or dim > self.head_size:
            self.fail(f"`{self._file.own_key('rope.dimension_count')}` is {dim}, with heads of {self.head_size}")
        if self.integer("rope.dimension_count_swa", dim, low=0) != dim:
            self.refuse("layers with a window rotate another part of each head")
        return dim

    def rope_base(self, suffix: str = "rope.freq_base", default: float = 10000.0) -> float:
        """The slowest pair of elements turns about so many times slower than the fastest; above 1."""
        base = self.number(suffix, default)
        return base if base > 1 else self.fail(f"`{self._file.own_key(suffix)}` is {base}, not above 1")

    def rope_scaling(self) -> RopeScaling:
        """How the whole context is stretched; `rope.scaling.*`, or the old `rope.scale_linear`.

        Raises:
            ModelUnsupported: in a way that is not known here.
        """
        kind = self._file.get_str(self._file.own_key("rope.scaling.type")) or "linear"
        if kind not in _SCALINGS:
            self.refuse(f"its rope scaling `{kind}`")
        key = "rope.scaling.original_context_length"
        original_context = self.integer(key, self.trained_context, low=0, high=_MAX_CONTEXT)
        if not original_context:  # not for all architectures the same as if it were missing
            self.refuse(f"`{self._file.own_key(key)}` is 0")
        factor = self.optional_number("rope.scaling.factor") or self.optional_number("rope.scale_linear") or 1.0
        return RopeScaling(
            factor=1.0 if kind == "none" else factor,
            is_yarn=kind == "yarn",
            original_context=original_context,
            attention_factor=self.number("rope.scaling.attn_factor", 1.0),
        )

    def rope_divisors(self, name: str) -> NDArray[np.float32] | None:
        """The divisors of the rotation frequencies in tensor `name`; None if there is none.

        Raises:
            ModelFileInvalid: it does not hold one finite, positive float for each frequency.
        """
        entry = self._parts.tensors.get(name)
        if entry is None:
            return None
        if entry.type.name not in FLOAT_TYPES or entry.shape != (self.rope_dim() // 2,):
            self.fail(f"tensor `{name}` of type {entry.type.name} and shape {entry.shape} is not what rope needs")
        values = self._parts.floats(name)
        return values if np.isfinite(values).all() and (values > 0).all() else self.fail(f"`{name}` is not positive")

    def tensors_of_further_layers(self) -> frozenset[str]:
        """Of those that guess further tokens."""
        return frozenset(name for name in self._parts.tensors if _layer_of(name) >= self.num_layers)

    def has(self, tensor: str) -> bool:
        return tensor in self._parts.tensors

    def linear(self, stem: str, num_rows: int, num_columns: int, first_row: int = 0) -> Linear:
        """The matrix `<stem>.weight`, with `<stem>.bias` if there is one."""
        bias = f"{stem}.bias" if self.has(f"{stem}.bias") else None
        return Linear(
            weight=f"{stem}.weight", num_rows=num_rows, num_columns=num_columns, first_row=first_row, bias=bias
        )

    def norm(self, stem: str, size: int | None = None, *, scale: float = 1.0) -> Norm:
        """The vector `<stem>.weight`, of the hidden size unless told otherwise."""
        return Norm(weight=f"{stem}.weight", size=size or self.hidden_size, scale=scale)

    def stacked(self, stem: str, num_rows: int, num_columns: int) -> Linear:
        """The matrices of all experts, `num_rows` each, as one."""
        plain = self.linear(stem, num_rows * self.num_experts, num_columns)
        return replace(plain, num_stacked=self.num_experts)

    def refuse(self, what: str) -> NoReturn:
        """Raises ModelUnsupported."""
        raise ModelUnsupported(
            f"the native executor cannot run {self._file.path} ({self._file.architecture}): {what}",
            path=str(self._file.path),
        )

    def fail(self, what: str) -> NoReturn:
        """Raises ModelFileInvalid."""
        raise ModelFileInvalid(f"{self._file.path} cannot be used: {what}", path=str(self._file.path))

    def _expert_sizes(self) -> list[int] | None:
        if not self.num_experts or not self._file.get_ints(self._file.own_key("expert_feed_forward_length")):
            return None
        return self.counts_of_layers("expert_feed_forward_length")

    def _trained_context(self) -> int:
        """Raises ModelUnsupported if the file says that there is none, or no bound."""
        key = self._file.own_key("context_length")
        length = self._file.require_int(key)
        return length if 1 <= length <= _MAX_CONTEXT else self.refuse(f"`{key}` is {length}")

    def _vocab_size(self) -> int:
        entry = self._parts.tensors.get("token_embd.weight")
        if entry is None or len(entry.shape) != 2:
            self.fail("it has no matrix `token_embd.weight`")
        tokens = self._file.get_array("tokenizer.ggml.tokens")
        if tokens is not None and len(tokens) != entry.shape[1]:
            self.fail(f"its vocabulary has {len(tokens)} tokens, but `token_embd.weight` has {entry.shape[1]} rows")
        return entry.shape[1]

    def _check(self) -> None:
        key, value = (self._file.own_key(f"attention.{name}_length") for name in ("key", "value"))
        for heads in self.heads:
            if heads.num % heads.num_kv:
                self.fail(f"{heads.num} heads cannot share {heads.num_kv} heads of keys and values")
        if self.integer("attention.value_length", self.head_size) != self.head_size:
            self.refuse(f"`{key}` and `{value}` differ")
        if self.head_size % _HEAD_GRANULE or self.head_size > _MAX_HEAD_SIZE:
            self.refuse(f"heads of {self.head_size} elements (multiples of {_HEAD_GRANULE} up to {_MAX_HEAD_SIZE} can)")
        query_sizes = {heads.num * heads.size for heads in self.heads}
        for size in (self.hidden_size, *sorted({*self.feed_forward_sizes, *query_sizes})):
            if size > _MAX_SIZE:
                self.fail(f"rows of {size} elements")
            if size % _ROW_GRANULE:
                self.refuse(f"rows of {size} elements (multiples of {_ROW_GRANULE} can)")
        if not self.flag("attention.causal", default=True):
            self.refuse("its attention looks forward")


def _layer_of(tensor: str) -> int:
    """-1 of a tensor of no layer."""
    block, _, rest = tensor.partition(".")
    number = rest.partition(".")[0]
    return int(number) if block == "blk" and number.isdecimal() else -1

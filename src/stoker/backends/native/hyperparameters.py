"""Checked access to a file's hyperparameters and tensors, for the modules that describe architectures."""

from __future__ import annotations

from dataclasses import replace
from math import isfinite
from typing import NoReturn, TypeVar

import numpy as np
from numpy.typing import NDArray

from stoker.backends.native.file import FLOAT_TYPES, ModelParts
from stoker.backends.native.layer_parts import Linear, Norm
from stoker.backends.native.rope import RopeScaling
from stoker.backends.native.spec import Heads
from stoker.errors import ModelFileInvalid, ModelUnsupported

_Number = TypeVar("_Number", int, float)

_MAX_LAYERS = 512
_MAX_SIZE = 1 << 22
"""Largest size of a vector anywhere in a model: far above what exists, far below what would exhaust the memory."""
_MAX_TABLE = 1 << 30
"""Limit of the numbers in a table of vectors, such as position embeddings."""
_MAX_EXPERTS = 1024
_MAX_CONTEXT = 2**31 - 1
_MAX_HEAD_SIZE = 512
_MAX_LATENT_HEAD = 1024
"""Largest size of the key that all heads share in latent attention (MLA)."""
_HEAD_GRANULE, _ROW_GRANULE = 16, 32
"""The kernels need heads, and rows that are multiplied by a matrix, whose sizes are multiples of these numbers."""
_SCALINGS = ("none", "linear", "yarn", "longrope")


class Hyperparameters:
    """The sizes of a decoder as attributes, and access to other hyperparameters of a file by key (`ModelFile.own_key`).

    Args:
        parts: the files of the model.
        context_size: length of the longest sequence that will be computed, in tokens.
        has_further_layers: whether layers of a draft head (MTP) count as layers.
        vocab_size: of the target model, if the file is a drafter; used where the file has no embeddings.

    Raises:
        ModelFileInvalid: a number is missing or impossible.
        ModelUnsupported: the kernels do not support a size of heads or rows, or the context length is out of range.
    """

    def __init__(
        self,
        parts: ModelParts,
        context_size: int,
        *,
        has_further_layers: bool = False,
        vocab_size: int | None = None,
    ) -> None:
        self._file = parts.first
        self.architecture = self._file.architecture
        self._parts = parts
        self.context_size = context_size
        self._num_blocks = self.integer("block_count", high=_MAX_LAYERS)
        further = 0 if vocab_size else self.integer("nextn_predict_layers", 0, low=0, high=self._num_blocks - 1)
        self._num_trunk = self._num_blocks - further
        self.num_layers = self._num_blocks - (0 if has_further_layers else further)
        """Number of layers; without those of a draft head (MTP), unless `has_further_layers`."""
        self.hidden_size = self.integer("embedding_length")
        num_heads = self.counts_of_layers("attention.head_count", low=0)
        self.num_heads = max(num_heads)
        if not self.num_heads and not self.integer("ssm.inner_size", 0, low=0):
            self.fail(f"`{self._file.own_key('attention.head_count')}` is 0")
        num_kv_heads = self.counts_of_layers("attention.head_count_kv", num_heads, low=0)
        self.num_experts = self.integer("expert_count", 0, low=0, high=_MAX_EXPERTS)
        self.feed_forward_sizes = self.counts_of_layers("feed_forward_length", self._expert_sizes(), low=0)
        self.norm_eps = self.number(
            "attention.layer_norm_rms_epsilon", self.optional_number("attention.layer_norm_epsilon")
        )
        self.trained_context = self._trained_context()
        usual_size = max(1, self.hidden_size // self.num_heads) if self.num_heads else _HEAD_GRANULE
        self.head_size = self.integer("attention.key_length", usual_size)
        self.heads = [
            Heads(num=num, num_kv=num_kv, size=size)
            for num, num_kv, size in zip(num_heads, num_kv_heads, self._head_sizes(), strict=True)
        ]
        """The heads of each layer; a layer without attention has no heads of keys and values."""
        self.vocab_size = self._vocab_size(vocab_size)
        self._check()

    def integer(self, suffix: str, default: int | None = None, *, low: int = 1, high: int = _MAX_SIZE) -> int:
        """An integer within `low` … `high`.

        Raises:
            ModelFileInvalid: it is out of range, or it is missing and there is no default.
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
            ModelFileInvalid: it is not finite and positive, or it is missing and there is no default.
        """
        key = self._file.own_key(suffix)
        value = self._file.get_float(key)
        if value is None:
            return self.fail(f"`{key}` is missing") if default is None else default
        return value if isfinite(value) and value > 0 else self.fail(f"`{key}` is {value}")

    def optional_number(self, suffix: str) -> float | None:
        """A number as `number` returns it, or None if it is missing or 0."""
        key = self._file.own_key(suffix)
        return self.number(suffix) if self._file.get_float(key) else None

    def flag(self, suffix: str, *, default: bool) -> bool:
        """A boolean, or `default` if it is missing."""
        value = self._file.get_bool(self._file.own_key(suffix))
        return default if value is None else value

    def counts_of_layers(self, suffix: str, default: list[int] | None = None, *, low: int = 1) -> list[int]:
        """A count for each layer. The file gives one for all layers, or one for each.

        Raises:
            ModelFileInvalid: a count is out of range or has no default, or there are neither one nor as many as layers.
        """
        key = self._file.own_key(suffix)
        values = self._file.get_ints(key)
        if not values:
            return self.fail(f"`{key}` is missing") if default is None else default
        if len(values) not in (1, self._num_trunk, self._num_blocks):
            self.fail(f"`{key}` has {len(values)} entries for {self.num_layers} layers")
        for value in values:
            if not low <= value <= _MAX_SIZE:
                self.fail(f"`{key}` is {value}")
        return _for_each(values, self.num_layers)

    def numbers_of_layers(self, key: str, none: float | None = None) -> list[float]:
        """A finite number for each layer. The file gives one for all layers, or one for each.

        Args:
            key: the whole key, which does not begin with the architecture.
            none: a number, which need not be finite, that means that a layer has none.

        Raises:
            ModelFileInvalid: there is neither one number nor one for each layer, or not all numbers are finite.
        """
        values = self._file.get_floats(key) or []
        if len(values) not in (1, self.num_layers) or not all(value == none or isfinite(value) for value in values):
            self.fail(f"`{key}` has {len(values)} entries for {self.num_layers} layers, or not all are finite")
        return _for_each(values, self.num_layers)

    def lists(self, suffix: str) -> bool:
        """Whether the value of this key is a list."""
        return self._file.is_array(self._file.own_key(suffix))

    def text(self, suffix: str, default: str) -> str:
        """A string, or `default` if it is missing or empty."""
        return self._file.get_str(self._file.own_key(suffix)) or default

    def integers(self, suffix: str, count: int) -> tuple[int, ...]:
        """A list of exactly `count` integers.

        Raises:
            ModelFileInvalid: the list is missing or has another length.
        """
        key = self._file.own_key(suffix)
        found = self._file.get_ints(key) or []
        return tuple(found) if len(found) == count else self.fail(f"`{key}` has {len(found)} entries, not {count}")

    def sections(self, suffix: str, count: int) -> list[int]:
        """A list of `count` integers; a shorter list is padded with zeros.

        Raises:
            ModelFileInvalid: the list is missing, empty or longer.
        """
        key = self._file.own_key(suffix)
        found = self._file.get_ints(key) or []
        if not 1 <= len(found) <= count:
            self.fail(f"`{key}` has {len(found)} entries, not 1 … {count}")
        return found + [0] * (count - len(found))

    def flags_of_layers(self, suffix: str) -> list[bool] | None:
        """A boolean for each layer; None if the value of the key is not a list.

        Raises:
            ModelFileInvalid: the list is not as long as there are layers, or has neither booleans nor integers.
        """
        key = self._file.own_key(suffix)
        if not self.lists(suffix):
            return None
        flags = self._file.get_ints(key) or []
        if len(flags) not in (self._num_trunk, self._num_blocks):
            self.fail(f"`{key}` has {len(flags)} entries for {self.num_layers} layers")
        return [flag != 0 for flag in _for_each(flags, self.num_layers)]

    def rope_dim(self) -> int:
        """Number of elements of a head that RoPE rotates, in all layers alike."""
        dim = self._rope_dim("rope.dimension_count", self.head_size)
        if self.integer("rope.dimension_count_swa", dim, low=0) != dim:
            self.refuse("layers with a window rotate another part of each head")
        return dim

    def rope_dims(self) -> tuple[int, int]:
        """Number of elements of a head that RoPE rotates: in layers with full attention, in layers with a window."""
        dim = self._rope_dim("rope.dimension_count", self.head_size)
        windowed = self.integer("attention.key_length_swa", self.head_size)
        return dim, self._rope_dim("rope.dimension_count_swa", windowed, min(dim, windowed))

    def rope_base(self, suffix: str = "rope.freq_base", default: float = 10000.0) -> float:
        """The base of RoPE's frequencies (theta), above 1: about the ratio of the fastest to the slowest frequency."""
        base = self.number(suffix, default)
        return base if base > 1 else self.fail(f"`{self._file.own_key(suffix)}` is {base}, not above 1")

    def rope_scaling(self) -> RopeScaling:
        """The RoPE scaling, which extends the context: keys `rope.scaling.*`, or the old `rope.scale_linear`.

        Raises:
            ModelUnsupported: the kind of scaling is not supported.
        """
        kind = self._file.get_str(self._file.own_key("rope.scaling.type")) or "linear"
        if kind not in _SCALINGS:
            self.refuse(f"its rope scaling `{kind}`")
        key = "rope.scaling.original_context_length"
        original_context = self.integer(key, self.trained_context, low=0, high=_MAX_CONTEXT)
        if not original_context:  # architectures differ in whether 0 means missing
            self.refuse(f"`{self._file.own_key(key)}` is 0")
        factor = self.optional_number("rope.scaling.factor") or self.optional_number("rope.scale_linear") or 1.0
        return RopeScaling(
            factor=1.0 if kind == "none" else factor,
            is_yarn=kind == "yarn",
            original_context=original_context,
            attention_factor=self.number("rope.scaling.attn_factor", 1.0),
        )

    def rope_divisors(self, name: str, dim: int | None = None) -> NDArray[np.float32] | None:
        """The divisors of RoPE's frequencies in tensor `name`; None if there is no such tensor.

        Args:
            name: of the tensor.
            dim: number of rotated elements of a head, where layers differ in it; None = as `rope_dim`.

        Raises:
            ModelFileInvalid: the tensor does not hold one finite, positive float for each frequency.
        """
        entry = self._parts.tensors.get(name)
        if entry is None:
            return None
        if entry.type.name not in FLOAT_TYPES or entry.shape != ((dim or self.rope_dim()) // 2,):
            self.fail(f"tensor `{name}` of type {entry.type.name} and shape {entry.shape} is not what rope needs")
        values = self._parts.floats(name)
        return values if np.isfinite(values).all() and (values > 0).all() else self.fail(f"`{name}` is not positive")

    def scalar(self, name: str, default: float) -> float:
        """The only element of tensor `name`, or `default` if there is no such tensor.

        Raises:
            ModelFileInvalid: the tensor has several elements, or the element is not a finite float other than zero.
        """
        entry = self._parts.tensors.get(name)
        if entry is None:
            return default
        if entry.type.name not in FLOAT_TYPES or entry.shape != (1,):
            self.fail(f"tensor `{name}` of type {entry.type.name} and shape {entry.shape} is not one number")
        value = float(self._parts.floats(name)[0])
        return value if isfinite(value) and value else self.fail(f"`{name}` is {value}")

    def with_further_layers(self) -> Hyperparameters:
        """The hyperparameters of the same files, with the layers of the draft head (MTP) as the last layers."""
        return Hyperparameters(self._parts, self.context_size, has_further_layers=True)

    def tensors_of_further_layers(self) -> frozenset[str]:
        """Names of the tensors of the layers from index `num_layers` on, which belong to a draft head (MTP)."""
        return frozenset(name for name in self._parts.tensors if _layer_of(name) >= self.num_layers)

    def has(self, tensor: str) -> bool:
        return tensor in self._parts.tensors

    def num_rows(self, tensor: str) -> int:
        """Number of rows of a tensor that exists; 1 for a vector.

        Raises:
            ModelFileInvalid: the tensor is neither a vector nor a matrix.
        """
        shape = self._parts.tensors[tensor].shape
        if not 1 <= len(shape) <= 2 or not 1 <= shape[-1] <= _MAX_SIZE:
            self.fail(f"tensor `{tensor}` has the shape {list(shape)}")
        return shape[1] if len(shape) == 2 else 1

    def table(self, tensor: str, num_rows: int | None = None) -> Norm | None:
        """A table of vectors of the hidden size: the rows of a matrix.

        Args:
            tensor: name of the matrix.
            num_rows: number of its rows; None = as many as it has. In that case a missing matrix gives None.

        Raises:
            ModelFileInvalid: the tensor is neither a vector nor a matrix, or the table is too large.
        """
        if num_rows is None:
            if not self.has(tensor):
                return None
            num_rows = self.num_rows(tensor)
        if num_rows * self.hidden_size >= _MAX_TABLE:
            self.fail(f"`{tensor}` with {num_rows} rows is too large")
        return Norm(weight=tensor, size=num_rows * self.hidden_size, num_stacked=num_rows)

    def linear(self, stem: str, num_rows: int, num_columns: int, first_row: int = 0) -> Linear:
        """The matrix `<stem>.weight`, with `<stem>.bias` and, in a layer, `<stem>.scale`, if the file has these."""
        bias = f"{stem}.bias" if self.has(f"{stem}.bias") else None
        return Linear(
            weight=f"{stem}.weight",
            num_rows=num_rows,
            num_columns=num_columns,
            first_row=first_row,
            bias=bias,
            scale=self._scale_of(stem),
        )

    def norm(self, stem: str, size: int | None = None, *, scale: float = 1.0) -> Norm:
        """A norm with the weights `<stem>.weight`, of the hidden size unless `size` is given."""
        return Norm(weight=f"{stem}.weight", size=size or self.hidden_size, scale=scale)

    def plain_norm(self, size: int | None = None) -> Norm:
        """A norm without weights, of the hidden size unless `size` is given."""
        return Norm(weight=None, size=size or self.hidden_size)

    def biased_norm(self, stem: str) -> Norm:
        """A norm of the hidden size with the weights `<stem>.weight` and the bias `<stem>.bias`."""
        return Norm(weight=f"{stem}.weight", size=self.hidden_size, bias=f"{stem}.bias")

    def vector(self, name: str, size: int, num_stacked: int = 1) -> Norm:
        """The tensor of this name as a vector, which consists of `num_stacked` equal vectors."""
        return Norm(weight=name, size=size, num_stacked=num_stacked)

    def convolution(self, stem: str, taps: int, num_channels: int) -> Norm:
        """A depthwise convolution with the weights `<stem>.weight`: `taps` for each channel."""
        return Norm(weight=f"{stem}.weight", size=taps * num_channels, taps=taps)

    def stacked(self, stem: str, num_rows: int, num_columns: int) -> Linear:
        """The matrices of all experts, of `num_rows` rows each, as one matrix."""
        plain = self.linear(stem, num_rows * self.num_experts, num_columns)
        return replace(plain, num_stacked=self.num_experts, scale=None)

    def refuse(self, what: str) -> NoReturn:
        """Raises ModelUnsupported with a message that ends with `what`."""
        raise ModelUnsupported(
            f"the native executor cannot run {self._file.path} ({self._file.architecture}): {what}",
            path=str(self._file.path),
        )

    def fail(self, what: str) -> NoReturn:
        """Raises ModelFileInvalid with a message that ends with `what`."""
        raise ModelFileInvalid(f"{self._file.path} cannot be used: {what}", path=str(self._file.path))

    def _scale_of(self, stem: str) -> str | None:
        """Only a tensor of one number is such a scale; a vector of this name has another purpose."""
        entry = self._parts.tensors.get(f"{stem}.scale")
        return entry.name if entry is not None and stem.startswith("blk.") and entry.shape == (1,) else None

    def _expert_sizes(self) -> list[int] | None:
        if not self.num_experts or not self._file.get_ints(self._file.own_key("expert_feed_forward_length")):
            return None
        return self.counts_of_layers("expert_feed_forward_length")

    def _rope_dim(self, suffix: str, head_size: int, default: int | None = None) -> int:
        dim = self.integer(suffix, head_size if default is None else default)
        if dim % 2 or dim > head_size:
            self.fail(f"`{self._file.own_key(suffix)}` is {dim}, with heads of {head_size}")
        return dim

    def _head_sizes(self) -> list[int]:
        """The head size of each layer. Layers with a window may have another one than the rest."""
        windowed = self.integer("attention.key_length_swa", self.head_size)
        flags = None if windowed == self.head_size else self.flags_of_layers("attention.sliding_window_pattern")
        if windowed != self.head_size and flags is None:
            self.refuse("heads of layers with a window differ, and it does not list these")
        return [windowed if flag else self.head_size for flag in flags or [False] * self.num_layers]

    def _trained_context(self) -> int:
        """Raises ModelUnsupported if the context length is 0 or negative, or above `_MAX_CONTEXT`."""
        key = self._file.own_key("context_length")
        length = self._file.require_int(key)
        return length if 1 <= length <= _MAX_CONTEXT else self.refuse(f"`{key}` is {length}")

    def _vocab_size(self, usual: int | None) -> int:
        entry = self._parts.tensors.get("token_embd.weight")
        if entry is None and usual is not None:
            return usual
        if entry is None or len(entry.shape) != 2:
            self.fail("it has no matrix `token_embd.weight`")
        tokens = self._file.get_array("tokenizer.ggml.tokens")
        if tokens is not None and len(tokens) != entry.shape[1]:
            self.fail(f"its vocabulary has {len(tokens)} tokens, but `token_embd.weight` has {entry.shape[1]} rows")
        return entry.shape[1]

    def _check(self) -> None:
        key, value = (self._file.own_key(f"attention.{name}_length") for name in ("key", "value"))
        for heads in self.heads:
            if heads.num_kv and heads.num % heads.num_kv:
                self.fail(f"{heads.num} heads cannot share {heads.num_kv} heads of keys and values")
        windowed = self.integer("attention.key_length_swa", self.head_size)
        is_equal = self.integer("attention.value_length_swa", windowed) == windowed
        is_latent = self.integer("attention.kv_lora_rank", 0, low=0) > 0
        if not is_latent and (self.integer("attention.value_length", self.head_size) != self.head_size or not is_equal):
            self.refuse(f"`{key}` and `{value}` differ")
        most = _MAX_LATENT_HEAD if is_latent else _MAX_HEAD_SIZE
        for size in sorted({heads.size for heads in self.heads}):
            if size % _HEAD_GRANULE or size > most:
                self.refuse(f"heads of {size} elements (multiples of {_HEAD_GRANULE} up to {most} can)")
        query_sizes = {heads.num * heads.size for heads in self.heads}
        for size in (self.hidden_size, *sorted({*self.feed_forward_sizes, *query_sizes})):
            if size > _MAX_SIZE:
                self.fail(f"rows of {size} elements")
            if size % _ROW_GRANULE:
                self.refuse(f"rows of {size} elements (multiples of {_ROW_GRANULE} can)")


def _for_each(values: list[_Number], num_layers: int) -> list[_Number]:
    """A value for each layer; the last value applies to all layers that the list leaves out."""
    return (values + values[-1:] * num_layers)[:num_layers]


def _layer_of(tensor: str) -> int:
    """The index of a tensor's layer; -1 if the tensor belongs to no layer."""
    block, _, rest = tensor.partition(".")
    number = rest.partition(".")[0]
    return int(number) if block == "blk" and number.isdecimal() else -1

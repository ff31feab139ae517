"""How long a request and how large a KV pool a model gets, and whether that fits. Nothing is allocated here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from math import ceil
from typing import Any, NoReturn, Protocol, TypeAlias

from stoker.errors import ConfigError, ModelFileInvalid, ResourceExhausted
from stoker.models.description import all_tensors, vocab_size
from stoker.models.gguf import GGUFFile
from stoker.models.window_plan import WindowNeeds

ContextBytes: TypeAlias = Callable[[int], int]
"""What a context of so many positions takes."""

Windows: TypeAlias = Callable[[int], WindowNeeds | None]
"""What layers with a window need, by the longest request in tokens; None = they keep every token."""

_DEFAULT_CONTEXT = 8192
_SURE_CONTEXT = 1 << 20
"""Context size that may be configured for any model, in tokens."""
_MAX_STRETCH = 64
"""How many times the context that it was trained for may be asked for of a model, beyond that."""
_DEFAULT_POOL_BYTES = 512 << 20
_COMPUTE_ROWS = 512
"""Tokens that a backend computes at once; each needs its activations and a row of logits."""
_ACTIVATION_BYTES = 4
_STATE_BYTES = 4
"""Of one number of a recurrent state."""


@dataclass(frozen=True, slots=True)
class SmallerKV:
    """How keys and values are kept where memory is short."""

    kv_type: str
    """As the program that keeps them calls it."""
    bytes_per_token: int


class Devices(Protocol):
    """GPUs with memory of their own, on which a model may lie."""

    @property
    def room(self) -> int:
        """Bytes that the devices could give to one more model when they were asked."""
        ...

    def wanted(self, needs: MemoryNeeds, room: int) -> int:
        """Bytes of the devices that the model takes at least, with as many layers there as `room` has place for.

        Raises:
            ResourceExhausted: the user wants more layers there.
        """
        ...

    def placed(self, needs: MemoryNeeds, room: int) -> MemoryNeeds:
        """What is left to the machine's memory if the devices give at most `room` bytes.

        Raises:
            ResourceExhausted: the user wants more layers there.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sizes:
    """What is the same in the needs of a model and in the plan for it."""

    ctx_size: int
    """Longest single request, in tokens."""
    spare_kv_tokens: int
    """Room beyond the pool that the backend's way of keeping KV takes at most."""
    weights_bytes: int
    kv_bytes_per_token: int
    compute_bytes: int
    """Activations, and what a context takes besides KV."""
    kv_type: str = ""
    """`SmallerKV.kv_type`, if memory is short; empty = keys and values are kept as configured."""
    windows: WindowNeeds | None = None
    """Layers that need not keep every token; what they take is a part of `kv_bytes_per_token`."""
    state_bytes: int = 0
    """What recurrent layers keep of all sequences, at most."""
    adapter_bytes: int = 0
    """Of those that are loaded with the model."""
    device_bytes: int = 0
    """Memory of GPUs that have some of their own; no part of `total_bytes`."""
    num_replicas: int = 1
    """Engines that share the weights; of everything else, each takes this."""
    backend: str = ""
    """Who will compute, if that is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan(_Sizes):
    """What a loaded model will take. The compute buffers are an estimate, the rest is exact."""

    kv_tokens: int
    """Tokens in the pool that all requests share."""
    cache_bytes: int = 0
    """Memory for KV that has left the pool, at most."""

    @property
    def window_tokens(self) -> int:
        """Tokens in the pool of layers with a window; 0 = they keep all tokens, as the other layers do."""
        return 0 if self.windows is None else self.windows.tokens(self.kv_tokens)

    @property
    def kv_bytes(self) -> int:
        saved = (self.kv_tokens - self.window_tokens) * self.windows.bytes_per_token if self.windows else 0
        whole = (self.kv_tokens + self.spare_kv_tokens) * self.kv_bytes_per_token
        return whole - saved if self.window_tokens else whole

    @property
    def total_bytes(self) -> int:
        each = self.kv_bytes + self.state_bytes + self.compute_bytes + self.adapter_bytes + self.cache_bytes
        return self.weights_bytes + self.num_replicas * each

    def __str__(self) -> str:
        more = f", adapters {_mib(self.adapter_bytes)}" if self.adapter_bytes else ""
        more += f", cache in memory up to {_mib(self.cache_bytes)}" if self.cache_bytes else ""
        more += f", {self.num_replicas} times" if self.num_replicas > 1 else ""
        more += f"; on devices {_mib(self.device_bytes)}" if self.device_bytes else ""
        backend = f"{self.backend}: " if self.backend else ""
        states = f", states {_mib(self.state_bytes)}" if self.state_bytes else ""
        windows = f" (layers with a window keep {self.window_tokens})" if self.window_tokens else ""
        windows += f" as {self.kv_type}" if self.kv_type else ""
        return (
            f"{_mib(self.total_bytes)} ({backend}weights {_mib(self.weights_bytes)}, "
            f"{self.kv_tokens} tokens of KV{windows} {_mib(self.kv_bytes)}{states}, "
            f"compute about {_mib(self.compute_bytes)}{more})"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryNeeds(_Sizes):
    """What a model takes, as its file says, before it is known how much there is."""

    model: str
    """For messages."""
    kv_tokens: int | None
    """Configured size of the pool; None = no size is configured."""
    parallel: int
    smaller_kv: SmallerKV | None = None
    """Chosen if the model does not fit otherwise."""
    denser_kv: Sequence[SmallerKV] = ()
    """Types of keys and values that would hold more tokens, for the message of a model that does not fit."""
    cache_bytes: int = 0
    """Memory that is useful for KV that has left the pool; it is the first to be cut short."""
    min_cache_bytes: int = 0
    """Configured minimum of `cache_bytes`."""
    devices: Devices | None = None
    """Where a part of the model can be placed. None = it is, or there is no such device."""
    pool_bytes: int = _DEFAULT_POOL_BYTES
    """Maximum of the pool without a configured size, unless one request alone needs more."""

    def with_draft(self, draft: MemoryNeeds) -> MemoryNeeds:
        """The same with a model that drafts, which keeps as many tokens of KV."""
        smaller = self.smaller_kv
        if smaller is not None:
            smaller = replace(smaller, bytes_per_token=smaller.bytes_per_token + draft.kv_bytes_per_token)
        return replace(
            self,
            model=f"{self.model} with {draft.model}",
            smaller_kv=smaller,
            denser_kv=(),
            weights_bytes=self.weights_bytes + draft.weights_bytes,
            kv_bytes_per_token=self.kv_bytes_per_token + draft.kv_bytes_per_token,
            compute_bytes=self.compute_bytes + draft.compute_bytes,
        )

    @property
    def least_bytes(self) -> int:
        """With less it is refused."""
        return self.placed()._shrunk()._with_pool(0).total_bytes

    def placed(self, room: int | None = None) -> MemoryNeeds:
        """The needs of what is left to the machine's memory.

        Args:
            room: bytes that devices give at most; None = what they had when they were asked.

        Raises:
            ResourceExhausted: the user wants more layers there.
        """
        if self.devices is None:
            return self
        return self.devices.placed(self, self.devices.room if room is None else room)

    def within(self, available_bytes: int) -> MemoryPlan:
        """The plan for so much memory: the pool takes what is useful and affordable.

        Raises:
            ResourceExhausted: it does not fit; the message says what would. Fields `needed_bytes`, `available_bytes`.
        """
        if self.devices is not None:
            return self.placed().within(available_bytes)
        found = self._with_pool(available_bytes - self.weights_bytes - self.num_replicas * self._fixed_bytes)
        if found.total_bytes <= available_bytes:
            return found
        if self.smaller_kv is not None:
            return self._shrunk().within(available_bytes)
        raise self._refusal(found, available_bytes)

    def _shrunk(self) -> MemoryNeeds:
        smaller = self.smaller_kv
        if smaller is None:
            return self
        return replace(self, kv_type=smaller.kv_type, kv_bytes_per_token=smaller.bytes_per_token, smaller_kv=None)

    @property
    def _fixed_bytes(self) -> int:
        spare = self.spare_kv_tokens * self.kv_bytes_per_token
        return self.compute_bytes + self.state_bytes + self.adapter_bytes + self.min_cache_bytes + spare

    def _with_pool(self, left_bytes: int) -> MemoryPlan:
        pool_bytes = min(self.pool_bytes, max(left_bytes, 0)) // self.num_replicas
        sizes: dict[str, Any] = {size.name: getattr(self, size.name) for size in fields(_Sizes)}
        plan = MemoryPlan(kv_tokens=self.kv_tokens or self._default_pool(pool_bytes), **sizes)
        spare = self.spare_kv_tokens * self.kv_bytes_per_token
        left = max(0, left_bytes) // self.num_replicas - (plan.kv_bytes - spare)
        return replace(plan, cache_bytes=min(self.cache_bytes, self.min_cache_bytes + max(0, left)))

    def _default_pool(self, pool_bytes: int) -> int:
        """As many tokens as are useful and affordable, but always one full request."""
        useful = self.parallel * self.ctx_size
        return (
            min(useful, max(self.ctx_size, self.affordable_tokens(pool_bytes))) if self.kv_bytes_per_token else useful
        )

    def affordable_tokens(self, num_bytes: int) -> int:
        """The largest pool, in tokens, that takes no more than so many bytes; 0 of a model without KV."""
        if not self.kv_bytes_per_token:
            return 0
        if self.windows is None:
            return num_bytes // self.kv_bytes_per_token
        return self.windows.affordable(num_bytes, self.kv_bytes_per_token)

    def _refusal(self, plan: MemoryPlan, available_bytes: int) -> ResourceExhausted:
        left = (available_bytes - plan.weights_bytes) // plan.num_replicas - self._fixed_bytes
        fitting = self.affordable_tokens(max(0, left))
        pools = fitting * plan.num_replicas
        advice = f"--ctx-size {fitting} --kv-tokens {pools} would fit" if fitting > 0 else "use a smaller model"
        for denser in self.denser_kv if fitting > 0 else ():
            more = replace(self, kv_bytes_per_token=denser.bytes_per_token, windows=None).affordable_tokens(left)
            advice += f"; {more} tokens with --kv-type {denser.kv_type}" if more > fitting else ""
        return ResourceExhausted(
            f"{self.model} needs {plan}, but {_mib(available_bytes)} of memory are available: {advice}.",
            needed_bytes=plan.total_bytes,
            available_bytes=available_bytes,
        )


def memory_needs(
    gguf: GGUFFile,
    *,
    ctx_size: int | None,
    kv_tokens: int | None,
    parallel: int,
    weights_bytes: int | None = None,
    kv_element_bytes: float = 2.0,
    kv_bytes: int | None = None,
    state_bytes: int = 0,
    spare_kv_tokens: int = 0,
    context_bytes: ContextBytes | None = None,
    adapter_bytes: int = 0,
    num_replicas: int = 1,
    windows: Windows | None = None,
) -> MemoryNeeds:
    """What a model takes; `MemoryNeeds.within` fills in the rest, and refuses what does not fit.

    Args:
        gguf: the (first) file of the model.
        ctx_size: longest single request in tokens; None = what the model was trained for, at most 8192, at most
            `kv_tokens`.
        kv_tokens: size of the pool; None = `parallel` full requests, but not more than 512 MiB unless one request alone
            needs more, and less if memory is short.
        parallel: most requests that run at the same time, at least 1.
        weights_bytes: what the weights take, if the backend knows; else what they take in the file.
        kv_element_bytes: what one number of keys and values takes, its share of scales included.
        kv_bytes: what a token of KV takes, if the backend knows; else every layer is counted.
        state_bytes: what recurrent layers keep of all sequences.
        spare_kv_tokens: what the backend needs beyond the pool, in tokens.
        context_bytes: what it needs for a context of a number of positions, besides KV.
        adapter_bytes: what adapters take that are loaded with the model.
        num_replicas: engines that share the weights; each of them gets a pool like this one.
        windows: layers that need not keep every token, if the backend keeps fewer of them; by the longest request.

    Raises:
        ConfigError: a size below 1, or a context beyond all sense.
        ModelFileInvalid: the file does not say, or lies about, its own shape.
    """
    for name, size in (("--ctx-size", ctx_size), ("--kv-tokens", kv_tokens), ("--parallel", parallel)):
        if size is not None and size < 1:
            raise ConfigError(f"{name} must be at least 1, not {size}")
    check_context(gguf.path.name, ctx_size, gguf.get_int(gguf.own_key("context_length")))
    context = ctx_size or _default_context(gguf, kv_tokens)
    for_context = context_bytes(min(context, kv_tokens or context)) if context_bytes else 0
    return MemoryNeeds(
        model=gguf.path.name,
        ctx_size=context,
        kv_tokens=kv_tokens,
        parallel=parallel,
        spare_kv_tokens=spare_kv_tokens,
        weights_bytes=_weights_bytes(gguf) if weights_bytes is None else weights_bytes,
        kv_bytes_per_token=kv_bytes_per_token(gguf, kv_element_bytes) if kv_bytes is None else kv_bytes,
        state_bytes=state_bytes,
        compute_bytes=_compute_bytes(gguf) + for_context,
        adapter_bytes=adapter_bytes,
        num_replicas=num_replicas,
        windows=None if windows is None else windows(context),
    )


def check_context(model: str, ctx_size: int | None, trained: int | None) -> None:
    """Refuses a context that is surely a slip: tables of all positions would be computed for it at the start.

    Raises:
        ConfigError: it is much longer than what the model was trained for.
    """
    longest = max(_SURE_CONTEXT, _MAX_STRETCH * (trained or 0))
    if ctx_size is not None and ctx_size > longest:
        known = f"was trained for {trained} tokens" if trained else "does not say what it was trained for"
        raise ConfigError(f"--ctx-size {ctx_size} is too large: {model} {known}, and the maximum is {longest}")


def kv_bytes_per_token(gguf: GGUFFile, element_bytes: float = 2.0) -> int:
    """Bytes of keys and values that one token takes, over all layers; 0 for a model without attention.

    `element_bytes` are those of one number: 16-bit floats unless told otherwise.

    Layers that see only a window are counted in full: a backend may keep less.
    """
    num_heads, num_kv_heads = _counts(gguf, "attention.head_count"), _counts(gguf, "attention.head_count_kv")
    return ceil(_over_layers(gguf, num_kv_heads or num_heads or [0]) * sum(head_sizes(gguf)) * element_bytes)


def head_sizes(gguf: GGUFFile) -> tuple[int, int]:
    """Numbers in a key and in a value of one head; 0 for a model without attention."""
    num_heads = max(_counts(gguf, "attention.head_count"), default=0)
    if not num_heads:
        return 0, 0
    head_size = _number(gguf, "embedding_length") // num_heads
    key_size = _number(gguf, "attention.key_length", head_size)
    return key_size, _number(gguf, "attention.value_length", head_size)


def state_bytes(gguf: GGUFFile) -> int:
    """Bytes of the recurrent state of one sequence, over all layers that have one; 0 without such layers.

    ```
    one layer    convolution: the last inputs of each channel | state: a row for each inner channel
                 (conv - 1) x (inner + 2 x groups x state)    | inner x state
    ```
    """
    num_layers = sum(tensor.name.endswith(".ssm_conv1d.weight") for tensor in all_tensors(gguf))
    if not num_layers:
        return 0
    inner, state, conv = (_number(gguf, f"ssm.{name}") for name in ("inner_size", "state_size", "conv_kernel"))
    groups = gguf.get_int(gguf.own_key("ssm.group_count")) or 0
    return num_layers * _STATE_BYTES * ((conv - 1) * (inner + 2 * groups * state) + inner * state)


def _weights_bytes(gguf: GGUFFile) -> int:
    return sum(tensor.num_bytes for tensor in all_tensors(gguf))


def _over_layers(gguf: GGUFFile, counts: list[int]) -> int:
    """The sum over all layers of a number that is given once for all, or once for each."""
    num_layers = _number(gguf, "block_count")
    if len(counts) == 1:
        return counts[0] * num_layers
    if len(counts) != num_layers:
        _refuse_shape(gguf, "attention.head_count_kv", f"has {len(counts)} entries for {num_layers} layers")
    return sum(counts)


def _counts(gguf: GGUFFile, suffix: str) -> list[int]:
    counts = gguf.get_ints(gguf.own_key(suffix)) or []
    if counts and min(counts) < 0:
        _refuse_shape(gguf, suffix, f"is {min(counts)}")
    return counts


def _number(gguf: GGUFFile, suffix: str, default: int | None = None) -> int:
    key = gguf.own_key(suffix)
    value = gguf.require_int(key) if default is None else gguf.get_int(key)
    if value is None:
        assert default is not None
        return default
    if value < 1:
        _refuse_shape(gguf, suffix, f"is {value}")
    return value


def _refuse_shape(gguf: GGUFFile, suffix: str, what: str) -> NoReturn:
    raise ModelFileInvalid(f"{gguf.path} cannot be used: `{gguf.own_key(suffix)}` {what}", path=str(gguf.path))


def _default_context(gguf: GGUFFile, kv_tokens: int | None) -> int:
    if gguf.get_int(gguf.own_key("context_length")) == 0:
        _refuse_shape(gguf, "context_length", "is 0: set the context size with --ctx-size")
    wanted = min(_number(gguf, "context_length"), _DEFAULT_CONTEXT)
    return wanted if kv_tokens is None else min(wanted, kv_tokens)


def _compute_bytes(gguf: GGUFFile) -> int:
    """The activations of one step: logits, a few copies of the hidden state, the feed-forward layer."""
    hidden = _number(gguf, "embedding_length")
    feed_forward = max(gguf.get_ints(gguf.own_key("feed_forward_length")) or [0])
    width = vocab_size(gguf) + 4 * hidden + 2 * feed_forward
    return _COMPUTE_ROWS * _ACTIVATION_BYTES * width


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / (1 << 20):.0f} MiB"

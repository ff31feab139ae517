"""What an engine is told before it starts: which model, how much of the machine, and how its process is watched."""

from __future__ import annotations

from dataclasses import dataclass, fields
from math import isfinite, isinf
from typing import Literal, TypeAlias

import msgspec

from stoker.core.params import SamplingParams
from stoker.errors import InvalidInput

BackendName: TypeAlias = Literal["auto", "native", "llama", "onnx", "scripted"]
KVType: TypeAlias = Literal["f16", "f32", "q8"]
PoolingName: TypeAlias = Literal["mean", "cls", "last"]


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One model with its share of the machine. Sizes are in tokens; crosses the process border as JSON.

    Raises:
        InvalidInput: a value is outside its range; `fields["parameter"]` names it.
    """

    model: str = ""
    """As the user named it: a path, `hf:org/repo[:file]` or a catalog name."""
    model_path: str = ""
    """The local file that `model` was resolved to."""
    name: str = ""
    """Under which the model is served. Empty: taken from the model."""
    backend: BackendName = "auto"
    ctx_size: int | None = None
    """Longest single sequence. Not given: min(trained, 8192)."""
    kv_tokens: int | None = None
    """Cells that all sequences share. Not given: from the memory plan."""
    parallel: int = 8
    """Most requests that run at the same time. Range 1 … 1024."""
    max_queue: int = 256
    """Most requests that wait; one more is refused as overloaded. Range 0 … 65536."""
    max_queue_tokens: int = 262_144
    """Most prompt tokens that wait; a request is refused that would wait behind others and make them more."""
    threads: int | None = None
    """Threads that compute. Not given: one per physical core that this process may use."""
    kv_type: KVType = "f16"
    """What keys and values are kept as; q8 takes a little more than half of f16. libllama has f16 only."""
    pooling: PoolingName | None = None
    """What of the last hidden states becomes an embedding. Not given: what the model says, else the mean."""
    cache_ram: int | None = None
    """Memory for KV that has left the pool, in MiB; 0 = none. Not given: a quarter of what is free, at most 8192."""
    kv_cache_dir: str = ""
    """Folder in which KV outlives the process; several servers may share it. Empty = none."""
    cache_disk: int | None = None
    """What that folder may hold, in MiB. Not given: half of what is free, at most 10240."""
    sampling: SamplingParams = SamplingParams()
    """Defaults below the request's own values and the model's recommendation."""

    def __post_init__(self) -> None:
        _check_range("parallel", self.parallel, 1, 1024)
        _check_range("max_queue", self.max_queue, 0, 65536)
        _check_range("max_queue_tokens", self.max_queue_tokens, 1, 2**31 - 1)
        _check_range("cache_ram", self.cache_ram, 0, 2**31 - 1)
        _check_range("cache_disk", self.cache_disk, 1, 2**31 - 1)
        for name in ("ctx_size", "kv_tokens", "threads"):
            _check_range(name, getattr(self, name), 1, 2**31 - 1)
        # JSON has no infinity: it would arrive as null.
        if any(isinf(bias) for bias in (self.sampling.logit_bias or {}).values()):
            raise InvalidInput("`logit_bias` of -inf: use `banned_token_ids`", parameter="logit_bias")


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisionConfig:
    """When a child process counts as lost, and how it is started again. All in seconds.

    Raises:
        InvalidInput: a value is not a positive number; `fields["parameter"]` names it.
    """

    heartbeat_every_s: float = 1.0
    """How often a child gives a sign of life."""
    heartbeat_timeout_s: float = 30.0
    """A loaded child that says nothing for so long is killed."""
    stall_after_s: float = 10.0
    """Work waits and no step was finished for so long: health says `stalled`."""
    stall_kill_s: float = 300.0
    """The same, and the child is killed."""
    load_timeout_s: float = 900.0
    """A child that has not loaded its model by then is killed."""
    backoff_min_s: float = 0.1
    """Pause before the first restart; it doubles with each failure in a row."""
    backoff_max_s: float = 10.0
    healthy_s: float = 60.0
    """A child that served for so long starts the back-off anew."""
    stop_grace_s: float = 5.0
    """Time to stop when asked to, before SIGTERM; and again before SIGKILL."""
    restart_wait_s: float = 30.0
    """How long a request that had not begun waits for the restarted child."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not (isfinite(value) and value > 0):
                raise InvalidInput(f"`{field.name}` must be above 0 seconds, not {value}", parameter=field.name)


def _check_range(name: str, value: int | None, low: int, high: int) -> None:
    if value is not None and not low <= value <= high:
        raise InvalidInput(f"`{name}` must be between {low} and {high}, not {value}", parameter=name)

"""The state of a served model, wherever it runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from stoker.engine.stats import EngineStats
from stoker.media.load import EncoderLoad, TranscriberLoad

IDLE = "idle"
"""State of a model without an engine; the next request starts one. Such a model counts as ready."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """Whether a model can answer requests, and if not, the reason."""

    is_ready: bool
    state: str
    """`starting`, `ready`, `restarting`, `stalled`, `failed`, `closed`, or `idle` (no engine runs, and a request starts
    one)."""
    num_restarts: int = 0
    last_error: str | None = None
    """Reason why the previous engine process ended, or why there is no process."""
    heartbeat: EngineStats | None = None
    """Latest statistics of the current process, if there are any."""
    loaded_part: float | None = None
    """Loaded fraction of the weights, 0 to 1, if known."""
    node: str = ""
    """Address of the machine where the engine runs, if it is not this one."""
    kv_events: str = ""
    """Endpoint at which the engine publishes its KV cache blocks; empty = none."""
    num_others: int = 0
    """Known number of requests from other fronts on that engine."""
    others_tokens: int = 0
    """Approximate number of tokens that these requests still take."""
    replicas: Mapping[int, Health] = field(default_factory=dict[int, "Health"])
    """Health of each engine by its number, for a model with several engines."""
    encoder: EncoderLoad | None = None
    """Load of the process that encodes images and recordings for all engines; None = there is no such process."""
    transcriber: TranscriberLoad | None = None
    """Load of the process that transcribes; None = the model does not transcribe."""

"""How a model that is served is doing, wherever it runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from stoker.engine.stats import EngineStats
from stoker.media.load import EncoderLoad, TranscriberLoad

IDLE = "idle"
"""State of a model without an engine that is started by the next request. Such a model is ready."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """Whether a model can answer now, and why not."""

    is_ready: bool
    state: str
    """One word for people and probes: `starting`, `ready`, `restarting`, `stalled`, `failed`, `closed`; `idle` = no
    engine runs, and a request starts one."""
    num_restarts: int = 0
    last_error: str | None = None
    """Why the process before this one ended, or why there is none."""
    heartbeat: EngineStats | None = None
    """The newest one of the present process, if there was one."""
    loaded_part: float | None = None
    """How far the weights are on their way into memory, if that is known. Range 0 … 1."""
    node: str = ""
    """Address of the machine where the engine runs, if it is not this one."""
    kv_events: str = ""
    """Endpoint at which the engine publishes which blocks of KV it holds; empty = none."""
    num_others: int = 0
    """Requests on that machine sent by other clients, as far as is known."""
    others_tokens: int = 0
    """Tokens that these requests still cost, roughly."""
    replicas: Mapping[int, Health] = field(default_factory=dict[int, "Health"])
    """Health of each engine by its number, for a model with several engines."""
    encoder: EncoderLoad | None = None
    """Load of the process that encodes images and recordings for all engines; None = there is no such process."""
    transcriber: TranscriberLoad | None = None
    """Load of the process that transcribes; None = the model is none that transcribes."""

"""A snapshot of one slot of the KV pool, for inspection by clients: data only."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotState:
    """The state of one slot (native sequence). Counts are in tokens."""

    slot: int
    num_tokens: int
    """Tokens with KV in the slot: of a running request, or retained from a finished one for reuse."""
    request_id: str | None = None
    """Id of the request that runs in the slot; None = the slot is idle."""
    num_prompt: int = 0
    num_completion: int = 0
    replica: int | None = None
    """Number of the engine that has the slot, if the model has several engines (replicas)."""

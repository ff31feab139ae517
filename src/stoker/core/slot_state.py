"""A snapshot of one slot of the KV pool, for inspection. It decides nothing."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotState:
    """One native sequence. Counts are in tokens."""

    slot: int
    num_tokens: int
    """Tokens resident in the slot: of a running request, or left by a finished one for reuse."""
    request_id: str | None = None
    """The request that runs in the slot; None = it is idle."""
    num_prompt: int = 0
    num_completion: int = 0
    replica: int | None = None
    """Of a model that has several engines: whose slot it is."""

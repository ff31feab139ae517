"""What a slot of the KV pool holds at one moment, for whoever looks from outside. It decides nothing."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotState:
    """One native sequence. Counts are in tokens."""

    slot: int
    num_tokens: int
    """What is resident in it: of a running request, or left by a finished one and there to be reused."""
    request_id: str | None = None
    """Who runs in it; None = nobody."""
    num_prompt: int = 0
    num_completion: int = 0
    replica: int | None = None
    """Of a model that has several engines: whose slot it is."""

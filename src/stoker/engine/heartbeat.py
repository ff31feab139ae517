"""What an engine says about itself about once a second: how much it does, has done and holds. No request is named."""

from __future__ import annotations

import msgspec

from stoker.cache.counters import TierCounters
from stoker.core.histogram import Distribution


class AdapterLoad(msgspec.Struct, frozen=True, array_like=True):
    """How busy an adapter is."""

    name: str
    num_running: int
    num_waiting: int
    num_tokens: int
    """Written with it since the start."""


class Heartbeat(msgspec.Struct, frozen=True, tag=True):
    """Sent about once a second. `stalled_s` is how long work has been waiting without a step being finished."""

    num_steps: int
    num_running: int
    num_waiting: int
    kv_used: int
    """Cells of running sequences."""
    kv_retained: int
    """Cells of finished conversations, there to be reused or evicted."""
    kv_capacity: int
    stalled_s: float
    prompt_tokens: int = 0
    """Since the start, as the next three: of all requests that have begun to be computed."""
    cached_tokens: int = 0
    """Those of them that were not computed."""
    pool_hit_tokens: int = 0
    """Those of these that were in the pool; the others came from the tiers."""
    pool_evicted_tokens: int = 0
    """Of finished conversations that had to make room."""
    pool_evicted_sequences: int = 0
    """Finished conversations of which nothing was left."""
    kv_sequences: int = 0
    """Running requests and finished conversations that hold KV."""
    kv_held_bytes: int = 0
    """Of both; 0 if the backend does not say what a token takes, as the next one."""
    kv_capacity_bytes: int = 0
    num_preemptions: int = 0
    num_drafts: int = 0
    """How often tokens were guessed ahead for a request, since the start."""
    drafted_tokens: int = 0
    """How many these were."""
    accepted_tokens: int = 0
    """Those of them that came out."""
    step_s: Distribution = Distribution()
    """Seconds, as the next two; their buckets are those of `engine.metrics`."""
    queue_s: Distribution = Distribution()
    """From a request's arrival to the first step that computes a part of it."""
    prefill_s: Distribution = Distribution()
    """From that step to the first token."""
    running_s: Distribution = Distribution()
    """From that step to the last token, of requests that came to their end."""
    step_tokens: Distribution = Distribution()
    """What a step computes, in tokens: of prompts and of answers."""
    num_step_sequences: int = 0
    """Requests that had a part in a step, added up over all steps."""
    num_paused: int = 0
    """Requests whose readers are behind."""
    tiers: TierCounters = TierCounters()
    """KV in memory and on disk, behind the pool."""
    adapters: list[AdapterLoad] = []

"""Statistics that an engine reports about once a second. They do not identify requests.

A field without a mark is a counter since the start of the engine's process.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from stoker.cache.counters import TierCounters
from stoker.core.histogram import Distribution, Gauge


class AdapterLoad(msgspec.Struct, frozen=True, array_like=True):
    """Load of an adapter."""

    name: str
    num_running: int
    num_waiting: int
    num_tokens: int
    """Tokens generated with the adapter since the start."""


class EngineStats(msgspec.Struct, frozen=True, tag=True):
    """Statistics of one engine at one time. KV is counted in cells (tokens). Its process also sends them as a
    heartbeat."""

    num_steps: int
    num_running: Annotated[int, Gauge.SUM]
    num_waiting: Annotated[int, Gauge.SUM]
    kv_used: Annotated[int, Gauge.SUM]
    """Cells of running sequences."""
    kv_retained: Annotated[int, Gauge.SUM]
    """Cells of finished conversations, which later requests reuse or evict."""
    kv_capacity: Annotated[int, Gauge.SUM]
    """Cells of the KV pool."""
    stalled_s: Annotated[float, Gauge.LARGEST]
    """Time for which requests have waited without a finished step, in seconds."""
    prompt_tokens: int = 0
    """Prompt tokens of all requests that have started."""
    cached_tokens: int = 0
    """Prompt tokens that were not computed, because their KV was cached."""
    pool_hit_tokens: int = 0
    """Cached prompt tokens found in the KV pool; the rest came from the tiers."""
    pool_evicted_tokens: int = 0
    """Cells of finished conversations that were evicted."""
    pool_evicted_sequences: int = 0
    """Finished conversations that were evicted to their last cell."""
    kv_sequences: Annotated[int, Gauge.SUM] = 0
    """Running requests and finished conversations that hold KV."""
    kv_window_held: Annotated[int, Gauge.SUM] = 0
    """Cells held in the pool of layers with a window; 0 if these layers keep every token."""
    kv_window_capacity: Annotated[int, Gauge.SUM] = 0
    """Cells of the pool of layers with a window; 0 if these layers keep every token."""
    kv_held_bytes: Annotated[int, Gauge.SUM] = 0
    """KV bytes held by running and finished sequences; 0 if the backend does not report bytes per token."""
    kv_capacity_bytes: Annotated[int, Gauge.SUM] = 0
    """Bytes that the KV pool may hold now; 0 if the backend does not report bytes per token."""
    kv_share_bytes: Annotated[int, Gauge.SUM] = 0
    """`kv_capacity_bytes` while no model lends KV to another one; 0 = the size of the pool is fixed."""
    state_held_bytes: Annotated[int, Gauge.SUM] = 0
    """Bytes of the states of recurrent layers of the sequences counted in `kv_sequences`."""
    num_preemptions: int = 0
    num_drafts: int = 0
    """Number of drafts."""
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    """Drafted tokens that became part of an answer."""
    drafted_grammar_tokens: int = 0
    """Drafted tokens that a grammar made certain; included in `drafted_tokens`."""
    accepted_grammar_tokens: int = 0
    drafted_model_tokens: int = 0
    """Drafted tokens of a draft model or draft head; included in `drafted_tokens`."""
    accepted_model_tokens: int = 0
    draft_model_s: float = 0.0
    """Compute time of the draft model or draft head, in seconds."""
    grammar_compile_s: Distribution = Distribution()
    """Seconds to compile a grammar, see `grammars.compiler`."""
    num_grammar_hits: int = 0
    """Grammars that were found in the cache of compiled grammars."""
    num_constrained_tokens: int = 0
    """Tokens that were chosen under a grammar or a reasoning budget."""
    mask_s: float = 0.0
    """Time for computing the allowed tokens, in seconds."""
    step_s: Distribution = Distribution()
    """Seconds of a step. `engine.metrics` has the buckets of this distribution and of those below."""
    queue_s: Distribution = Distribution()
    """Seconds from a request's arrival to the first step that computes a part of it."""
    prefill_s: Distribution = Distribution()
    """Seconds from a request's first step to its first token."""
    running_s: Distribution = Distribution()
    """Seconds from a request's first step to its last token, for finished requests."""
    step_tokens: Distribution = Distribution()
    """Computed tokens of a step, of prompts and answers."""
    num_step_sequences: int = 0
    """Number of requests in each step, added up over all steps."""
    num_paused: Annotated[int, Gauge.SUM] = 0
    """Requests that are paused because their clients read slowly."""
    tiers: TierCounters = TierCounters()
    """Counters of the RAM and disk tiers."""
    adapters: list[AdapterLoad] = []

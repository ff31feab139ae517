"""What an engine reports about itself about once a second: how much it does, has done and holds. It names no request.

A field without a mark is a counter: it counts since the start of the engine's process.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from stoker.cache.counters import TierCounters
from stoker.core.histogram import Distribution, Gauge


class AdapterLoad(msgspec.Struct, frozen=True, array_like=True):
    """How busy an adapter is."""

    name: str
    num_running: int
    num_waiting: int
    num_tokens: int
    """Tokens written with the adapter since the start."""


class EngineStats(msgspec.Struct, frozen=True, tag=True):
    """The numbers of one engine at one moment; its process sends them as a sign of life."""

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
    """How long work has been waiting without a step being finished."""
    prompt_tokens: int = 0
    """Prompt tokens of all requests that have begun to be computed."""
    cached_tokens: int = 0
    """Prompt tokens that were not computed, because their KV was found."""
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
    """How often tokens were drafted for a request."""
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    """Drafted tokens that became part of an answer."""
    drafted_grammar_tokens: int = 0
    """Drafted tokens that the grammar of the answer made certain; of both kinds of tokens above, this and the next are
    a part."""
    accepted_grammar_tokens: int = 0
    drafted_model_tokens: int = 0
    """Drafted tokens that a model has guessed."""
    accepted_model_tokens: int = 0
    draft_model_s: float = 0.0
    """Seconds that a model has drafted."""
    grammar_compile_s: Distribution = Distribution()
    """Seconds to compile a grammar, see `grammars.compiler`."""
    num_grammar_hits: int = 0
    """Grammars that were known from an earlier request."""
    num_constrained_tokens: int = 0
    """Rows in which a token was chosen that a grammar or a budget allows."""
    mask_s: float = 0.0
    """Seconds for finding out which tokens these are."""
    step_s: Distribution = Distribution()
    """Seconds of a step. `engine.metrics` has the buckets of this distribution and of those below."""
    queue_s: Distribution = Distribution()
    """Seconds from a request's arrival to the first step that computes a part of it."""
    prefill_s: Distribution = Distribution()
    """Seconds from a request's first step to its first token."""
    running_s: Distribution = Distribution()
    """Seconds from a request's first step to its last token, for requests that came to their end."""
    step_tokens: Distribution = Distribution()
    """Tokens that a step computes, of prompts and of answers."""
    num_step_sequences: int = 0
    """Requests that had a part in a step, added up over all steps."""
    num_paused: Annotated[int, Gauge.SUM] = 0
    """Requests whose clients read too slowly."""
    tiers: TierCounters = TierCounters()
    """KV in memory and on disk, behind the pool."""
    adapters: list[AdapterLoad] = []

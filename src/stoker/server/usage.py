"""Reports of an answer's cost that several APIs share: llama-server's timings, token counts, traces."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from stoker.engine.protocol import Output
from stoker.engine.view import Progress
from stoker.server.generation import Generation


class Timings(msgspec.Struct, frozen=True, kw_only=True):
    """llama-server's `timings`, as the engine reports them at the end. Before the end, or if the engine reports none,
    this server measures them, and time in the queue counts as prompt time."""

    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_token_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_token_ms: float
    predicted_per_second: float | None
    """Generated tokens per second; null for fewer than two tokens, which have no time between them."""
    draft_n: int | UnsetType = UNSET
    """Number of drafted tokens (speculative decoding); this field and `draft_n_accepted` are present if it is not 0."""
    draft_n_accepted: int | UnsetType = UNSET


class PromptProgress(msgspec.Struct, frozen=True, kw_only=True):
    """Progress of the prefill, as in llama-server. Counts are in tokens."""

    total: int
    cache: int
    processed: int
    """Number of processed tokens, including cached ones."""
    time_ms: float


class CachedFrom(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of cached prompt tokens, by the tier of the cache."""

    pool: int
    memory: int
    disk: int


class TraceReply(msgspec.Struct, frozen=True, kw_only=True):
    """Where the tokens of one chunk came from. Only the last chunk of a choice has the fields after the first three."""

    ids: list[int]
    """Token ids of the chunk, including tokens that add no text."""
    steps: list[int]
    """For each token, the id of the engine's step that produced it, as in `/engine/events`."""
    drafted: list[bool]
    """For each token, whether it was a draft (speculative decoding) before it was computed."""
    slot: int | UnsetType = UNSET
    queue_ms: float | UnsetType = UNSET
    """Time that the request waited for its first step, in milliseconds."""
    cached: CachedFrom | UnsetType = UNSET
    preempted: int | UnsetType = UNSET
    """How often the request was preempted by another one."""


class InputTokens(msgspec.Struct, frozen=True):
    """The reply of the endpoints that only count tokens."""

    input_tokens: int
    object: str = "response.input_tokens"


def timings(generation: Generation) -> Timings:
    """llama-server's `timings` of a generation. `prompt_n` counts the prompt tokens that were not cached."""
    usage, timing = generation.usage, generation.timing
    prompt_n = usage.prompt_tokens - usage.cached_tokens
    prompt_ms, predicted_ms = 1e3 * timing.prefill_s, 1e3 * timing.decode_s
    return Timings(
        cache_n=usage.cached_tokens,
        prompt_n=prompt_n,
        prompt_ms=prompt_ms,
        prompt_per_token_ms=_ratio(prompt_ms, prompt_n),
        prompt_per_second=_ratio(1e3 * prompt_n, prompt_ms),
        predicted_n=usage.completion_tokens,
        predicted_ms=predicted_ms,
        predicted_per_token_ms=_ratio(predicted_ms, usage.completion_tokens),
        predicted_per_second=_ratio(1e3 * usage.completion_tokens, predicted_ms)
        if usage.completion_tokens > 1
        else None,
        draft_n=timing.num_drafted or UNSET,
        draft_n_accepted=timing.num_accepted if timing.num_drafted else UNSET,
    )


def prompt_progress(progress: Progress) -> PromptProgress:
    """llama-server's `prompt_progress` from the engine's report."""
    return PromptProgress(
        total=progress.num_prompt,
        cache=progress.num_cached,
        processed=progress.num_computed,
        time_ms=round(1e3 * progress.elapsed_s, 3),
    )


def trace_reply(output: Output) -> TraceReply | None:
    """The trace of an output; None if the request is not traced."""
    trace = output.trace
    if trace is None:
        return None
    reply = TraceReply(ids=output.token_ids, steps=trace.steps, drafted=trace.drafted)
    if trace.end is None:
        return reply
    pool, memory, disk = trace.end.cached
    return msgspec.structs.replace(
        reply,
        slot=trace.end.slot,
        queue_ms=round(1e3 * trace.end.queue_s, 3),
        cached=CachedFrom(pool=pool, memory=memory, disk=disk),
        preempted=trace.end.num_preempted,
    )


def _ratio(amount: float, per: float) -> float:
    return amount / per if per else 0.0

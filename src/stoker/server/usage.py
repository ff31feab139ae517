"""The cost of an answer, as several APIs report it: llama-server's block of timings, and a bare count of tokens."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from stoker.engine.protocol import Output
from stoker.engine.view import Progress
from stoker.server.generation import Generation


class Timings(msgspec.Struct, frozen=True, kw_only=True):
    """llama-server's block, by the server's clock: waiting in the queue counts as prompt time."""

    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_token_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_token_ms: float
    predicted_per_second: float | None
    """Generated tokens per second; None for fewer than two tokens, which have no time between them."""
    draft_n: int | UnsetType = UNSET
    """Drafted tokens; this field and `draft_n_accepted` are there if any tokens were drafted."""
    draft_n_accepted: int | UnsetType = UNSET


class PromptProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a prompt is computed, as llama-server says it. Counts are in tokens."""

    total: int
    cache: int
    processed: int
    """Tokens that are done, including cached ones."""
    time_ms: float


class CachedFrom(msgspec.Struct, frozen=True, kw_only=True):
    """Cached prompt tokens by where they were found."""

    pool: int
    memory: int
    disk: int


class TraceReply(msgspec.Struct, frozen=True, kw_only=True):
    """Where the tokens of one chunk came from. The fields after the first three are on the last chunk of a choice."""

    ids: list[int]
    """The tokens, also those that add no text."""
    steps: list[int]
    """The step of the engine that made each of them, as `/engine/events` numbers it."""
    drafted: list[bool]
    """Whether the token was guessed before it was computed."""
    slot: int | UnsetType = UNSET
    queue_ms: float | UnsetType = UNSET
    """How long the request waited for its first step."""
    cached: CachedFrom | UnsetType = UNSET
    preempted: int | UnsetType = UNSET
    """How often the request lost its place to another one."""


class InputTokens(msgspec.Struct, frozen=True):
    """The reply of the endpoints that only count."""

    input_tokens: int
    object: str = "response.input_tokens"


def timings(generation: Generation) -> Timings:
    """llama-server's block. Its `prompt_n` are the prompt tokens that were not cached."""
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
    """llama-server's block."""
    return PromptProgress(
        total=progress.num_prompt,
        cache=progress.num_cached,
        processed=progress.num_computed,
        time_ms=round(1e3 * progress.elapsed_s, 3),
    )


def trace_reply(output: Output) -> TraceReply | None:
    """None if the request is not traced."""
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

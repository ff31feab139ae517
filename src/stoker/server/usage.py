"""The cost of an answer, as several APIs report it: llama-server's block of timings, and a bare count of tokens."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

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


def _ratio(amount: float, per: float) -> float:
    return amount / per if per else 0.0

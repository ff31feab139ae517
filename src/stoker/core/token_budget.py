"""How many prompt tokens one step may take, learned from how long steps really take. It has no clock."""

from __future__ import annotations

MIN_CHUNK = 16
"""A prompt always advances by this much, however slow the machine."""
_FIRST_GUESS = 128
_WEIGHT = 0.3


class TokenBudget:
    """Bounds a step's duration by bounding its prompt tokens.

    While streams run, a step should last about `target_step_s`; without any, `idle_step_s` (nobody waits for the
    next token then, but an abort still has to be noticed).
    """

    def __init__(self, *, max_tokens: int, target_step_s: float, idle_step_s: float) -> None:
        self._max_tokens = max_tokens
        self._target_step_s = target_step_s
        self._idle_step_s = idle_step_s
        self._token_s: float | None = None

    @property
    def token_s(self) -> float | None:
        """What one prompt token costs, in seconds; None = not known yet."""
        return self._token_s

    def observe(self, num_tokens: int, step_s: float) -> None:
        """Learns from a finished step. Steps of few tokens say nothing of a prompt's cost and are ignored."""
        if num_tokens < MIN_CHUNK or step_s <= 0:
            return
        token_s = step_s / num_tokens
        self._token_s = token_s if self._token_s is None else self._token_s + _WEIGHT * (token_s - self._token_s)

    def prompt_tokens(self, num_decodes: int) -> int:
        """Prompt tokens for a step that also decodes `num_decodes` sequences."""
        limit = self._target_step_s if num_decodes else self._idle_step_s
        affordable = _FIRST_GUESS if self._token_s is None else int(limit / self._token_s) - num_decodes
        return min(max(affordable, MIN_CHUNK), max(self._max_tokens - num_decodes, 0))

"""Chunked prefill: decides how many prompt tokens a step may compute, from measured step times. It has no clock."""

from __future__ import annotations

from math import sqrt

from stoker.core.step_cost import MANY_PASSES, ONE_PASS, StepCost, StepLoad

MIN_CHUNK = 8
"""Minimum number of prompt tokens in a step, however slow the machine is."""
SLOWDOWN = 2.8
"""Maximum factor by which prompts lengthen the steps of running streams. Users notice the longest gap between two
tokens; with this factor, prompts still get more than half of the time. Some steps take longer than predicted, and time
passes between two steps: the factor leaves room for a longest gap of four times the usual one."""
_LEAST_SHARE = 1 / 3
"""Fraction of the time that prompts get even if decodes alone take as long as a step should."""
_UNSEEN_S = 0.01
"""Steps that take at most this many seconds need not become shorter."""
_FIRST_GUESS = 128
_WORTH_A_PASS = 16
"""If each chunk needs its own forward pass: minimum cost of a chunk's entries, as a multiple of the pass's own cost."""
_MAX_OBSERVED = 32


class TokenBudget:
    """Bounds the duration of a step by its number of prompt tokens. One instance per scheduler.

    While streams run, a step should take at most `SLOWDOWN` times as long as without prompts, and at most
    `target_step_s`. Without streams, the limit is `idle_step_s`, so that an abort is noticed in time. If each prompt
    chunk needs its own forward pass, a step is long enough for one chunk of `least_chunk` entries.
    """

    def __init__(
        self,
        *,
        max_tokens: int,
        target_step_s: float,
        idle_step_s: float,
        tile_rows: int = 1,
        pass_per_prompt: bool = False,
    ) -> None:
        self._max_tokens = max_tokens
        self._pass_per_prompt = pass_per_prompt
        self._tile_rows = tile_rows
        self._target_step_s = target_step_s
        self._idle_step_s = idle_step_s
        self._cost = StepCost(MANY_PASSES if pass_per_prompt else ONE_PASS)
        self._observed: list[tuple[int, int, int, int, float]] = []
        """Steps from which nothing was learned yet: decodes alone need no prediction, and learning in bulk is fast."""

    @property
    def token_s(self) -> float | None:
        """Seconds per prompt token at the beginning of a sequence; None = not known yet."""
        return self._learned.entry_s if self._learned.is_known else None

    @property
    def least_chunk(self) -> int:
        """Minimum size of a prompt chunk, in entries, unless the rest of the prompt is shorter."""
        if not (self._pass_per_prompt and self._learned.is_known):
            return 1
        return max(MIN_CHUNK, int(_WORTH_A_PASS * self._learned.pass_s / self._learned.entry_s))

    def observe(
        self, num_tokens: int, step_s: float, *, num_decodes: int = 0, num_attended: int = 0, num_prompts: int = 1
    ) -> None:
        """Learns from a finished step. Steps with fewer than `MIN_CHUNK` prompt tokens and no decode are ignored.

        Args:
            num_tokens: prompt tokens in the step.
            step_s: duration of the step.
            num_decodes: entries of decodes in the step, drafts included.
            num_attended: positions that the prompt tokens attended to, summed over the tokens.
            num_prompts: number of prompts with tokens in the step.
        """
        if step_s > 0 and (num_decodes or num_tokens >= MIN_CHUNK):
            self._observed.append((num_decodes, num_tokens, num_attended, num_prompts, step_s))
            if len(self._observed) >= _MAX_OBSERVED:
                self._learn()

    @property
    def _learned(self) -> StepCost:
        if self._observed:
            self._learn()
        return self._cost

    def _learn(self) -> None:
        for num_decodes, num_tokens, num_attended, num_prompts, step_s in self._observed:
            num_passes = self._num_passes(num_decodes, num_prompts if num_tokens else 0)
            self._cost.observe(StepLoad(num_decodes, num_tokens, num_attended, num_passes), step_s)
        self._observed.clear()

    def limit_s(self, num_decodes: int, *, has_others: bool = False, num_sharing: int = 1) -> float:
        """Maximum duration of a step that decodes `num_decodes` sequences. For the arguments, see `prompt_tokens`."""
        if not (num_decodes or has_others):
            return self._idle_step_s
        if not self._learned.is_known:
            return self._target_step_s / num_sharing
        alone_s = self._learned.predict(StepLoad(max(1, num_decodes)))
        limit_s = min(self._target_step_s, max(SLOWDOWN * alone_s, _UNSEEN_S)) / num_sharing
        return max(limit_s, alone_s / (1 - _LEAST_SHARE))

    def prompt_tokens(
        self,
        num_decodes: int,
        *,
        has_others: bool = False,
        num_sharing: int = 1,
        position: int = 0,
    ) -> int:
        """Number of prompt tokens for a step that also decodes `num_decodes` sequences.

        Args:
            num_decodes: sequences that get a token from this step.
            has_others: other streams run, which get their tokens from later steps.
            num_sharing: number of lanes with prompts, whose steps alternate and share the time of one step.
            position: largest number of entries before a prompt's next entry: attention to them takes time.
        """
        affordable = _FIRST_GUESS
        if self._learned.is_known:
            limit_s = self.limit_s(num_decodes, has_others=has_others, num_sharing=num_sharing)
            others_s = self._learned.predict(StepLoad(num_decodes, num_passes=self._num_passes(num_decodes, 1)))
            affordable = self._num_affordable(limit_s - others_s, position)
            affordable = self._tiled(affordable + num_decodes) - num_decodes
            worthwhile = min(self.least_chunk, self._num_affordable(self._target_step_s - others_s, position))
            affordable = max(affordable, worthwhile)
        return min(max(affordable, MIN_CHUNK), max(self._max_tokens - num_decodes, 0))

    def _num_passes(self, num_decodes: int, num_prompts: int) -> int:
        """All decodes share a pass; each prompt needs its own if `pass_per_prompt`, else all share the same pass."""
        return num_prompts + (num_decodes > 0) if self._pass_per_prompt else 1

    def _tiled(self, num_rows: int) -> int:
        """Rounds to whole tiles, if that changes at most a quarter of a tile or at least two tiles remain."""
        tile = self._tile_rows
        beyond = num_rows % tile
        if 4 * beyond >= 3 * tile:
            return num_rows + tile - beyond
        return num_rows - beyond if num_rows >= 2 * tile or tile <= num_rows <= tile + tile // 4 else num_rows

    def _num_affordable(self, seconds: float, position: int) -> int:
        """The n with `n · cost of a token at position + n²/2 · cost of attending to a position = seconds`."""
        price = self._learned.entry_s + position * self._learned.attended_s
        root = sqrt(price * price + 2 * self._learned.attended_s * max(seconds, 0.0))
        return int(2 * max(seconds, 0.0) / (price + root))

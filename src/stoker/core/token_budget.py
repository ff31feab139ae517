"""How many prompt tokens one step may take, learned from how long steps really take. It has no clock."""

from __future__ import annotations

from math import sqrt

from stoker.core.step_cost import MANY_PASSES, ONE_PASS, StepCost, StepLoad

MIN_CHUNK = 8
"""A prompt always advances by this much, however slow the machine."""
SLOWDOWN = 2.8
"""Prompts may make the steps of running streams this much longer than they are without: what people see of a stream
is its longest gap, and with this one prompts still get more than half of the time. Single steps take longer than was
expected, and what lies between two steps is not ours: it leaves room for a longest gap of four times the usual one."""
_LEAST_SHARE = 1 / 3
"""Part of the time that prompts get also where streams alone take as long as a step should."""
_UNSEEN_S = 0.01
"""Steps this short need not be any shorter."""
_FIRST_GUESS = 128
_WORTH_A_PASS = 16
"""Where each chunk takes a pass of its own, its entries should cost so many times what the pass does."""
_MAX_OBSERVED = 32


class TokenBudget:
    """Bounds a step's duration by bounding its prompt tokens.

    While streams run, a step should last at most `SLOWDOWN` times as long as it would without prompts, and at most
    `target_step_s`; without any, `idle_step_s` (no stream waits for a token then, but an abort still has to be
    noticed). Where a prompt's chunk takes a pass of its own, a step lasts long enough for one that is worth it.
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
        """Steps not learned from yet: the cost is not needed while decoding goes on, and learning in bulk is faster."""

    @property
    def token_s(self) -> float | None:
        """What one prompt token costs, in seconds, where little is before it; None = not known yet."""
        return self._learned.entry_s if self._learned.is_known else None

    @property
    def least_chunk(self) -> int:
        """Entries of a prompt that are worth their place in a step, if there are so many."""
        if not (self._pass_per_prompt and self._learned.is_known):
            return 1
        return max(MIN_CHUNK, int(_WORTH_A_PASS * self._learned.pass_s / self._learned.entry_s))

    def observe(
        self, num_tokens: int, step_s: float, *, num_decodes: int = 0, num_attended: int = 0, num_prompts: int = 1
    ) -> None:
        """Learns from a finished step. A few tokens of a prompt on their own say nothing, and are ignored.

        Args:
            num_tokens: of prompts.
            step_s: how long the step took.
            num_decodes: sequences that got a token besides.
            num_attended: positions that the prompts' tokens looked back at, added up over them.
            num_prompts: which the tokens are of.
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
        """How long a step may take that decodes `num_decodes` sequences. Arguments as of `prompt_tokens`."""
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
        """Prompt tokens for a step that also decodes `num_decodes` sequences.

        Args:
            num_decodes: sequences that get a token of this step.
            has_others: streams run that get theirs of a later step.
            num_sharing: so many steps in turn, each with prompts of its own, must not take longer than one.
            position: how much of its sequence lies before the prompt that is furthest on.
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
        """Streams are computed together, with the prompts or without."""
        return num_prompts + (num_decodes > 0) if self._pass_per_prompt else 1

    def _tiled(self, num_rows: int) -> int:
        """Whole tiles, where that is at most a quarter of a tile away or there is more than one of them anyway."""
        tile = self._tile_rows
        beyond = num_rows % tile
        if 4 * beyond >= 3 * tile:
            return num_rows + tile - beyond
        return num_rows - beyond if num_rows >= 2 * tile or tile <= num_rows <= tile + tile // 4 else num_rows

    def _num_affordable(self, seconds: float, position: int) -> int:
        """The root of `n · price at position + n²/2 · price of looking back = seconds`."""
        price = self._learned.entry_s + position * self._learned.attended_s
        root = sqrt(price * price + 2 * self._learned.attended_s * max(seconds, 0.0))
        return int(2 * max(seconds, 0.0) / (price + root))

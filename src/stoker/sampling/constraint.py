"""The interface between a sampler and the grammar that one row must follow. It depends on no grammar engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class Constraint(Protocol):
    """Tells which tokens may come next in one row. It belongs to one sequence, whose tokens are pushed one by one."""

    @property
    def error(self) -> str | None:
        """The reason why the row cannot go on; other results are then invalid. Check it after `mask` and `push`."""
        ...

    @property
    def is_complete(self) -> bool:
        """The text so far matches, and only an end-of-generation token can follow."""
        ...

    @property
    def can_end(self) -> bool:
        """The text so far matches, so the answer may end here."""
        ...

    def mask(self) -> NDArray[np.uint32] | None:
        """The mask of allowed tokens: one bit per token, set if allowed; token 0 is the lowest bit of the first word.

        Tokens beyond the last word are forbidden. None means that every token is allowed. The array is valid until the
        next call, and must not be changed.
        """
        ...

    def allows(self, token_id: int) -> bool:
        """Whether one token is allowed: the token's bit in `mask`, computed without the other bits."""
        ...

    def push(self, token_id: int) -> None:
        """Takes the next token of the sequence. A forbidden token sets `error`."""
        ...

    def forced(self) -> int | None:
        """The token that must come next, whatever the logits are; None = there is a choice."""
        ...

    def forced_text(self) -> list[int]:
        """Tokens of text that the grammar determines, as a draft for speculative decoding; often empty."""
        ...

    def validate(self, token_ids: Sequence[int]) -> int:
        """How many of these tokens, from the first one, are allowed in sequence. They are not pushed."""
        ...

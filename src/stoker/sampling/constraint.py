"""What a sampler asks of a grammar that one row must follow. Knows no grammar engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class Constraint(Protocol):
    """Which tokens may come next in one row. It belongs to one sequence and follows the tokens that are pushed."""

    @property
    def error(self) -> str | None:
        """Why the row cannot go on; nothing else counts from then on. To be looked at after `mask` and `push`."""
        ...

    @property
    def is_complete(self) -> bool:
        """The text is whole, and nothing but an end of generation can follow."""
        ...

    @property
    def can_end(self) -> bool:
        """The text is whole as it stands."""
        ...

    def mask(self) -> NDArray[np.uint32] | None:
        """One bit for each token, the lowest bit of the first word for token 0, set where the token is allowed.

        Tokens beyond the last word are forbidden. None means that every token is allowed. The array is valid until the
        next call, and it is not to be changed.
        """
        ...

    def allows(self, token_id: int) -> bool:
        """The same as the token's bit in `mask`, found without the other bits."""
        ...

    def push(self, token_id: int) -> None:
        """Notes the next token. A forbidden one makes an `error`."""
        ...

    def forced(self) -> int | None:
        """The token that must come next whatever the row says; None where there is a choice."""
        ...

    def forced_text(self) -> list[int]:
        """Tokens that the grammar makes certain, as a guess for speculative decoding; often none."""
        ...

    def validate(self, token_ids: Sequence[int]) -> int:
        """How many of these tokens are allowed one after the other. None is noted."""
        ...

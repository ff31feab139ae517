"""How a download tells how far it is. A progress bar implements the protocol."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """One transfer after the other: `start`, any number of `advance`, and at the very end one `close`.

    A new `start` ends the transfer before it, finished or not. All calls come from the thread that called `resolve`.
    What `start` and `advance` raise breaks the download off.
    """

    def start(self, total_bytes: int | None, label: str) -> None:
        """A transfer begins; None = of unknown size."""
        ...

    def advance(self, num_bytes: int) -> None:
        """`num_bytes` more have arrived; 0 = another process downloads, and is still at it."""
        ...

    def close(self) -> None:
        """Nothing more comes. Calling it twice, or without a `start`, is allowed."""
        ...


class NoProgress:
    """Draws nothing."""

    def start(self, total_bytes: int | None, label: str) -> None:
        pass

    def advance(self, num_bytes: int) -> None:
        pass

    def close(self) -> None:
        pass

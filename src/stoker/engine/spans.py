"""Where in an answer the model reasons: token by token, for the sampler and for the text that goes out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from stoker.core.outline import ReasoningSpan
from stoker.sampling.constraint import Constraint


class State(Enum):
    """The part of an answer that is being written."""

    BEGINNING = "beginning"
    """Reasoning may begin, or the content."""
    REASONING = "reasoning"
    CONTENT = "content"


class SpanFollower:
    """Follows one answer through its reasoning.

    Args:
        span: the markers of reasoning.
        token_bytes: the text of a token, special tokens spelled out.
    """

    def __init__(self, span: ReasoningSpan, token_bytes: Callable[[int], bytes]) -> None:
        self.state = State.REASONING if span.starts_open else State.BEGINNING
        self.num_tokens = 0
        """Tokens of the reasoning so far, its markers included."""
        self.rest = b""
        """What the token that ended the reasoning wrote after the marker."""
        self._start, self._end = span.start_text.encode(), span.end_text.encode()
        self._token_bytes = token_bytes
        self._text = b""
        """The text so far, or its end: as much as may be the beginning of a marker."""

    def push(self, token_id: int) -> None:
        """Takes the next token of the answer."""
        if self.state is State.CONTENT:
            return
        self._text += self._token_bytes(token_id)
        self.num_tokens += 1
        if self.state is State.BEGINNING:
            self._begin()
        elif (at := self._text.find(self._end)) >= 0:
            self.rest = self._text[at + len(self._end) :]
            self.state = State.CONTENT
        else:
            self._text = self._text[-len(self._end) :]

    def is_whole_text(self) -> bool:
        """No character is cut at the end of the text so far."""
        try:
            self._text[-4:].decode()
        except UnicodeDecodeError as error:
            return error.reason != "unexpected end of data"
        return True

    def _begin(self) -> None:
        text = self._text.lstrip()
        if text.startswith(self._start):
            self.state, self._text = State.REASONING, b""
        elif not self._start.startswith(text):
            self.state, self.num_tokens = State.CONTENT, 0


class SpannedConstraint:
    """Content that follows a grammar, after reasoning that has a budget. See `Constraint`.

    Args:
        span: the reasoning.
        content: what the content must follow; None = anything.
        encode: the tokens of a text; markers are single tokens where the vocabulary has them.
        token_bytes: the text of a token, special tokens spelled out.
        vocab_size: in tokens.
        eog_token_ids: an answer does not end inside of reasoning.
    """

    def __init__(
        self,
        span: ReasoningSpan,
        content: Constraint | None,
        encode: Callable[[str], list[int]],
        token_bytes: Callable[[int], bytes],
        vocab_size: int,
        eog_token_ids: frozenset[int],
    ) -> None:
        self._follower = SpanFollower(span, token_bytes)
        self._content = content
        self._budget = span.budget
        self._closing = [*(encode(span.closing_text) if span.closing_text else ()), *encode(span.end_text)]
        self._queue: list[int] = []
        """Tokens that are written next: the end of reasoning whose budget is spent."""
        start = encode(span.start_text)
        self._start_id = start[0] if len(start) == 1 else None
        self._no_end = np.full((vocab_size + 31) // 32, 0xFFFFFFFF, dtype=np.uint32)
        for token_id in eog_token_ids:
            self._no_end[token_id // 32] &= ~np.uint32(1 << token_id % 32)
        self._eog_token_ids = eog_token_ids
        self.error: str | None = None if content is None else content.error

    @property
    def is_complete(self) -> bool:
        """See `Constraint`."""
        return self._in_content and self._content is not None and self._content.is_complete

    @property
    def can_end(self) -> bool:
        """See `Constraint`."""
        return self._follower.state is not State.REASONING and (self._content is None or self._content.can_end)

    def mask(self) -> NDArray[np.uint32] | None:
        """See `Constraint`."""
        if self._follower.state is State.REASONING:
            return self._no_end
        if self._content is None:
            return None
        words = self._content.mask()
        self.error = self._content.error
        if words is None or self._start_id is None or not self._may_begin:
            return words
        words = words.copy()
        words[self._start_id // 32] |= np.uint32(1 << self._start_id % 32)
        return words

    def allows(self, token_id: int) -> bool:
        """See `Constraint`."""
        if self._follower.state is State.REASONING:
            return token_id not in self._eog_token_ids
        if self._content is None or (self._may_begin and token_id == self._start_id):
            return True
        return self._content.allows(token_id)

    def push(self, token_id: int) -> None:
        """See `Constraint`."""
        was_content = self._in_content or (self._may_begin and token_id != self._start_id)
        if self._queue:
            self._queue.pop(0)
        self._follower.push(token_id)
        if self._content is not None and was_content:
            self._content.push(token_id)
            self.error = self._content.error
        elif self._content is not None and self._follower.rest.strip():
            self.error = "the token that ends the reasoning begins the content"
        if self._is_spent and not self._queue:
            self._queue = list(self._closing)

    def forced(self) -> int | None:
        """See `Constraint`."""
        if self._is_spent and not self._queue:
            self._queue = list(self._closing)  # a budget of 0
        return self._queue[0] if self._queue else None

    def forced_text(self) -> list[int]:
        """See `Constraint`."""
        if self._queue:
            return list(self._queue)
        return self._content.forced_text() if self._in_content and self._content is not None else []

    def validate(self, token_ids: Sequence[int]) -> int:
        """See `Constraint`."""
        if self._in_content and self._content is not None:
            return self._content.validate(token_ids)
        return 0 if self._queue else len(token_ids)

    @property
    def _in_content(self) -> bool:
        return self._follower.state is State.CONTENT

    @property
    def _may_begin(self) -> bool:
        return self._follower.state is State.BEGINNING and self._follower.num_tokens == 0

    @property
    def _is_spent(self) -> bool:
        if self._budget is None or self._follower.state is not State.REASONING:
            return False
        return self._follower.num_tokens >= self._budget and self._follower.is_whole_text()

"""Detects the reasoning in an answer token by token; limits it by a budget, and the content by a grammar."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from stoker.core.outline import ReasoningSpan
from stoker.sampling.constraint import Constraint

_GAP = "\n\n"
"""The blank line that most models write between reasoning and content; the content's grammar begins after it."""


class State(Enum):
    """The part of an answer that is being written."""

    BEGINNING = "beginning"
    """Either reasoning or content may begin."""
    REASONING = "reasoning"
    CONTENT = "content"


class SpanFollower:
    """Tells, token by token, whether one answer is in its reasoning or in its content.

    Args:
        span: the markers of reasoning.
        encode: tokenizes a text; markers become single tokens if the vocabulary has them.
        token_bytes: returns the text of a token, special tokens spelled out.
    """

    def __init__(
        self, span: ReasoningSpan, encode: Callable[[str], list[int]], token_bytes: Callable[[int], bytes]
    ) -> None:
        self.state = State.REASONING if span.starts_open else State.BEGINNING
        self.num_tokens = 0
        """Number of tokens of the reasoning so far, including its markers."""
        self.rest = b""
        """The beginning of the content, if the token that ended the reasoning contains some of it."""
        self._start, self._end = span.start_text.encode(), span.end_text.encode()
        ends = {marker: encode(marker) for marker in span.implicit_ends}
        self._end_ids = {ids[0]: marker.encode() for marker, ids in ends.items() if len(ids) == 1}
        self._end_texts = [marker.encode() for marker, ids in ends.items() if len(ids) > 1]
        self._num_kept = max(map(len, (self._end, *self._end_texts)))
        self._token_bytes = token_bytes
        self._text = b""
        """The end of the text so far, long enough to find a marker that spans several tokens."""

    def push(self, token_id: int) -> None:
        """Adds the next token of the answer."""
        if self.state is State.CONTENT:
            return
        self._text += self._token_bytes(token_id)
        self.num_tokens += 1
        if self.state is State.BEGINNING:
            self._begin()
        elif (at := self._text.find(self._end)) >= 0:
            self.rest = self._text[at + len(self._end) :].lstrip()
            self.state = State.CONTENT
        elif (marker := self._implicit_end(token_id)) is not None:
            self.rest = self._text[self._text.rindex(marker) :]
            self.state = State.CONTENT
            self.num_tokens -= 1
        else:
            self._text = self._text[-self._num_kept :]

    @property
    def start_left(self) -> bytes:
        """The part of the reasoning's start marker that is not written yet, while the answer begins."""
        return self._start[len(self._text.lstrip()) :]

    def is_whole_text(self) -> bool:
        """The text so far does not end within a UTF-8 character."""
        try:
            self._text[-4:].decode()
        except UnicodeDecodeError as error:
            return error.reason != "unexpected end of data"
        return True

    def _implicit_end(self, token_id: int) -> bytes | None:
        """A marker that ends the reasoning and begins the content. A marker that is one token is not found in text."""
        found = self._end_ids.get(token_id)
        return found or next((marker for marker in self._end_texts if marker in self._text), None)

    def _begin(self) -> None:
        text = self._text.lstrip()
        if text.startswith(self._start):
            self.state, self._text = State.REASONING, b""
        elif not self._start.startswith(text):
            self.state, self.num_tokens = State.CONTENT, 0


class Content(Constraint, Protocol):
    """A constraint on the content of an answer."""

    def copy(self) -> Content:
        """A copy of the constraint in its current state."""
        ...


class SpannedConstraint:
    """A `Constraint` on an answer with reasoning: a budget limits the reasoning, and a grammar governs the content.

    Args:
        span: markers and budget of the reasoning.
        content: constraint on the content; None = any content.
        encode: tokenizes a text; markers become single tokens if the vocabulary has them.
        token_bytes: returns the text of a token, special tokens spelled out.
        vocab_size: number of tokens.
        eog_token_ids: end-of-generation tokens, which are forbidden in reasoning.
    """

    def __init__(
        self,
        span: ReasoningSpan,
        content: Content | None,
        encode: Callable[[str], list[int]],
        token_bytes: Callable[[int], bytes],
        vocab_size: int,
        eog_token_ids: frozenset[int],
    ) -> None:
        self._follower = SpanFollower(span, encode, token_bytes)
        self._content = content
        self._tried = None if content is None else content.copy()
        """A copy of the content's constraint that assumes that the answer begins with content, not with reasoning."""
        self._budget = span.budget
        self._closing = [*(encode(span.closing_text) if span.closing_text else ()), *encode(span.end_text)]
        self._queue: list[int] = []
        """Tokens that are forced next: the end of reasoning whose budget is spent."""
        self._encode = encode
        gaps = {_GAP[:size]: encode(_GAP[:size]) for size in range(1, len(_GAP) + 1)}
        self._breaks = {ids[0]: len(text) for text, ids in gaps.items() if len(ids) == 1}
        """Tokens that consist of line breaks, with the number of line breaks in each."""
        self._num_breaks = 0
        """Number of line breaks that may still come before the content."""
        self._no_end = np.full((vocab_size + 31) // 32, 0xFFFFFFFF, dtype=np.uint32)
        for token_id in eog_token_ids:
            self._no_end[token_id // 32] &= ~np.uint32(1 << token_id % 32)
        self._eog_token_ids = eog_token_ids
        self.error: str | None = None if content is None else content.error

    def end_reasoning(self) -> bool:
        """Ends the reasoning, as a spent budget does. False = the answer is not in its reasoning, or is closing it."""
        if self._follower.state is not State.REASONING or self._queue:
            return False
        self._budget = 0
        return True

    @property
    def is_complete(self) -> bool:
        """See `Constraint`."""
        return self._in_content and self._content is not None and self._content.is_complete

    @property
    def can_end(self) -> bool:
        """See `Constraint`."""
        current = self._current
        return self._follower.state is not State.REASONING and (current is None or current.can_end)

    def mask(self) -> NDArray[np.uint32] | None:
        """See `Constraint`."""
        if self._follower.state is State.REASONING:
            return self._no_end
        current = self._current
        if current is None:
            return None
        words = current.mask() if current.error is None else np.zeros_like(self._no_end)
        start_id = self._start_id
        added = [token_id for token_id, size in self._breaks.items() if size <= self._num_breaks]
        if start_id is not None:
            added.append(start_id)
        else:
            self.error = current.error
        if words is None or not added:
            return words
        words = words.copy()
        for token_id in added:
            words[token_id // 32] |= np.uint32(1 << token_id % 32)
        return words

    def allows(self, token_id: int) -> bool:
        """See `Constraint`."""
        if self._follower.state is State.REASONING:
            return token_id not in self._eog_token_ids
        if self._current is None or token_id == self._start_id or self._is_break(token_id):
            return True
        return self._current.allows(token_id)

    def push(self, token_id: int) -> None:
        """See `Constraint`."""
        if self._queue:
            self._queue.pop(0)
        before = self._follower.state
        self._follower.push(token_id)
        if self._content is not None:
            self._push_content(before, token_id)
        if self._is_spent and not self._queue:
            self._queue = list(self._closing)

    def _push_content(self, before: State, token_id: int) -> None:
        assert self._content is not None
        assert self._tried is not None
        if before is State.CONTENT:
            if self._is_break(token_id):
                self._num_breaks -= self._breaks[token_id]
                return
            self._num_breaks = 0
            self._content.push(token_id)
        elif before is State.REASONING:
            self._num_breaks = len(_GAP) if self._in_content and not self._follower.rest else 0
            for each in self._encode(self._follower.rest.decode()) if self._follower.rest else ():
                self._content.push(each)
        elif self._follower.state is not State.REASONING:
            self._tried.push(token_id)
            self._content = self._tried if self._in_content else self._content
        self.error = self._content.error

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

    def _is_break(self, token_id: int) -> bool:
        """Whether a token is a line break between reasoning and content, rather than the first token of the content."""
        if self._content is None or not 0 < self._breaks.get(token_id, 0) <= self._num_breaks:
            return False
        return not self._content.allows(token_id)

    @property
    def _in_content(self) -> bool:
        return self._follower.state is State.CONTENT

    @property
    def _current(self) -> Content | None:
        """The constraint on the next token if it is not reasoning; None = no constraint."""
        return self._content if self._in_content else self._tried

    @property
    def _start_id(self) -> int | None:
        """The next token of the reasoning's start marker, while reasoning may still begin; None otherwise."""
        if self._follower.state is not State.BEGINNING:
            return None
        left = self._follower.start_left.decode("utf-8", "replace")
        return self._encode(left)[0] if left else None

    @property
    def _is_spent(self) -> bool:
        if self._budget is None or self._follower.state is not State.REASONING:
            return False
        return self._follower.num_tokens >= self._budget and self._follower.is_whole_text()


def ends_reasoning(constraint: Constraint | None) -> bool:
    """Ends the reasoning of a row. False = no reasoning is being written, or the row's constraint cannot end it."""
    return isinstance(constraint, SpannedConstraint) and constraint.end_reasoning()

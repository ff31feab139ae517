"""Selects the log-probabilities of an output that are reported, for all APIs."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from stoker.engine.protocol import Output, PositionLogprobs

_NO_POSITIONS: list[PositionLogprobs] = []


def text_positions(output: Output) -> list[PositionLogprobs]:
    """The positions whose tokens belong to the answer, without a token that only ends the answer, such as EOS."""
    positions = output.logprobs or _NO_POSITIONS
    ended_by_token = output.finish_reason == "stop" and not isinstance(output.stop_match, str)
    return positions[:-1] if ended_by_token and len(positions) == len(output.token_ids) else positions


class TextLogprobs:
    """Positions of one answer whose text has not been written yet: selects those of messages, drops those of thoughts
    and calls. Each token is looked at once, because an answer may have thousands of calls."""

    def __init__(self) -> None:
        self._positions: list[PositionLogprobs] = []
        self._text = bytearray()
        """The tokens of the positions."""
        self._ends: list[int] = []
        """Index in `_text` after each token."""
        self._num_done = 0
        """Number of positions that were taken or dropped."""

    def push(self, output: Output) -> None:
        """Adds the tokens of an output."""
        for position in text_positions(output):
            self._positions.append(position)
            self._text += position.chosen.token
            self._ends.append(len(self._text))

    def of_message(self, text: str) -> list[PositionLogprobs]:
        """Takes the tokens of the next text of a message; without such tokens in the answer, all that are left."""
        span = self._span(text)
        return self.rest() if span is None else self._take(*span)

    def pass_by(self, text: str) -> None:
        """Drops the tokens of the next text that is not part of a message, as far as they are found."""
        if span := self._span(text):
            self._take(*span)

    def rest(self) -> list[PositionLogprobs]:
        """Takes all tokens that are left."""
        return self._take(self._num_done, len(self._positions))

    def _take(self, begin: int, end: int) -> list[PositionLogprobs]:
        """Takes the tokens between two indices, and drops earlier ones, such as the marker before a text."""
        taken = self._positions[begin:end]
        self._num_done = end
        if end == len(self._positions):
            self._positions, self._text, self._ends, self._num_done = [], bytearray(), [], 0
        return taken

    def _span(self, text: str) -> tuple[int, int] | None:
        """The first and the last token, exclusive, that have a part of a text.

        tokens  | </think> | \\n\\n | It | 's |      text "It's": 2, 4
        """
        first, sought = self._num_done, text.encode()
        at = self._text.find(sought, self._ends[first - 1] if first else 0)
        if first == len(self._positions) or at < 0:
            return None
        return bisect_right(self._ends, at, first), bisect_left(self._ends, at + len(sought), first) + 1

"""Selects the log-probabilities of an output that are reported, for all APIs."""

from __future__ import annotations

from itertools import accumulate

from stoker.engine.protocol import Output, PositionLogprobs

_NO_POSITIONS: list[PositionLogprobs] = []


def text_positions(output: Output) -> list[PositionLogprobs]:
    """The positions whose tokens belong to the answer, without a token that only ends the answer, such as EOS."""
    positions = output.logprobs or _NO_POSITIONS
    ended_by_token = output.finish_reason == "stop" and not isinstance(output.stop_match, str)
    return positions[:-1] if ended_by_token and len(positions) == len(output.token_ids) else positions


class TextLogprobs:
    """Positions of one answer whose text has not been written yet: selects those of messages, drops those of thoughts
    and calls."""

    def __init__(self) -> None:
        self._left: list[PositionLogprobs] = []

    def push(self, output: Output) -> None:
        """Adds the tokens of an output."""
        self._left += text_positions(output)

    def of_message(self, text: str) -> list[PositionLogprobs]:
        """Takes the tokens of the next text of a message; without such tokens in the answer, all that are left."""
        span = self._span(text)
        return self._take(*(span or (0, len(self._left))))

    def pass_by(self, text: str) -> None:
        """Drops the tokens of the next text that is not part of a message, as far as they are found."""
        if span := self._span(text):
            self._take(*span)

    def rest(self) -> list[PositionLogprobs]:
        """Takes all tokens that are left."""
        return self._take(0, len(self._left))

    def _take(self, begin: int, end: int) -> list[PositionLogprobs]:
        """Takes the tokens between two indices, and drops earlier ones, such as the marker before a text."""
        taken = self._left[begin:end]
        del self._left[:end]
        return taken

    def _span(self, text: str) -> tuple[int, int] | None:
        """The first and the last token, exclusive, that have a part of a text.

        tokens  | </think> | \\n\\n | It | 's |      text "It's": 2, 4
        """
        tokens, sought = [position.chosen.token for position in self._left], text.encode()
        at = b"".join(tokens).find(sought)
        if not tokens or at < 0:
            return None
        ends = list(accumulate(len(token) for token in tokens))
        begin = sum(end <= at for end in ends)
        end = sum(end < at + len(sought) for end in ends) + 1
        return begin, end

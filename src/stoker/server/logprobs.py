"""Selects the log-probabilities of an output that are reported, for all APIs."""

from __future__ import annotations

from stoker.engine.protocol import Output, PositionLogprobs

_NO_POSITIONS: list[PositionLogprobs] = []


def text_positions(output: Output) -> list[PositionLogprobs]:
    """The positions whose tokens belong to the answer, without a token that only ends the answer, such as EOS."""
    positions = output.logprobs or _NO_POSITIONS
    ended_by_token = output.finish_reason == "stop" and not isinstance(output.stop_match, str)
    return positions[:-1] if ended_by_token and len(positions) == len(output.token_ids) else positions

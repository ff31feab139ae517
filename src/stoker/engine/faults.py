"""The errors that end an answer: its grammar cannot be followed, no token can be sampled, or its time is over."""

from __future__ import annotations

from stoker.engine.stream import Stream
from stoker.errors import BackendError, GrammarFailed, StokerError, Timeout
from stoker.sampling.sampler import RowState


def fault_of(row: RowState) -> GrammarFailed | None:
    """The error of a row whose constraint cannot be followed any further; None = it can be followed."""
    constraint = row.constraint
    if constraint is None or constraint.error is None:
        return None
    return GrammarFailed(f"the answer cannot follow its grammar any further: {constraint.error}")


def unsampled(row: RowState) -> StokerError:
    """The error of a row from which no token can be chosen."""
    if (fault := fault_of(row)) is not None:
        return fault
    if row.constraint is not None:
        return GrammarFailed("no token is possible: the grammar allows only tokens that the request bans")
    return BackendError("the model's numbers for the next token cannot be sampled (NaN or all -inf)")


def timed_out(stream: Stream) -> Timeout:
    """The error of a request that has exceeded its deadline."""
    return Timeout(f"the request was not finished within {stream.timeout_s:g} s", timeout_s=stream.timeout_s)

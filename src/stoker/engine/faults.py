"""Why an answer cannot go on, by the state of its row."""

from __future__ import annotations

from stoker.engine.stream import Stream
from stoker.errors import BackendError, GrammarFailed, StokerError, Timeout
from stoker.sampling.sampler import RowState


def fault_of(row: RowState) -> GrammarFailed | None:
    """Why a row's constraint cannot be followed any further."""
    constraint = row.constraint
    if constraint is None or constraint.error is None:
        return None
    return GrammarFailed(f"the answer cannot follow its grammar any further: {constraint.error}")


def unsampled(row: RowState) -> StokerError:
    """Why nothing can be chosen from a row."""
    if (fault := fault_of(row)) is not None:
        return fault
    if row.constraint is not None:
        return GrammarFailed("no token is possible: the grammar allows only tokens that the request bans")
    return BackendError("the model's numbers for the next token cannot be sampled (NaN or all -inf)")


def timed_out(stream: Stream) -> Timeout:
    """It was late."""
    return Timeout(f"the request was not finished within {stream.timeout_s:g} s", timeout_s=stream.timeout_s)

"""What llama-server serves and Stoker refuses on purpose, each with its cause, as in `docs/differences.md`."""

from __future__ import annotations

import re
from typing import NamedTuple


class Refusal(NamedTuple):
    """A pattern of Stoker's reply, and why it refuses."""

    reply: str
    cause: str


REFUSALS = (
    Refusal("uniqueItems", "a schema that cannot be enforced is refused; `strict: false` relaxes it"),
    Refusal("`response_format.schema` must be a JSON schema", "a value that is not a schema cannot be enforced"),
    Refusal("`messages` must be a list with at least one message", "there is nothing to answer"),
    Refusal("conflicting values of equivalent fields", "two names of one limit have different values"),
    Refusal("/cors-proxy: unknown endpoint", "it is an open proxy for llama-server's web page"),
    Refusal(
        "/predict: unknown endpoint",
        "Google's platform is a client of its own; llama-server has it by an environment variable",
    ),
)


def cause_of(reply: str) -> str | None:
    """Why a request is refused; None = there is no cause, and it should be served."""
    return next((one.cause for one in REFUSALS if re.search(one.reply, reply)), None)

"""What llama-server serves and Stoker refuses on purpose, each with its cause, as in `docs/differences.md`."""

from __future__ import annotations

import re
from typing import NamedTuple


class Refusal(NamedTuple):
    """A pattern of Stoker's reply, and why it refuses."""

    reply: str
    cause: str


REFUSALS = (
    Refusal("uniqueItems", "a schema that cannot be enforced is refused; `strict: false` has it relaxed"),
    Refusal("`response_format.schema` must be a JSON schema", "what is no schema cannot be enforced"),
    Refusal("`messages` must be a list with at least one message", "there is nothing to answer"),
    Refusal("`temperature` must be between 0 and 100", "0 means greedy; a negative number is a mistake"),
    Refusal("`mirostat` must be 0 \\(off\\) or 2", "Mirostat 2, which is there, took its place"),
    Refusal("`samplers` asks for another order", "the order of the stages is fixed, and is llama-server's default"),
    Refusal("`min_keep` is not supported", "the stages have no lower bound"),
    Refusal("these fields mean the same but differ", "two limits contradict each other"),
    Refusal("`t_max_predict_ms` is not supported", "it belongs to llama-server's own endpoints"),
    Refusal("`n_probs` is not supported", "`logprobs` asks for the same in this API"),
    Refusal("/cors-proxy: unknown endpoint", "a proxy to any address is for llama-server's own page"),
    Refusal(
        "/predict: unknown endpoint",
        "Google's platform is a client of its own; llama-server has it by an environment variable",
    ),
    Refusal("`content` is missing", "there is nothing to tokenize"),
)


def cause_of(reply: str) -> str | None:
    """Why a request is refused; None = there is no cause, and it should be served."""
    return next((one.cause for one in REFUSALS if re.search(one.reply, reply)), None)

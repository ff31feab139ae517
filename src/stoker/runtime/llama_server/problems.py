"""Translates llama-server's errors to Stoker's."""

from __future__ import annotations

import msgspec

from stoker.errors import (
    BackendError,
    ContextLengthExceeded,
    InvalidInput,
    ModelNotLoaded,
    Overloaded,
    StokerError,
    UnsupportedParameter,
)
from stoker.runtime.llama_server.wire import ErrorReply, Problem

_MAX_ERROR_CHARS = 500


def reply_error(status: int, body: bytes) -> StokerError:
    """The error for a reply other than 200, from its status and its body."""
    try:
        problem = msgspec.json.decode(body, type=ErrorReply).error
    except (msgspec.DecodeError, UnicodeDecodeError):
        problem = Problem(body[:_MAX_ERROR_CHARS].decode("utf-8", "replace"))
    return problem_error(status, problem)


def problem_error(status: int, problem: Problem) -> StokerError:
    """The error for a problem that llama-server reports, by the problem's type or else by the status."""
    message = f"llama-server: {problem.message[:_MAX_ERROR_CHARS] or f'status {status}'}"
    if problem.type == "exceed_context_size_error":
        sizes = {"num_prompt_tokens": problem.n_prompt_tokens, "context_size": problem.n_ctx}
        return ContextLengthExceeded(message, **sizes)
    if status == 501 or problem.type == "not_supported_error":
        return UnsupportedParameter(message)
    kinds: dict[int, type[StokerError]] = {400: InvalidInput, 429: Overloaded, 503: ModelNotLoaded}
    return kinds.get(status, BackendError)(message)

"""The replies and errors of vLLM, with the fields that Stoker reads; all other fields are skipped without decoding."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from stoker.errors import BackendError, InvalidInput, ModelNotLoaded, Overloaded, StokerError, UnsupportedParameter

_MAX_ERROR_CHARS = 500
_TOKEN = "token_id:"
"""Prefix of a token's name in log-probabilities, if they are requested with token ids."""
_CACHE = re.compile(r"^vllm:cache_config_info\{([^}]*)\}", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')


class Problem(msgspec.Struct, frozen=True):
    """An error, in the body of a reply or in an event stream."""

    message: str = ""
    code: int = 500


class ErrorReply(msgspec.Struct, frozen=True):
    """The body of a reply with a status other than 200."""

    error: Problem


class Logprobs(msgspec.Struct, frozen=True):
    """Log-probabilities of the tokens of one event."""

    tokens: list[str] = []
    token_logprobs: list[float | None] = []
    top_logprobs: list[dict[str, float] | None] = []


class Choice(msgspec.Struct, frozen=True):
    """The part of the answer that one event adds."""

    token_ids: list[int] | None = None
    logprobs: Logprobs | None = None
    finish_reason: str | None = None


class PromptDetails(msgspec.Struct, frozen=True):
    cached_tokens: int | None = None


class Usage(msgspec.Struct, frozen=True):
    """Token counts of a whole answer."""

    prompt_tokens: int = 0
    prompt_tokens_details: PromptDetails | None = None


class Event(msgspec.Struct, frozen=True):
    """One event of the reply to `POST /v1/completions`. The last one before `[DONE]` has the usage, and no choices."""

    choices: list[Choice] = []
    usage: Usage | None = None
    error: Problem | None = None


class Version(msgspec.Struct, frozen=True):
    """`GET /version`."""

    version: str = ""


class Embedding(msgspec.Struct, frozen=True):
    """One embedding of the reply to `POST /v1/embeddings`."""

    embedding: list[float]
    index: int = 0


class EmbeddingList(msgspec.Struct, frozen=True):
    """`POST /v1/embeddings`."""

    data: list[Embedding] = []


def token_id(text: str) -> int:
    """The id in the name of a token in log-probabilities, such as `token_id:42`.

    Raises:
        BackendError: the text is not such a name.
    """
    number = text.removeprefix(_TOKEN)
    if number == text or not number.isdecimal():
        raise BackendError(f"vLLM's log-probabilities cannot be understood: {text[:40]!r} names no token id")
    return int(number)


def kv_tokens(metrics: bytes) -> int | None:
    """The size of the KV cache in tokens, from the reply to `GET /metrics`; None = it is not in there."""
    found = _CACHE.search(metrics.decode("utf-8", "replace"))
    labels: dict[str, Any] = dict(_LABEL.findall(found[1])) if found else {}
    sizes = [labels.get(name, "") for name in ("num_gpu_blocks", "block_size")]
    return int(sizes[0]) * int(sizes[1]) if all(size.isdecimal() for size in sizes) else None


def reply_error(status: int, body: bytes) -> StokerError:
    """The error for a reply other than 200, from its status and its body."""
    try:
        problem = msgspec.json.decode(body, type=ErrorReply).error
    except (msgspec.DecodeError, UnicodeDecodeError):
        problem = Problem(body[:_MAX_ERROR_CHARS].decode("utf-8", "replace"))
    return problem_error(status, problem)


def problem_error(status: int, problem: Problem) -> StokerError:
    """The error for a problem that vLLM reports, by the status."""
    message = f"vLLM: {problem.message[:_MAX_ERROR_CHARS] or f'status {status}'}"
    kinds: dict[int, type[StokerError]] = {
        400: InvalidInput,
        422: InvalidInput,
        429: Overloaded,
        501: UnsupportedParameter,
        503: ModelNotLoaded,
    }
    return kinds.get(status, BackendError)(message)

"""Value types of the load generator: the target, one request, and its answer. Nothing is sent from here."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from typing import Any, Literal, TypeAlias
from urllib.parse import SplitResult, urlsplit

from stoker.errors import InvalidInput

Endpoint: TypeAlias = Literal["completions", "chat"]


class FailureKind(StrEnum):
    """How a request can fail. A failed request counts towards no time and no rate."""

    UNREACHABLE = "unreachable"
    """There was no connection, or it ended before the head of the reply was complete."""
    REFUSED = "refused"
    """The server answered with a status other than 200."""
    ERROR = "error event"
    """The stream began, and then contained an error event."""
    CLOSED = "closed early"
    """The connection ended before the answer did."""
    STALLED = "stalled"
    """No connection was made, or no event arrived, for longer than `Target.stall_s`."""
    MALFORMED = "malformed"
    """The reply is not an event stream of this API."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a request has no complete answer."""

    kind: FailureKind
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where requests go.

    Args:
        url: the server's root, with or without `/v1`.
        model: sent as it is; None = the request names no model.
        endpoint: `completions` sends the messages' texts joined, `chat` sends them as messages.
        api_key: sent as a bearer token.
        extra: additional fields of the request's body, which override the standard ones, for servers that need others.
        stall_s: maximum time without an event before a request is given up, in seconds.

    Raises:
        InvalidInput: the URL cannot be used.
    """

    url: str
    model: str | None = None
    endpoint: Endpoint = "completions"
    api_key: str | None = None
    extra: dict[str, Any] = field(default_factory=dict[str, Any])
    stall_s: float = 120.0

    def __post_init__(self) -> None:
        parts = self._parts()
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidInput(f"{self.url!r} is not the URL of a server, such as http://HOST:PORT", parameter="url")

    @property
    def address(self) -> tuple[str, int]:
        parts = self._parts()
        return parts.hostname or "", parts.port or (443 if self.is_encrypted else 80)

    @property
    def is_encrypted(self) -> bool:
        return self._parts().scheme == "https"

    def path(self, name: str) -> str:
        """The path of `/v1/name` on this server."""
        root = self._parts().path.rstrip("/").removesuffix("/v1")
        return f"{root}/v1/{name}"

    def _parts(self) -> SplitResult:
        try:
            parts = urlsplit(self.url)
            _ = parts.port
        except ValueError as error:
            raise InvalidInput(f"{self.url!r} is not a URL: {error}", parameter="url") from error
        return parts


NOWHERE = Target(url="http://127.0.0.1:1")
"""The target before a server has been started; nothing is sent to it."""

Message: TypeAlias = tuple[str, str]
"""Role and text."""


@dataclass(frozen=True, slots=True)
class Job:
    """One request: its messages, and the length of the answer in tokens."""

    messages: tuple[Message, ...]
    output_tokens: int
    label: str = ""
    """The part (phase) of a scenario whose figures include this request."""

    @property
    def text(self) -> str:
        return "".join(text for _, text in self.messages)


@dataclass(slots=True)
class Answer:
    """The outcome of one job, filled in as the reply arrives. All times are by the client's clock, in seconds."""

    job: Job
    sent_s: float
    piece_s: list[float] = field(default_factory=list[float])
    """When each event that carried text arrived."""
    ended_s: float = 0.0
    text: str = ""
    prompt_tokens: int | None = None
    """Prompt tokens by the server's own count; None if the server does not stream its usage."""
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    resent_tokens: int = 0
    """Prompt tokens that the same conversation has sent or received before, by the usage of the previous turn."""
    finish_reason: str | None = None
    failure: Failure | None = None
    is_timed: bool = True
    """Whether the answer was streamed and timed. If not, it has no times of its own."""

    @property
    def ttft_s(self) -> float:
        """Time to the first text, or to the end of an answer without text, in seconds."""
        return (self.piece_s[0] if self.piece_s else self.ended_s) - self.sent_s

    @property
    def gaps_s(self) -> list[float]:
        """Times between consecutive pieces of text, in seconds."""
        return [later - earlier for earlier, later in pairwise(self.piece_s)]

    @property
    def num_output(self) -> int:
        """Tokens of the answer: the server's count, else the events that carried text."""
        return len(self.piece_s) if self.completion_tokens is None else self.completion_tokens

    @property
    def num_prompt(self) -> int:
        """Tokens of the prompt: the server's count, else its words; those of `Prompts` are mostly one token each."""
        return len(self.job.text.split()) if self.prompt_tokens is None else self.prompt_tokens

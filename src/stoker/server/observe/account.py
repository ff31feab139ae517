"""The account of one HTTP request, for the access log and for tracing: numbers and names, no text."""

from __future__ import annotations

from dataclasses import dataclass, field

from starlette.types import Scope


@dataclass(slots=True)
class Account:
    """Facts about one request. Filled in while the request is answered, and read at the end."""

    own_id: str = ""
    """Id of the HTTP request if this server chose it; an id that a client chose may not be unique."""
    reply_id: str = ""
    """The id in the body of the reply; empty if it has none."""
    key_name: str = ""
    """Name of the API key that the client sent; empty if the server has none."""
    max_priority: int | None = None
    """The highest priority that the key's requests may have, whatever they ask for; None = no limit."""
    session: str | None = None
    """The session that the request names in its headers; the response names it too."""
    model: str = ""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    max_tokens: int | None = None
    """The length, in tokens, at which each answer ends: that of the request, or the default."""
    ttft_s: float | None = None
    """Time from the submission to the first output."""
    relaxed: tuple[str, ...] = ()
    """The parts of a schema that are not enforced in the answers, in words."""
    finish_reasons: list[str] = field(default_factory=list[str])
    """Finish reasons, in the order in which the choices ended."""


def account_of(scope: Scope) -> Account:
    """The account of a request; of one that came past the border, a new one."""
    state = scope.setdefault("state", {})
    return state.setdefault("account", Account())

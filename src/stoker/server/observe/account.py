"""The account of one HTTP request, for the access log and for tracing: numbers and names, no text."""

from __future__ import annotations

from dataclasses import dataclass, field

from starlette.types import Scope


@dataclass(slots=True)
class Account:
    """Facts about one HTTP request, filled in while the request is answered, and read at its end."""

    own_id: str = ""
    """Id of the HTTP request if this server chose it; an id that a client chose may not be unique."""
    reply_id: str = ""
    """The id in the body of the reply; empty if it has none."""
    key_name: str = ""
    """Name of the API key that the client sent; empty if the server has none."""
    max_priority: int | None = None
    """Maximum priority of the request, whatever it asks for; None = no limit."""
    session: str | None = None
    """Session that the request names in its headers; the response names it too. None = none."""
    model: str = ""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    max_tokens: int | None = None
    """Maximum length of each answer in tokens, by the request or the default."""
    ttft_s: float | None = None
    """Time to first token: from the submission to the first output, in seconds."""
    relaxed: tuple[str, ...] = ()
    """Descriptions of the parts of a JSON schema that are not enforced in the answers."""
    finish_reasons: list[str] = field(default_factory=list[str])
    """Finish reasons, in the order in which the choices ended."""


def account_of(scope: Scope) -> Account:
    """The account of a request; a new one if the request did not pass through `RequestBorder`."""
    state = scope.setdefault("state", {})
    return state.setdefault("account", Account())

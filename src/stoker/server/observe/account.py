"""What one HTTP request turned out to be, for the access log and for tracing: numbers and names, no text."""

from __future__ import annotations

from dataclasses import dataclass, field

from starlette.types import Scope


@dataclass(slots=True)
class Account:
    """Filled in while the request is answered; whoever reads it does so at the end."""

    own_id: str = ""
    """Of the HTTP request, if this server chose it; a client may use one of its own again and again."""
    reply_id: str = ""
    """The id in the body of the reply; empty if it has none."""
    key_name: str = ""
    """Name of the API key that the client sent; empty if the server has none."""
    model: str = ""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    ttft_s: float | None = None
    """From the submission to the first output."""
    relaxed: tuple[str, ...] = ()
    """What of a schema is not enforced in the answers, in words."""
    finish_reasons: list[str] = field(default_factory=list[str])
    """In the order in which the choices ended."""


def account_of(scope: Scope) -> Account:
    """The account of a request; of one that came past the border, a new one."""
    state = scope.setdefault("state", {})
    return state.setdefault("account", Account())

"""Names of sessions (named conversations): those that clients use, and those that the engines use."""

from __future__ import annotations

import re
from hashlib import sha256

from starlette.datastructures import Headers

from stoker.engine.protocol import SessionUse
from stoker.errors import InvalidInput

HEADERS = ("x-session-id", "x-session-affinity")
"""Headers that may name a session. Load balancers use `x-session-affinity` to route a session to one server."""
_ID = re.compile(r"[\x21-\x7e]{1,128}")


def header_of(headers: Headers) -> str | None:
    """The session that the headers of a request name; None if there is none, or its name is invalid."""
    found = next((headers[name] for name in HEADERS if headers.get(name)), None)
    return found if found is not None and _ID.fullmatch(found) else None


def session_use(given: str | None, header: str | None, owner: str, ttl_s: float) -> SessionUse | None:
    """The session that a request belongs to; None = the request names none.

    Args:
        given: the field `session_id`.
        header: the session that the headers name, used if the field is not given.
        owner: owner of the request.
        ttl_s: lifetime of a session after its last request, in seconds.

    Raises:
        InvalidInput: the field is not a valid name.
    """
    if given and not _ID.fullmatch(given):
        message = "`session_id` must be 1 to 128 printable ASCII characters without blanks"
        raise InvalidInput(message, parameter="session_id")
    session_id = given or header
    if not session_id:
        return None
    tag = owner_tag(owner)
    return SessionUse(f"{tag}/{session_id}", tag, ttl_s)


def owner_tag(owner: str) -> str:
    """The engines' name of an owner: a digest."""
    return sha256(owner.encode()).hexdigest()[:16]


def id_of(name: str) -> str:
    """The client's name of a session, from the engines' name."""
    return name.partition("/")[2]

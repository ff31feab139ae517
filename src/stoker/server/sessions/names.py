"""What clients call their conversations, and what those are called in the engines."""

from __future__ import annotations

import re
from hashlib import sha256

from starlette.datastructures import Headers

from stoker.engine.protocol import SessionUse
from stoker.errors import InvalidInput

HEADERS = ("x-session-id", "x-session-affinity")
"""By which a client may name a session too; by the second one load balancers send a session to one server."""
_ID = re.compile(r"[\x21-\x7e]{1,128}")


def header_of(headers: Headers) -> str | None:
    """The session that the headers of a request name; one that is no name is none."""
    found = next((headers[name] for name in HEADERS if headers.get(name)), None)
    return found if found is not None and _ID.fullmatch(found) else None


def session_use(given: str | None, header: str | None, owner: str, ttl_s: float) -> SessionUse | None:
    """The session that a request belongs to; None = it names none.

    Args:
        given: the field `session_id`.
        header: what its headers name, which counts if the field is not given.
        owner: of the request.
        ttl_s: how long a session lasts after its last request.

    Raises:
        InvalidInput: the field is no name.
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
    """What an owner is called in the engines."""
    return sha256(owner.encode()).hexdigest()[:16]


def id_of(name: str) -> str:
    """What the client calls a session."""
    return name.partition("/")[2]

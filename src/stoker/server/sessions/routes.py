"""The endpoints of sessions, that is, conversations that clients have named: each client lists and ends its own."""

from __future__ import annotations

import msgspec
from starlette.responses import Response

from stoker.engine.question_messages import EndSession, ListSessions, SessionState
from stoker.errors import EngineCrashed, ModelNotLoaded, SessionNotFound, UnsupportedParameter
from stoker.runtime.registry import ServedModel
from stoker.server.api import Call, Router
from stoker.server.errors import json_response
from stoker.server.sessions.names import id_of, owner_tag

router = Router(api="Stoker")


class SessionEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One session with one model. Times are in seconds."""

    id: str
    model: str
    age_s: float
    expires_in_s: float
    num_requests: int
    kv_tokens: int
    """Tokens of the session in the KV pool, where they are evicted last; 0 while a request of the session runs."""


class SessionEntries(msgspec.Struct, frozen=True):
    data: list[SessionEntry]
    object: str = "list"


class EndedSession(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    deleted: bool = True
    object: str = "session"


@router.endpoint("GET", "/sessions", "Lists the sessions of this API key.", reply=SessionEntries)
async def list_sessions(call: Call[None]) -> Response:
    question = ListSessions(owner_tag(call.owner))
    entries = [
        SessionEntry(
            id=id_of(state.name),
            model=served.model_id,
            age_s=round(state.age_s, 3),
            expires_in_s=round(state.expires_in_s, 3),
            num_requests=state.num_requests,
            kv_tokens=state.num_tokens,
        )
        for served in _served(call)
        for state in (await _asked(call, served, question))
    ]
    return json_response(SessionEntries(entries))


@router.endpoint(
    "DELETE",
    "/sessions/{session_id:path}",
    "Ends a session, and erases its KV cache.",
    reply=EndedSession,
)
async def end_session(call: Call[None]) -> Response:
    session_id = call.path_parameter("session_id")
    question = EndSession(f"{owner_tag(call.owner)}/{session_id}")
    was_there = False
    for served in _served(call):
        try:
            was_there |= (await call.wait(served.runtime.ask(question))).was_there
        except (UnsupportedParameter, ModelNotLoaded, EngineCrashed):
            continue  # without an engine there are no sessions
    if not was_there:
        raise SessionNotFound(f"there is no session {session_id[:100]!r}, or no longer", session_id=session_id[:100])
    return json_response(EndedSession(id=session_id))


async def _asked(call: Call[None], served: ServedModel, question: ListSessions) -> list[SessionState]:
    try:
        return (await call.wait(served.runtime.ask(question))).sessions
    except (UnsupportedParameter, ModelNotLoaded, EngineCrashed):
        return []


def _served(call: Call[None]) -> list[ServedModel]:
    return [status.served for status in call.registry.statuses() if status.served is not None]

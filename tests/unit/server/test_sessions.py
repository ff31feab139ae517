"""Sessions over HTTP: named by a field or a header in every dialect, listed and ended for their owner alone."""

from __future__ import annotations

from typing import Any

import pytest

from stoker.engine.question_messages import EndSession, ListSessions, SessionEnded, SessionList, SessionState
from tests.unit.server.fake_runtime import FakeRuntime, ask, make_app
from tests.unit.server.test_access import bearer

KEYS = "alice:sk-alice,bob:sk-bob"
HI = [{"role": "user", "content": "hi"}]
ASKED: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"messages": HI}),
    ("/v1/completions", {"prompt": "hi"}),
    ("/v1/responses", {"input": "hi"}),
    ("/v1/messages", {"messages": HI, "max_tokens": 4}),
    ("/api/chat", {"model": "tiny", "messages": HI, "stream": False}),
    ("/api/generate", {"model": "tiny", "prompt": "hi", "stream": False}),
    ("/completion", {"prompt": "hi"}),
]


class Remembering(FakeRuntime):
    """Has a session for each request that named one."""

    async def _answer(self, question: Any) -> Any:
        match question:
            case ListSessions(owner=owner):
                names = dict.fromkeys(use.name for s in self.submits if (use := s.session) and use.owner == owner)
                return SessionList("q", [SessionState(name, 2.0, 598.0, 1, 7) for name in names])
            case EndSession(name=name):
                before = len(self.submits)
                self.submits = [s for s in self.submits if s.session is None or s.session.name != name]
                return SessionEnded("q", len(self.submits) < before)
            case _:
                return await super()._answer(question)


@pytest.mark.parametrize(("path", "body"), ASKED)
@pytest.mark.parametrize("header", ["x-session-id", "x-session-affinity"])
def test_every_dialect_takes_a_session_by_field_and_header(path: str, body: dict[str, Any], header: str):
    runtime = FakeRuntime()
    app = make_app(runtime, api_key=KEYS, session_ttl_s=90.0)
    key = bearer("sk-alice")
    assert ask(app, "POST", path, json={**body, "session_id": "one"}, headers=key).status_code == 200
    reply = ask(app, "POST", path, json=body, headers={**key, header: "two"})
    assert (reply.headers["x-session-id"], reply.headers["x-session-affinity"]) == ("two", "two")
    ask(app, "POST", path, json={**body, "session_id": "one"}, headers={**key, header: "two"})
    assert "x-session-id" not in ask(app, "POST", path, json=body, headers=key).headers
    uses = [submit.session for submit in runtime.submits]
    assert [use and use.name.partition("/")[2] for use in uses] == ["one", "two", "one", None]
    assert {use.ttl_s for use in uses if use} == {90.0}
    assert not any("alice" in use.name for use in uses if use)


@pytest.mark.parametrize("name", ["a b", "ä", "x" * 129])
def test_a_bad_name_is_refused_in_a_field_and_none_in_a_header(name: str):
    runtime = FakeRuntime()
    reply = ask(make_app(runtime), "POST", "/v1/completions", json={"prompt": "x", "session_id": name})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "session_id")
    headers = {"x-session-id": name.encode()}
    assert ask(make_app(runtime), "POST", "/v1/completions", json={"prompt": "x"}, headers=headers).status_code == 200
    assert [submit.session for submit in runtime.submits] == [None]


def test_of_several_answers_the_first_goes_on_with_the_session():
    runtime = FakeRuntime()
    body = {"prompt": "x", "n": 2, "session_id": "s"}
    assert ask(make_app(runtime), "POST", "/v1/completions", json=body).status_code == 200
    assert [submit.session is not None for submit in runtime.submits] == [True, False]


def test_sessions_are_listed_and_ended_for_their_owner_alone():
    runtime = Remembering()
    app = make_app(runtime, api_key=KEYS)
    alice, bob = bearer("sk-alice"), bearer("sk-bob")
    ask(app, "POST", "/v1/completions", json={"prompt": "x", "session_id": "a/b"}, headers=alice)
    (entry,) = ask(app, "GET", "/sessions", headers=alice).json()["data"]
    assert (entry["id"], entry["expires_in_s"], entry["num_requests"], entry["kv_tokens"]) == ("a/b", 598.0, 1, 7)
    assert ask(app, "GET", "/sessions", headers=bob).json()["data"] == []
    missing = ask(app, "DELETE", "/sessions/a/b", headers=bob)
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "session_not_found")
    assert ask(app, "DELETE", "/sessions/a/b", headers=alice).json() == {
        "id": "a/b",
        "deleted": True,
        "object": "session",
    }
    assert ask(app, "GET", "/sessions", headers=alice).json()["data"] == []

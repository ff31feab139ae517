"""Commands that ask a server: what they send, what they show of its reply, and what they say if there is none."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from rich.console import Console

from stoker.cli.top_view import applied, screen
from tests.ports import free_port
from tests.unit.cli.conftest import Stoker
from tests.unit.models.running_server import running

LOADED = {"value": "loaded", "expires_in_s": 300.0, "memory": {"total": 2e9}}
MODELS = {
    "data": [
        {"id": "a", "aliases": ["b"], "status": LOADED, "max_model_len": 64, "meta": {"size": 10**9}},
        {"id": "a:sql", "aliases": [], "status": {"value": "loaded"}, "parent": "a"},
        {"id": "c", "aliases": [], "status": {"value": "unloaded"}},
    ]
}
ENGINE = {
    "replica": 0,
    "recorder": "x",
    "kv": {"capacity": 100, "token_bytes": 1, "held": 60, "retained": 10, "promised": 0, "leaving": []},
    "totals": dict.fromkeys(("running", "waiting", "paused", "steps", "prompt", "cached", "pool_hits"), 4)
    | dict.fromkeys(("evicted", "preempted", "drafted", "kept"), 0),
    "tiers": {"ram_hits": 0, "disk_hits": 0},
    "seq": [
        {"id": "chatcmpl-1-0", "own": True, "key": "ann", "slot": 3, "state": "prompt", "prompt": 50, "computed": 20}
        | {"cached": [8, 2], "written": 0, "drafted": 0, "kept": 0}
    ],
    "tree": [{"id": 1, "parent": 0, "n": 60, "num_slots": 2, "slots": [3], "running": True}],
    "steps": [[1, 9.0, 5.0, 4.0, 1.0, 2, 0, 0, 0, 0, [[3, 1]]]],
    "moments": [],
}
STATE = {"v": 1, "model": "a", "backend": "native", "context": 64, "parallel": 4, "t": 10.0, "engines": [ENGINE]}
REPLIES = {
    "GET /engine/state?": STATE,
    "GET /v1/models": MODELS,
    "GET /health": {"status": "ok", "models": [{"id": "a", "num_running": 1, "num_waiting": 2}]},
    "POST /models/unload": {"success": True},
    "POST /api/show": {"template": "{{ x }}", "license": "MIT"},
}


class FakeServer:
    """Answers as a Stoker server; remembers what it was asked, with the key."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, object, str]] = []
        self.status = 200
        asked = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                what = f"{self.command} {self.path}"
                asked.asked.append((what, json.loads(body or b"null"), self.headers.get("authorization") or ""))
                reply = REPLIES.get(what) if asked.status == 200 else {"error": {"message": "not allowed"}}
                content = b"" if reply is None else json.dumps(reply).encode()
                self.send_response(asked.status)
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_POST = do_DELETE = do_GET

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http.server_port}"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeServer]:
    """Named by the environment, behind a proxy that must not be asked."""
    fake = FakeServer()
    monkeypatch.setenv("STOKER_URL", f"{fake.url}/v1/")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    for name in ("STOKER_API_KEY", "STOKER_ADMIN_KEY"):
        monkeypatch.delenv(name, raising=False)
    with running(fake.http):
        yield fake


@pytest.mark.usefixtures("server")
def test_top_shows_what_the_engines_do(stoker: Stoker) -> None:
    shown = stoker("top", "--once").out
    assert "a (native, context 64)" in shown
    assert "0.7 tok/s written" in shown
    assert "60 of 100 tokens, 10 of finished chats, 60 saved by sharing" in shown
    assert "chatcmpl-1-0" in shown
    assert "20/50" in shown
    assert json.loads(stoker("top", "--once", "--json").out) == STATE


def test_top_tells_news_of_models_and_goes_on() -> None:
    before = applied({}, "snapshot", STATE)
    after = applied(before, "news", {"t": 1.0, "kind": "loading", "id": "other", "part": 0.25, "why": "load"})
    assert after["engines"] == before["engines"]
    console = Console(width=120)
    with console.capture() as captured:
        console.print(screen(after))
    assert "other loading 25% (load)" in captured.get()


def test_top_applies_what_has_changed() -> None:
    state = applied(applied({}, "hello", {"model": "a"}), "snapshot", {"t": 10.0, "engines": [ENGINE]})
    row = {**ENGINE["seq"][0], "state": "decode", "written": 1}  # type: ignore[index]
    tick = {"replica": 0, "seq": {"set": [row], "gone": []}, "tree": {"set": [], "gone": [1]}, "steps": [[2]]}
    (engine,) = applied(state, "tick", {"t": 11.0, "engines": [tick]})["engines"]
    assert engine["seq"] == [row]
    assert engine["tree"] == []
    assert [step[0] for step in engine["steps"]] == [1, 2]
    assert engine["kv"] == ENGINE["kv"]


@pytest.mark.usefixtures("server")
def test_ps_lists_what_is_loaded(stoker: Stoker) -> None:
    header, *rows = stoker("ps").out.splitlines()
    assert header.split() == ["MODEL", "STATE", "MEMORY", "CONTEXT", "RUNNING", "WAITING", "UNLOADS", "IN"]
    assert [row.split() for row in rows] == [["a", "loaded", "2.0", "GB", "64", "1", "2", "5", "min"]]
    (row,) = json.loads(stoker("ps", "--json").out)
    assert (row["memory_bytes"], row["running"]) == (2e9, 1)


def test_list_of_a_server(stoker: Stoker, server: FakeServer) -> None:
    rows = json.loads(stoker("list", "--url", server.url, "--json").out)
    assert [(row["model"], row["state"], row["aliases"]) for row in rows] == [
        ("a", "loaded", ["b"]),
        ("a:sql", "loaded", []),
        ("c", "unloaded", []),
    ]


@pytest.mark.parametrize(
    ("line", "sent"),
    [
        ("stop a:latest", ("POST /models/unload", {"model": "a", "wait": True})),
        ("rm a --url URL", ("DELETE /api/delete", {"model": "a"})),
        ("cp a b --url URL", ("POST /api/copy", {"source": "a", "destination": "b"})),
        ("show a --url URL", ("POST /api/show", {"model": "a"})),
    ],
)
def test_what_a_server_is_asked(stoker: Stoker, server: FakeServer, line: str, sent: tuple[str, object]) -> None:
    assert stoker(*line.replace("URL", server.url).split()).code == 0
    assert [asked[:2] for asked in server.asked] == [sent]


def test_the_template_alone(stoker: Stoker, server: FakeServer) -> None:
    assert stoker("show", "a", "--url", server.url, "--template").out == "{{ x }}\n"


def test_the_key_comes_from_the_option_or_the_environment(
    stoker: Stoker, server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STOKER_API_KEY", "alice:key-1,key-2")
    stoker("stop", "a")
    monkeypatch.setenv("STOKER_ADMIN_KEY", "boss")
    stoker("stop", "a")
    stoker("stop", "a", "--api-key", "own")
    assert [key for *_, key in server.asked] == ["Bearer key-1", "Bearer boss", "Bearer own"]


def test_a_refusal_is_told_with_what_helps(stoker: Stoker, server: FakeServer) -> None:
    server.status = 403
    done = stoker("stop", "a")
    assert done.code == 1
    assert done.err == (f"error: {server.url}: not allowed (give its key with --api-key, or set STOKER_ADMIN_KEY)\n")


def test_no_server_is_told_in_words(stoker: Stoker) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    done = stoker("ps", "--url", url)
    assert done.code == 1
    assert done.err == (
        f"error: no server answers at {url} (Connection refused): start one with `stoker serve`, or name another with "
        "--url\n"
    )


@pytest.mark.parametrize("url", ["ftp://x", "http://", "host:port", "http://[x"])
def test_what_is_no_url_is_refused(stoker: Stoker, url: str) -> None:
    done = stoker("ps", "--url", url)
    assert done.code == 2
    assert "is not a URL" in done.err

"""`stoker cluster serve`: two replicas on Ray answer as one server does, and nothing is left when it has stopped."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from psutil import Process

from tests.e2e.clusters import IS_LONG, LIMIT_S, WAIT_S, actors, ask, cluster, engine_of, needs_ray
from tests.e2e.conftest import Server, serving
from tests.waiting import BOUND_S, wait_until

pytestmark = [needs_ray, pytest.mark.slow, pytest.mark.timeout(LIMIT_S)]

KEY = "sk-test"
SCRIPT = ["Hello from the script, with some words.", {"when": "long", "text": "word " * 4000}]
CHAT = {"messages": [{"role": "user", "content": "Hi."}], "max_tokens": 64}
REQUESTS: list[tuple[str, str, dict[str, Any]]] = [
    ("POST", "/v1/chat/completions", CHAT),
    ("POST", "/v1/chat/completions", {**CHAT, "stream": True, "stream_options": {"include_usage": True}}),
    ("POST", "/v1/chat/completions", {**CHAT, "logprobs": True, "top_logprobs": 2, "max_tokens": 3}),
    ("POST", "/v1/chat/completions", {**CHAT, "temperature": 9}),
    ("POST", "/v1/chat/completions", {**CHAT, "max_tokens": -1}),
    ("POST", "/v1/completions", {"prompt": ["a", "b"], "max_tokens": 4, "n": 2, "seed": 1}),
    ("POST", "/v1/completions", {"prompt": "x" * 40_000}),
    ("POST", "/v1/messages", {**CHAT, "model": "m"}),
    ("POST", "/v1/messages", {**CHAT, "model": "m", "stream": True}),
    ("POST", "/v1/responses", {"input": "Hi.", "stream": True}),
    ("POST", "/api/chat", {**CHAT, "model": "scripted"}),
    ("POST", "/api/generate", {"prompt": "Hi.", "model": "scripted", "stream": False}),
    ("POST", "/completion", {"prompt": "Hi.", "n_predict": 4}),
    ("POST", "/tokenize", {"content": "some text"}),
    ("POST", "/detokenize", {"tokens": [104, 105]}),
    ("POST", "/v1/embeddings", {"input": "x"}),
    ("POST", "/v1/chat/completions", {"messages": []}),
    ("GET", "/v1/models", {}),
    ("GET", "/v1/nothing", {}),
]
_VARYING = re.compile(
    r'"(id|created|created_at|created_ts|item_id|response_id|completed_at|modified_at)": ?("[^"]*"|[0-9.]+)'
    r'|"output_tokens":\d+(?=}}})'  # of a first event: what its step brought
    r'|"pinned":(true|false)'  # a model of a cluster stays
    r'|"[a-z_]*(_ms|_per_second|_duration)": ?[-0-9.e]+|"(cache_n|prompt_n|cached_tokens)": ?\d+'
)
_PIECE = re.compile(r'"(delta|content|text)":"((?:[^"\\\\]|\\\\.)*)"|"sequence_number":\d+')


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("script") / "script.json"
    path.write_text(json.dumps(SCRIPT))
    return path


@pytest.fixture(scope="module")
def two(script: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Two replicas, which need a key."""
    log = tmp_path_factory.mktemp("cluster") / "log"
    arguments = ("scripted", "--script", str(script), "--replicas", "2", "--threads", "1", "--api-key", KEY)
    with cluster(*arguments, log=log) as server:
        wait_until(lambda: num_ready(server) == 2)
        yield server


@pytest.fixture(scope="module")
def one(script: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    log = tmp_path_factory.mktemp("one") / "log"
    with serving("scripted", "--script", str(script), "--api-key", KEY, log=log) as server:
        yield server


def send(server: Server, method: str, path: str, body: dict[str, Any] | None = None, key: str = KEY) -> httpx.Response:
    headers = {"Authorization": f"Bearer {key}"}
    content = json.dumps(body) if body else None
    return httpx.request(
        method, f"{server.url}{path}", content=content, headers=headers, trust_env=False, timeout=WAIT_S
    )


def replicas(server: Server) -> list[dict[str, Any]]:
    return send(server, "GET", "/health").json()["models"][0].get("replicas", [])


def num_ready(server: Server) -> int:
    return sum(replica["state"] == "ready" for replica in replicas(server))


def num_running(server: Server) -> int:
    return sum(replica.get("num_running", 0) for replica in replicas(server))


@pytest.mark.parametrize(("method", "path", "body"), REQUESTS)
def test_every_dialect_says_what_one_server_says(
    one: Server, two: Server, method: str, path: str, body: dict[str, Any]
) -> None:
    replies = [send(server, method, path, body) for server in (one, two)]
    assert replies[0].status_code == replies[1].status_code
    assert said(replies[0]) == said(replies[1])
    types = [reply.headers.get("content-type") for reply in replies]
    assert types[0] == types[1]


def said(reply: httpx.Response) -> list[str]:
    """The body without what differs from call to call. Of a stream: its text, and the events without how it is cut."""
    body = _VARYING.sub("", reply.text)
    if reply.headers["content-type"].split(";")[0] not in ("text/event-stream", "application/x-ndjson"):
        return [body]
    events = [_PIECE.sub("", line) for line in body.splitlines()]
    pieces = [found[2] or "" for found in _PIECE.finditer(body)]
    return ["".join(pieces), *(event for i, event in enumerate(events) if event not in events[max(0, i - 3) : i])]


def test_key_is_asked_for(two: Server) -> None:
    assert send(two, "POST", "/v1/chat/completions", CHAT, key="sk-wrong").status_code == 401


def test_clients_that_leave_at_any_moment_free_their_places(two: Server) -> None:
    body = {"prompt": "long", "max_tokens": 20_000, "ignore_eos": True, "stream": True}
    headers = {"Authorization": f"Bearer {KEY}"}

    def leave_after(num_lines: int) -> None:
        with httpx.stream(
            "POST", f"{two.url}/v1/completions", json=body, headers=headers, trust_env=False, timeout=WAIT_S
        ) as reply:
            assert reply.status_code in (200, 429)
            for _ in zip(range(num_lines), reply.iter_lines(), strict=False):
                pass

    with ThreadPoolExecutor(12) as pool:
        list(pool.map(leave_after, [0, 1, 2, 5, 20] * (200 if IS_LONG else 30)))
    wait_until(lambda: num_running(two) == 0)
    assert num_ready(two) == 2
    assert all(replica["num_restarts"] == 0 for replica in replicas(two))


def test_metrics_name_replicas_and_nodes(two: Server) -> None:
    assert ask_with_key(two).status_code == 200
    text = send(two, "GET", "/metrics").text
    found = re.findall(r'stoker_replica_ready\{model="scripted",node="([0-9.]+)",replica="(\d)"\} 1\.0', text)
    assert [number for _, number in found] == ["0", "1"]
    assert all(replica["node"] == found[0][0] for replica in replicas(two))


def test_what_belongs_to_one_replica_is_refused_with_a_reason(two: Server) -> None:
    reply = send(two, "POST", "/slots/0?action=erase", {})
    assert reply.status_code == 400
    assert "cluster" in reply.json()["error"]["message"]
    assert len({slot["replica"] for slot in send(two, "GET", "/slots").json()}) == 2


def test_prefix_is_found_again_where_it_was_computed(two: Server) -> None:
    stems = [f"{animal} " * 200 for animal in ("cat", "dog", "cow", "owl")]
    for stem in stems:
        assert ask_with_key(two, prompt=stem).status_code == 200
    cached = [
        ask_with_key(two, prompt=stem + "more").json()["usage"]["prompt_tokens_details"]["cached_tokens"]
        for stem in stems
    ]
    assert all(count >= 700 for count in cached), cached


def test_nothing_is_left_when_it_has_stopped(script: Path, tmp_path: Path) -> None:
    from psutil import wait_procs

    with cluster("scripted", "--script", str(script), "--threads", "1", log=tmp_path / "log") as server:
        assert ask(server.url, "Hi").status_code == 200
        family = [child for child in Process(server.pid).children(recursive=True) if not child.name().endswith("Agent")]
        assert len(family) > 5
    # Two agents of Ray look for their parent only now and then, and may end a minute or two later.
    _, alive = wait_procs(family, timeout=WAIT_S)
    assert not alive
    assert "Traceback" not in (tmp_path / "log").read_text()


def test_real_model_answers_as_on_one_server(smollm2_path: Path, served_smollm2: str, tmp_path: Path) -> None:
    chat = {
        "messages": [{"role": "user", "content": "Name three colours."}],
        "max_tokens": 24,
        "temperature": 0,
    }

    def answer(url: str) -> str:
        reply = httpx.post(f"{url}/v1/chat/completions", json=chat, trust_env=False, timeout=WAIT_S)
        return reply.json()["choices"][0]["message"]["content"]

    arguments = (str(smollm2_path), "--replicas", "2", "--threads", "1", "--ctx-size", "1024", "--cache-ram", "0")
    with cluster(*arguments, log=tmp_path / "log") as server:
        assert {answer(server.url) for _ in range(4)} == {answer(served_smollm2)}
        chat["max_tokens"] = 100_000
        refused = httpx.post(
            f"{server.url}/v1/completions", json={"prompt": "a " * 5000}, trust_env=False, timeout=BOUND_S
        )
        assert refused.status_code == 400


def ask_with_key(server: Server, **body: Any) -> httpx.Response:
    return send(server, "POST", "/v1/completions", {"prompt": "Hi.", "max_tokens": 4, **body})


def test_processes_have_the_priority_of_the_command(two: Server) -> None:
    family = [process for kind in ("engine", "front") for process in actors(two, kind)]
    family += [engine_of(process) for process in actors(two, "engine")]
    assert {process.nice() for process in family} == {Process(two.pid).nice()}

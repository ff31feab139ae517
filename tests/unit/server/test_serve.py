"""The real server process on a free port: sockets, signals, and what is left when it ends."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

import httpx
import pytest
import uvicorn

from stoker.errors import ConfigError, ModelFileInvalid
from stoker.runtime.registry import ServedModel
from stoker.server.config import ServerConfig
from stoker.server.transport.run import serve
from tests.brief import every
from tests.ports import free_port
from tests.unit.server.fake_runtime import FakeRuntime, registry_of
from tests.waiting import BOUND_S

ROOT = Path(__file__).parents[3]
STREAM = {"prompt": "wait", "stream": True}


@contextmanager
def server(
    drain_s: float, *, before: str = ":", errors: IO[bytes] | None = None
) -> Generator[tuple[subprocess.Popen[str], httpx.Client]]:
    """`before` is said to a shell, which then becomes the server."""
    command = ["sh", "-c", f'{before} && exec "$0" "$@"']
    command += [sys.executable, "-m", "tests.unit.server.serving", str(drain_s)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=errors, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            with httpx.Client(base_url=url, timeout=BOUND_S, trust_env=False) as client:
                yield process, client
        finally:
            process.kill()


@contextmanager
def loading_server() -> Generator[tuple[subprocess.Popen[str], httpx.Client]]:
    """A server whose model loads until SIGUSR1 comes; it accepts connections."""
    port = free_port()
    command = [sys.executable, "-m", "tests.unit.server.serving", str(BOUND_S), str(port)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            while process.poll() is None:
                with socket.socket() as probe:
                    if not probe.connect_ex(("127.0.0.1", port)):
                        break
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=BOUND_S, trust_env=False) as client:
                yield process, client
        finally:
            process.kill()


def held(client: httpx.Client) -> int:
    """How many requests the runtime holds, this one not counted."""
    reply = client.post("/v1/completions", json={"prompt": "count"}).json()
    return int(reply["choices"][0]["text"]) - 1


def test_closed_connections_free_their_requests():
    with server(0.1) as (_process, client):
        with client.stream("POST", "/v1/completions", json=STREAM) as response:
            parts = response.iter_bytes()
            assert b'"text":"a"' in next(parts)
            assert held(client) == 1
        while held(client):
            pass
        with pytest.raises(httpx.ReadTimeout):
            client.post("/v1/completions", json={"prompt": "wait"}, timeout=0.2)
        while held(client):
            pass


def test_connection_is_kept_for_the_next_request():
    with server(0.1) as (_process, client):
        addresses: set[tuple[str, int]] = set()
        for _ in range(3):
            with client.stream("POST", "/v1/completions", json={"prompt": "x", "stream": True}) as response:
                addresses.add(response.extensions["network_stream"].get_extra_info("client_addr"))
                assert b"[DONE]" in response.read()
        assert len(addresses) == 1


@pytest.mark.parametrize("stop", every(2, [signal.SIGTERM, signal.SIGINT]))
def test_stop_signal_lets_running_streams_end(stop: signal.Signals):
    with server(BOUND_S) as (process, client):
        with client.stream("POST", "/v1/completions", json=STREAM) as response:
            parts = response.iter_bytes()
            received = next(parts)
            process.send_signal(stop)
            wait_until_refused(client)
            process.send_signal(signal.SIGUSR1)
            received += b"".join(parts)
        assert b'"text":"b"' in received
        assert received.endswith(b"data: [DONE]\n\n")
        output, _ = process.communicate(timeout=BOUND_S)
        assert output.splitlines()[0] == "stopping, 1 running"


def wait_until_refused(client: httpx.Client) -> None:
    port = client.base_url.port
    assert port is not None
    while True:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)):
                return


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
def test_what_outlives_the_drain_gets_an_error_event(stop: signal.Signals):
    with server(0.1) as (process, client):
        with client.stream("POST", "/v1/completions", json=STREAM) as response:
            parts = response.iter_bytes()
            received = next(parts)
            process.send_signal(stop)
            received += b"".join(parts)
        assert b'"text":"a"' in received
        assert b"model_not_loaded" in received
        assert b"[DONE]" not in received
        output, _ = process.communicate(timeout=BOUND_S)
    if stop == signal.SIGINT:
        assert output.splitlines() == ["stopping, 1 running", "interrupted, closed True"]
    else:
        assert process.returncode == -signal.SIGTERM


@pytest.mark.parametrize(
    ("path", "status"), [("/v1/messages", 529), pytest.param("/api/chat", 503, marks=pytest.mark.slow)]
)
def test_who_still_sends_a_body_holds_up_no_end_and_is_told_so(path: str, status: int):
    with server(30 * BOUND_S) as (process, client), connected(client) as connection:
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\nExpect: 100-continue\r\n\r\n"
        connection.sendall(head.encode())
        assert b" 100 " in connection.recv(1024)  # it waits for the body
        connection.sendall(b'{"a')
        process.send_signal(signal.SIGTERM)
        reply, _, body = b"".join(iter(lambda: connection.recv(65536), b"")).partition(b"\r\n\r\n")
        assert reply.startswith(f"HTTP/1.1 {status} ".encode())
        assert b"retry-after: " in reply.lower()
        assert "the request body was incomplete" in str(json.loads(body)["error"])
        process.communicate(timeout=BOUND_S)


@contextmanager
def connected(client: httpx.Client, count: int = 1) -> Generator[socket.socket]:
    """So many connections more; gives the last one."""
    with ExitStack() as stack:
        port = client.base_url.port
        opened = [socket.create_connection(("127.0.0.1", port or 0), BOUND_S) for _ in range(count)]
        for connection in opened:
            stack.enter_context(connection)
        yield opened[-1]


def test_a_low_bound_on_open_files_is_raised_for_the_connections():
    with server(0.1, before="ulimit -S -n 100") as (_process, client), connected(client, 150):
        assert httpx.get(f"{client.base_url}/health", trust_env=False, timeout=BOUND_S).status_code == 200
        assert client.post("/v1/completions", json={"prompt": "x"}).status_code == 200


def test_where_the_bound_cannot_be_raised_fewer_connections_are_served_and_all_else_goes_on(tmp_path: Path):
    log = tmp_path / "log"
    with log.open("wb") as errors, server(0.1, before="ulimit -n 120", errors=errors) as (_process, client):
        assert client.get("/v1/models").status_code == 200  # on a connection that is kept
        with connected(client, 60):
            reply = httpx.get(f"{client.base_url}/v1/models", trust_env=False, timeout=BOUND_S)
            assert reply.status_code == 429
            assert "more than 60 connections are open" in reply.json()["error"]["message"]
            assert httpx.get(f"{client.base_url}/health", trust_env=False, timeout=BOUND_S).status_code == 200
        with connected(client, 150) as last:
            assert last.recv(1) == b"", "one for which there is no place is closed at once"
            assert client.post("/v1/completions", json={"prompt": "x"}).status_code == 200
    said = log.read_text(encoding="utf-8")
    assert said.count("only 60 connections are served at the same time, not 1024") == 1
    assert said.count("connections are refused") == 1
    assert "Traceback" not in said


def test_keys_may_come_from_a_pipe_which_can_be_read_once():
    class Broken(FakeRuntime):
        async def start(self) -> Any:
            raise ModelFileInvalid("truncated")

    receiver, sender = os.pipe()
    os.write(sender, b"alice:secret\n")
    os.close(sender)
    config = ServerConfig(port=0, api_key_file=f"/dev/fd/{receiver}")
    try:
        with pytest.raises(ModelFileInvalid):  # the keys come before the model
            serve(registry_of(ServedModel(("tiny",), Broken())), config)
    finally:
        os.close(receiver)


@pytest.mark.skipif(sys.platform == "win32", reason="uvloop does not exist on Windows")
def test_models_are_served_on_the_event_loop_of_uvloop():
    class Noting(FakeRuntime):
        async def start(self) -> Any:
            loops.append(type(asyncio.get_running_loop()).__module__)
            raise ModelFileInvalid("truncated")

    loops: list[str] = []
    with pytest.raises(ModelFileInvalid):
        serve(registry_of(ServedModel(("tiny",), Noting())), ServerConfig(port=0))
    assert loops == ["uvloop"]


def test_idle_server_stops_at_once():
    with server(BOUND_S) as (process, client):
        assert client.get("/health").status_code == 200
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=BOUND_S)
    assert output == "stopping, 0 running\ninterrupted, closed True\n"


def test_who_follows_the_news_of_models_holds_up_no_end():
    with server(30 * BOUND_S) as (process, client), client.stream("GET", "/models/sse") as response:
        assert response.status_code == 200
        process.send_signal(signal.SIGTERM)
        assert response.read() == b""
        process.communicate(timeout=BOUND_S)


CHAT = {"messages": [{"role": "user", "content": "x"}]}


def test_answers_503_while_the_model_loads_and_is_ready_only_then():
    with loading_server() as (process, client):
        health = client.get("/health")
        assert (health.status_code, health.json()["status"]) == (503, "starting")
        replies = [
            health,
            client.get("/v1/models"),
            client.post("/v1/completions", json={"prompt": "x"}),
            client.post("/v1/completions", json={"prompt": "x", "stream": True}),
            client.post("/v1/chat/completions", json=CHAT),
        ]
        for reply in replies:
            error = reply.json()["error"]
            assert (reply.status_code, error["type"], error["code"]) == (503, "unavailable_error", "model_not_loaded")
            assert int(reply.headers["Retry-After"]) > 0
        assert client.post("/v1/chat/completions", content=b"{").status_code == 400
        process.send_signal(signal.SIGUSR1)
        assert process.stdout is not None
        assert process.stdout.readline().strip() == str(client.base_url).rstrip("/")
        assert client.get("/health").status_code == 200
        assert client.post("/v1/completions", json={"prompt": "x"}).status_code == 200


def test_stop_signal_ends_a_server_that_is_still_loading():
    with loading_server() as (process, client):
        assert client.get("/health").status_code == 503
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=BOUND_S)
    assert output == "interrupted, closed True\n"


def test_taken_port_is_a_config_error_before_the_model_is_loaded():
    runtime = FakeRuntime()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"{port}.*--port 0"):
            serve(registry_of(ServedModel(("tiny",), runtime)), ServerConfig(port=port))
    assert runtime.num_starts == 0


def test_address_of_another_machine_is_a_config_error():
    with pytest.raises(ConfigError, match=r"203\.0\.113\.1"):
        serve(registry_of(ServedModel(("tiny",), FakeRuntime())), ServerConfig(host="203.0.113.1", port=0))


def test_models_are_closed_if_the_server_fails_before_its_start_up(monkeypatch: pytest.MonkeyPatch):
    def fail(config: uvicorn.Config) -> None:
        raise OSError("no certificate")

    monkeypatch.setattr(uvicorn.Config, "load", fail)
    runtime = FakeRuntime()
    with pytest.raises(OSError, match="no certificate"):
        serve(registry_of(ServedModel(("tiny",), runtime)), ServerConfig(port=0))
    assert runtime.num_closes == 1


def test_model_that_does_not_load_is_the_callers_error_and_is_closed():
    class Broken(FakeRuntime):
        async def start(self) -> Any:
            raise ModelFileInvalid("truncated")

    runtime = Broken()
    ready: list[str] = []
    on_ready: Callable[[str], None] = ready.append
    with pytest.raises(ModelFileInvalid):
        serve(registry_of(ServedModel(("tiny",), runtime)), ServerConfig(port=0), on_ready)
    assert ready == []
    assert runtime.num_closes == 1

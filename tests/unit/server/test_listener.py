"""Where the server listens: local sockets, TLS, and connections that are one too many, through real sockets."""

from __future__ import annotations

import asyncio
import socket
import ssl
import subprocess
import threading
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from stoker.errors import ConfigError, ModelFileInvalid, ModelFileNotFound
from stoker.server.config import ServerConfig
from stoker.server.transport.app import create_app
from stoker.server.transport.listener import listening, url_of
from stoker.server.transport.model_server import ModelServer
from stoker.server.transport.run import serve
from tests.unit.server.fake_runtime import FakeRuntime, registry_of, served
from tests.waiting import BOUND_S


@contextmanager
def server(**settings: Any) -> Generator[str]:
    """The server on a thread of its own; gives its address."""
    config = ServerConfig(port=0, drain_s=0, **settings)
    ready = threading.Event()
    with listening(config) as listener:
        loop = asyncio.new_event_loop()
        running: list[ModelServer] = []

        async def main() -> None:
            registry = registry_of(served(FakeRuntime()))
            running.append(ModelServer(create_app(registry, config), registry, config, ready.set))
            await running[0]._serve([listener])

        thread = threading.Thread(target=lambda: loop.run_until_complete(main()))
        thread.start()
        try:
            assert ready.wait(BOUND_S)
            yield url_of(config, listener)
        finally:
            running[0].should_exit = True
            thread.join(BOUND_S)
            assert not thread.is_alive()
            loop.close()


def test_what_is_written_is_sent_at_once():
    """A body does not wait, as by Nagle's algorithm, until the client acknowledges the head written before it."""

    async def main() -> int:
        accepted: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()
        with listening(ServerConfig(port=0)) as listener:
            host, port = listener.getsockname()
            async with await asyncio.start_server(lambda _, writer: accepted.put_nowait(writer), sock=listener):
                _, client = await asyncio.open_connection(host, port)
                connection = await asyncio.wait_for(accepted.get(), BOUND_S)
                option = connection.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
                for writer in (client, connection):
                    writer.close()
                    await writer.wait_closed()
                return option

    assert asyncio.run(main()) != 0


def test_a_local_socket_is_served_and_removed(tmp_path: Path):
    path = tmp_path / "s"
    with server(unix_socket=str(path)) as url:
        assert url == f"unix:{path}"
        assert path.stat().st_mode & 0o007 == 0, "others have no access"
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(path))) as client:
            assert client.get("http://stoker.example.com/v1/models").status_code == 200
    assert not path.exists()


def test_what_a_killed_server_left_is_replaced_and_nothing_else(tmp_path: Path):
    left, used, file = tmp_path / "left", tmp_path / "used", tmp_path / "file"
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(left))
    file.write_text("mine", encoding="utf-8")
    with listening(ServerConfig(unix_socket=str(left))):
        pass
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(used))
        other.listen()
        for path in (used, file):
            with pytest.raises(ConfigError, match=str(path)), listening(ServerConfig(unix_socket=str(path))):
                pass
    assert file.read_text(encoding="utf-8") == "mine"


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """For `localhost`, signed by itself."""
    crt, key = tmp_path / "crt.pem", tmp_path / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-days", "2"]
    try:
        subprocess.run([*command, *names, "-keyout", key, "-out", crt], check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("no openssl program")
    return crt, key


def test_https_is_spoken(certificate: tuple[Path, Path]):
    crt, key = certificate
    with server(tls_certificate=str(crt), tls_key=str(key)) as url:
        assert url.startswith("https://127.0.0.1:")
        context = ssl.create_default_context(cafile=str(crt))
        assert httpx.get(f"{url}/health", verify=context, trust_env=False, timeout=BOUND_S).status_code == 200


def test_with_tls_the_listening_socket_refuses_connections_before_their_handshake(certificate: tuple[Path, Path]):
    """On uvloop, connections without a handshake could take every file descriptor."""

    class Noting(FakeRuntime):
        async def start(self) -> Any:
            loops.append(type(asyncio.get_running_loop()).__module__)
            raise ModelFileInvalid("truncated")

    loops: list[str] = []
    crt, key = (str(path) for path in certificate)
    with pytest.raises(ModelFileInvalid):
        serve(registry_of(served(Noting())), ServerConfig(port=0, tls_certificate=crt, tls_key=key))
    assert loops[0].startswith("asyncio.")


def test_no_descriptor_of_the_reserve_is_accepted(monkeypatch: pytest.MonkeyPatch):
    with listening(ServerConfig(port=0)) as listener, socket.create_connection(listener.getsockname(), BOUND_S):
        monkeypatch.setattr("stoker.server.transport.descriptors._limit", lambda: 0)
        with pytest.raises(ConnectionAbortedError):
            listener.accept()


def test_tls_files_that_do_not_fit_are_a_config_error(certificate: tuple[Path, Path], tmp_path: Path):
    crt, key = (str(path) for path in certificate)
    for files in ((str(tmp_path / "nothing"), key), (crt, crt), (key, key)):
        config = ServerConfig(port=0, tls_certificate=files[0], tls_key=files[1])
        with pytest.raises(ConfigError, match="TLS"), listening(config):
            pass


def test_a_path_prefix_is_part_of_the_address():
    with server(root_path="/llm") as url:
        assert url.endswith("/llm")
        assert httpx.get(f"{url}/v1/models", trust_env=False, timeout=BOUND_S).status_code == 200


def test_as_many_connections_as_allowed_are_served():
    with server(max_connections=1) as url:
        assert httpx.get(f"{url}/v1/models", trust_env=False, timeout=BOUND_S).status_code == 200


def test_one_connection_too_many_hears_so_in_its_dialect_and_health_goes_on():
    with server(max_connections=2) as url:
        address = url.removeprefix("http://").split(":")
        held = [socket.create_connection((address[0], int(address[1]))) for _ in range(2)]
        try:
            # It answers health only when it has accepted the two before.
            assert httpx.get(f"{url}/health", trust_env=False, timeout=BOUND_S).status_code == 200
            reply = httpx.post(f"{url}/v1/messages", json={}, trust_env=False, timeout=BOUND_S)
            assert (reply.status_code, reply.json()["error"]["type"]) == (429, "rate_limit_error")
            assert reply.headers["connection"] == "close"
            assert int(reply.headers["retry-after"]) >= 1
        finally:
            for connection in held:
                connection.close()
        while httpx.get(f"{url}/v1/models", trust_env=False, timeout=BOUND_S).status_code == 429:
            pass


def test_many_connections_too_many_leave_room_for_those_that_come_later():
    with server(max_connections=1) as url, ExitStack() as stack:
        address = url.removeprefix("http://").split(":")
        opened = [socket.create_connection((address[0], int(address[1]))) for _ in range(100)]
        served, first, *_, last = [stack.enter_context(connection) for connection in opened]
        assert httpx.get(f"{url}/health", trust_env=False, timeout=BOUND_S).status_code == 200
        for connection in (served, first, last):
            connection.setblocking(False)
        assert first.recv(1) == b""
        for connection in (served, last):
            with pytest.raises(BlockingIOError):
                connection.recv(1)


@pytest.mark.skipif(not hasattr(socket, "TCP_NOTSENT_LOWAT"), reason="this system keeps as much as it likes")
def test_the_system_keeps_little_for_a_client_that_does_not_read():
    with listening(ServerConfig(port=0)) as listener, socket.create_connection(listener.getsockname(), BOUND_S):
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT) == 128 * 2**10


@pytest.mark.parametrize("error", [None, ModelFileNotFound("no model 'm'")])
def test_stop_is_told_unless_the_model_could_not_be_loaded(error: ModelFileNotFound | None):
    config, stopped = ServerConfig(port=0, drain_s=0), list[int]()

    async def main(listener: socket.socket) -> None:
        registry = registry_of(served(FakeRuntime()))

        async def begun() -> None:
            if error is not None:
                raise error

        def stop() -> None:
            running.should_exit = True

        app = create_app(registry, config)
        running = ModelServer(app, registry, config, stop, stopped.append, loading=asyncio.create_task(begun()))
        await running._serve([listener])
        if error is not None:
            with pytest.raises(ModelFileNotFound):
                running.check_loaded()

    with listening(config) as listener:
        asyncio.run(asyncio.wait_for(main(listener), BOUND_S))
    assert stopped == ([] if error is not None else [0])

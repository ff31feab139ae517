"""A cluster that is updated by Ray's own command, and one whose replicas follow the load: no request is lost."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.clusters import (
    LIMIT_S,
    LONG_SCRIPT,
    PATIENCE_S,
    READABLE,
    WAIT_S,
    LongAnswer,
    actors,
    ask,
    cluster,
    needs_ray,
    num_ready,
    takes_minutes,
    until,
    until_ready,
)
from tests.e2e.ray_nodes import Node, environment, scratch_folder
from tests.ports import free_port

pytestmark = [
    needs_ray,
    takes_minutes,
    pytest.mark.slow,
    pytest.mark.timeout(LIMIT_S),
]


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "script.json"
    path.write_text(json.dumps(LONG_SCRIPT))
    return path


@pytest.fixture
def head(tmp_path: Path) -> Generator[Head]:
    with scratch_folder() as scratch:
        environ, dashboard = environment(scratch), free_port()
        node = Node("127.0.0.1")
        options = [f"--port={free_port()}", "--num-cpus=4", f"--dashboard-port={dashboard}"]
        node.start("--head", "--include-dashboard=true", *options, environ=environ, log=tmp_path / "head")
        try:
            yield Head(tmp_path, environ, dashboard)
        finally:
            node.kill()


class Head:
    """A running Ray, to which Serve configurations are deployed as `stoker cluster config` prints them."""

    def __init__(self, folder: Path, environ: dict[str, str], dashboard: int) -> None:
        self._folder, self._environ = folder, environ
        self._dashboard = f"http://127.0.0.1:{dashboard}"
        self._port = free_port()
        self.url = f"http://127.0.0.1:{self._port}"

    def deploy(self, script: Path, *options: str) -> None:
        command = ["-m", "stoker", "cluster", "config", "scripted", "--script", str(script), "--kv-type", "f16"]
        command += ["--threads", "1", "--port", str(self._port), "--allow-unauthenticated", *options]
        document = self._folder / "serve.yaml"
        document.write_text(self._run(*command))
        self._run("-m", "ray.serve.scripts", "deploy", str(document), "--address", self._dashboard)

    @property
    def is_settled(self) -> bool:
        """Every replica is what was deployed last."""
        status = self._run("-m", "ray.serve.scripts", "status", "--address", self._dashboard)
        return status.count("HEALTHY") >= 2 and not any(word in status for word in ("STOPPING", "STARTING", "UPDATING"))

    def _run(self, *arguments: str) -> str:
        command = [sys.executable, *arguments]
        found = subprocess.run(
            command, capture_output=True, text=True, env=self._environ, timeout=PATIENCE_S, check=False
        )
        assert found.returncode == 0, found.stderr
        return found.stdout


@contextmanager
def asked_all_the_time(url: str) -> Generator[None]:
    """Short requests one after another; in the end none has failed."""
    stop, failures = threading.Event(), list[str]()

    def run() -> None:
        while not stop.is_set():
            try:
                reply = ask(url, "short")
            except httpx.TransportError as error:
                failures.append(repr(error))
                continue
            if reply.status_code != 200:
                failures.append(reply.text)

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not failures


def get(url: str) -> Any:
    return httpx.get(url, trust_env=False, timeout=WAIT_S).json()


def test_update_loses_no_request_and_a_long_answer_survives(head: Head, script: Path) -> None:
    head.deploy(script, "--replicas", "2", "--fronts", "2", "--alias", "before=scripted")
    until_ready(head.url, 2)
    with asked_all_the_time(head.url):
        answer = LongAnswer(head.url, READABLE)
        head.deploy(script, "--replicas", "2", "--fronts", "2", "--alias", "after=scripted", "--parallel", "3")
        until(lambda: "after" in str(get(f"{head.url}/v1/models")))
        assert answer.end() == "data: [DONE]"
        until(lambda: head.is_settled)
        assert get(f"{head.url}/props")["total_slots"] == 6


def test_idle_model_has_no_replica_and_a_request_starts_one(script: Path, tmp_path: Path) -> None:
    arguments = ["scripted", "--script", str(script), "--replicas", "0-2", "--threads", "1", "--parallel", "2"]
    environ = {"STOKER_SCALE_HOLD_S": "1", "STOKER_SCALE_COOLDOWN_S": "1"}
    with cluster(*arguments, log=tmp_path / "log", **environ) as server:

        def state() -> str:
            (model,) = get(f"{server.url}/health")["models"]
            return model["state"]

        for _ in range(2):
            until(lambda: state() == "idle")
            until(lambda: not actors(server, "engine"))
            assert httpx.get(f"{server.url}/health", trust_env=False, timeout=WAIT_S).status_code == 200
            assert get(f"{server.url}/v1/models")["data"][0]["id"] == "scripted"
            assert 'stoker_model_ready{model="scripted"} 1' in httpx.get(f"{server.url}/metrics", trust_env=False).text
            reply = ask(server.url, "short", wait_s=PATIENCE_S)
            assert reply.json()["choices"][0]["text"] == "short"
            assert state() == "ready"
        requests = [LongAnswer(server.url) for _ in range(3)]
        until_ready(server.url, 2)
        for request in requests:
            request.leave()


def test_number_of_replicas_follows_the_load(script: Path, tmp_path: Path) -> None:
    arguments = ["scripted", "--script", str(script), "--replicas", "1-3", "--threads", "1", "--parallel", "2"]
    environ = {"STOKER_SCALE_HOLD_S": "1", "STOKER_SCALE_COOLDOWN_S": "1"}
    with cluster(*arguments, log=tmp_path / "log", **environ) as server, asked_all_the_time(server.url):
        assert num_ready(server.url) == 1
        answers = [LongAnswer(server.url) for _ in range(2)]
        until(lambda: num_ready(server.url) >= 2)
        answers += [LongAnswer(server.url) for _ in range(3)]
        until_ready(server.url, 3)
        for answer in answers:
            answer.leave()
        until_ready(server.url, 1)

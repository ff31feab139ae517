"""`stoker cluster` with what cannot work: it is said before Ray starts, and what was found is left as it was."""

from __future__ import annotations

import re
import socket
import sys
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stoker.cluster.config import ClusterConfig
from stoker.cluster.local import LocalCluster
from stoker.cluster.refused import REFUSED
from stoker.errors import ConfigError, ModelNotLoaded
from tests.unit.cli.conftest import Stoker


@pytest.fixture(autouse=True)
def _without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)


@pytest.fixture
def taken() -> Iterator[str]:
    """A port of this machine on which another program listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield str(listener.getsockname()[1])


def test_ray_is_missing(stoker: Stoker) -> None:
    done = stoker("cluster", "serve", "scripted", "--port", "0")
    assert done.code == 2
    assert "pip install 'stoker[ray]'" in done.err
    assert "Traceback" not in done.err


def test_there_is_no_such_model(stoker: Stoker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STOKER_BACKEND")
    done = stoker("cluster", "serve", "/nowhere/m.gguf", "--port", "0")
    assert (done.code, "there is no file or folder /nowhere/m.gguf" in done.err) == (3, True)


def test_port_is_taken(stoker: Stoker, taken: str) -> None:
    done = stoker("cluster", "serve", "scripted", "--port", taken)
    assert (done.code, f"cannot listen on 127.0.0.1 port {taken}" in done.err) == (2, True), done.err


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--fronts", "0"], "between 1 and 64"),
        (["--replicas", "3-1"], "replicas"),
        (["--address", "auto"], "--kv-type"),
        (["--models-dir", "/m"], "only the named models"),
        (["--no-autoload"], "0-MAX"),
        (["--replicas", "0"], "a number from 1 to 64"),
        (["--host", "0.0.0.0"], "--api-key"),
    ],
)
def test_what_cannot_be_had_is_refused_with_a_reason(stoker: Stoker, options: list[str], reason: str) -> None:
    backend = [] if options[0] != "--address" else ["--backend", "native"]
    done = stoker("cluster", "serve", "model.gguf", "--port", "0", *options, *backend)
    assert (done.code, reason in done.err) == (2, True), done.err


@pytest.mark.parametrize("command", ["serve", "config"])
def test_help_shows_no_option_that_is_refused(stoker: Stoker, command: str) -> None:
    shown = stoker("cluster", command, "--help-all").out
    taken = stoker("serve", "--help-all").out
    refused = {f"--{key.replace('_', '-')}" for key in REFUSED}
    assert {option for option in refused if f" {option} " in taken} >= {"--models-dir", "--keep-alive", "--unix-socket"}
    assert not {option for option in refused if re.search(rf"{option}\b(?!-)", shown)}
    assert {"--replicas", "--kv-dir", "--fronts"} <= set(shown.split())


def test_shared_folder_cannot_be_used(stoker: Stoker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a file").touch()
    done = stoker("cluster", "serve", "scripted", "--port", "0", "--kv-dir", str(tmp_path / "a file"))
    assert (done.code, "a file cannot be used: File exists" in done.err) == (2, True)
    monkeypatch.setitem(sys.modules, "obstore", None)
    done = stoker("cluster", "serve", "scripted", "--port", "0", "--kv-dir", "s3://bucket/kv")
    assert (done.code, "pip install 'stoker[s3]'" in done.err) == (2, True)


def test_status_of_a_server_that_is_not_there(stoker: Stoker, taken: str) -> None:
    socket.create_server(("127.0.0.1", 0)).close()
    done = stoker("cluster", "status", "--url", "http://127.0.0.1:9")
    assert done.code == 1
    assert "http://127.0.0.1:9" in done.err
    assert "Traceback" not in done.err


class FakeRay:
    """A cluster in which Ray Serve runs."""

    def __init__(self, port: int, *applications: str) -> None:
        self.options = SimpleNamespace(port=port)
        self.applications: dict[str, Any] = dict.fromkeys(applications)

    def get_actor(self, name: str, namespace: str) -> Any:
        assert (name, namespace) == ("SERVE_CONTROLLER_ACTOR", "serve")
        return SimpleNamespace(get_http_config=SimpleNamespace(remote=lambda: self.options))

    def get(self, value: Any, timeout: float) -> Any:
        return value

    def status(self) -> Any:
        return SimpleNamespace(applications=self.applications)


def test_cluster_on_which_others_serve_is_joined_only_beside_them() -> None:
    local = LocalCluster(ClusterConfig(models=["scripted"], settings={"port": 8000}), "auto")

    def check(fake: FakeRay) -> None:
        local._check_running(fake, fake)  # pyright: ignore[reportPrivateUsage]

    check(FakeRay(8000, "of someone else"))
    with pytest.raises(ConfigError, match="served on this cluster already"):
        check(FakeRay(8000, "stoker"))
    with pytest.raises(ConfigError, match="give --port 8001"):
        check(FakeRay(8001))


class State(Enum):
    """As those of Ray Serve."""

    UPDATING = "UPDATING"
    RUNNING = "RUNNING"
    STARTING = "STARTING"
    STOPPING = "STOPPING"


def test_models_that_do_not_answer_in_time_are_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stoker.cluster.local._READY_S", 0.0)
    found = SimpleNamespace(
        status=State.UPDATING,
        replica_states={State.RUNNING: 1, State.STARTING: 1, State.STOPPING: 0},
        message="Traceback:\n  ...\nstoker.errors.ModelNotFound: no file\n",
    )
    fake = FakeRay(8000)
    fake.applications = {"stoker": SimpleNamespace(deployments={"engine-0": found})}
    monkeypatch.setattr("stoker.cluster.local._ray", lambda _environment: (fake, fake))
    local = LocalCluster(ClusterConfig(models=["scripted"], settings={"port": 8000}), "auto")
    said = r"engine-0 is updating \(1 running, 1 starting\): stoker\.errors\.ModelNotFound: no file"
    with pytest.raises(ModelNotLoaded, match=said):
        local.wait_until_ready()

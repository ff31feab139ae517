"""What a cluster serves, as values that cross to other machines; what cannot be had is refused with a reason."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from stoker.cluster.config import ClusterConfig
from stoker.cluster.scaling import by_open_requests, wanted
from stoker.config import load_config
from stoker.errors import ConfigError


def cluster(*models: str, fronts: int = 1, **settings: Any) -> ClusterConfig:
    return ClusterConfig(models=list(models), settings=settings, fronts=fronts)


def test_what_was_set_here_holds_there(tmp_path: Any) -> None:
    file = tmp_path / "stoker.toml"
    file.write_text('[engine]\nctx_size = 512\n[registry.models.big]\nsource = "/m/big.gguf"\nengine = {threads = 3}\n')
    config = load_config({"replicas": "1-4", "volatile_headers": ["x"]}, file=file, environ={"STOKER_PARALLEL": "3"})
    sent = msgspec.json.decode(msgspec.json.encode(ClusterConfig.of(config, ["scripted"], 2)), type=ClusterConfig)
    there = sent.load()
    assert (there.engine.ctx_size, there.engine.parallel, there.replicas.max_replicas) == (512, 3, 4)
    assert there.server.volatile_headers == ("x",)
    scripted, big = sent.engines()
    assert (scripted.names, scripted.deployment) == (("scripted",), "engine-scripted")
    assert (big.names, big.deployment) == (("big", "/m/big.gguf"), "engine-big")
    assert (scripted.config().registry.models, scripted.config().replicas.max_replicas) == (None, 1)
    assert (big.config().registry.models or {}).keys() == {"big"}


def test_replica_is_a_model_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_CTX_SIZE", "99")  # of this machine, and not of the cluster
    found = cluster("scripted", alias=["small=scripted", "other=big"], ctx_size=256, api_key="sk-1").engines()
    assert found[0].names == ("scripted", "small")
    assert found[0].config().engine.ctx_size == 256
    assert found[0].config().server.api_key == ""
    assert found[0].model_spec().names == ("scripted",)


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("models_dir", "/m", "only the named models"),
        ("slot_save_path", "/s", "--kv-dir"),
        ("files_dir", "auto", "no common folder"),
        ("tls_certificate", "c", "plain HTTP"),
        ("keep_alive", ["5m"], "--replicas MIN-MAX"),
        ("autoload", False, "--replicas MIN-MAX"),
    ],
)
def test_what_one_server_has_and_a_cluster_has_not(key: str, value: Any, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        cluster("scripted", **{key: value})


def test_default_of_what_a_cluster_has_not_is_no_wish_for_it() -> None:
    cluster("scripted", models_dir="", keep_alive=(), pin=[], autoload=True, swap_after_s=5)


def test_values_are_checked() -> None:
    with pytest.raises(ConfigError, match="no setting 'wings'"):
        cluster("scripted", wings=2).engines()
    with pytest.raises(ConfigError, match="cannot be used"):
        cluster("scripted", ctx_size="many").engines()
    with pytest.raises(ConfigError, match="between 1 and 64"):
        cluster("scripted", fronts=0)
    with pytest.raises(ConfigError, match="name the models"):
        cluster().engines()
    with pytest.raises(ConfigError, match="would be both"):
        cluster("/a/m.gguf", "/b/m.gguf").engines()


def test_machines_that_may_differ_need_one_kind_of_kv() -> None:
    with pytest.raises(ConfigError, match="--kv-type"):
        cluster("/m/tiny.gguf").check_kv_type()
    cluster("/m/tiny.gguf", kv_type="f16").check_kv_type()


def test_ports_of_replicas_are_a_range_that_is_empty_where_ray_encrypts() -> None:
    cluster = ClusterConfig(models=["scripted"], replica_ports="4000-4001")
    assert list(cluster.ports_on({})) == [4000, 4001]
    assert list(cluster.ports_on({"RAY_USE_TLS": "0"})) == [4000, 4001]
    assert not cluster.ports_on({"RAY_USE_TLS": "1"})
    assert not ClusterConfig(models=["scripted"], replica_ports="").ports()
    assert 31001 in ClusterConfig(models=["scripted"]).ports()


@pytest.mark.parametrize("ports", ["4000", "4001-4000", "80-90", "4000-70000", "a-b", "-4000", "4000-"])
def test_range_of_ports_is_checked(ports: str) -> None:
    with pytest.raises(ConfigError, match="FIRST-LAST"):
        ClusterConfig(models=["scripted"], replica_ports=ports)


def test_several_fronts_keep_no_responses() -> None:
    assert cluster("scripted").of_fronts().server.max_stored_responses == 1024
    assert cluster("scripted", fronts=2).of_fronts().server.max_stored_responses == 0


def test_number_of_replicas_follows_what_is_open() -> None:
    assert [wanted([count], 10) for count in (0, 8, 9, 16, 17)] == [0, 1, 2, 2, 3]

    context = SimpleNamespace(
        aggregated_metrics={"open_requests": {"a": 20.0, "b": 4.0}, "places": {"a": 10.0, "b": 10.0}},
        target_num_replicas=2,
        capacity_adjusted_min_replicas=1,
        capacity_adjusted_max_replicas=8,
    )
    assert by_open_requests(context) == (3, {})
    context.capacity_adjusted_max_replicas = 2
    assert by_open_requests(context) == (2, {})
    context.aggregated_metrics = {}
    assert by_open_requests(context) == (2, {}), "nothing is known yet"


def test_number_of_replicas_may_fall_to_zero_where_that_is_allowed() -> None:
    assert cluster("scripted", replicas="0-3").load().replicas.min_replicas == 0
    context = SimpleNamespace(
        aggregated_metrics={"open_requests": {"a": 0.0}, "places": {"a": 10.0}},
        target_num_replicas=1,
        capacity_adjusted_min_replicas=0,
        capacity_adjusted_max_replicas=3,
    )
    assert by_open_requests(context) == (0, {})


_WITHOUT_RAY = """
import sys
sys.modules["ray"] = None
import stoker, stoker.cli.app, stoker.cli.commands, stoker.cluster
from stoker.cluster.config import ClusterConfig
from stoker.cluster.local import LocalCluster
from stoker.errors import ConfigError
try:
    LocalCluster(ClusterConfig(models=["scripted"], settings={"port": 0}), "").start()
except ConfigError as error:
    print(error.message)
"""


def test_without_ray_everything_else_works() -> None:
    done = subprocess.run([sys.executable, "-c", _WITHOUT_RAY], capture_output=True, text=True, timeout=60, check=True)
    assert "pip install 'stoker[ray]'" in done.stdout
    importing = "import stoker, stoker.cli.serve, sys; print([name for name in sys.modules if name.startswith('ray')])"
    done = subprocess.run([sys.executable, "-c", importing], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"

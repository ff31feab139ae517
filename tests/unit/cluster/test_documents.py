"""What `stoker cluster config` prints, and the files for Kubernetes: Ray's own schema takes them, and they agree."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest

from stoker.cluster import REPLICA_PORTS
from stoker.cluster.config import ENVIRONMENT, ClusterConfig
from stoker.errors import ConfigError
from tests.e2e.clusters import needs_ray

pytestmark = needs_ray
DEPLOY = Path(__file__).parents[3] / "deploy" / "ray"
OPTIONS = ("--kv-type", "f16", "--replicas", "1-8", "--api-key-file", "/etc/stoker/keys", "--kv-dir", "/shared/kv")
_CHECK = """
import json, sys
from ray.serve.schema import ServeDeploySchema
from stoker.cluster import build
document = json.load(sys.stdin)
schema = ServeDeploySchema.model_validate(document)
application = build(document["applications"][0]["args"])
print(schema.applications[0].import_path, type(application).__name__)
"""


def printed(*arguments: str) -> str:
    command = [sys.executable, "-m", "stoker", "cluster", "config", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


def objects(name: str) -> list[dict[str, Any]]:
    text = (DEPLOY / name).read_text()
    return [msgspec.yaml.decode(part, type=dict[str, Any]) for part in text.split("\n---\n")]


@pytest.mark.slow
def test_serve_takes_what_is_printed() -> None:
    text = printed("/shared/models/model.gguf", *OPTIONS, "--fronts", "2")
    document = msgspec.yaml.decode(text)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _CHECK],
        input=msgspec.json.encode(document).decode(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["stoker.cluster:build", "Application"]
    assert all(f"#   {name}={value}\n" in text for name, value in ENVIRONMENT.items())
    (service,) = [each for each in objects("rayservice.yaml") if each["kind"] == "RayService"]
    assert msgspec.yaml.decode(service["spec"]["serveConfigV2"]) == document


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}


_NAMED = {"type": "object", "required": ["name"]}
_CONTAINER = _object(
    name={"type": "string"},
    image={"type": "string"},
    resources=_object(limits={"type": "object"}, requests={"type": "object"}),
    ports={"type": "array", "items": _object(name={"type": "string"}, containerPort={"type": "integer"})},
    env={"type": "array", "items": _NAMED},
    volumeMounts={"type": "array", "items": {"type": "object", "required": ["name", "mountPath"]}},
)
_POD = _object(
    spec=_object(
        containers={"type": "array", "items": _CONTAINER, "minItems": 1}, volumes={"type": "array", "items": _NAMED}
    )
)
_PARAMS = {"type": "object", "additionalProperties": {"type": "string"}}
_WORKERS = _object(
    groupName={"type": "string"},
    replicas={"type": "integer"},
    minReplicas={"type": "integer"},
    maxReplicas={"type": "integer"},
    rayStartParams=_PARAMS,
    template=_POD,
)
RAY_SERVICE = _object(
    apiVersion={"const": "ray.io/v1"},
    kind={"const": "RayService"},
    metadata=_NAMED,
    spec=_object(
        serveConfigV2={"type": "string"},
        rayClusterConfig=_object(
            rayVersion={"type": "string"},
            headGroupSpec=_object(rayStartParams=_PARAMS, template=_POD),
            workerGroupSpecs={"type": "array", "items": _WORKERS, "minItems": 1},
        ),
    ),
)
"""The parts of KubeRay's RayService (ray.io/v1) that are used, and no others."""


_PORTS = {"type": "array", "items": _object(protocol={"const": "TCP"}, port={"type": "integer"}), "minItems": 1}
_PEER = {
    "type": "object",
    "properties": {"podSelector": {"type": "object"}, "namespaceSelector": {"type": "object"}},
    "additionalProperties": False,
    "minProperties": 1,
}
NETWORK_POLICY = _object(
    apiVersion={"const": "networking.k8s.io/v1"},
    kind={"const": "NetworkPolicy"},
    metadata=_NAMED,
    spec=_object(
        podSelector={"type": "object"},
        policyTypes={"const": ["Ingress"]},
        ingress={
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"ports": _PORTS, "from": {"type": "array", "items": _PEER}},
                "additionalProperties": False,
                "minProperties": 1,
            },
        },
    ),
)
"""The parts of a NetworkPolicy that are used, and no others."""


def test_service_has_the_shape_of_its_kind_and_every_node_its_environment() -> None:
    (service,) = [each for each in objects("rayservice.yaml") if each["kind"] == "RayService"]
    jsonschema.validate(service, RAY_SERVICE)
    spec = service["spec"]["rayClusterConfig"]
    templates = [spec["headGroupSpec"]["template"], *(group["template"] for group in spec["workerGroupSpecs"])]
    for template in templates:
        (container,) = template["spec"]["containers"]
        given = {each["name"]: each.get("value") for each in container["env"]}
        assert given.items() >= {**ENVIRONMENT, "RAY_AUTH_MODE": "token"}.items()
        mounted = {each["name"] for each in container["volumeMounts"]}
        assert mounted == {each["name"] for each in template["spec"]["volumes"]}
    assert spec["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"


_GROUP: dict[str, Any] = {
    "resources": {"type": "object"},
    "ports": _CONTAINER["properties"]["ports"],
    "volumeMounts": _CONTAINER["properties"]["volumeMounts"],
    "volumes": {"type": "array", "items": _NAMED},
}
CHART_VALUES = _object(
    image=_object(repository={"type": "string"}, tag={"type": "string"}, pullPolicy={"type": "string"}),
    common=_object(containerEnv={"type": "array", "items": _NAMED}),
    head=_object(rayVersion={"type": "string"}, rayStartParams=_PARAMS, **_GROUP),
    worker=_object(
        groupName={"type": "string"},
        replicas={"type": "integer"},
        minReplicas={"type": "integer"},
        maxReplicas={"type": "integer"},
        **_GROUP,
    ),
    service=_object(type={"enum": ["ClusterIP", "NodePort", "LoadBalancer"]}),
)
"""The values of KubeRay's chart `ray-cluster` that are used, and no others."""


def test_values_make_the_same_cluster_of_the_chart_as_the_service_has() -> None:
    (values,) = objects("values.yaml")
    jsonschema.validate(values, CHART_VALUES)
    (service,) = [each for each in objects("rayservice.yaml") if each["kind"] == "RayService"]
    spec = service["spec"]["rayClusterConfig"]
    (group,) = spec["workerGroupSpecs"]
    assert values["head"]["rayVersion"] == spec["rayVersion"]
    assert values["head"]["rayStartParams"] == spec["headGroupSpec"]["rayStartParams"]
    for name in ("groupName", "replicas", "minReplicas", "maxReplicas"):
        assert values["worker"][name] == group[name]
    for given, template in ((values["head"], spec["headGroupSpec"]["template"]), (values["worker"], group["template"])):
        (container,) = template["spec"]["containers"]
        assert container["image"] == values["image"]["repository"]
        assert values["common"]["containerEnv"] == container["env"]
        assert [given[name] for name in ("resources", "ports", "volumeMounts")] == [
            container[name] for name in ("resources", "ports", "volumeMounts")
        ]
        assert given["volumes"] == template["spec"]["volumes"]


def test_only_the_http_port_is_open() -> None:
    (policy,) = objects("networkpolicy.yaml")
    jsonschema.validate(policy, NETWORK_POLICY)
    for_all = [rule for rule in policy["spec"]["ingress"] if "from" not in rule]
    assert [port["port"] for rule in for_all for port in rule["ports"]] == [8000]


def test_nodes_of_the_cluster_reach_each_other_on_all_ports_those_of_replicas_included() -> None:
    (policy,) = objects("networkpolicy.yaml")
    (inner,) = [rule for rule in policy["spec"]["ingress"] if rule.get("from") == [{"podSelector": _SELECTED}]]
    assert policy["spec"]["podSelector"] == _SELECTED
    assert "ports" not in inner, "without a list, a rule is for all ports"
    (service,) = [each for each in objects("rayservice.yaml") if each["kind"] == "RayService"]
    document = msgspec.yaml.decode(service["spec"]["serveConfigV2"])
    assert document["applications"][0]["args"]["replica_ports"] == REPLICA_PORTS


_SELECTED = {"matchExpressions": [{"key": "ray.io/cluster", "operator": "Exists"}]}


def test_secrets_stay_out_of_the_file() -> None:
    settings = {"kv_type": "f16", "api_key_file": "/k"}
    with pytest.raises(ConfigError, match="readable in the file"):
        ClusterConfig(models=["m.gguf"], settings={**settings, "api_key": "sk-1"}).as_document()
    with pytest.raises(ConfigError, match="--api-key-file"):
        ClusterConfig(models=["m.gguf"], settings={"kv_type": "f16"}).as_document()
    with pytest.raises(ConfigError, match="--kv-type"):
        ClusterConfig(models=["m.gguf"], settings={"api_key_file": "/k"}).as_document()


@pytest.mark.parametrize(
    ("given", "listens"), [({}, ("0.0.0.0", 8000)), ({"host": "10.0.0.1", "port": 81}, ("10.0.0.1", 81))]
)
def test_nodes_listen_where_the_settings_say(given: dict[str, Any], listens: tuple[str, int]) -> None:
    settings = {"kv_type": "f16", "api_key_file": "/k", **given}
    document = ClusterConfig(models=["scripted"], settings=settings).as_document()
    assert document["http_options"] == {"host": listens[0], "port": listens[1]}

"""The configuration of a cluster, as plain values for Ray Serve's configuration files. It knows nothing of Ray.

The settings are those of `stoker serve`, by key. Only these values are sent to other nodes: every Ray actor makes its
own objects from them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, cast

import msgspec

from stoker.cluster import REPLICA_PORTS
from stoker.cluster.refused import REFUSED
from stoker.config import Config, load_config, setting_types
from stoker.errors import ConfigError
from stoker.runtime.served import short_name
from stoker.serving import create_replica, named_models, names_of

if TYPE_CHECKING:
    from stoker.runtime.model_spec import ModelSpec

LONGEST_S = 600
"""Seconds that running answers get to finish when their replica or front is removed, by an update or by scaling."""
ENVIRONMENT: Mapping[str, str] = {
    "RAY_SERVE_ENABLE_HA_PROXY": "1",
    "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
    "RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S": str(LONGEST_S),
    "RAY_SERVE_REPLICA_AUTOSCALING_METRIC_PUSH_INTERVAL_S": "2",
    "RAY_SERVE_HANDLE_AUTOSCALING_METRIC_PUSH_INTERVAL_S": "2",
    "RAY_SERVE_LOG_TO_STDERR": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "1",
    "RAY_worker_niceness": "0",
}
"""Environment of every Ray process, on every node, before it starts. Variables that are set already stay.

By default, Ray gives its workers a niceness of 15, with which they hardly run beside a few busy processes.
"""
_SECRETS = ("api_key", "admin_key")
_MAX_FRONTS = 64
_PORT = 8000
"""Default port of a deployed application, as in Ray Serve."""
_OF_FRONTS = frozenset({"alias", "api_key", "admin_key", "replicas", "pin", "keep_alive"})
"""Settings that replicas do not need."""


class ClusterFields(TypedDict, total=False):
    """Fields of `ClusterConfig` that have defaults."""

    kv_events: bool
    replica_ports: str


class ClusterConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All that a deployment consists of, as plain values that are written to YAML and read from it.

    Raises:
        ConfigError: a value is outside its range, or a setting is not available in a cluster.
    """

    models: list[str] = []
    """Models, as the command line names them."""
    settings: dict[str, Any] = {}
    """Settings by key, as in Stoker's configuration file, without its sections."""
    fronts: int = 1
    """Number of processes that serve HTTP; each can pass on as many tokens as one CPU core can handle."""
    kv_events: bool = False
    """Replicas publish which blocks of KV they hold, for routers of other projects."""
    replica_ports: str = REPLICA_PORTS
    """Ports for connections of fronts, of which each replica takes one: FIRST-LAST; empty = fronts use Ray Serve."""
    name: str = "stoker"
    """Name of the application in Ray Serve, and the prefix of its deployments' names."""

    def __post_init__(self) -> None:
        if not 1 <= self.fronts <= _MAX_FRONTS:
            raise ConfigError(f"`fronts` must be between 1 and {_MAX_FRONTS}, not {self.fronts}", key="fronts")
        self.ports()  # reports a faulty range
        for key, reason in REFUSED.items():
            if key in self.settings and _plain(self.settings[key]) != _defaults()[key]:
                raise ConfigError(f"`{key}` is not available in a cluster: {reason}", key=key)

    @classmethod
    def of(cls, config: Config, models: list[str], fronts: int, **fields: Unpack[ClusterFields]) -> ClusterConfig:
        """A cluster configuration with all settings that were given explicitly, to be sent to other machines."""
        given = {each.key: msgspec.to_builtins(each.value) for each in config.settings if each.origin != "default"}
        return cls(models=models, settings=given, fronts=fronts, **fields)

    def ports(self) -> range:
        """The ports of `replica_ports`.

        Raises:
            ConfigError: this is no range of ports.
        """
        if not self.replica_ports:
            return range(0)
        first, _, last = self.replica_ports.partition("-")
        if not (first.isdecimal() and last.isdecimal() and 1024 <= int(first) <= int(last) <= 65535):
            message = f"`replica_ports` must be FIRST-LAST, between 1024 and 65535, not {self.replica_ports!r}"
            raise ConfigError(message, key="replica_ports")
        return range(int(first), int(last) + 1)

    def ports_on(self, environ: Mapping[str, str]) -> range:
        """The ports for a replica with this environment: none if Ray uses TLS, because these connections do not."""
        uses_tls = environ.get("RAY_USE_TLS", "0").lower() in ("1", "true")
        return range(0) if uses_tls else self.ports()

    def load(self) -> Config:
        """The settings as an object. This machine's environment and configuration files are ignored.

        Raises:
            ConfigError: a key or a value cannot be used.
        """
        return _loaded(self.settings)

    def of_fronts(self) -> Config:
        """The settings of one front. One of several fronts stores no responses: the next request may go to another."""
        config = self.load()
        if self.fronts == 1:
            return config
        return replace(config, server=msgspec.structs.replace(config.server, max_stored_responses=0))

    def engines(self) -> list[EngineSpec]:
        """One spec for each model.

        Raises:
            ConfigError: no model is named, or two models have the same name.
        """
        config = self.load()
        named = named_models(config, self.models)
        if not named:
            raise ConfigError("name the models that the cluster is to serve", key="models")
        found = [EngineSpec(self._deployment(name), names_of(config, name, model), self, name) for name, model in named]
        owners: dict[str, str] = {}
        for spec in found:
            for name in spec.names:
                if owners.setdefault(name, spec.model) != spec.model:
                    raise ConfigError(f"{name!r} would be both {owners[name]} and {spec.model}: give aliases")
        if len({spec.deployment for spec in found}) < len(found):
            raise ConfigError("two models have the same name: give them names in [registry.models]", key="models")
        return found

    def check_kv_type(self) -> None:
        """Checks that the KV cache type is the same on all machines; the default depends on the CPU.

        Raises:
            ConfigError: the settings do not choose a KV cache type.
        """
        config = self.load()
        if config.engine.kv_type is None and not config.engine.script:
            message = (
                "give --kv-type (such as f16): what is chosen without it depends on the CPU of each node, so nodes "
                "would share no KV and might answer differently"
            )
            raise ConfigError(message, key="kv_type")

    def as_document(self) -> dict[str, Any]:
        """The document that `serve deploy` and a RayService take, as plain values.

        Every node listens on the `host` and `port` of the settings, by default on port 8000 of all its addresses.

        Raises:
            ConfigError: the document would contain an API key, or the server would need none; or a value is unusable.
        """
        config = self.load()
        for name in _SECRETS:
            if self.settings.get(name):
                message = f"`{name}` would be readable in the file: give --api-key-file, a file on every node"
                raise ConfigError(message, key=name)
        if not (config.server.api_key_file or config.server.allow_unauthenticated):
            raise ConfigError("give --api-key-file, or --allow-unauthenticated if that is wanted", key="api_key_file")
        self.check_kv_type()
        self.engines()
        host, port = self.settings.get("host", "0.0.0.0"), self.settings.get("port", _PORT)
        settings = {key: value for key, value in self.settings.items() if key != "port"}
        args = msgspec.structs.replace(self, settings={**settings, "host": host})
        application = {
            "name": self.name,
            "route_prefix": "/",
            "import_path": "stoker.cluster:build",
            "args": msgspec.to_builtins(args),
        }
        return {
            "proxy_location": "EveryNode",
            "http_options": {"host": host, "port": port},
            "applications": [application],
        }

    def _deployment(self, model: str) -> str:
        return "engine-" + "".join(c if c.isalnum() or c in "-_." else "-" for c in short_name(model))


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """One model of a cluster, from which its Ray Serve deployment of engines is made."""

    deployment: str
    """Name of the model's deployment in Ray Serve."""
    names: tuple[str, ...]
    """Names of the model: the first one is its id, the others are aliases."""
    cluster: ClusterConfig
    model: str
    """The model as the command line named it."""

    def config(self) -> Config:
        """The settings of one replica: without those of fronts only, and without those of other models."""
        settings = {key: value for key, value in self.cluster.settings.items() if key not in _OF_FRONTS}
        tables = settings.pop("models", {})
        if self.model in tables:
            settings["models"] = {self.model: tables[self.model]}
        return _loaded(settings)

    def model_spec(self) -> ModelSpec:
        """The specification by which a replica is loaded on the calling machine.

        Raises:
            StokerError: see `create_replica`.
        """
        config = self.config()
        return create_replica(config, [] if self.model in (config.registry.models or {}) else [self.model])


@cache
def _defaults() -> Mapping[str, Any]:
    """The default of each setting, in the form in which settings are sent."""
    return {each.key: _plain(msgspec.to_builtins(each.value)) for each in _loaded({}).settings}


def _plain(value: Any) -> Any:
    return list(cast("tuple[Any, ...]", value)) if isinstance(value, tuple) else value


def _loaded(settings: Mapping[str, Any]) -> Config:
    types = setting_types()
    unknown = sorted(settings.keys() - types.keys())
    if unknown:
        raise ConfigError(f"there is no setting {unknown[0]!r}", key=unknown[0])
    try:
        flags = {key: msgspec.convert(value, types[key], str_keys=True) for key, value in settings.items()}
    except msgspec.ValidationError as error:
        raise ConfigError(f"a setting of the cluster cannot be used: {error}") from error
    return load_config(flags, file=Path(os.devnull), environ={})


def as_yaml(document: dict[str, Any]) -> str:
    """The configuration as YAML, for display and for `serve deploy`.

    Raises:
        ConfigError: PyYAML, which comes with Ray, is not installed.
    """
    try:
        return msgspec.yaml.encode(document).decode()
    except ImportError as error:
        raise ConfigError("PyYAML is not installed: pip install 'stoker[ray]'", key="ray") from error

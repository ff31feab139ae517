"""Turns the configuration of a cluster into a Ray Serve application, for `stoker cluster serve` and `serve deploy`."""

from __future__ import annotations

from typing import Any

import msgspec
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy, RequestRouterConfig

from stoker.cluster.config import LONGEST_S, ClusterConfig, EngineSpec
from stoker.cluster.engine import Engine
from stoker.cluster.front import Front, front_app
from stoker.cluster.untyped import serve

_UNLIMITED = 100_000
"""Ray Serve queues no requests: each engine has its own queue, which knows priorities and clients."""
_ROUTER: Any = "stoker.cluster.router:DirectedRouter"
_HEALTH_PERIOD_S = 5.0
_HEALTH_TIMEOUT_S = 10.0


def build(args: dict[str, Any]) -> Any:
    """The `Application` that `serve run`, `serve build` and `serve deploy` build from a configuration file.

    Args:
        args: the fields of `ClusterConfig`.

    Raises:
        ConfigError: a value cannot be used.
    """
    return application(msgspec.convert(args, ClusterConfig))


def application(cluster: ClusterConfig) -> Any:
    """The Ray Serve application of a cluster: its fronts and its engines.

    Raises:
        ConfigError: a value cannot be used.
    """
    config = cluster.load()
    engines = [_engine(spec) for spec in cluster.engines()]
    front = serve.deployment(
        serve.ingress(front_app(cluster))(Front),
        name="front",
        num_replicas=cluster.fronts,
        max_ongoing_requests=config.server.max_connections,
        ray_actor_options={"num_cpus": 0},
        health_check_period_s=_HEALTH_PERIOD_S,
        health_check_timeout_s=_HEALTH_TIMEOUT_S,
        graceful_shutdown_timeout_s=LONGEST_S,
    )
    return front.bind(cluster, *engines)


def _engine(spec: EngineSpec) -> Any:
    config = spec.cluster.load()
    replicas, threads = config.replicas, config.engine.threads
    count: dict[str, Any] = {"num_replicas": replicas.min_replicas}
    if replicas.max_replicas > replicas.min_replicas:
        count = {"autoscaling_config": _autoscaling(spec)}
    if threads is None:
        count["max_replicas_per_node"] = 1  # each replica takes all cores of its node
    return serve.deployment(
        Engine,
        name=spec.deployment,
        max_ongoing_requests=_UNLIMITED,
        ray_actor_options={"num_cpus": threads or 1},
        request_router_config=RequestRouterConfig(request_router_class=_ROUTER),
        health_check_period_s=_HEALTH_PERIOD_S,
        health_check_timeout_s=_HEALTH_TIMEOUT_S,
        graceful_shutdown_timeout_s=LONGEST_S,
        **count,
    ).bind(spec)


def _autoscaling(spec: EngineSpec) -> AutoscalingConfig:
    replicas = spec.cluster.load().replicas
    return AutoscalingConfig(
        min_replicas=replicas.min_replicas,
        initial_replicas=max(1, replicas.min_replicas),  # fronts get the model's card from the first replica
        max_replicas=replicas.max_replicas,
        upscale_delay_s=replicas.scale_hold_s,
        downscale_delay_s=replicas.scale_cooldown_s,
        look_back_period_s=5.0,
        policy=AutoscalingPolicy(policy_function="stoker.cluster.scaling:by_open_requests"),
    )

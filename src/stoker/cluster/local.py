"""`stoker cluster serve`: starts or joins a Ray cluster, serves models on it, and ends what it has started."""

from __future__ import annotations

import http.client
import logging
import os
import random
import signal
import socket
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from functools import cached_property
from itertools import islice
from types import FrameType
from typing import Any, NoReturn

from stoker.cluster import family
from stoker.cluster.config import ENVIRONMENT, ClusterConfig
from stoker.errors import ConfigError, ModelNotLoaded, StokerError

logger = logging.getLogger(__name__)

_ALONE: Mapping[str, str] = {**ENVIRONMENT, "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "1"}
"""Ray's environment for a cluster on one machine. Without an outer load balancer, a short draining time suffices."""
_PORTS = (
    "RAY_SERVE_FALLBACK_PROXY_GRPC_PORT",
    "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT",
    "RAY_SERVE_HAPROXY_METRICS_PORT",
    "RAY_SERVE_HAPROXY_STATS_PORT",
)
"""Variables with the ports of Ray's HTTP proxy, which must differ if several clusters run on one machine."""
_INNER_PORTS = range(20000, 30000)
"""Ports above those of Ray's workers, and below those of the proxy's connections to fronts and of replicas."""
_POLL_S = 0.25
_READY_S = 1800.0
"""Seconds within which the models must answer; they may have to be downloaded first."""
_CALL_S = 10.0
_END_S = 5.0
"""Seconds that Ray's processes get to end by themselves. Ray's agents would take a minute or two."""
_CONTROLLER = "SERVE_CONTROLLER_ACTOR", "serve"
"""Name and namespace of the actor that Ray Serve has in each cluster."""
_OBJECT_STORE_BYTES = 80 * 2**20
"""Size of Ray's object store, which is not used: messages between actors are small."""


class LocalCluster:
    """A Ray cluster that this process has started or joined. The caller must close it in every case.

    Args:
        cluster: the configuration of what is served.
        address: address of a running cluster, or `auto`; empty = a cluster is started on this machine.
    """

    def __init__(self, cluster: ClusterConfig, address: str) -> None:
        self._cluster = cluster
        self._config = cluster.load()
        self._address = address
        self._has_begun = False
        self._is_deployed = False
        self._found_serve = False
        """Ray Serve ran before `start`, and may serve other applications."""

    @property
    def url(self) -> str:
        """The URL under which the cluster is reached."""
        return f"http://{self._config.server.host}:{self._config.server.port}"

    def start(self) -> None:
        """Starts or joins Ray, and deploys the application.

        Raises:
            ConfigError: Ray cannot be started or joined, a port is taken, or another command serves on the cluster.
            StokerError: a model cannot be served.
        """
        if not self._address:
            self._check_port()  # Ray itself would report a taken port only after a minute
        ray, serve = _ray(self._environment)
        self._join(ray)
        from stoker.cluster.app import application

        app = application(self._cluster)
        self._found_serve = _serve_runs(ray)
        if self._found_serve:
            self._check_running(ray, serve)
        elif self._address:
            self._check_port()
        self._is_deployed = True
        try:
            with suppress(TimeoutError):  # on a busy machine the proxy takes longer; `wait_until_ready` waits for it
                serve.start(http_options={"host": self._config.server.host, "port": self._config.server.port})
            serve.run(app, name=self._cluster.name, route_prefix="/", blocking=False)
        except (ray.exceptions.RayError, RuntimeError, ValueError) as error:
            raise StokerError(f"the cluster cannot serve: {_last_line(str(error))}") from error

    def _join(self, ray: Any) -> None:
        """Starts or joins Ray. Raises ConfigError if there is no Ray at the address, or Ray cannot be started."""
        for is_last in (bool(self._address), True):
            try:
                self._has_begun = True
                self._initialize(ray)
                return
            except Exception as error:  # Ray raises `Exception` itself if a busy machine starts it too slowly
                self._shut_down(ray)
                if is_last:
                    raise ConfigError(f"Ray cannot be started or joined: {error}", key="address") from error

    def _initialize(self, ray: Any) -> None:
        if self._address:
            ray.init(address=self._address, log_to_driver=False, configure_logging=False)
            return
        ray.init(
            address="local",
            num_cpus=self._num_cpus(),
            include_dashboard=False,
            object_store_memory=_OBJECT_STORE_BYTES,
            log_to_driver=False,
            configure_logging=False,
            _node_ip_address="127.0.0.1",  # no other machine needs to reach it
        )

    def _check_port(self) -> None:
        """Raises ConfigError if the server's port is taken."""
        server = self._config.server
        try:
            socket.create_server((server.host, server.port)).close()
        except OSError as error:
            reason = str(error.strerror).partition(" (while ")[0]
            raise ConfigError(f"cannot listen on {server.host} port {server.port}: {reason}", key="port") from error

    def _check_running(self, ray: Any, serve: Any) -> None:
        """Raises ConfigError if another command serves on the cluster, or its Ray Serve listens on another port."""
        if self._cluster.name in serve.status().applications:
            message = (
                "models are served on this cluster already. Stop the command that serves them, or change what it "
                "serves with `stoker cluster config` and `serve deploy`"
            )
            raise ConfigError(message, key="address")
        port = ray.get(ray.get_actor(*_CONTROLLER).get_http_config.remote(), timeout=_CALL_S).port
        if port != self._config.server.port:
            raise ConfigError(f"Ray Serve of this cluster listens on port {port}: give --port {port}", key="port")

    def wait_until_ready(self) -> None:
        """Returns when every model answers.

        Raises:
            StokerError: a model cannot be loaded, or takes too long.
        """
        ends = time.monotonic() + _READY_S
        while time.monotonic() < ends:
            if self._is_healthy():
                return
            self._check()
            time.sleep(_POLL_S)
        raise ModelNotLoaded(f"the models do not answer after {_READY_S:g} s. {self._progress()}; see the logs of Ray")

    def close(self) -> None:
        """Drains requests and ends the application; also ends Ray Serve and Ray if this instance has started them."""
        if not self._has_begun:
            return
        ray, serve = _ray(self._environment)
        try:
            if self._is_deployed:
                self._drain()
                if self._found_serve:
                    serve.delete(self._cluster.name)
                else:
                    serve.shutdown()
        finally:
            self._shut_down(ray)

    def _shut_down(self, ray: Any) -> None:
        """Disconnects from Ray, or ends it, with the processes that it leaves behind, if it was started here."""
        started = [] if self._address else family.descendants()
        try:
            ray.shutdown()
        finally:
            family.end(started, _END_S)

    def _drain(self) -> None:
        _, serve = _ray(self._environment)
        try:
            fronts = serve.get_deployment_handle("front", self._cluster.name)
            ends = time.monotonic() + _CALL_S
            # A new handle knows no front yet, and a broadcast to no front has no results.
            while not fronts.broadcast("drain").results(timeout_s=_CALL_S) and time.monotonic() < ends:
                time.sleep(_POLL_S)
        except (RuntimeError, TimeoutError, KeyError) as error:  # raised by Ray if there is no front
            logger.info("no front can be told to drain: %s", error)

    @cached_property
    def _environment(self) -> Mapping[str, str]:
        if self._address:
            return ENVIRONMENT
        ports = _free_ports(len(_PORTS), self._config.server.port)
        return {**_ALONE, **dict(zip(_PORTS, map(str, ports), strict=True))}

    def _is_healthy(self) -> bool:
        connection = http.client.HTTPConnection(self._config.server.host, self._config.server.port, timeout=5)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def _check(self) -> None:
        """Raises StokerError if Ray Serve has given up on the application."""
        _, serve = _ray(self._environment)
        found = serve.status().applications.get(self._cluster.name)
        if found is not None and found.status in ("DEPLOY_FAILED", "UNHEALTHY"):
            raise StokerError(f"the cluster cannot serve: {_last_line(found.message)}")

    def _progress(self) -> str:
        """What Ray Serve says of each deployment: its state, the states of its replicas, and the last error."""
        _, serve = _ray(self._environment)
        found = serve.status().applications.get(self._cluster.name)
        if found is None:
            return "Ray Serve does not know the application"
        return "; ".join(f"{name} is {_told(each)}" for name, each in sorted(found.deployments.items()))

    def _num_cpus(self) -> float:
        """CPUs to declare, enough for all replicas: on one machine they share its cores."""
        each = self._config.engine.threads or 1
        return max(1, len(self._cluster.engines()) * self._config.replicas.max_replicas * each)


def _ray(environment: Mapping[str, str]) -> tuple[Any, Any]:
    """The modules `ray` and `ray.serve`, imported after their environment is set, which they read at the import.

    Raises:
        ConfigError: Ray is not installed.
    """
    for name, value in environment.items():
        os.environ.setdefault(name, value)
    try:
        import ray
        from ray import serve
    except ImportError as error:
        message = "Ray is not installed: pip install 'stoker[ray]' (Linux, Python 3.11 or newer)"
        raise ConfigError(message, key="ray") from error
    for name in ("ray", "ray.serve"):
        logging.getLogger(name).setLevel(logging.WARNING)
    return ray, serve


def _serve_runs(ray: Any) -> bool:
    """Whether the cluster has Ray Serve already."""
    try:
        ray.get_actor(*_CONTROLLER)
    except ValueError:
        return False
    return True


def _told(deployment: Any) -> str:
    """A deployment's state in words, such as `updating (1 running, 1 starting): no CPU is free`."""
    counts = ", ".join(f"{count} {state.value.lower()}" for state, count in deployment.replica_states.items() if count)
    reason = f": {_last_line(deployment.message)}" if deployment.message else ""
    return f"{deployment.status.value.lower()} ({counts or 'no replica'}){reason}"


def _last_line(text: str) -> str:
    """The last line of a traceback from another process."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "nothing was said")


def _free_ports(count: int, used: int) -> list[int]:
    """Different free ports that the kernel gives to no outgoing connection. Ray makes hundreds of these at its start.

    Args:
        count: number of ports.
        used: a port that must not be among them.

    Raises:
        ConfigError: too few ports are free.
    """
    free = (port for port in random.sample(_INNER_PORTS, len(_INNER_PORTS)) if port != used and _is_free(port))
    found = list(islice(free, count))
    if len(found) < count:
        raise ConfigError("too few ports between 20000 and 29999 are free for Ray's proxy", key="port")
    return found


def _is_free(port: int) -> bool:
    try:
        socket.create_server(("", port)).close()
    except OSError:
        return False
    return True


@contextmanager
def stoppable() -> Generator[None]:
    """A context that SIGINT or SIGTERM ends without an error. A second signal, during cleanup, ends the process."""

    def stop(_number: int, _frame: FrameType | None) -> None:
        restore()
        raise KeyboardInterrupt

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    for number in before:
        signal.signal(number, stop)
    try:
        with suppress(KeyboardInterrupt):
            yield
    finally:
        restore()


def wait_for_signal() -> NoReturn:
    """Waits for ever; only the KeyboardInterrupt of `stoppable` ends the wait."""
    while True:
        signal.pause()

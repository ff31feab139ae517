"""A Ray cluster of several nodes on this machine: each node has a network of its own, which a test can cut off.

```
    this machine   10.213.N.1 ── bridge ──┬── 10.213.N.2   namespace of node 2        detached from the bridge, a node
                                          └── 10.213.N.3   namespace of node 3        is silent: nothing is refused
```

The cables may be slow and lose frames (`slow_link`).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from psutil import NoSuchProcess, Process

from stoker.cluster.config import ENVIRONMENT
from tests.e2e.clusters import LONG_SCRIPT, takes_minutes, until_ready
from tests.e2e.conftest import Server, serving
from tests.e2e.slow_link import Quality, SlowLink
from tests.ports import free_port

START_S = 120.0
_ATTEMPTS = 4
"""Ray gives a node 30 seconds to start, which a busy machine may exceed."""
_STARTED = "Ray runtime started"
_IP = shutil.which("ip")


def _can_make_networks() -> bool:
    """Whether this process may make network namespaces and bridges."""
    if _IP is None or os.geteuid() != 0:
        return False
    name = f"stk{os.getpid()}"
    made = subprocess.run([_IP, "netns", "add", name], capture_output=True, check=False)
    if made.returncode:
        return False
    subprocess.run([_IP, "netns", "del", name], capture_output=True, check=False)
    bridge = [_IP, "link", "add", name, "type", "bridge"]
    if subprocess.run(bridge, capture_output=True, check=False).returncode:
        return False
    subprocess.run([_IP, "link", "del", name], capture_output=True, check=False)
    return True


needs_networks = [
    takes_minutes,
    pytest.mark.skipif(not _can_make_networks(), reason="network namespaces cannot be made here"),
]


def environment(scratch: str) -> dict[str, str]:
    """The environment of every process of a cluster.

    Args:
        scratch: Ray's folder.
    """
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0123456789abcdef" * 2}
    more = {"RAY_TMPDIR": scratch, "PYTHONUNBUFFERED": "1", "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "1"}
    return {**os.environ, **ENVIRONMENT, **token, **more}


def _run_ip(*arguments: str) -> None:
    assert _IP is not None
    subprocess.run([_IP, *arguments], check=True, capture_output=True, timeout=30)


class Node:
    """One machine of the cluster, with whatever Ray runs there.

    Args:
        address: of the node.
        prefix: what its command line begins with, to be run in its network.
    """

    def __init__(self, address: str, prefix: Sequence[str] = ()) -> None:
        self.address = address
        self._prefix = prefix
        self._ray: subprocess.Popen[bytes] | None = None

    def start(self, *arguments: str, environ: dict[str, str], log: Path) -> None:
        """Starts Ray here, and returns when it runs."""
        line = [*self._prefix, sys.executable, "-m", "ray.scripts.scripts", "start", "--block"]
        line += [f"--node-ip-address={self.address}", f"--object-store-memory={80 * 2**20}", *arguments]
        for _ in range(_ATTEMPTS):
            with log.open("wb") as output:
                self._ray = subprocess.Popen(line, stdout=output, stderr=output, env=environ, start_new_session=True)
            deadline = time.monotonic() + START_S
            while self._ray.poll() is None and time.monotonic() < deadline:
                if _STARTED in log.read_text():
                    return
                time.sleep(0.1)
            self.kill()
        pytest.fail(f"Ray did not start on {self.address}:\n{log.read_text()}")

    def processes(self) -> list[Process]:
        """All that runs here."""
        assert self._ray is not None
        try:
            root = Process(self._ray.pid)
            return [root, *root.children(recursive=True)]
        except NoSuchProcess:
            return []

    def processes_of(self, name: str) -> list[Process]:
        """The processes here that have this in their command line."""
        return [process for process in _alive(self.processes()) if name in " ".join(process.cmdline())]

    def runs(self, name: str) -> bool:
        """Whether there is such a process."""
        return bool(self.processes_of(name))

    def kill(self) -> None:
        """As when the machine loses its power."""
        for process in self.processes():
            try:
                process.kill()
            except NoSuchProcess:
                continue
        if self._ray is not None:
            self._ray.wait(START_S)


def _alive(processes: list[Process]) -> list[Process]:
    return [process for process in processes if process.is_running() and process.status() != "zombie"]


class Nodes:
    """The head, which runs no engine, and the others. To be used as `with nodes(...)`."""

    def __init__(
        self, folder: Path, scratch: str, stack: ExitStack, count: int, quality: Quality | None = None
    ) -> None:
        self._quality = quality
        self.cables: list[SlowLink] = []
        """One for each node, if they are slow."""
        self._folder = folder
        self._net = f"10.213.{os.getpid() % 200 + 20}"
        self._name = f"stk{os.getpid() % 10**6}"
        self.environ = environment(scratch)
        self._stack = stack
        self._port = free_port()
        self.head = Node(f"{self._net}.1")
        self.others = [self._add(number) for number in range(2, 2 + count)]

    @property
    def address(self) -> str:
        """Where the cluster is joined."""
        return f"{self.head.address}:{self._port}"

    @property
    def all(self) -> list[Node]:
        return [self.head, *self.others]

    def start(self) -> None:
        """Returns when every node runs."""
        _run_ip("link", "add", self._name, "type", "bridge")
        self._stack.callback(_run_ip, "link", "del", self._name)
        _run_ip("address", "add", f"{self._net}.1/24", "dev", self._name)
        _run_ip("link", "set", self._name, "up")
        for number in range(2, 2 + len(self.others)):
            self._connect(number)
        self._stack.callback(self._kill_all)
        log = self._folder / "head"
        self.head.start(
            "--head", f"--port={self._port}", "--num-cpus=0", "--include-dashboard=false", environ=self.environ, log=log
        )
        for node in self.others:
            self.start_node(node)

    def start_node(self, node: Node) -> None:
        """Starts a node, at first or after it was killed. It has one CPU."""
        log = self._folder / f"node {node.address}"
        node.start(f"--address={self.address}", "--num-cpus=1", environ=self.environ, log=log)

    @contextmanager
    def cut_off(self, node: Node) -> Generator[None]:
        """What is sent to the node, or by it, is lost."""
        link = f"{self._name}v{node.address.rpartition('.')[2]}"
        _run_ip("link", "set", link, "nomaster")
        try:
            yield
        finally:
            _run_ip("link", "set", link, "master", self._name)

    def _add(self, number: int) -> Node:
        assert _IP is not None
        return Node(f"{self._net}.{number}", (_IP, "netns", "exec", f"{self._name}n{number}"))

    def _connect(self, number: int) -> None:
        space, link = f"{self._name}n{number}", f"{self._name}v{number}"
        _run_ip("netns", "add", space)
        self._stack.callback(_run_ip, "netns", "del", space)
        if self._quality is None:
            _run_ip("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", space)
        else:
            self.cables.append(SlowLink(link, f"{link}p", self._quality, seed=number))
            self._stack.callback(self.cables[-1].close)
            _run_ip("link", "set", f"{link}p", "netns", space, "name", "eth0")
        _run_ip("link", "set", link, "master", self._name, "up")
        _run_ip("-n", space, "address", "add", f"{self._net}.{number}/24", "dev", "eth0")
        _run_ip("-n", space, "link", "set", "eth0", "up")
        _run_ip("-n", space, "link", "set", "lo", "up")

    def _kill_all(self) -> None:
        for node in reversed(self.all):
            node.kill()


@contextmanager
def scratch_folder() -> Generator[str]:
    """A folder for Ray with a short path: the names of its sockets must be short."""
    scratch = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


@contextmanager
def nodes(folder: Path, count: int = 2, quality: Quality | None = None) -> Generator[Nodes]:
    """A head and `count` nodes with one CPU each; all of it is gone afterwards.

    Args:
        quality: of the cables to the nodes; None = as good as this machine is.
    """
    with scratch_folder() as scratch, ExitStack() as stack:
        cluster = Nodes(folder, scratch, stack, count, quality)
        cluster.start()
        yield cluster


@contextmanager
def served_by(cluster: Nodes, folder: Path) -> Generator[Server]:
    """`stoker cluster serve`, which joins the cluster, with two replicas that are ready."""
    script = folder / "script.json"
    script.write_text(json.dumps(LONG_SCRIPT))
    arguments = ["scripted", "--script", str(script), "--address", cluster.address, "--kv-type", "f16"]
    arguments += ["--replicas", "2", "--threads", "1", "--allow-unauthenticated"]
    log = folder / "log"
    with serving(
        *arguments, log=log, command=("cluster", "serve"), environ=joining(cluster), host="0.0.0.0"
    ) as running:
        until_ready(running.url, 2)
        yield running


def joining(cluster: Nodes) -> dict[str, str]:
    """The environment of a command that joins the cluster."""
    return {name: cluster.environ[name] for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_TMPDIR")}

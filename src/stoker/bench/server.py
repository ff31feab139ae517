"""What is measured: a server that is already running, one that is started and stopped here, or an offline program."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, Protocol, TypeAlias

import msgspec

from stoker.bench.client import get
from stoker.bench.process_usage import pid_of
from stoker.bench.request import NOWHERE, Target
from stoker.bench.results import ModelIdentity
from stoker.errors import ModelNotLoaded, StokerError

_POLL_S = 0.02
_GET_TIMEOUT_S = 5.0
_LOG_LINES = 8
"""Number of last lines of a server's output that an error shows if the server does not start."""


Ability: TypeAlias = Literal["server", "restart", "launch", "first", "cold disk", "offline"]
"""What a server can do: answer over HTTP; be stopped and started again; be started while a clock runs; be started as if
for the first time; read files that can be dropped from memory; answer without a server."""


class Server(Protocol):
    """Something to be measured. `start` and `stop` may alternate; both may be called in any state."""

    @property
    def name(self) -> str:
        """The name under which its figures are shown; unique within a run."""
        ...

    @property
    def model_name(self) -> str:
        """The name of its model, for a server that does not report one."""
        ...

    @property
    def command(self) -> Sequence[str]:
        """The command line that starts the server; empty if it is not started here."""
        ...

    @property
    def offline_command(self) -> Sequence[str]:
        """The command line that answers a list of prompts, see `scenarios.offline`; empty if there is none."""
        ...

    @property
    def abilities(self) -> frozenset[Ability]: ...
    @property
    def pid(self) -> int | None:
        """Process id of the root of the server's process tree; None if it is not known."""
        ...

    async def start(self) -> Target:
        """Returns when the server can answer. A server that can be started here is started first, unless it runs.

        Raises:
            StokerError: the server cannot answer.
        """
        ...

    async def spawn(self, *, is_first: bool = False) -> Target:
        """Starts a new process of the server, and returns before it can answer. Only with the ability `launch`.

        Args:
            is_first: the server finds nothing that an earlier start of it has prepared. Only with the ability `first`.
        """
        ...

    def forget_files(self) -> None:
        """Drops the server's files from memory, so that it reads them from the disk. Only with `cold disk`."""
        ...

    def check_alive(self) -> None:
        """Raises ModelNotLoaded, with its last lines of output, if it was started here and has ended by itself."""
        ...

    async def stop(self) -> None: ...


@dataclass(slots=True)
class RunningServer:
    """A server that was started elsewhere; `stop` leaves it alone.

    Args:
        given_pid: root of its process tree. None = the process that listens on its port on this machine.
    """

    name: str
    target: Target
    given_pid: int | None = None
    model_name: str = ""
    command: Sequence[str] = ()
    offline_command: Sequence[str] = ()
    abilities: frozenset[Ability] = frozenset(("server",))
    pid: int | None = field(default=None, init=False)

    async def start(self) -> Target:
        """See `Server.start`."""
        if self.pid is None:
            self.pid = self.given_pid or await asyncio.to_thread(pid_of, self.target.url)
        status, _ = await get(self.target, self.target.path("models"), _GET_TIMEOUT_S)
        if status == 0:
            raise ModelNotLoaded(f"nothing answers at {self.target.url}")
        return self.target

    async def spawn(self, *, is_first: bool = False) -> Target:
        """See `Server.spawn`."""
        raise AssertionError("it was not started here")

    def forget_files(self) -> None:
        """See `Server.forget_files`."""
        raise AssertionError("its files are not known")

    def check_alive(self) -> None:
        """See `Server.check_alive`."""

    async def stop(self) -> None:
        """See `Server.stop`."""


@dataclass(slots=True)
class LaunchedServer:
    """A server that this process starts on a free local port. It ends with this process, however that one ends.

    Args:
        command: command line; `{port}` in it stands for the port.
        target: how requests are sent; `spawn` fills in the URL.
        ready_path: a path with status 200 as soon as the server can answer.
        offline_command: see `Server.offline_command`.
        environment: variables in addition to those of this process.
        prepared: the environment variable that names the folder of files that a start prepares for later starts, and a
            folder in which an empty one can be created.
        files: returns the files that the server reads when it starts.
        start_timeout_s, stop_timeout_s: time after which a start has failed, or the server is killed.
    """

    name: str
    command: Sequence[str]
    target: Target = NOWHERE
    ready_path: str = "/health"
    model_name: str = ""
    offline_command: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    prepared: tuple[str, Path] | None = None
    files: Callable[[], Sequence[Path]] | None = None
    start_timeout_s: float = 900.0
    stop_timeout_s: float = 60.0
    _process: asyncio.subprocess.Process | None = field(default=None, init=False)
    _guard: Guard | None = field(default=None, init=False)
    _log: Path | None = field(default=None, init=False)
    _first: Path | None = field(default=None, init=False)

    @property
    def abilities(self) -> frozenset[Ability]:
        found: set[Ability] = {"server", "restart", "launch"}
        if self.prepared:
            found.add("first")
        if self.files and hasattr(os, "posix_fadvise"):
            found.add("cold disk")
        if self.offline_command:
            found.add("offline")
        return frozenset(found)

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    async def start(self) -> Target:
        """See `Server.start`."""
        if self._process is not None and self._process.returncode is None:
            return self.target
        target = await self.spawn()
        deadline_s = time.monotonic() + self.start_timeout_s
        while (await get(target, self.ready_path, _GET_TIMEOUT_S))[0] != 200:
            self.check_alive()
            if time.monotonic() > deadline_s:
                raise ModelNotLoaded(f"{self.name} was not ready after {self.start_timeout_s:g} s{self._last_words()}")
            await asyncio.sleep(_POLL_S)
        return target

    def forget_files(self) -> None:
        """See `Server.forget_files`."""
        assert self.files is not None
        for path in self.files():
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    async def spawn(self, *, is_first: bool = False) -> Target:
        """See `Server.spawn`."""
        await self.stop()
        environment = {**os.environ, **self.environment}
        if is_first:
            assert self.prepared is not None
            variable, folder = self.prepared
            folder.mkdir(parents=True, exist_ok=True)
            self._first = Path(tempfile.mkdtemp(prefix="first-start-", dir=folder))
            environment[variable] = str(self._first)
        port = _free_port()
        self.target = replace(self.target, url=f"http://127.0.0.1:{port}")
        handle, path = tempfile.mkstemp(prefix="stoker-bench-", suffix=".log")
        self._log = Path(path)
        try:
            # A session of its own: Ctrl-C reaches only this process, which then stops the server.
            self._process = await asyncio.create_subprocess_exec(
                *(part.replace("{port}", str(port)) for part in self.command),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=handle,
                stderr=handle,
                env=environment,
                start_new_session=True,
            )
        except OSError as error:
            raise StokerError(f"{self.name} cannot be started: {self.command[0]}: {error.strerror}") from error
        finally:
            os.close(handle)
        with contextlib.suppress(OSError):  # without a shell, the server survives if this process is killed
            self._guard = Guard(self._process.pid)
        return self.target

    def check_alive(self) -> None:
        """See `Server.check_alive`."""
        if self._process is not None and self._process.returncode is not None:
            raise ModelNotLoaded(f"{self.name} ended with code {self._process.returncode}{self._last_words()}")

    async def stop(self) -> None:
        """See `Server.stop`. Sends SIGTERM first, then kills all its processes; at once if the task is cancelled."""
        process, self._process = self._process, None
        try:
            if process is not None:
                await self._end(process)
        finally:
            if self._guard is not None:
                self._guard.close()
                self._guard = None
            if self._log is not None:
                self._log.unlink(missing_ok=True)
                self._log = None
            if self._first is not None:
                shutil.rmtree(self._first, ignore_errors=True)
                self._first = None

    async def _end(self, process: asyncio.subprocess.Process) -> None:
        try:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.stop_timeout_s):
                    await process.wait()
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
        await process.wait()

    def _last_words(self) -> str:
        text = "" if self._log is None else self._log.read_text(encoding="utf-8", errors="replace")
        lines = text.strip().splitlines()[-_LOG_LINES:]
        return f": {' | '.join(lines)}" if lines else ""


@dataclass(slots=True)
class OfflineProgram:
    """A program that answers a list of prompts without a server, see `bench.offline`."""

    name: str
    offline_command: Sequence[str]
    model_name: str = ""
    command: Sequence[str] = ()
    abilities: frozenset[Ability] = frozenset(("offline",))
    pid: int | None = field(default=None, init=False)

    async def start(self) -> Target:
        """See `Server.start`."""
        raise AssertionError("it is not a server")

    async def spawn(self, *, is_first: bool = False) -> Target:
        """See `Server.spawn`."""
        raise AssertionError("it is not a server")

    def forget_files(self) -> None:
        """See `Server.forget_files`."""
        raise AssertionError("it is not a server")

    def check_alive(self) -> None:
        """See `Server.check_alive`."""

    async def stop(self) -> None:
        """See `Server.stop`."""


async def identify(target: Target, fallback: str = "") -> ModelIdentity:
    """The model that a server reports. If it reports none, the name is that of the target, else `fallback`."""
    status, body = await get(target, target.path("models"), _GET_TIMEOUT_S)
    try:
        listed = msgspec.json.decode(body, type=_ModelList).data if status == 200 else []
    except msgspec.DecodeError:
        listed = []
    if not listed:
        return ModelIdentity(name=target.model or fallback)
    entry = next((entry for entry in listed if entry.id == target.model), listed[0])
    meta = entry.meta or _Meta()
    return ModelIdentity(name=entry.id, num_parameters=meta.n_params or None, vocab_size=meta.n_vocab or None)


class _Meta(msgspec.Struct, frozen=True):
    n_params: int | None = None
    n_vocab: int | None = None


class _ModelEntry(msgspec.Struct, frozen=True):
    id: str
    meta: _Meta | None = None


class _ModelList(msgspec.Struct, frozen=True):
    data: list[_ModelEntry] = []


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


_PROGRAM = 'read -r line || kill -s KILL -- "-$1"'
"""Script of `Guard`: its stdin ends with the process that started it; then it kills the process group `$1`."""


class Guard:
    """A child that kills all processes of a group as soon as this process is gone, however this process ended.

    It is a shell, because that starts in a millisecond or two: another Python would take the processor from a server
    whose start is measured. The kernel can end a child with its parent, but only if the child asks for that.

    Args:
        group: id of the group; close the guard soon after its processes have ended, because the id is free then.

    Raises:
        OSError: there is no shell.
    """

    def __init__(self, group: int) -> None:
        command = ["/bin/sh", "-c", _PROGRAM, "sh", str(group)]
        # A session of its own: what ends this process, such as a closed terminal, does not end the guard.
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def close(self) -> None:
        """Ends the guard; the group is not killed from now on."""
        self._process.kill()
        self._process.communicate()

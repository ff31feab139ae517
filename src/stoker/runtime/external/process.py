"""One external server's process: started, its output drained into the log, stopped, and always waited for."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

from stoker.engine.child import describe_exit

logger = logging.getLogger(__name__)

_LAUNCHER = Path(__file__).with_name("launcher.py")
_REAP_S = 5.0
_JOIN_S = 1.0
_LINE_BYTES = 4096
_NUM_LAST_LINES = 32
_SHOWN_LINES = 6
_MAX_WORDS = 800


class ServerProcess:
    """Dies with us, however we die. Belongs to the running event loop, on whose thread it is started.

    Args:
        command: the program and its arguments.
        environment: all of it.
        name: of the program, for logs and errors.
        level: the logging level of a line of its output; None = the line does not say.
        has_workers: it starts processes of its own, which are not to outlive it.
        stop_s: longest time to stop when asked to.

    Raises:
        OSError: the process cannot be started.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        name: str,
        level: Callable[[str], int | None],
        has_workers: bool = False,
        stop_s: float = 1.0,
    ) -> None:
        loop = asyncio.get_running_loop()
        self._name = name
        self._level = level
        self._stop_s = stop_s
        self.exited: asyncio.Future[int] = loop.create_future()
        """The exit code; negative: the signal that killed it."""
        self._last_lines: deque[str] = deque(maxlen=_NUM_LAST_LINES)
        whole = ["--whole"] if has_workers else []
        # A session of its own: a Ctrl-C in the terminal is for us alone. Its stdin stays open, see `launcher`.
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_LAUNCHER), *whole, str(os.getpid()), *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            start_new_session=True,
        )
        assert self._process.stdout is not None
        self._threads = [
            threading.Thread(target=self._drain, args=(self._process.stdout,), name=f"{name}-log", daemon=True),
            threading.Thread(target=self._wait, args=(loop,), name=f"{name}-wait", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def has_exited(self) -> bool:
        return self.exited.done()

    def last_words(self) -> str:
        """The last lines of its output that are no mere information, in one; empty if there are none."""
        return " | ".join(list(self._last_lines)[-_SHOWN_LINES:])[-_MAX_WORDS:]

    def describe_end(self) -> str:
        """How it ended, with its last words."""
        assert self.exited.done(), "it has ended"
        words = self.last_words()
        return describe_exit(self.exited.result()) + (f": {words}" if words else "")

    async def wait(self, wait_s: float) -> bool:
        """Whether it has ended within that time."""
        await asyncio.wait([self.exited], timeout=wait_s)
        return self.exited.done()

    async def stop(self) -> None:
        """Asks it, kills it after `stop_s`, and waits for it. Calling it twice is allowed."""
        if not self.has_exited:
            self._process.send_signal(signal.SIGTERM)
            if not await self.wait(self._stop_s):
                logger.info("%s %d does not stop when asked: killing it", self._name, self.pid)
        if not self.has_exited:  # the session is its own: also what it has started itself
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
        if await self.wait(_REAP_S):
            for thread in self._threads:
                await asyncio.to_thread(thread.join, _JOIN_S)
        else:
            logger.error("%s %d cannot be killed", self._name, self.pid)
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()

    def _drain(self, output: IO[bytes]) -> None:
        """On a thread of its own: a full pipe would stop the server."""
        with output:
            while raw := output.readline(_LINE_BYTES):
                self._take(raw.decode("utf-8", "replace").strip())

    def _take(self, line: str) -> None:
        level = self._level(line)
        if line and (level is None or level > logging.DEBUG):
            self._last_lines.append(line)
        logger.log(logging.DEBUG if level is None else level, "%s", line)

    def _wait(self, loop: asyncio.AbstractEventLoop) -> None:
        """On a thread of its own: the only way to wait for a process that is the same everywhere."""
        code = self._process.wait()
        self._threads[0].join(_JOIN_S)  # its last words; a grandchild may hold the pipe open
        with contextlib.suppress(RuntimeError):  # the loop was closed under us
            loop.call_soon_threadsafe(self._note_exit, code)

    def _note_exit(self, code: int) -> None:
        if not self.exited.done():
            self.exited.set_result(code)

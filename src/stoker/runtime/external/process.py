"""The process of an external server: starts it, writes its output to the log, stops it, and always waits for it."""

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
    """A server process that dies with this process, even if this one is killed.

    Belongs to the running event loop, on whose thread it is started.

    Args:
        command: the program and its arguments.
        environment: the complete environment of the process.
        name: the program's name, for logs and errors.
        level: returns the logging level of a line of output; None = the line does not tell.
        has_workers: the server starts processes of its own, which must not outlive it.
        stop_s: maximum seconds to stop after SIGTERM; then the process is killed.

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
        """The exit code; if negative, the number of the signal that killed the process."""
        self._last_lines: deque[str] = deque(maxlen=_NUM_LAST_LINES)
        whole = ["--whole"] if has_workers else []
        # In a new session, Ctrl-C in the terminal does not reach the server. Its stdin stays open, see `launcher`.
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
        """The last lines of output above the level DEBUG or without a level, joined; empty if there are none."""
        return " | ".join(list(self._last_lines)[-_SHOWN_LINES:])[-_MAX_WORDS:]

    def describe_end(self) -> str:
        """How the process ended, with `last_words`."""
        assert self.exited.done(), "it has ended"
        words = self.last_words()
        return describe_exit(self.exited.result()) + (f": {words}" if words else "")

    async def wait(self, wait_s: float) -> bool:
        """Waits for the end of the process, at most `wait_s` seconds; returns whether it has ended."""
        await asyncio.wait([self.exited], timeout=wait_s)
        return self.exited.done()

    async def stop(self) -> None:
        """Sends SIGTERM, kills the process after `stop_s`, and waits for its end. Calling it twice is allowed."""
        if not self.has_exited:
            self._process.send_signal(signal.SIGTERM)
            if not await self.wait(self._stop_s):
                logger.info("%s %d does not stop when asked: killing it", self._name, self.pid)
        if not self.has_exited:  # kills the whole session, with the server's own child processes
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
        """Reads output on a thread of its own, because a full pipe would block the server."""
        with output:
            while raw := output.readline(_LINE_BYTES):
                self._take(raw.decode("utf-8", "replace").strip())

    def _take(self, line: str) -> None:
        level = self._level(line)
        if line and (level is None or level > logging.DEBUG):
            self._last_lines.append(line)
        logger.log(logging.DEBUG if level is None else level, "%s", line)

    def _wait(self, loop: asyncio.AbstractEventLoop) -> None:
        """Waits for the process on a thread of its own, which works on all platforms."""
        code = self._process.wait()
        self._threads[0].join(_JOIN_S)  # until the last output is read; a grandchild may hold the pipe open
        with contextlib.suppress(RuntimeError):  # the event loop was closed meanwhile
            loop.call_soon_threadsafe(self._note_exit, code)

    def _note_exit(self, code: int) -> None:
        if not self.exited.done():
            self.exited.set_result(code)

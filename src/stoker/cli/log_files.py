"""The log files of `stoker serve`, which `stoker logs` shows: one for each port, rotated."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from stoker.cli.later import logging
from stoker.cli.talk.saved import state_dir

LOG_FILE = "STOKER_LOG_FILE"
"""Environment variable that names the log file to child processes, which append to it."""
LINE = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_MAX_BYTES = 4 << 20
_NUM_ROTATED = 2
_MAX_FILES = 8
_POLL_S = 0.25

logger = logging.getLogger(__name__)


def log_files() -> list[Path]:
    """The current log file of each server, the most recently written one last. Rotated files are not included."""
    return sorted((state_dir() / "logs").glob("serve-*.log"), key=lambda path: path.stat().st_mtime)


@contextmanager
def kept_log(name: str) -> Generator[logging.Handler | None]:
    """Within the block, log lines of this process and its children are also appended to the file `serve-NAME.log`.

    Yields the handler of the file, or None, after a warning, if the file cannot be written.
    """
    path = state_dir() / "logs" / f"serve-{name}.log"
    try:
        handler = _opened(path)
    except OSError as error:
        logger.warning("no log is kept for `stoker logs`: %s: %s", path, error.strerror)
        yield None
        return
    os.environ[LOG_FILE] = str(path)
    logging.getLogger().addHandler(handler)
    try:
        yield handler
    finally:
        logging.getLogger().removeHandler(handler)
        handler.close()
        del os.environ[LOG_FILE]


def _opened(path: Path) -> logging.Handler:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    for old in log_files()[: -_MAX_FILES + 1]:
        for rotated in path.parent.glob(f"{old.name}*"):
            rotated.unlink(missing_ok=True)
    path.touch(mode=0o600)
    handler = logging.handlers.RotatingFileHandler(
        path, maxBytes=_MAX_BYTES, backupCount=_NUM_ROTATED, encoding="utf-8"
    )
    handler.setFormatter(logging.Formatter(LINE))
    return handler


def tail(path: Path, count: int, *, follow: bool) -> Iterator[str]:
    """Yields the last `count` lines of a log and of its last rotated file; with `follow`, then new lines endlessly."""
    file = _open(path)
    try:
        yield from _last(path, file, count)
        while follow:
            if line := file.readline():
                yield line
            elif _was_rotated(file, path):
                file.close()
                file = _open(path)
            else:
                time.sleep(_POLL_S)
    finally:
        file.close()


def _last(path: Path, file: TextIO, count: int) -> Iterable[str]:
    kept: deque[str] = deque(maxlen=count)
    with suppress(FileNotFoundError), _open(path.with_name(f"{path.name}.1")) as before:
        kept.extend(before)
    kept.extend(file)
    return kept


def _open(path: Path) -> TextIO:
    return path.open(encoding="utf-8", errors="replace")


def _was_rotated(file: TextIO, path: Path) -> bool:
    with suppress(FileNotFoundError):
        return os.fstat(file.fileno()).st_ino != path.stat().st_ino
    return False

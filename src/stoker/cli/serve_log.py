"""Messages of `stoker serve` while it runs: when it is ready, a line for each request, and how it stops."""

from __future__ import annotations

import logging
import sys
from collections.abc import Generator
from contextlib import contextmanager

from stoker.cli.report import say

_ACCESS = "stoker.server.access"


@contextmanager
def request_lines(kept: logging.Handler | None, *, is_json: bool) -> Generator[None]:
    """Within the block, request lines go to a terminal and to the log file, even if the log level excludes them.

    JSON lines, and lines to a stderr that is a file or a pipe, depend on `--log-level` alone.

    Args:
        kept: handler of the log file, which is also a handler of the root logger; None = there is no log file.
        is_json: whether the server writes request lines as JSON; they do not reach the root logger then.
    """
    access = logging.getLogger(_ACCESS)
    wanted = access.isEnabledFor(logging.INFO)
    handlers = [handler for handler in [kept] if handler is not None and is_json == wanted]
    if not is_json and not wanted and sys.stderr.isatty():
        handlers.append(_terminal())
    if not handlers:
        yield
        return
    for handler in handlers:
        access.addHandler(handler)
    access.setLevel(logging.INFO)
    access.propagate = wanted
    try:
        yield
    finally:
        for handler in handlers:
            access.removeHandler(handler)
        access.setLevel(logging.NOTSET)
        access.propagate = True


def _terminal() -> logging.Handler:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", datefmt="%H:%M:%S"))
    return handler


def say_ready(names: list[str], url: str, *, keeps_cache: bool = True) -> None:
    """Prints which models are served, and where; on a terminal also how to use the server.

    Args:
        names: names of the models; empty = there is no model yet.
        url: base URL of the server.
        keeps_cache: whether the prefix cache survives a restart of the server.
    """
    if not names:
        say(f"ready at {url}, without a model: `stoker pull MODEL` downloads one, which is then served")
    else:
        say(f"ready: {', '.join(names)} {'is' if len(names) == 1 else 'are'} served at {url}")
    if sys.stderr.isatty() and url.startswith("http"):
        say(f"  OpenAI clients: base URL {url}/v1   in a browser: {url}/   Ctrl-C stops")
        if not keeps_cache:
            say("  --cache-dir auto keeps the prefix cache across restarts")


def say_stopping(num_requests: int) -> None:
    """Prints that the server stops: it accepts no more requests, and waits for `num_requests` running ones."""
    if num_requests:
        still = "request still runs" if num_requests == 1 else "requests still run"
        say(f"\nstopping: {num_requests} {still} (Ctrl-C again to stop at once)")
    else:
        say("\nstopped" if sys.stderr.isatty() else "stopped")

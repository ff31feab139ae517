"""What `stoker serve` says on a terminal while it runs: a line for each request, and how it stops."""

from __future__ import annotations

import logging
import sys
from collections.abc import Generator
from contextlib import contextmanager

from stoker.cli.report import say

_ACCESS = "stoker.server.access"


@contextmanager
def lines_on_terminal(*, is_json: bool) -> Generator[None]:
    """Meanwhile requests are shown on a terminal, even if the level of the log would leave them out.

    With a file or a pipe as stderr, and in JSON, the access log follows `--log-level` alone.
    """
    access = logging.getLogger(_ACCESS)
    if is_json or not sys.stderr.isatty() or access.isEnabledFor(logging.INFO):
        yield
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", datefmt="%H:%M:%S"))
    access.addHandler(handler)
    access.setLevel(logging.INFO)
    access.propagate = False
    try:
        yield
    finally:
        access.removeHandler(handler)
        access.setLevel(logging.NOTSET)
        access.propagate = True


def say_ready(names: list[str], url: str) -> None:
    """What is served, and where; on a terminal also what to do with it."""
    if not names:
        say(f"ready: no model is here yet; `stoker pull MODEL` brings one, and it is served at {url}")
    else:
        say(f"ready: {', '.join(names)} {'is' if len(names) == 1 else 'are'} served at {url}")
    if sys.stderr.isatty() and url.startswith("http"):
        say(f"  OpenAI clients: base URL {url}/v1   in a browser: {url}/   Ctrl-C stops")


def say_stopping(num_requests: int) -> None:
    """The server takes no more requests, and waits for those that run."""
    if num_requests:
        still = "request still runs" if num_requests == 1 else "requests still run"
        say(f"\nstopping: {num_requests} {still} (Ctrl-C again to stop at once)")
    else:
        say("\nstopped" if sys.stderr.isatty() else "stopped")

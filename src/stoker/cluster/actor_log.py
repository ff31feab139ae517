"""Logging in a Ray actor: to the standard error of its process, which Ray writes to one file per process."""

from __future__ import annotations

import logging
import sys


def log_to_stderr() -> None:
    """Starts logging from level INFO on. Calling it again has no effect."""
    ours = logging.getLogger("stoker")
    if not ours.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        ours.addHandler(handler)
        ours.setLevel(logging.INFO)
        ours.propagate = False

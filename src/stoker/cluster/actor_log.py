"""Logging in an actor: to the standard error of its process, which Ray keeps in one file per process."""

from __future__ import annotations

import logging
import sys


def log_to_stderr() -> None:
    """Starts logging, from level info. Calling it again changes nothing."""
    ours = logging.getLogger("stoker")
    if not ours.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        ours.addHandler(handler)
        ours.setLevel(logging.INFO)
        ours.propagate = False

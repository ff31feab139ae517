"""Parses `keep_alive`, the time that a model stays loaded without a request, in the notation of Ollama."""

from __future__ import annotations

import re
from math import inf, isfinite

from stoker.errors import InvalidInput

_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?", re.ASCII)
_PART = r"(\d+(?:\.\d+)?)(ns|us|µs|ms|s|m|h)"
_DURATION = re.compile(rf"[+-]?({_PART})+", re.ASCII)
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


def parse_keep_alive(value: str | float) -> float:
    """The seconds of a duration; `inf` (for ever) if the duration is negative.

    >>> parse_keep_alive("1h30m"), parse_keep_alive(20), parse_keep_alive("-1")
    (5400.0, 20.0, inf)

    Args:
        value: seconds, as a number or as text, or text such as `5m`, `500ms` or `1h30m`.

    Raises:
        InvalidInput: the value is no duration.
    """
    seconds = _parse(value) if isinstance(value, str) else float(value)
    if seconds is None or not isfinite(seconds):
        message = f'`keep_alive` must be a duration such as "5m", or seconds, not {str(value)[:40]!r}'
        raise InvalidInput(message, parameter="keep_alive")
    return inf if seconds < 0 else abs(seconds)


def _parse(text: str) -> float | None:
    if _NUMBER.fullmatch(text):
        return float(text)
    if not _DURATION.fullmatch(text):
        return None
    total_s = sum(float(number) * _SECONDS[unit] for number, unit in re.findall(_PART, text))
    return -total_s if text.startswith("-") else total_s

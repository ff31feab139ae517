"""Sampling numbers that the files of a model recommend, checked one by one. No file is read here."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

from stoker.core.params import SamplingParams
from stoker.errors import InvalidInput

logger = logging.getLogger(__name__)


def recommended(values: Mapping[str, object], path: Path | None) -> SamplingParams:
    """The values as sampling parameters. A warning names each value that is out of range, and the value is left out.

    Args:
        values: by the names of the fields of `SamplingParams`.
        path: the file that recommends them, for the warning.
    """
    usable = {name: value for name, value in values.items() if _is_usable(name, value, path)}
    return SamplingParams(**usable)  # pyright: ignore[reportArgumentType] - `_is_usable` has checked each of them


def plain(value: object) -> object:
    """JSON may write a whole number as 50.0."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _is_usable(name: str, value: object, path: Path | None) -> bool:
    try:
        SamplingParams(**{name: value})  # pyright: ignore[reportArgumentType] - what is wrong raises
    except InvalidInput as error:
        logger.warning("%s recommends %s = %r, which is ignored: %s", path, name, value, error.message)
        return False
    return True

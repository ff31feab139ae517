"""How long a test waits for what has to come, on the slowest machine; it is over as soon as that is there."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from itertools import count
from typing import Any, TypeVar

T = TypeVar("T")

BOUND_S = 120
"""Longer than anything takes that comes at all, and shorter than pytest's own limit, which ends the whole process."""
_TURNS = 100
"""Of an event loop, in which all happens that needs no other process and no thread."""


def run(test: Coroutine[Any, Any, T]) -> T:
    """Runs a test on an event loop of its own, with a bound."""
    return asyncio.run(asyncio.wait_for(test, BOUND_S))


async def until(is_true: Callable[[], object]) -> None:
    """Lets everything else go on until something holds. The bound of the whole test ends what never comes true."""
    for turn in count():
        if is_true():
            return
        await asyncio.sleep(0 if turn < _TURNS else 0.005)


def wait_for(look: Callable[[], T], is_there: Callable[[T], object]) -> T:
    """Looks again and again; returns what is found as soon as it is what the test waits for."""
    deadline = time.monotonic() + BOUND_S
    while not is_there(found := look()):
        assert time.monotonic() < deadline, found
        time.sleep(0.01)
    return found


def wait_until(is_true: Callable[[], object]) -> None:
    """Looks again and again until something holds."""
    wait_for(is_true, bool)

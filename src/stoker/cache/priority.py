"""How soon a thread gets its turn on a core. It knows no queue and no disk."""

from __future__ import annotations

import os
import sys
import threading
from contextlib import suppress

_NICE = 10


def give_way() -> None:
    """The calling thread comes after those who compute, where threads have priorities of their own (Linux).

    Whoever waits for something that it holds, waits longer; it still gets a tenth of a core that all want.
    """
    if sys.platform == "linux":
        with suppress(OSError):
            thread = threading.get_native_id()
            os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + _NICE)

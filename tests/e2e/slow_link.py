"""A cable between two network interfaces that is slow and loses frames, where the kernel has no `netem`.

```
    interface one ◄── frames ──► thread: wait, or drop ◄── frames ──► interface other
```

Both are TAP devices, whose frames a thread carries from one to the other.
"""

from __future__ import annotations

import fcntl
import heapq
import os
import random
import selectors
import struct
import threading
import time
from dataclasses import dataclass

_TUN = "/dev/net/tun"
_SET_INTERFACE = 0x400454CA
_TAP_WITHOUT_HEADER = 0x0002 | 0x1000
_FRAME_BYTES = 65_536


@dataclass(frozen=True)
class Quality:
    """Of a cable, in each direction."""

    delay_s: float = 0.02
    jitter_s: float = 0.01
    """By how much a frame may be earlier or later; frames may overtake each other."""
    loss: float = 0.01
    """Part of all frames."""


def can_be_made() -> bool:
    """Whether this process may make such interfaces."""
    try:
        os.close(os.open(_TUN, os.O_RDWR))
    except OSError:
        return False
    return os.geteuid() == 0


class SlowLink:
    """To be closed. The interfaces are gone then.

    Args:
        one: name of the first interface, which is made.
        other: name of the second one. It may be moved to another namespace.
        quality: of the cable.
        seed: of what is drawn.
    """

    def __init__(self, one: str, other: str, quality: Quality, seed: int = 0) -> None:
        self._quality = quality
        self._random = random.Random(seed)
        self._ends = [_interface(one), _interface(other)]
        self._waiting: list[tuple[float, int, int, bytes]] = []
        """Due time, number, where to, and the frame."""
        self.num_carried = self.num_lost = 0
        self._is_closed = False
        self._thread = threading.Thread(target=self._carry, name=f"cable {one}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._is_closed = True
        self._thread.join(10)
        for end in self._ends:
            os.close(end)

    def _carry(self) -> None:
        with selectors.DefaultSelector() as selector:
            for end, other in (self._ends, self._ends[::-1]):
                selector.register(end, selectors.EVENT_READ, other)
            while not self._is_closed:
                self._deliver()
                pause_s = self._waiting[0][0] - time.monotonic() if self._waiting else 0.1
                for key, _ in selector.select(max(0.0, min(0.1, pause_s))):
                    self._take(key.fd, key.data)

    def _take(self, end: int, other: int) -> None:
        try:
            frame = os.read(end, _FRAME_BYTES)
        except OSError:  # the interface is down
            return
        if self._random.random() < self._quality.loss:
            self.num_lost += 1
            return
        self.num_carried += 1
        after_s = self._quality.delay_s + self._random.uniform(-1, 1) * self._quality.jitter_s
        heapq.heappush(self._waiting, (time.monotonic() + after_s, self.num_carried, other, frame))

    def _deliver(self) -> None:
        while self._waiting and self._waiting[0][0] <= time.monotonic():
            _, _, end, frame = heapq.heappop(self._waiting)
            try:
                os.write(end, frame)
            except OSError:
                continue


def _interface(name: str) -> int:
    """A TAP device of this name."""
    end = os.open(_TUN, os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(end, _SET_INTERFACE, struct.pack("16sH22x", name.encode(), _TAP_WITHOUT_HEADER))
    return end

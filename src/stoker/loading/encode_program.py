"""The program that makes rows of images: orders on standard input, replies on standard output, until its parent leaves.

It gets pixels, never a file. Layouts are answered while something is encoded.
"""

from __future__ import annotations

import os
import resource
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from stoker.errors import StokerError
from stoker.media.child import framed
from stoker.media.encoding import (
    Describe,
    Described,
    Encode,
    Encoded,
    Laid,
    Lay,
    Order,
    Refused,
    Reply,
    RowsPart,
    read_order,
)

if TYPE_CHECKING:
    from stoker.backends.llama.projector import MtmdProjector

_NICE = 10
"""Streams come first."""


class _Encoder:
    def __init__(self, model: Path, projector: Path, threads: int, replies: BinaryIO) -> None:
        self._paths = model, projector
        self._threads = threads
        self._replies = replies
        self._sending = threading.Lock()
        self._projector: MtmdProjector | None = None

    def answer(self, number: int, order: Order) -> None:
        """On any thread: replies to an order."""
        try:
            reply = self._reply(order)
        except StokerError as error:
            reply = Refused(error.message)
        except KeyError:
            reply = Refused("its pixels are not there any more", needs_pixels=True)
        with self._sending:
            self._replies.write(framed(number, reply))
            self._replies.flush()

    def _reply(self, order: Order) -> Reply:
        from stoker.backends.llama.projector import Pixels, Rows

        projector = self._open()
        match order:
            case Describe():
                projector.try_out()
                return Described(projector.width, list(projector.kinds), projector.sample_rate)
            case Lay():
                parts = projector.layout(Pixels(order.kind, order.width, order.height))
                return Laid([_part(part) if isinstance(part, Rows) else part for part in parts])
            case Encode():
                pixels = Pixels(order.kind, order.width, order.height, order.pixels or None)
                return Encoded(projector.encode(pixels, order.part, order.key).astype("<f4").tobytes())

    def _open(self) -> MtmdProjector:
        from stoker.backends.llama.projector import MtmdProjector

        if self._projector is None:  # by the first order, which is alone
            self._projector = MtmdProjector(*self._paths, threads=self._threads)
        return self._projector


def main() -> None:
    """`python -m stoker.loading.encode_program MODEL PROJECTOR THREADS`."""
    os.nice(_NICE)  # before there are other threads, which inherit it
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # What a library prints must not get between the replies.
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    model, projector, threads = sys.argv[1:]
    encoder = _Encoder(Path(model), Path(projector), int(threads), replies)
    with ThreadPoolExecutor(1) as encoding:
        while (received := read_order(sys.stdin.buffer.read)) is not None:
            if isinstance(received[1], Encode):
                encoding.submit(encoder.answer, *received)
            else:
                encoder.answer(*received)
    os._exit(0)  # what is still being computed is no longer wanted


def _part(rows: Rows) -> RowsPart:
    return RowsPart(rows.length, rows.grid, rows.is_whole)


if TYPE_CHECKING:
    from stoker.backends.llama.projector import Rows

if __name__ == "__main__":
    main()

"""The encoder process: reads orders from standard input and writes replies to standard output, until the input ends.

It encodes images and recordings to rows (embeddings). It gets pixels or samples, never a file. One thread encodes, so
that orders for layouts are answered meanwhile.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from stoker.errors import StokerError
from stoker.media.encoding import Described, Encode, Encoded, Laid, Lay, Order, Reply, RowsPart, order_decoder
from stoker.media.frames import Describe, Refused, begin_program, framed, read_orders

if TYPE_CHECKING:
    from stoker.backends.row_maker import RowMaker, Rows


class _Encoder:
    def __init__(self, open_projector: Callable[[], RowMaker], replies: BinaryIO) -> None:
        self._open_projector = open_projector
        self._replies = replies
        self._sending = threading.Lock()
        self._projector: RowMaker | None = None

    def answer(self, number: int, order: Order) -> None:
        """Executes an order and writes the reply. Thread-safe."""
        try:
            reply = self._reply(order)
        except StokerError as error:
            reply = Refused(error.message)
        except KeyError:
            reply = Refused("its pixels are no longer available", needs_pixels=True)
        with self._sending:
            self._replies.write(framed(number, reply))
            self._replies.flush()

    def _reply(self, order: Order) -> Reply:
        from stoker.backends.row_maker import Pixels, Rows

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

    def _open(self) -> RowMaker:
        if self._projector is None:  # by the first order (`Describe`), before other threads run
            self._projector = self._open_projector()
        return self._projector


def main() -> None:
    """Runs `python -m stoker.loading.encode_program MODEL PROJECTOR THREADS LEAST MOST`.

    PROJECTOR is a GGUF file, or the image encoder of an ONNX folder. LEAST and MOST limit the tokens of an image.
    """
    replies = begin_program()
    encoder = _Encoder(partial(_opened, *sys.argv[1:]), replies)
    with ThreadPoolExecutor(1) as encoding:
        for number, order in read_orders(order_decoder):
            if isinstance(order, Encode):
                encoding.submit(encoder.answer, number, order)
            else:
                encoder.answer(number, order)
    os._exit(0)  # without waiting for encodings in progress, whose results are no longer needed


def _opened(model: str, projector: str, threads: str, least: str, most: str) -> RowMaker:
    limits = int(least), int(most)
    if projector.endswith(".onnx"):
        from stoker.loading.onnx_sight import open_row_maker

        return open_row_maker(Path(model), threads=int(threads), token_limits=limits)
    from stoker.backends.llama.projector import MtmdProjector

    return MtmdProjector(Path(model), Path(projector), threads=int(threads), token_limits=limits)


def _part(rows: Rows) -> RowsPart:
    return RowsPart(rows.length, rows.grid, rows.is_whole)


if __name__ == "__main__":
    main()

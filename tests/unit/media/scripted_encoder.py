"""A program that answers like the real encoder, without a model: rows tell the color of the first pixel and the part.

A red image ends it, and so does a green one the first time: a file says that there was one. The darkest blue takes
forever, unless a file says that this machine is fast.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import numpy as np

from stoker.media.encoding import Described, Encode, Encoded, Laid, Lay, Order, Reply, RowsPart, order_decoder
from stoker.media.frames import Describe, Refused, framed, read_orders

LENGTH, WIDTH, TILES = 3, 2, 2


def main() -> None:
    memory = Path(sys.argv[1])
    if memory.joinpath("broken").exists():
        os.abort()
    last: dict[bytes, bytes] = {}
    for number, order in read_orders(order_decoder):
        sys.stdout.buffer.write(framed(number, reply(order, last, memory)))
        sys.stdout.buffer.flush()


def reply(order: Order, last: dict[bytes, bytes], memory: Path) -> Reply:
    match order:
        case Describe():
            return Described(WIDTH, ["image"])
        case Lay():
            if order.width == 13:
                return Refused("13 brings bad luck")
            return Laid([7, RowsPart(LENGTH), 8, RowsPart(LENGTH), 9])
        case Encode():
            pixels = order.pixels or last.get(order.key, b"")
            if not pixels:
                return Refused("where are they", needs_pixels=True)
            last.clear()
            last[order.key] = pixels
            if pixels[:3] == b"\xff\0\0" or (pixels[:3] == b"\0\xff\0" and not memory.joinpath("green").exists()):
                memory.joinpath("green").touch()
                os.abort()
            if pixels[:3] == b"\0\0\x08" and not memory.joinpath("fast").exists():
                time.sleep(600)
            with memory.joinpath("encoded").open("a") as log:
                log.write(f"{order.part}{'' if order.pixels else ' again'}\n")
            rows = np.full((LENGTH, WIDTH), pixels[2] + order.part, dtype="<f4")
            return Encoded(rows.tobytes())


if __name__ == "__main__":
    main()

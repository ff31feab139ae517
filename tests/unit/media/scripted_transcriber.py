"""A program that answers like the real transcriber, without a model: it hears one word in each second of sound.

The word tells the loudness of the second's first sample. Silence ends the program the first time, as a file remembers.
A sample of exactly 1 ends it every time.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from stoker.core.speech import Segment, SpeechInfo, Wish, Word
from stoker.media.frames import Describe, Refused, framed, read_orders
from stoker.media.transcribing import Begin, Begun, Continue, Described, Drop, Next, Order, Reply, order_decoder

RATE = 8_000


def main() -> None:
    memory = Path(sys.argv[1])
    if memory.joinpath("broken").exists():
        os.abort()
    jobs: dict[int, Iterator[Segment]] = {}
    for number, order in read_orders(order_decoder):
        with memory.joinpath("orders").open("a") as log:
            log.write(f"{type(order).__name__} {getattr(order, 'job', '')}\n")
        sys.stdout.buffer.write(framed(number, reply(order, jobs, memory)))
        sys.stdout.buffer.flush()


def reply(order: Order, jobs: dict[int, Iterator[Segment]], memory: Path) -> Reply:
    match order:
        case Describe():
            return Described(SpeechInfo(["de", "en"], RATE, can_translate=True))
        case Begin(wish=Wish(prompt="bad")):
            return Refused("the prompt is bad")
        case Begin():
            jobs[order.job] = segments(np.frombuffer(order.samples, "<f4"), order.wish, memory)
            return Begun(order.wish.language or "de")
        case Continue():
            return Next(next(jobs[order.job], None))
        case Drop():
            jobs.pop(order.job, None)
            return Next(None)


def segments(samples: np.ndarray, wish: Wish, memory: Path) -> Iterator[Segment]:
    for second in range(len(samples) // RATE):
        loudness = float(samples[second * RATE])
        if loudness > 0.99 or (abs(loudness) < 0.01 and not memory.joinpath("ended").exists()):
            memory.joinpath("ended").touch()
            os.abort()
        text = f" {wish.task[0]}{round(10 * loudness)}"
        words = [Word(second, second + 0.5, text, 1.0)] if wish.has_words else None
        yield Segment(second, 100 * second, second, second + 1, text, [second], 0.0, -0.1, 1.0, 0.0, words)


if __name__ == "__main__":
    main()

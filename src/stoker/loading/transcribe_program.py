"""The program that transcribes: orders on standard input, replies on standard output, until its parent leaves.

It gets samples, never a file.
"""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Iterator
from pathlib import Path

from stoker.backends.whisper.model import WhisperModel
from stoker.core.speech import Segment
from stoker.errors import StokerError
from stoker.media.child import framed
from stoker.media.transcribing import (
    Begin,
    Begun,
    Continue,
    Describe,
    Described,
    Drop,
    Next,
    Order,
    Refused,
    Reply,
    read_order,
)

_NICE = 10
"""Streams of chats come first."""


class _Transcriber:
    def __init__(self, folder: Path, threads: int, *, is_cpu_only: bool) -> None:
        self._where = folder, threads, is_cpu_only
        self._model: WhisperModel | None = None
        self._jobs: dict[int, Iterator[Segment]] = {}

    def reply(self, order: Order) -> Reply:
        try:
            return self._reply(order)
        except StokerError as error:
            return Refused(error.message)

    def _reply(self, order: Order) -> Reply:
        model = self._opened()
        match order:
            case Describe():
                return Described(model.info)
            case Begin():
                language, self._jobs[order.job] = model.begin(order.samples, order.wish)
                return Begun(language)
            case Continue():
                segment = next(self._jobs.get(order.job, iter(())), None)
                if segment is None:
                    self._jobs.pop(order.job, None)
                return Next(segment)
            case Drop():
                self._jobs.pop(order.job, None)
                return Next(None)

    def _opened(self) -> WhisperModel:
        if self._model is None:
            folder, threads, is_cpu_only = self._where
            self._model = WhisperModel(folder, threads=threads, is_cpu_only=is_cpu_only)
        return self._model


def main() -> None:
    """`python -m stoker.loading.transcribe_program FOLDER THREADS cpu|any`."""
    os.nice(_NICE)  # before there are other threads, which inherit it
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # What a library prints must not get between the replies.
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    folder, threads, device = sys.argv[1:]
    transcriber = _Transcriber(Path(folder), int(threads), is_cpu_only=device == "cpu")
    while (received := read_order(sys.stdin.buffer.read)) is not None:
        number, order = received
        replies.write(framed(number, transcriber.reply(order)))
        replies.flush()


if __name__ == "__main__":
    main()

"""The transcriber process: reads orders from standard input, writes replies to standard output, until the input ends.

It runs a Whisper model, which the first order loads. It gets samples, never a file.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from stoker.backends.whisper.model import WhisperModel
from stoker.core.speech import Segment
from stoker.errors import StokerError
from stoker.media.frames import Describe, Refused, begin_program, framed, read_orders
from stoker.media.transcribing import Begin, Begun, Continue, Described, Drop, Next, Order, Reply, order_decoder


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
    """Runs `python -m stoker.loading.transcribe_program FOLDER THREADS cpu|any`; `any` = a GPU may be used."""
    replies = begin_program()
    folder, threads, device = sys.argv[1:]
    transcriber = _Transcriber(Path(folder), int(threads), is_cpu_only=device == "cpu")
    for number, order in read_orders(order_decoder):
        replies.write(framed(number, transcriber.reply(order)))
        replies.flush()


if __name__ == "__main__":
    main()

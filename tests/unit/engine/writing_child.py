"""An engine that writes into a folder of the disk tier until it is killed. `python writing_child.py FOLDER [HALVES]`.

It answers one conversation after the other, and says so with a line for each. With `HALVES` it stands still in the
middle of its third file, and says that instead.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from stoker.backends.base import KVPort
from stoker.backends.scripted import ScriptedBackend, ScriptedTokenizer, scripted_info
from stoker.cache.directory import BlockDirectory, KeptModel
from stoker.cache.store import KVStore
from stoker.core.params import BUILT_IN, SamplingParams
from stoker.core.scheduler import SchedulerConfig
from stoker.engine.engine import Engine
from stoker.engine.loaded import Loaded
from stoker.engine.protocol import Event, Output, Submit

FINGERPRINT = b"1" * 32
LIMIT_S = 120.0
ANSWER = SamplingParams(temperature=0, max_tokens=8)


class Folder(BlockDirectory):
    """Says when its disk's thread knows what is there."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.is_open = threading.Event()

    def sweep(self) -> Iterator[tuple[Path, str]]:
        self.is_open.set()
        return super().sweep()


def opened(backend: ScriptedBackend, kv_port: KVPort | None = None) -> Loaded:
    """As `tests.harness.loaded`, which a program in this folder cannot import."""
    return Loaded(
        backend=backend,
        backend_name="scripted",
        tokenizer=ScriptedTokenizer(),
        defaults=BUILT_IN,
        path=Path(),
        chat_template=None,
        num_parameters=0,
        size_bytes=0,
        kv_port=kv_port,
    )


def open_engine(folder: Path | None) -> Engine:
    """Without a folder: cold, and without tiers."""
    backend = ScriptedBackend(scripted_info(kv_tokens=1024))
    if folder is None:
        return Engine(opened(backend), SchedulerConfig(max_running=2))
    store, model = KVStore(10**7), KeptModel("m", "f")
    directory = Folder(folder)
    store.open_disk(directory, identify=lambda: FINGERPRINT, model=model, limit_bytes=10**9)
    assert directory.is_open.wait(LIMIT_S)
    config = SchedulerConfig(max_running=2)
    return Engine(opened(backend, kv_port=backend), config, kv_store=store)


def conversation(number: int) -> list[int]:
    """A prompt; they begin alike in pairs."""
    return [(number // 2 * 31 + index) % 250 for index in range(96)] + [
        (number * 7 + index) % 250 for index in range(70)
    ]


def answer(engine: Engine, number: int) -> tuple[list[int], int]:
    """The tokens of the answer, and how many of the prompt's were not computed."""
    engine.add(engine.admit(Submit(str(number), conversation(number), ANSWER)))
    outputs: list[Event] = []
    while engine.has_work:
        outputs += engine.step()
    assert all(isinstance(output, Output) for output in outputs)
    told = [output for output in outputs if isinstance(output, Output)]
    return [token_id for output in told for token_id in output.token_ids], told[-1].usage.cached_tokens


def stand_still_in_the_third_file() -> None:
    replace, num_files = os.replace, itertools.count(1)

    def stop(source: str, target: Path) -> None:
        if next(num_files) < 3:
            replace(source, target)
            return
        os.truncate(source, os.stat(source).st_size // 2)
        print("half a file", flush=True)
        threading.Event().wait()

    os.replace = stop  # type: ignore[assignment]


def main() -> None:
    folder = Path(sys.argv[1])
    if sys.argv[2:] == ["HALVES"]:
        stand_still_in_the_third_file()
        answer(open_engine(folder), 0)
        threading.Event().wait()
    engine = open_engine(folder)
    for number in itertools.count():
        answer(engine, number)
        print(f"answered {number}", flush=True)


if __name__ == "__main__":
    main()

"""Files become spans and rows; what ends the encoder's process costs only the file that did it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np
import pytest

from stoker.core.media import Media, Span
from stoker.errors import BackendError, InvalidInput, MediaCrashed, Timeout
from stoker.media.encoder import MediaEncoder
from stoker.text.media_parts import media_from_bytes
from tests.projector_files import picture
from tests.unit.media.scripted_encoder import LENGTH, WIDTH

BLUE, GRAY, RED, GREEN, SLOW = (
    media_from_bytes(picture(c), "image", "x") for c in ("blue", (0, 0, 9), "red", "lime", (0, 0, 8))
)


def run(tmp_path: Path, body: Callable[[MediaEncoder], Awaitable[None]], **options: int) -> None:
    async def main() -> None:
        encoder = made(tmp_path, **options)
        encoder.open()
        try:
            await body(encoder)
        finally:
            await encoder.close()

    asyncio.run(main())


def made(tmp_path: Path, **options: int) -> MediaEncoder:
    command = (sys.executable, "-m", "tests.unit.media.scripted_encoder", str(tmp_path))
    return MediaEncoder(command, lambda: b"identity", **options)


async def spans(encoder: MediaEncoder, media: Media) -> list[Span]:
    return [part for part in await encoder.layout(media) if isinstance(part, Span)]


async def rows(encoder: MediaEncoder, media: Media, part: int = 0) -> np.ndarray:
    values = await encoder.rows(media, (await spans(encoder, media))[part].key)
    return np.frombuffer(values, dtype="<f4").reshape(LENGTH, WIDTH)


def test_a_file_is_laid_out_and_encoded_part_by_part_and_once(tmp_path: Path):
    async def body(encoder: MediaEncoder) -> None:
        first, second = await spans(encoder, BLUE)
        assert [part for part in await encoder.layout(BLUE) if isinstance(part, int)] == [7, 8, 9]
        assert first.key != second.key
        assert encoder.num_encoded == 0
        assert (await rows(encoder, BLUE, 1) == 256).all()
        assert (await rows(encoder, BLUE, 0) == 255).all()
        await asyncio.gather(*(rows(encoder, BLUE, part) for part in (0, 1, 0)))
        assert encoder.num_encoded == 2
        assert (tmp_path / "encoded").read_text() == "1\n0 again\n", "the pixels are sent once"
        other = media_from_bytes(picture("blue", format="WEBP", lossless=True), "image", "x")
        assert await encoder.layout(other) == await encoder.layout(BLUE), "the same picture in another format"
        assert await spans(encoder, GRAY) != await spans(encoder, BLUE)

    run(tmp_path, body)


def test_the_projector_is_part_of_the_key(tmp_path: Path):
    found: list[bytes] = []
    for identity in (b"one", b"two", b"one"):

        async def body(encoder: MediaEncoder, identity: bytes = identity) -> None:
            encoder._identify = lambda: identity
            found.append((await spans(encoder, BLUE))[0].key)

        run(tmp_path, body)
    assert found[0] == found[2] != found[1]


def test_rows_leave_when_there_is_no_room(tmp_path: Path):
    async def body(encoder: MediaEncoder) -> None:
        for _ in range(2):
            await rows(encoder, BLUE)
            await rows(encoder, GRAY)
        assert encoder.num_encoded == 4
        await rows(encoder, GRAY)
        assert encoder.num_encoded == 4

    run(tmp_path, body, max_kept_bytes=4 * LENGTH * WIDTH)


def test_a_file_that_ends_the_process_twice_is_refused_and_others_go_on(tmp_path: Path):
    async def body(encoder: MediaEncoder) -> None:
        await encoder.start()
        failing = asyncio.create_task(rows(encoder, RED))
        others = asyncio.create_task(rows(encoder, BLUE))
        assert (await others == 255).all()
        with pytest.raises(MediaCrashed):
            await failing
        await rows(encoder, GRAY)
        num_restarts = encoder.num_restarts
        assert num_restarts >= 2
        with pytest.raises(MediaCrashed):
            await rows(encoder, RED)
        assert (encoder.num_restarts, encoder.pid is not None) == (num_restarts, True), "it is not tried again"

    run(tmp_path, body)


def test_a_file_that_happened_to_be_there_is_tried_again(tmp_path: Path):
    async def body(encoder: MediaEncoder) -> None:
        assert (await rows(encoder, GREEN) == 0).all()
        assert encoder.num_restarts == 1

    run(tmp_path, body)


def test_a_process_that_is_killed_is_started_again_when_it_is_needed(tmp_path: Path):
    async def body(encoder: MediaEncoder) -> None:
        await rows(encoder, BLUE)
        assert encoder.pid is not None
        os.kill(encoder.pid, signal.SIGKILL)
        assert (await rows(encoder, GRAY) == 9).all()
        assert (await rows(encoder, BLUE) == 255).all()

    run(tmp_path, body)


def test_a_file_that_takes_too_long_is_not_said_to_crash_anything(tmp_path: Path):
    async def body(encoder: MediaEncoder) -> None:
        key = (await spans(encoder, SLOW))[0].key
        for _ in range(3):  # more often than a file may end the process
            encoder._child._reply_s = 0.3
            with pytest.raises(Timeout, match="the projector takes longer"):
                await encoder.rows(SLOW, key)
        encoder._child._reply_s = 300
        assert (await rows(encoder, BLUE) == 255).all()
        (tmp_path / "fast").touch()
        assert (await rows(encoder, SLOW) == 8).all()
        assert encoder.load().num_crashes == 0

    run(tmp_path, body)


def test_what_cannot_be_used_is_refused_with_the_reason(tmp_path: Path):
    async def body(encoder: MediaEncoder) -> None:
        with pytest.raises(InvalidInput, match="bad luck"):
            await encoder.layout(media_from_bytes(picture("blue", (13, 5)), "image", "x"))
        with pytest.raises(InvalidInput, match="damaged or cut off"):
            await encoder.layout(media_from_bytes(BLUE.data[:50], "image", "x"))

    run(tmp_path, body)


def test_a_projector_that_ends_every_process_is_named(tmp_path: Path):
    (tmp_path / "broken").touch()

    async def body(encoder: MediaEncoder) -> None:
        with pytest.raises(BackendError, match="ends the process"):
            await encoder.start()

    run(tmp_path, body)


def test_the_process_ends_with_the_last_engine(tmp_path: Path):
    async def main() -> None:
        encoder = made(tmp_path)
        encoder.open()
        encoder.open()
        await encoder.start()
        await encoder.close()
        assert encoder.pid is not None
        await encoder.close()
        assert encoder.pid is None

    asyncio.run(main())


def test_the_load_counts_what_was_encoded_found_and_lost(tmp_path: Path):
    async def body(encoder: MediaEncoder) -> None:
        first, second = [part for part in await encoder.layout(BLUE) if isinstance(part, Span)]
        together = [asyncio.create_task(encoder.rows(BLUE, key)) for key in (first.key, first.key, second.key)]
        await asyncio.sleep(0)
        assert encoder.load().num_queued == 2
        await asyncio.gather(*together)
        await encoder.rows(BLUE, second.key)
        load = encoder.load()
        assert (load.num_queued, load.num_encoded, load.num_hits, load.num_crashes) == (0, 2, 2, 0)
        assert load.kept_bytes == 2 * LENGTH * WIDTH * 4
        assert load.encode_s > 0
        red = next(part for part in await encoder.layout(RED) if isinstance(part, Span))
        with pytest.raises(MediaCrashed):
            await encoder.rows(RED, red.key)
        assert encoder.load().num_crashes == 2

    run(tmp_path, body)

"""Recordings become segments in turn; what ends the process costs only the recording that did it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from stoker.core.media import Media
from stoker.core.speech import Segment, Wish
from stoker.errors import BackendError, InvalidInput, MediaCrashed
from stoker.media.transcriber import Heard, Transcriber
from stoker.media.transcripts import Transcript
from stoker.media.wav import as_wav
from stoker.text.media_parts import media_from_bytes
from tests.unit.media.scripted_transcriber import RATE

pytest.importorskip("av")


def recording(*loudness: float) -> Media:
    """A second of each of these."""
    samples = np.repeat(np.array(loudness, "<f4"), RATE)
    return media_from_bytes(as_wav(samples.tobytes(), RATE), "audio", "x")


def run(tmp_path: Path, body: Callable[[Transcriber], Awaitable[None]]) -> None:
    async def main() -> None:
        transcriber = Transcriber((sys.executable, "-m", "tests.unit.media.scripted_transcriber", str(tmp_path)))
        try:
            await body(transcriber)
        finally:
            await transcriber.close()

    asyncio.run(main())


async def found(transcriber: Transcriber, file: Media, wish: Wish | None = None) -> tuple[Heard, Sequence[Segment]]:
    heard, *segments = [each async for each in transcriber.transcribe(file, wish or Wish())]
    assert isinstance(heard, Heard)
    return heard, [each for each in segments if isinstance(each, Segment)]


def text(segments: Sequence[Segment]) -> str:
    return "".join(segment.text for segment in segments)


def test_segments_come_in_order_with_what_is_known_before(tmp_path: Path):
    async def body(transcriber: Transcriber) -> None:
        heard, segments = await found(transcriber, recording(0.1, 0.2, 0.3), Wish(has_words=True, language="en"))
        assert (heard, text(segments)) == (Heard("en", 3.0), " t1 t2 t3")
        assert [(each.id, each.start, each.end) for each in segments] == [(0, 0, 1), (1, 1, 2), (2, 2, 3)]
        assert segments[2].words is not None
        assert segments[2].words[0].start == 2
        heard, segments = await found(transcriber, recording(0.4), Wish(task="translate"))
        assert (heard.language, text(segments), segments[0].words) == ("de", " t4", None)
        load = transcriber.load()
        assert (load.num_open, load.num_segments, load.heard_s, load.num_crashes) == (0, 4, 4.0, 0)
        assert load.compute_s > 0

    run(tmp_path, body)


def test_recordings_take_turns(tmp_path: Path):
    async def body(transcriber: Transcriber) -> None:
        files = [recording(*[0.1 * (index + 1)] * 3) for index in range(3)]
        texts = [text(segments) for _, segments in await asyncio.gather(*(found(transcriber, file) for file in files))]
        assert texts == [" t1 t1 t1", " t2 t2 t2", " t3 t3 t3"]
        orders = (tmp_path / "orders").read_text().split("\n")
        jobs = [line.split()[1] for line in orders if line.startswith("Continue")]
        assert len(set(jobs[:6])) > 1, "the first one did not have the process to itself"

    run(tmp_path, body)


def test_a_process_that_ends_is_replaced_and_the_transcript_goes_on_where_it_was(tmp_path: Path):
    async def body(transcriber: Transcriber) -> None:
        heard: list[Heard | Segment] = []
        async for each in transcriber.transcribe(recording(0.1, 0.2, 0.3, 0.4), Wish(has_words=True)):
            heard.append(each)
            if len(heard) == 3 and transcriber.pid is not None:
                os.kill(transcriber.pid, signal.SIGKILL)
        segments = [each for each in heard if isinstance(each, Segment)]
        assert text(segments) == " t1 t2 t3 t4"
        assert [(each.id, each.seek, each.start) for each in segments] == [
            (0, 0, 0),
            (1, 100, 1),
            (2, 200, 2),
            (3, 300, 3),
        ]
        assert segments[3].words is not None
        assert segments[3].words[0].start == 3
        assert transcriber.num_restarts == 1

    run(tmp_path, body)


def test_a_recording_that_ends_the_process_twice_is_refused_and_others_go_on(tmp_path: Path):
    async def body(transcriber: Transcriber) -> None:
        failing = asyncio.create_task(found(transcriber, recording(0.5, 1.0, 0.5)))
        _, others = await found(transcriber, recording(*[0.2] * 6))
        assert text(others) == " t2" * 6
        with pytest.raises(MediaCrashed):
            await failing
        assert text((await found(transcriber, recording(0.3)))[1]) == " t3"

    run(tmp_path, body)


def test_a_recording_that_happened_to_be_there_is_tried_again(tmp_path: Path):
    async def body(transcriber: Transcriber) -> None:
        assert text((await found(transcriber, recording(0.5, 0.0, 0.5)))[1]) == " t5 t0 t5"
        assert transcriber.num_restarts == 1

    run(tmp_path, body)


def test_closing_early_drops_the_rest(tmp_path: Path):
    async def body(transcriber: Transcriber) -> None:
        stream = transcriber.transcribe(recording(*[0.1] * 5), Wish())
        await anext(stream)
        await anext(stream)
        await stream.aclose()
        assert text((await found(transcriber, recording(0.2)))[1]) == " t2"
        orders = (tmp_path / "orders").read_text()
        assert orders.count("Continue 1\n") == 1
        assert "Drop 1\n" in orders

    run(tmp_path, body)


def test_what_cannot_be_done_is_refused_with_the_reason(tmp_path: Path):
    async def body(transcriber: Transcriber) -> None:
        with pytest.raises(InvalidInput, match="`language` must be one of de, en"):
            await found(transcriber, recording(0.1), Wish(language="xx"))
        with pytest.raises(InvalidInput, match="prompt is bad"):
            await found(transcriber, recording(0.1), Wish(prompt="bad"))
        with pytest.raises(InvalidInput, match="a recording is damaged"):
            await found(transcriber, media_from_bytes(recording(0.1).data[:30], "audio", "x"))
        assert transcriber.num_restarts == 0

    run(tmp_path, body)


def test_a_model_that_ends_every_process_is_named(tmp_path: Path):
    (tmp_path / "broken").touch()

    async def body(transcriber: Transcriber) -> None:
        with pytest.raises(BackendError, match="ends the process"):
            await transcriber.start()

    run(tmp_path, body)


def segment(start: float, end: float, said: str) -> Segment:
    return Segment(0, 0, start, end, said, [], 0.0, 0.0, 1.0, 0.0)


def test_subtitles_have_times_and_numbers():
    spoken = [segment(0.0, 1.2344, " Hello --> you."), segment(3661.9996, 3663.5, " Bye.")]
    made = Transcript(task="transcribe", language="en", duration_s=3670, segments=spoken)
    assert made.text == "Hello --> you. Bye."
    assert made.subtitles("srt") == (
        "1\n00:00:00,000 --> 00:00:01,234\nHello -> you.\n\n2\n01:01:02,000 --> 01:01:03,500\nBye.\n"
    )
    assert made.subtitles("vtt").startswith("WEBVTT\n\n00:00:00.000 --> 00:00:01.234\nHello -> you.\n\n01:01:02.000 ")

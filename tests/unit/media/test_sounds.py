"""Recordings of every format become samples; what is damaged, too long or odd is refused with the reason."""

from __future__ import annotations

import asyncio
import random
import struct
import sys

import numpy as np
import pytest

from stoker.core.media import Media
from stoker.core.sound_formats import sound_format
from stoker.errors import InvalidInput
from stoker.media.decoder import SoundDecoder
from stoker.media.wav import as_wav, wav_header
from stoker.text.media_parts import media_from_bytes
from tests.sound_files import RATE, encoded, tone, wav

pytest.importorskip("av")

from stoker.media.confined import FileRefused
from stoker.media.sounds import as_samples

FORMATS = [
    ("mp3", "mp3", RATE, 0.98),
    ("flac", "flac", RATE, 0.9999),
    ("ogg", "libopus", 48_000, 0.9),
    ("webm", "libopus", 48_000, 0.9),
    ("mp2", "mp2", RATE, 0.98),
]


def heard(data: bytes, rate: int = RATE, **bounds: float) -> np.ndarray:
    return np.frombuffer(as_samples(data, rate, **bounds), "<f4")


@pytest.mark.parametrize(("format", "codec", "rate", "likeness"), FORMATS)
def test_every_format_gives_the_same_sound(format: str, codec: str, rate: int, likeness: float):
    samples = tone(2.0, 300) * np.linspace(0, 1, 2 * RATE, dtype=np.float32)
    found = heard(encoded(samples, format, codec, rate))
    assert len(found) == pytest.approx(len(samples), abs=RATE // 10)
    middle = slice(RATE // 2, RATE)
    assert np.corrcoef(samples[middle], found[middle])[0, 1] > likeness


@pytest.mark.parametrize("format", ["ipod", "adts"])
def test_aac_is_read(format: str):
    found = heard(encoded(tone(1.0), format, "aac"))
    assert np.abs(np.fft.rfft(found[:RATE])).argmax() == pytest.approx(440, abs=3)


def test_rates_and_channels_are_converted():
    two = np.stack([tone(1.0, rate=44_100), -tone(1.0, rate=44_100)], axis=1)
    data = (two * 32767).astype("<i2").tobytes()
    about = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 2, 44_100, 4 * 44_100, 4, 16)
    head = struct.pack("<4sI4s", b"RIFF", 36 + len(data), b"WAVE") + about + struct.pack("<4sI", b"data", len(data))
    found = heard(head + data)
    assert len(found) == pytest.approx(RATE, abs=2)
    assert np.abs(found).max() < 0.01, "the channels cancel each other"
    assert len(heard(wav(1.0, rate=8_000), 24_000)) == pytest.approx(24_000, abs=20)


def wav_of_channels(num_channels: int) -> bytes:
    """A tone that all channels have."""
    data = (np.stack([tone(0.5)] * num_channels, axis=1) * 32767).astype("<i2").tobytes()
    frame = 2 * num_channels
    about = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, num_channels, RATE, frame * RATE, frame, 16)
    head = struct.pack("<4sI4s", b"RIFF", 36 + len(data), b"WAVE")
    return head + about + struct.pack("<4sI", b"data", len(data)) + data


@pytest.mark.parametrize("num_channels", range(1, 9))
def test_channels_that_are_alike_sound_as_loud_together_as_each(num_channels: int):
    assert np.abs(heard(wav_of_channels(num_channels)) - tone(0.5)).max() < 1e-3


def test_tags_may_stand_before_any_sound():
    tags = b"ID3\4\0\0\0\0\1\2" + bytes(130)
    assert sound_format(tags + b"fLaC") == "flac"
    assert sound_format(tags + b"\xff\xfb") == sound_format(tags) == "mp3"
    flac = encoded(tone(0.5), "flac", "flac")
    assert (heard(tags + flac) == heard(flac)).all()


def test_a_wav_file_comes_back_as_it_was_written():
    samples = tone(0.5)
    assert np.abs(heard(as_wav(samples.astype("<f4").tobytes(), RATE)) - samples).max() < 1e-4


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"RIFF\0\0\0\0WAVEfmt ", "is damaged or cut off: Invalid data found when processing input$"),
        (b"ID3" + bytes(100), "damaged|no sound"),
        (b"", "format"),
        (b"\x89PNG\r\n\x1a\n", "format"),
        (wav_header(0, RATE), "no sound"),
        (wav(0.005), "no sound in it, or less than 10 ms"),
        (wav_header(1, RATE) + b"\0\0", "no sound in it, or less than 10 ms"),
        (wav(0.1, rate=RATE)[:24] + struct.pack("<I", 1000) + wav(0.1)[28:], "1000 samples per second"),
        (wav(3.0), "is longer than"),
        (wav(0.5) + encoded(tone(3.0), "flac", "flac"), ""),
    ],
)
def test_what_cannot_be_used_is_refused_with_the_reason(data: bytes, reason: str):
    if reason:
        with pytest.raises(FileRefused, match=reason):
            heard(data, max_s=2.9)
    else:
        assert len(heard(data, max_s=2.9)) == RATE // 2, "what follows the file is not read"


def test_a_header_that_lies_about_its_length_does_not_get_past_the_bound():
    data = bytearray(encoded(tone(3.0), "flac", "flac"))
    data[21:26] = bytes([data[21] & 0xF0]) + bytes(4)  # FLAC's header: an unknown number of samples
    with pytest.raises(FileRefused, match="longer"):
        heard(bytes(data), max_s=1.0)


def test_damaged_files_are_refused_or_read_and_do_nothing_else():
    chosen = random.Random(20261123)
    for data in (wav(0.3), *(encoded(tone(0.3), *each[:3]) for each in FORMATS)):
        for _ in range(25):
            damaged = bytearray(data)
            for _ in range(chosen.choice([1, 4, 40])):
                damaged[chosen.randrange(min(len(damaged), chosen.choice([48, 1 << 20])))] = chosen.randrange(256)
            try:
                found = heard(bytes(damaged), max_s=5)
            except FileRefused:
                continue
            assert np.isfinite(found).all()


def test_names_of_formats_come_from_the_first_bytes():
    assert sound_format(b"\0\0\0\x18ftypM4A ") == "mov"
    assert sound_format(b"\0\0\0\x18ftypheic") is None, "an image"
    assert [sound_format(start) for start in (b"\xff\xfb", b"\xff\xfe", b"RIFF1234AVI ")] == ["mp3", None, None]
    with pytest.raises(InvalidInput, match="WAV, MP3"):
        media_from_bytes(b"\0\0\0\x18ftypheic", "audio", "x")


def recording(data: bytes) -> Media:
    return media_from_bytes(data, "audio", "x")


def test_a_process_decodes_each_file_once_and_names_what_is_wrong():
    async def main() -> None:
        decoder = SoundDecoder()
        samples = await decoder.samples(recording(wav(0.5)), RATE)
        assert np.abs(np.frombuffer(samples, "<f4") - tone(0.5)).max() < 1e-4
        assert len(await decoder.samples(recording(wav(0.5)), 8_000)) == pytest.approx(4 * 4_000, abs=80)
        await decoder.samples(recording(wav(0.5)), RATE)
        assert decoder.num_decoded == 2
        with pytest.raises(InvalidInput, match="a recording is damaged"):
            await decoder.samples(recording(wav(0.5)[:30]), RATE)

    asyncio.run(main())


def test_a_file_that_ends_the_process_is_refused_from_then_on():
    async def main() -> None:
        decoder = SoundDecoder((sys.executable, "-c", "import os, sys; sys.stdin.buffer.read(); os.abort()"))
        for _ in range(2):
            with pytest.raises(InvalidInput, match="ends the process"):
                await decoder.samples(recording(wav(0.5)), RATE)

    asyncio.run(main())

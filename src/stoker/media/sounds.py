"""Decodes an untrusted recording to plain samples, within bounds. It runs in a separate process, see `decoder`."""

from __future__ import annotations

import io
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from typing import Any, cast

import av
import numpy as np
from av.audio.codeccontext import AudioCodecContext
from av.audio.frame import AudioFrame
from av.audio.resampler import AudioResampler
from av.container import InputContainer
from av.error import FFmpegError
from numpy.typing import NDArray

from stoker.core.sound_formats import sound_format
from stoker.media.confined import FileRefused
from stoker.media.plain import MAX_S
from stoker.media.wav import wav_header

MIN_S = 0.01
"""Minimum length of a recording, in seconds. libmtmd crashes its process on a single sample."""
MAX_CHANNELS = 8
MIN_RATE, MAX_RATE = 4_000, 384_000
_CODECS = ("pcm_", "mp3", "mp2", "flac", "aac", "alac", "opus", "vorbis")
"""Prefixes of the names of supported codecs."""
_OPTIONS = {"protocol_whitelist": "none", "enable_drefs": "0"}
"""Options of FFmpeg that prevent a file from referring to other files or URLs."""
_BROKEN_TAGS: dict[str, Any] = {"metadata_errors": "ignore"} if int(av.__version__.partition(".")[0]) < 19 else {}
"""Accepts files with tags that are not UTF-8. PyAV 19 and later accept them without this option."""

_TRIAL_RATE = 8_000
_TRIAL = wav_header(_TRIAL_RATE, _TRIAL_RATE) + bytes(2 * _TRIAL_RATE)


def import_formats() -> None:
    """Imports modules that are otherwise imported when a file is read: the confined process cannot open files later."""
    as_samples(_TRIAL, 2 * _TRIAL_RATE)
    for damaged in (_TRIAL[:30], b"ID3"):
        with suppress(FileRefused):
            as_samples(damaged, _TRIAL_RATE)


def as_samples(data: bytes, rate: int, *, max_s: float = MAX_S) -> bytes:
    """The first audio track of a file, mixed to one channel: little-endian 4-byte floats between -1 and 1.

    Args:
        data: the file. Its first bytes decide its format.
        rate: sample rate of the result, in Hz.
        max_s: maximum length in seconds. A longer recording is refused, before decoding if its header has the length.

    Raises:
        FileRefused: the file is too long, damaged, empty, or in another format.
    """
    pieces: list[NDArray[np.float32]] = []
    num_samples = 0
    try:
        with _opened(data) as container:
            _check_length(container, max_s)
            for piece in _pieces(container, rate):
                pieces.append(piece)
                num_samples += len(piece)
                if num_samples > max_s * rate:
                    raise _too_long(max_s)
    except (FFmpegError, OSError, ValueError, OverflowError) as error:
        reason = error.strerror if isinstance(error, FFmpegError) else error
        raise FileRefused(f"is damaged or cut off: {reason}") from error
    except MemoryError as error:
        raise FileRefused("takes too much memory to decode") from error
    if num_samples < rate * MIN_S:
        raise FileRefused(f"has no sound in it, or less than {1000 * MIN_S:g} ms")
    return np.concatenate(pieces).astype("<f4").tobytes()


@contextmanager
def _opened(data: bytes) -> Generator[InputContainer]:
    """The opened file. Only the format that its first bytes indicate is tried."""
    name = sound_format(data)
    if name is None:
        raise FileRefused("is in a format that is not supported")
    with av.open(io.BytesIO(data), "r", format=name, options=_OPTIONS, **_BROKEN_TAGS) as container:
        yield container


def _pieces(container: InputContainer, rate: int) -> Iterator[NDArray[np.float32]]:
    stream = next(iter(container.streams.audio), None)
    if stream is None:
        raise FileRefused("has no sound in it")
    _check_codec(cast("AudioCodecContext | None", stream.codec_context))
    stream.codec_context.thread_count = 1
    # No mixing to one channel here: FFmpeg's mix can be louder than each channel, and is then clipped.
    resampler = AudioResampler(format="flt", rate=rate)
    for frame in container.decode(stream):
        _check_rate(frame.sample_rate, frame.layout.nb_channels)  # it may differ from the rate in the header
        frame.pts = None  # gaps and jumps in timestamps must not become silence
        yield from map(_plain, resampler.resample(frame))
    yield from map(_plain, resampler.resample(None))


def _plain(frame: AudioFrame) -> NDArray[np.float32]:
    """The samples of a frame as the mean of all channels, clipped to -1 … 1."""
    values = np.nan_to_num(frame.to_ndarray().astype(np.float32), posinf=1.0, neginf=-1.0)
    return values.reshape(-1, frame.layout.nb_channels).mean(axis=1, dtype=np.float32).clip(-1.0, 1.0)


def _check_length(container: InputContainer, max_s: float) -> None:
    if container.duration is not None and container.duration > max_s * av.time_base:
        raise _too_long(max_s)


def _check_codec(codec: AudioCodecContext | None) -> None:
    if codec is None:
        raise FileRefused("is encoded in a way that is not supported")
    if not codec.name.startswith(_CODECS):
        message = f"is encoded as {codec.name}, which is not supported: send PCM, MP3, AAC, FLAC, Opus or Vorbis"
        raise FileRefused(message)
    _check_rate(codec.sample_rate, codec.channels)


def _check_rate(rate: int, num_channels: int) -> None:
    if rate and not MIN_RATE <= rate <= MAX_RATE:
        raise FileRefused(f"has {rate} samples per second: a recording may have {MIN_RATE} to {MAX_RATE}")
    if num_channels > MAX_CHANNELS:
        raise FileRefused(f"has {num_channels} channels: a recording may have {MAX_CHANNELS}")


def _too_long(max_s: float) -> FileRefused:
    return FileRefused(f"is longer than {max_s / 60:g} minutes")

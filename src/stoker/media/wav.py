"""Converts samples to a WAV file."""

from __future__ import annotations

import struct

import numpy as np

_SCALE = 1 << 15


def wav_header(num_samples: int, rate: int) -> bytes:
    """The header of a WAV file with one channel of 16-bit samples. `rate` is in Hz."""
    size = 2 * num_samples
    about = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, rate, 2 * rate, 2, 16)
    return (
        struct.pack("<4sI4s", b"RIFF", 4 + len(about) + 8 + size, b"WAVE") + about + struct.pack("<4sI", b"data", size)
    )


def as_wav(samples: bytes, rate: int) -> bytes:
    """The content of a WAV file with one channel of 16-bit samples.

    Args:
        samples: 4-byte floats between -1 and 1.
        rate: samples per second.
    """
    whole = (np.frombuffer(samples, "<f4") * _SCALE).round().clip(-_SCALE, _SCALE - 1).astype("<i2")
    return wav_header(len(whole), rate) + whole.tobytes()

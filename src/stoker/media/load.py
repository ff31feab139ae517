"""What the processes for images and recordings do and have done, for metrics."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderLoad:
    """Counts since the start of the server, but for the first two."""

    num_queued: int
    """Parts of files that are being encoded, or wait for that."""
    kept_bytes: int
    """Size of the rows that are kept for later requests."""
    num_encoded: int
    """Parts of files that were encoded."""
    encode_s: float
    """Time that encoding took, in seconds."""
    num_hits: int
    """Parts of files whose rows were kept, or being encoded, when an engine asked for them."""
    num_crashes: int
    """How often the process ended while it encoded a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TranscriberLoad:
    """Counts since the start of the server, but for the first one."""

    num_open: int
    """Recordings that are being transcribed, or wait for that."""
    num_segments: int
    """Segments that were found."""
    heard_s: float
    """Length of the recordings up to the ends of these segments, in seconds."""
    compute_s: float
    """Time that the process has worked, in seconds."""
    num_crashes: int
    """How often the process ended while it worked on a recording."""

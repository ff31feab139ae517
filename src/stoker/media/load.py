"""Current load and totals of the processes that encode and transcribe media, for metrics."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderLoad:
    """Load of a `MediaEncoder`. The first two fields are current values, the others totals since the server's start."""

    num_queued: int
    """File parts that are being encoded, or wait for encoding."""
    kept_bytes: int
    """Size of the cached embeddings (rows)."""
    num_encoded: int
    """File parts that were encoded."""
    encode_s: float
    """Total duration of encoding, in seconds."""
    num_hits: int
    """Cache hits: file parts whose rows were cached, or already being encoded, when an engine requested them."""
    num_crashes: int
    """How often the process crashed while it encoded a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TranscriberLoad:
    """Load of a `Transcriber`. The first field is a current value, the others are totals since the server's start."""

    num_open: int
    """Recordings that are being transcribed, or wait for transcription."""
    num_segments: int
    """Segments that were transcribed."""
    heard_s: float
    """Length of audio that was transcribed, up to the end of the last segment of each recording, in seconds."""
    compute_s: float
    """Time that the process has worked on orders, in seconds."""
    num_crashes: int
    """How often the process crashed while it worked on a recording."""

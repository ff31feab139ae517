"""Small files that are replaced in one step: a reader, or the next start, finds the old content or the new one."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def write_whole(path: Path, content: bytes, *, time_ns: int | None = None) -> None:
    """Replaces a file; its folder is there.

    Args:
        path: of the file.
        content: all of it.
        time_ns: its time of change, in nanoseconds; None = now.

    Raises:
        OSError: the file cannot be written, and is as it was.
    """
    new = path.with_suffix(f".{os.getpid()}.new")
    try:
        new.write_bytes(content)
        if time_ns is not None:
            os.utime(new, ns=(time_ns, time_ns))
        os.replace(new, path)
    except OSError:
        with suppress(OSError):
            new.unlink()
        raise

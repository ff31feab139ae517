"""Replaces small files atomically: a reader finds the old or the new content, also after a crash of the process."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path


def write_whole(path: Path, content: bytes, *, time_ns: int | None = None) -> None:
    """Replaces a file atomically, or creates it. Its folder must exist.

    Args:
        path: path of the file.
        content: the whole content.
        time_ns: time of change of the file, as Unix time in nanoseconds; None = now.

    Raises:
        OSError: the file cannot be written; its old content is unchanged.
    """
    new = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        new.write_bytes(content)
        if time_ns is not None:
            os.utime(new, ns=(time_ns, time_ns))
        os.replace(new, path)
    except BaseException:
        with suppress(OSError):
            new.unlink()
        raise

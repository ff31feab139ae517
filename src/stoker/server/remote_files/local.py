"""Reads files of a folder of this machine that clients name by `file://` URLs (`--media-path`).

Each part of the path is opened below the one before it and never through a symbolic link, so no name leads out of the
folder, even if the folder changes in the meantime. All failures give the same error, so that clients cannot
learn which other files exist.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path, PurePosixPath
from urllib.parse import unquote

from stoker.errors import ConfigError, InvalidInput

_SCHEME = "file://"
_MAX_URL = 8192
_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0)
_FILE = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)


def check_folder(folder: str) -> None:
    """Checks the value of `media_path`; empty = clients may name no files.

    Raises:
        ConfigError: it is not a directory, or this system cannot open files below a directory.
    """
    if folder and not Path(folder).is_dir():
        raise ConfigError(f"--media-path: {folder} is not a directory", key="media_path")
    if folder and os.open not in os.supports_dir_fd:
        raise ConfigError("--media-path is not available on this system", key="media_path")


def is_local(url: str) -> bool:
    """Whether a URL names a file of this machine."""
    return url[: len(_SCHEME)].lower() == _SCHEME


def read_file(url: str, folder: str, max_bytes: int, where: str) -> bytes:
    """The content of a file. Blocks, so call it on a separate thread.

    Args:
        url: `file://` with a path that is relative to the folder, or absolute and below it.
        folder: the folder that clients may read.
        max_bytes: maximum size of the file, in bytes.
        where: path of the URL in the request, for the error.

    Raises:
        InvalidInput: there is no such file in the folder, or it cannot be read or is too large.
    """
    try:
        return _read(_names(url, folder), folder, max_bytes)
    except (OSError, ValueError):
        message = f"`{where}`: the folder for local files (--media-path) has no such file of at most {max_bytes} bytes"
        raise InvalidInput(message, parameter=where) from None


def _names(url: str, folder: str) -> tuple[str, ...]:
    """The names from the folder down to the file."""
    path = PurePosixPath(unquote(url[len(_SCHEME) :]))
    if path.is_absolute():
        path = path.relative_to(os.path.abspath(folder))
    if len(url) > _MAX_URL or not path.parts or ".." in path.parts:
        raise ValueError
    return path.parts


def _read(names: tuple[str, ...], folder: str, max_bytes: int) -> bytes:
    place = os.open(os.path.realpath(folder), _FOLDER)
    try:
        for name in names[:-1]:
            below = os.open(name, _FOLDER, dir_fd=place)
            os.close(place)
            place = below
        file = os.open(names[-1], _FILE, dir_fd=place)
    finally:
        os.close(place)
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise ValueError
        with open(file, "rb", closefd=False) as opened:
            data = opened.read(max_bytes + 1)
    finally:
        os.close(file)
    if len(data) > max_bytes:
        raise ValueError
    return data

"""A folder that is filled as a whole or not at all: files come into it under their names when all of them are done."""

from __future__ import annotations

import errno
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from stoker.errors import InvalidInput, ResourceExhausted
from stoker.export.model_file import MODEL_NAME

_UNFINISHED = ".export-"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def filled_folder(folder: Path, *, force: bool) -> Generator[Path]:
    """A folder to write to, whose files are moved into `folder` at the end if nothing was raised.

    `model.onnx` goes last, and an old one first: so whenever it is there, everything else belongs to it.

    Args:
        folder: where the files shall lie; made if it is missing.
        force: other files may be there already; those of the same names are replaced.

    Raises:
        InvalidInput: there is something else, or it cannot be written to.
        ResourceExhausted: the disk is full.
    """
    made = [parent for parent in (folder, *folder.parents) if not parent.exists()]
    try:
        _check_free(folder, force=force)
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=_UNFINISHED, dir=folder) as unfinished:
            yield Path(unfinished)
            _move_all(Path(unfinished), folder)
            made = []
    except OSError as error:
        if error.errno in _FULL:
            raise ResourceExhausted(
                f"the disk of {folder} is full; nothing was left there", path=str(folder)
            ) from error
        raise InvalidInput(f"{folder} cannot be written: {error}", parameter="folder") from error
    finally:
        for empty in made:
            if empty.is_dir() and not any(empty.iterdir()):
                empty.rmdir()


def _check_free(folder: Path, *, force: bool) -> None:
    if not folder.exists():
        return
    if not folder.is_dir():
        raise InvalidInput(f"{folder} is a file, not a folder", parameter="folder")
    if force or all(entry.name.startswith(_UNFINISHED) for entry in folder.iterdir()):
        return
    raise InvalidInput(f"{folder} is not empty; name another folder, or add --force", parameter="folder")


def _move_all(unfinished: Path, folder: Path) -> None:
    (folder / MODEL_NAME).unlink(missing_ok=True)
    for path in sorted(unfinished.iterdir(), key=lambda path: path.name == MODEL_NAME):
        os.replace(path, folder / path.name)

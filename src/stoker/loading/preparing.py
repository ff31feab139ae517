"""Makes the tokenizer of a model before the model is to be opened. For a small model that is half of the loading time.

One tokenizer is kept, on the main thread, until the next GGUF model is opened.
"""

from __future__ import annotations

from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from stoker.backends.cores import usable_cores
from stoker.engine.config import EngineConfig
from stoker.errors import StokerError
from stoker.lazy import lazy_module
from stoker.models.cache import packed_dir
from stoker.models.gguf import part_paths, read_gguf

if TYPE_CHECKING:
    from stoker.backends import native as kernels
    from stoker.loading import choosing, gguf, native
    from stoker.models.progress import Progress
    from stoker.text.vocabulary import VocabularyTokenizer
else:
    # `gguf`, which the others import, takes what is prepared here.
    kernels = lazy_module("stoker.backends.native")
    choosing = lazy_module("stoker.loading.choosing")
    gguf = lazy_module("stoker.loading.gguf")
    native = lazy_module("stoker.loading.native")

_Version: TypeAlias = tuple[int, int, int, int]
"""Differs between files, and between two states of one file."""
_prepared: tuple[_Version, VocabularyTokenizer] | None = None


def prepare_gguf(path: Path) -> None:
    """Makes the tokenizer if the native executor runs the model. Errors are left to the loading of the model."""
    global _prepared
    with suppress(StokerError, OSError), ExitStack() as opened:
        version = _version(path)
        files = [opened.enter_context(read_gguf(part)) for part in part_paths(path)]
        native.check_native(files)
        _prepared = version, native.read_tokenizer(files[0])


def pack_gguf(path: Path, progress: Progress) -> bool:
    """Packs the weights of a model that the native executor would run here, so that the first start finds them packed.

    Args:
        path: the (first) file.
        progress: told how far it is.

    Returns:
        Whether they are packed. Why a model cannot be, its loading says better.
    """
    with ExitStack() as opened, suppress(StokerError, OSError):
        loader, _ = opened.enter_context(choosing.chosen(EngineConfig(model_path=str(path)), loads_libllama=False))
        if loader.name != "native":
            return False
        files = [opened.enter_context(read_gguf(part)) for part in part_paths(path)]
        packing = opened.enter_context(gguf.part_progress(progress, "packing the weights"))
        return kernels.pack_weights(files, directory=packed_dir(), threads=usable_cores(), progress=packing)
    return False


def take_prepared(path: Path) -> VocabularyTokenizer | None:
    """The tokenizer that was prepared, if the file is unchanged since. No tokenizer is kept afterwards."""
    global _prepared
    prepared, _prepared = _prepared, None
    with suppress(OSError):
        return prepared[1] if prepared is not None and prepared[0] == _version(path) else None
    return None


def _version(path: Path) -> _Version:
    found = path.stat()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns

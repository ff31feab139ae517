"""Creates the tokenizer of a model in advance, and packs weights in advance. It does not load the model.

The tokenizer takes half of the loading time of a small model. One tokenizer is kept until a GGUF model is opened; only
the main thread uses it.
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
    # Lazy, because `gguf`, which these modules import, imports this module.
    kernels = lazy_module("stoker.backends.native")
    choosing = lazy_module("stoker.loading.choosing")
    gguf = lazy_module("stoker.loading.gguf")
    native = lazy_module("stoker.loading.native")

_Version: TypeAlias = tuple[int, int, int, int]
"""Device, inode, size and modification time: differs between files, and between two states of one file."""
_prepared: tuple[_Version, VocabularyTokenizer] | None = None


def prepare_gguf(path: Path) -> None:
    """Creates the tokenizer if the native executor runs the model. Errors are left to the loading of the model."""
    global _prepared
    with suppress(StokerError, OSError), ExitStack() as opened:
        version = _version(path)
        files = [opened.enter_context(read_gguf(part)) for part in part_paths(path)]
        native.check_native(files)
        _prepared = version, native.read_tokenizer(files[0])


def pack_gguf(path: Path, progress: Progress) -> bool:
    """Packs the weights of a model for the native executor, so that the first start finds them packed.

    Args:
        path: the (first) file.
        progress: receives the number of packed bytes.

    Returns:
        Whether the weights are packed. False: another backend runs the model, loading it will report an error, or
            the log says why.
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
    """The tokenizer that was prepared for this file, if the file is unchanged since; no tokenizer is kept afterward."""
    global _prepared
    prepared, _prepared = _prepared, None
    with suppress(OSError):
        return prepared[1] if prepared is not None and prepared[0] == _version(path) else None
    return None


def _version(path: Path) -> _Version:
    found = path.stat()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns

"""Files of a repository on the hub, in the cache: which make up a model, and bringing those that are missing."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from stoker.errors import ConfigError, ModelFileNotFound
from stoker.lazy import lazy_module
from stoker.models.cache import is_whole, models_dir, writing
from stoker.models.catalog import HUB_PREFIX, HubFile
from stoker.models.onnx_hub import onnx_parts, parts_note
from stoker.models.progress import Progress

if TYPE_CHECKING:
    from stoker.models import download, hub
else:
    # Only a download needs the hub's client, which takes longer to import than all else here.
    download = lazy_module("stoker.models.download")
    hub = lazy_module("stoker.models.hub")

_LIST_S = 10.0
_MAX_NAME_BYTES = 200
_FOLDER_NOTE = ".parts-of-the-folder"
_WEIGHTS = ".safetensors"
_TEXTS = (".json", ".jinja", ".txt", ".model")
"""Endings of what stands beside the weights of a folder: configurations, templates, vocabularies."""
_OTHER_WEIGHTS = ("consolidated", "adapter_model")
"""How files begin that have the same weights in another form, or weights that are no model."""


def repo_dir(repo: str) -> Path:
    """Where the files of a repository lie."""
    return models_dir() / "hf" / repo


def is_safe(file: str) -> bool:
    """A relative path that stays inside, hides nothing, and leaves room in its names for what lies beside it."""
    parts = file.split("/")
    is_short = max(len(part.encode(errors="replace")) for part in parts) <= _MAX_NAME_BYTES
    return is_short and "\\" not in file and "\0" not in file and not any(part[:1] in ("", ".") for part in parts)


def read_note(note: Path) -> str:
    """What was noted; nothing if it cannot be read: then the hub is asked again."""
    try:
        return note.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


def list_safe_files(repo: str) -> list[str]:
    """Names of the files of a repository, asked of the hub.

    Raises:
        ConfigError: `HF_ENDPOINT` is no URL.
        DownloadFailed: the hub does not answer, or knows no such repository.
    """
    check_hub_address()
    return [file for file in hub.list_files(repo, within_s=_LIST_S) if is_safe(file)]


def bring_file(repo: str, file: str, model: str, progress: Progress) -> Path:
    """One file, downloaded unless it is here.

    Args:
        repo: `org/name`.
        file: from the repository's root.
        model: the name of the model that it belongs to.
        progress: told about the download.

    Raises:
        DownloadFailed: the hub does not give it.
        ResourceExhausted: the disk is full.
    """
    path = repo_dir(repo) / file
    if not is_whole(path):
        check_hub_address()
        target = download.Target(path=path, model=model, sources=(HubFile(repo, file),))
        download.download(target, progress)
    return path


def bring_onnx(repo: str, graph: str, progress: Progress) -> Path:
    """A graph with everything that belongs to it; the hub is asked what that is once."""
    path = repo_dir(repo) / graph
    _bring_parts(
        repo, f"{HUB_PREFIX}{repo}:{graph}", parts_note(path), lambda files: onnx_parts(files, graph), progress
    )
    return path


def bring_folder(repo: str, progress: Progress) -> Path:
    """A whole model as Hugging Face's libraries save it: its safetensors, and the texts beside them.

    Raises:
        ModelFileNotFound: the repository has no safetensors in its root.
        DownloadFailed: the hub does not answer, or knows no such repository.
        ResourceExhausted: the disk is full.
    """
    folder = repo_dir(repo)
    _bring_parts(repo, HUB_PREFIX + repo, folder / _FOLDER_NOTE, lambda files: _folder_parts(repo, files), progress)
    return folder


def check_hub_address() -> None:
    """The hub's client would break on such an address as soon as it is imported, and not say why."""
    address = os.environ.get("HF_ENDPOINT") or ""
    try:
        _ = urlsplit(address).port
    except ValueError as error:
        raise ConfigError(
            f"environment variable HF_ENDPOINT: {address!r} is not a URL ({error})", key="HF_ENDPOINT"
        ) from error


def _bring_parts(
    repo: str, model: str, note: Path, choose: Callable[[Sequence[str]], list[str]], progress: Progress
) -> None:
    """All files that `choose` takes of the repository. What it took is noted, so that the hub is asked once."""
    parts = read_note(note).splitlines()
    if parts and all(is_safe(part) and is_whole(repo_dir(repo) / part) for part in parts):
        return
    parts = choose(list_safe_files(repo))
    for part in parts:
        bring_file(repo, part, model, progress)
    with writing(note, None):
        note.write_text("\n".join(parts), encoding="utf-8")


def _folder_parts(repo: str, files: Sequence[str]) -> list[str]:
    """Small files come first: a folder without a configuration is then refused before its weights are here."""
    own = [file for file in files if "/" not in file or PurePosixPath(file).parent.name == "1_Pooling"]
    weights = [file for file in own if file.endswith(_WEIGHTS) and not file.startswith(_OTHER_WEIGHTS)]
    if not weights:
        raise ModelFileNotFound(f"{HUB_PREFIX}{repo} has no safetensors, which vLLM needs", path=repo)
    return [*sorted(file for file in own if file.endswith(_TEXTS)), *sorted(weights)]

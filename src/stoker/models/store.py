"""From whatever a user calls a model to a file on this disk. It opens no model."""

from __future__ import annotations

import difflib
import logging
import os
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING

from stoker.errors import DownloadFailed, ModelFileInvalid, ModelFileNotFound
from stoker.lazy import lazy_module
from stoker.models.aliases import read_aliases
from stoker.models.cache import is_whole, models_dir, read_receipt, writing
from stoker.models.catalog import CATALOG, HUB_PREFIX, CatalogEntry
from stoker.models.gguf import models_in, part_paths
from stoker.models.hub_choice import choose_file
from stoker.models.library import known_model, library
from stoker.models.naming import HUB_NAME, LATEST, own_name
from stoker.models.onnx_folder import is_onnx_model
from stoker.models.onnx_hub import is_graph
from stoker.models.presets import read_presets
from stoker.models.progress import NoProgress, Progress
from stoker.models.repository import (
    bring_file,
    bring_folder,
    bring_onnx,
    check_hub_address,
    is_safe,
    list_safe_files,
    read_note,
    repo_dir,
)
from stoker.models.whisper_folder import is_whisper_folder

if TYPE_CHECKING:
    from stoker.models import download
else:
    # Only a download needs the hub's client, which takes longer to import than all else here.
    download = lazy_module("stoker.models.download")

__all__ = ["InstalledModel", "downloaded_parts", "list_models", "resolve", "resolve_folder", "size_of_all"]

logger = logging.getLogger(__name__)

_HUB_SITES = re.compile(r"(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co)/", re.IGNORECASE)
_HUB_PAGE = re.compile(r"([^/]+/[^/]+)/(?:blob|resolve|tree)/[^/]+(?:/([^?]+))?(?:\?.*)?")
"""Where the address of a page names a file: behind the repository and a revision."""
_CHOICE_NOTE = ".choice-"
"""Files of this name remember what a repository stands for when no file, or only a quantization, is named."""
_RECEIPT_ENDINGS = (".gguf.json", ".onnx.json")
_MAX_LISTED = 20


@dataclass(frozen=True, slots=True)
class InstalledModel:
    """A model in the cache; of a split one, `path` is the first part and `size_bytes` that of all."""

    name: str
    """What `resolve` takes for it."""
    path: Path
    size_bytes: int


def resolve(model: str, *, progress: Progress | None = None) -> Path:
    """The file of a model, downloaded first if necessary.

    Args:
        model: a name of the catalog (`smollm2`), a well-known one (`qwen3:4b`), an alias, a path to a file, to a folder
            with one GGUF model or to an ONNX folder, `hf:org/repo:file`, `hf:org/repo:Q8_0` (the file of that
            quantization, `q4f16` for an ONNX graph) or `hf:org/repo` (Q4_K_M if there is one, else the only
            file, or the graph that suits a CPU best). Instead of `hf:` there may be `hf.co/`, the address of the
            repository or of a file in it, or nothing at all.
        progress: told about every download.

    Returns:
        An existing file, or the folder of an ONNX model; of a split model the first part, with all others beside it.
        It need not be a valid model.

    Raises:
        ModelFileNotFound: there is no such file and no such name, or a folder has no model or several; the message says
            what was tried or found.
        ModelFileInvalid: the path is that of a pipe, a socket or a device.
        ConfigError: `HF_ENDPOINT` is no URL, and something must be downloaded.
        DownloadFailed: every source failed; the message lists each with its reason.
        ResourceExhausted: the disk is full.
    """
    progress = progress or NoProgress()
    if not os.path.exists(model):
        model = _plain_name(model)
    hub_name = _hub_name(model)
    if hub_name is not None:
        return _resolve_hub(hub_name, progress)
    entry = CATALOG.get(model)
    if entry is not None:
        return _resolve_entry(entry, progress)
    known = None if os.path.exists(model) else known_model(model)
    if known is not None:
        return _resolve_hub(known.source, progress)
    return _resolve_bare(model, progress) if _may_be_repository(model) else _resolve_path(model)


def resolve_folder(model: str, *, progress: Progress | None = None) -> Path:
    """The folder of a model as Hugging Face's libraries save it, downloaded first if necessary.

    Args:
        model: the path of a folder, or a repository of the hub: `org/repo`, `hf:org/repo` or its address.
        progress: told about every download.

    Returns:
        A path. Where it does not look like a repository, nothing need be there.

    Raises:
        ModelFileNotFound: the repository has no safetensors, or one file of it is named.
        ConfigError: `HF_ENDPOINT` is no URL, and something must be downloaded.
        DownloadFailed: the hub does not give it.
        ResourceExhausted: the disk is full.
    """
    name = model if os.path.exists(model) else _plain_name(model)
    hub_name = _hub_name(name) or (HUB_PREFIX + name if _may_be_repository(name) else None)
    if hub_name is None:
        return Path(os.path.expanduser(name))
    match = HUB_NAME.fullmatch(hub_name.removeprefix(HUB_PREFIX))
    if match is None or match["file"] is not None or not is_safe(match["repo"]):
        message = f"{model!r} should look like org/repo: vLLM uses all safetensors of a repository"
        raise ModelFileNotFound(message, path=model)
    return bring_folder(match["repo"], progress or NoProgress())


_PATHS = ("/", "./", "../", "~")
"""How a name begins that can only be a path."""


def lasting_name(model: str) -> str:
    """How a model is named where it is looked up later, in any folder: a path becomes absolute. Nothing is downloaded.

    Raises:
        ModelFileNotFound: there is no such file and no such name.
    """
    name = own_name(model)
    if name in CATALOG:
        return name
    path = os.path.expanduser(model)
    if os.path.exists(path):
        return os.path.abspath(path)
    plain = _plain_name(name)
    if not (plain in CATALOG or known_model(plain) or _hub_name(plain) or _may_be_repository(plain)):
        _resolve_path(plain)
    return name


def _plain_name(model: str) -> str:
    """What an alias or a preset stands for; `:latest`, which Ollama's users write, is no part of a name here."""
    plain = model.removesuffix(LATEST)
    preset = read_presets().get(plain)
    if preset is not None:
        return preset.model
    aliases = read_aliases()
    return aliases.get(model) or aliases.get(plain, plain)


def _hub_name(model: str) -> str | None:
    """What clearly means the hub, as `hf:org/repo[:file]`."""
    site = None if os.path.exists(model) else _HUB_SITES.match(model)
    if site is None:
        return model if model.startswith(HUB_PREFIX) else None
    rest = model[site.end() :].rstrip("/")
    page = _HUB_PAGE.fullmatch(rest)
    if page is not None:
        rest = page[1] if page[2] is None else f"{page[1]}:{page[2]}"
    return HUB_PREFIX + rest


def _may_be_repository(model: str) -> bool:
    """`org/repo[:file]` that is no path: there is no such file, nor a folder for it."""
    match = HUB_NAME.fullmatch(model)
    return (
        match is not None
        and not os.path.exists(model)
        and not match["repo"].lower().endswith((".gguf", ".onnx"))
        and not os.path.isdir(match["repo"].partition("/")[0])
    )


def _resolve_bare(model: str, progress: Progress) -> Path:
    try:
        return _resolve_hub(HUB_PREFIX + model, progress)
    except (DownloadFailed, ModelFileNotFound) as error:
        if ":" in model:
            raise
        raise type(error)(f"there is no file {model}, and {error.message}", **error.fields) from error


def list_models() -> list[InstalledModel]:
    """All whole models in the cache, by name."""
    found: list[InstalledModel] = []
    for receipt_file in sorted(_receipts()):
        path = receipt_file.with_suffix("")
        receipt, parts = read_receipt(path), downloaded_parts(path)
        size_bytes = size_of_all(parts) if path == parts[0] else None
        if receipt is not None and size_bytes is not None:
            found.append(InstalledModel(receipt.model, path, size_bytes))
    return sorted(found, key=lambda model: model.name)


def size_of_all(parts: Sequence[Path]) -> int | None:
    """The bytes of the files of a model; None: one is missing, which may be so from one moment to the next."""
    try:
        found = [part.stat() for part in parts]
    except OSError:
        return None
    return sum(status.st_size for status in found) if all(stat.S_ISREG(status.st_mode) for status in found) else None


def _receipts() -> Iterator[Path]:
    for folder, _, names in os.walk(models_dir(), onerror=_warn_unreadable):
        yield from (Path(folder, name) for name in names if name.endswith(_RECEIPT_ENDINGS))


def _warn_unreadable(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        logger.warning("models in %s are not listed: %s", error.filename, error.strerror)


def downloaded_parts(path: Path) -> list[Path]:
    """The files with the weights of a model in the cache, of which `path` is the first."""
    if not is_graph(path.name):
        return list(part_paths(path))
    data = (file for file in path.parent.glob(f"{escape(path.name)}[._]data*") if file.suffix != ".json")
    return [path, *sorted(data)]


def _resolve_entry(entry: CatalogEntry, progress: Progress) -> Path:
    path = models_dir() / "catalog" / entry.name / entry.file_name
    if not is_whole(path, entry.sha256):
        check_hub_address()
        download.download(
            download.Target(
                path=path,
                model=entry.name,
                sources=entry.sources,
                sha256=entry.sha256,
                size_bytes=entry.size_bytes,
            ),
            progress,
        )
    return path


def _resolve_hub(model: str, progress: Progress) -> Path:
    match = HUB_NAME.fullmatch(model.removeprefix(HUB_PREFIX))
    if match is None:
        raise ModelFileNotFound(f"{model!r} should look like hf:org/repo, or hf:org/repo:file.gguf", path=model)
    repo, file = match["repo"], match["file"]
    file = None if file == "latest" else file  # as Ollama's clients say it
    if not is_safe(repo) or (file is not None and not is_safe(file)):
        raise ModelFileNotFound(f"{model!r} names no file inside a repository", path=model)
    if file is None or not file.lower().endswith(".gguf"):
        file = _chosen_file(repo, file)
    if is_graph(file):
        return bring_onnx(repo, file, progress)
    names = [part.as_posix() for part in part_paths(Path(file))]
    paths = [bring_file(repo, name, f"{HUB_PREFIX}{repo}:{names[0]}", progress) for name in names]
    return paths[0]


def _chosen_file(repo: str, quantization: str | None) -> str:
    """The file that a repository stands for; asked of the hub once, then remembered as long as it is here."""
    note = repo_dir(repo) / f"{_CHOICE_NOTE}{quantization or ''}"
    remembered = read_note(note)
    if remembered and is_safe(remembered) and is_whole(repo_dir(repo) / remembered):
        return remembered
    chosen = choose_file(repo, list_safe_files(repo), quantization)
    with writing(note, len(chosen)):
        note.parent.mkdir(parents=True, exist_ok=True)
        note.write_text(chosen, encoding="utf-8")
    return chosen


def _resolve_path(model: str) -> Path:
    # os.path, because pathlib raises for what cannot be a path at all.
    name = os.path.expanduser(model)
    _check_reachable(name, model)
    path = Path(name)
    if is_onnx_model(path) or is_whisper_folder(path):
        return path
    if path.is_dir():
        return _resolve_path(str(_only_model(path, model)))
    if not path.is_file():
        raise ModelFileInvalid(f"{model} is not a regular file, and a model cannot be mapped from a pipe or device")
    parts = part_paths(path)
    missing = [part.name for part in parts if not part.is_file()]
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        are = "are" if len(missing) > 1 else "is"
        raise ModelFileNotFound(
            f"{model} is one part of a split model, and {', '.join(missing[:3])}{more} {are} missing", path=model
        )
    return parts[0]


def _check_reachable(name: str, model: str) -> None:
    try:
        os.stat(name)
    except PermissionError:
        complaint = f"{model} cannot be reached: no permission for a folder on its path"
        raise ModelFileNotFound(complaint, path=model) from None
    except (OSError, ValueError):
        raise ModelFileNotFound(_unknown(model), path=model) from None


def _only_model(folder: Path, model: str) -> Path:
    found = models_in(folder)
    if len(found) == 1:
        return found[0]
    raise ModelFileNotFound(_several(found, model) if found else _nothing_in(folder, model), path=model)


def _several(found: Sequence[Path], model: str) -> str:
    more = f" and {len(found) - _MAX_LISTED} more" if len(found) > _MAX_LISTED else ""
    names = ", ".join(path.name for path in found[:_MAX_LISTED])
    return f"{model} is a folder with {len(found)} models; name one of its files: {names}{more}"


def _nothing_in(path: Path, model: str) -> str:
    if not os.access(path, os.R_OK | os.X_OK):
        return f"{model} is a folder without read permission"
    if any(path.glob("*.safetensors")):
        return (
            f"{model} holds a model as safetensors; get it as GGUF, convert it with llama.cpp's "
            f"convert_hf_to_gguf.py, or serve it with vLLM (`stoker serve {model} --runtime vllm`)"
        )
    projectors = "; projectors (mmproj) are no models" if any(path.glob("*mmproj*.gguf")) else ""
    return f"{model} is a folder without a GGUF file or an ONNX model (its subfolders are not searched){projectors}"


def _unknown(model: str) -> str:
    if not model:
        return "the name of the model is empty"
    path = _absolute(os.path.expanduser(model))
    if model.startswith(_PATHS) or model.lower().endswith((".gguf", ".onnx")):
        return f"no model {model!r}: there is no file or folder {path}"
    names = [*CATALOG, *(name for entry in library().values() for name in entry.names)]
    near = difflib.get_close_matches(model.lower(), names, n=3)
    hint = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
    return (
        f"no model {model!r}: there is no such file (looked for {path}), and it is "
        f"neither a known name (see `stoker models --all`) nor org/repo[:file] of the hub.{hint}"
    )


def _absolute(path: str) -> str:
    try:
        return os.path.abspath(path)
    except OSError:  # the working directory was removed
        return path

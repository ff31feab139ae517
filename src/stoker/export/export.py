"""Exports a GGUF model as a folder with the same model in ONNX, its tokenizer and its configuration files."""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from stoker import __version__
from stoker.backends.native.architectures import describe_decoder
from stoker.backends.native.file import ModelParts
from stoker.backends.native.needs import plan_model
from stoker.errors import InvalidInput, ModelUnsupported, ResourceExhausted, reason_of
from stoker.export.configs import (
    Facts,
    check_described,
    config_json,
    genai_config_json,
    generation_config_json,
    special_tokens_map_json,
    tokenizer_config_json,
)
from stoker.export.decoder import build_decoder
from stoker.export.graph import Graph
from stoker.export.matrices import BlockMatrix, FloatMatrix, Matrices
from stoker.export.model_file import MODEL_NAME, num_bytes_of, write_model
from stoker.export.options import ExportOptions
from stoker.export.tokenizer_json import JSON, tokenizer_json
from stoker.models.gguf import GGUFFile, part_paths, read_gguf
from stoker.models.model_defaults import model_defaults
from stoker.models.progress import NoProgress, Progress
from stoker.models.vocabulary import read_vocabulary
from stoker.text.vocabulary import build_tokenizer

_TEMPLATE = "tokenizer.chat_template"
_MAX_CONTEXT = 1 << 24
"""Maximum context size, in tokens: far above every model. It bounds the rotation tables, which are in the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenAs:
    """How the matrices of one type were written."""

    type: str
    """GGML's name of the type."""
    form: str
    """The form of the matrices in the export, in words."""
    count: int
    relative_error: float
    """Root mean square of the rounding errors, divided by the root mean square of the weights; 0 = exact."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportReport:
    """What an export has written."""

    folder: Path
    context_size: int
    """Maximum length of a sequence, in tokens."""
    num_bytes: int
    """Size of all files together."""
    matrices: tuple[WrittenAs, ...]


def export_model(
    path: Path,
    folder: Path,
    options: ExportOptions | None = None,
    *,
    force: bool = False,
    progress: Progress | None = None,
) -> ExportReport:
    """Writes a model as a folder that ONNX Runtime, optimum, transformers.js and onnxruntime-genai can read.

    Args:
        path: a GGUF file; of a split model the first part.
        folder: the folder to write; it is created if missing.
        options: how to write the model. None = the defaults.
        force: whether the folder may contain files; those of the same names are replaced.
        progress: receives the number of bytes written; it is closed at the end.

    Raises:
        ModelUnsupported: the architecture, or something in the model, cannot be exported.
        ModelFileInvalid: the model contradicts itself.
        ModelFileNotFound: the file, or a part of the model, does not exist.
        InvalidInput: the folder is not empty or cannot be written, or an option makes no sense.
        ResourceExhausted: the disk is full. The folder is left as it was.
    """
    options, progress = options or ExportOptions(), progress or NoProgress()
    # The garbage collector closes the files: while an error propagates, its traceback still holds views into them.
    files = [read_gguf(part) for part in part_paths(path)]
    facts, matrices, graph = _read(files, options)
    with closing(progress), filled_folder(folder, force=force) as target:
        progress.start(num_bytes_of(graph), f"writing {folder.name}")
        write_model(graph, target, name=path.stem, producer=("stoker", __version__), advance=progress.advance)
        for name, content in _texts(facts).items():
            (target / name).write_bytes(content)
        num_bytes = sum(entry.stat().st_size for entry in target.iterdir())
    return ExportReport(
        folder=folder, context_size=facts.context_size, num_bytes=num_bytes, matrices=_summary(matrices)
    )


def _read(files: Sequence[GGUFFile], options: ExportOptions) -> tuple[Facts, Matrices, Graph]:
    """Reads the model and builds its graph. A model is refused here if possible, before the folder is touched."""
    first, parts = files[0], ModelParts(files)
    try:
        plan_model(files, context_size=1)
        facts, matrices = _facts(first, parts, options), Matrices(parts, options.weights)
        check_described(facts.spec)
        return facts, matrices, build_decoder(facts.spec, matrices, options, facts.context_size)
    except ModelUnsupported as error:
        raise ModelUnsupported(f"{first.path} cannot be exported: {error.message}", **error.fields) from error


def _facts(first: GGUFFile, parts: ModelParts, options: ExportOptions) -> Facts:
    context_size = options.context_size
    if context_size is None:
        context_size = first.require_int(first.own_key("context_length"))
    if not 1 <= context_size <= _MAX_CONTEXT:
        raise InvalidInput(f"a context of {context_size} tokens is not possible", parameter="ctx_size")
    vocabulary = read_vocabulary(first)
    return Facts(
        spec=describe_decoder(parts, context_size),
        options=options,
        context_size=context_size,
        vocabulary=vocabulary,
        special=build_tokenizer(vocabulary).special,
        chat_template=first.get_str(_TEMPLATE) or None,
        sampling=model_defaults(first),
        rope_base=first.get_float(first.own_key("rope.freq_base")) or 10000.0,
    )


def _texts(facts: Facts) -> Mapping[str, bytes]:
    found: dict[str, JSON] = {
        "config.json": config_json(facts),
        "generation_config.json": generation_config_json(facts),
        "genai_config.json": genai_config_json(facts),
        "tokenizer.json": tokenizer_json(facts.vocabulary, facts.special),
        "tokenizer_config.json": tokenizer_config_json(facts),
        "special_tokens_map.json": special_tokens_map_json(facts),
    }
    texts = {name: msgspec.json.format(msgspec.json.encode(content), indent=2) for name, content in found.items()}
    template = {} if facts.chat_template is None else {"chat_template.jinja": facts.chat_template.encode()}
    return texts | template


def _summary(matrices: Matrices) -> tuple[WrittenAs, ...]:
    groups: dict[tuple[str, str], list[BlockMatrix | FloatMatrix]] = {}
    for matrix in matrices.chosen.values():
        groups.setdefault((matrix.rows.type, matrix.form), []).append(matrix)
    counts = Counter({key: sum(len(matrix.rows.linears) for matrix in group) for key, group in groups.items()})
    return tuple(
        WrittenAs(type=key[0], form=key[1], count=count, relative_error=_error(groups[key]))
        for key, count in counts.most_common()
    )


def _error(matrices: Sequence[BlockMatrix | FloatMatrix]) -> float:
    errors = [matrix.error for matrix in matrices if matrix.error is not None]
    squares = sum(error.squares for error in errors)
    return (sum(error.squared_errors for error in errors) / squares) ** 0.5 if squares else 0.0


_UNFINISHED = ".export-"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def filled_folder(folder: Path, *, force: bool) -> Generator[Path]:
    """Yields a temporary folder to write to. Its files are moved into `folder` at the end, unless an error is raised.

    An old `model.onnx` is deleted first and the new one is moved last: while it exists, all files belong to it.

    Args:
        folder: where the files are in the end; it is created if missing.
        force: whether `folder` may already contain files; those of the same names are replaced.

    Raises:
        InvalidInput: `folder` is a file, is not empty, or cannot be written.
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
        raise InvalidInput(f"{folder} cannot be written: {reason_of(error)}", parameter="folder") from error
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

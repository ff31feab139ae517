"""Which file of a repository is meant: by its quantization, or by nothing but the repository. It asks no hub."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from stoker.errors import ModelFileNotFound
from stoker.models.catalog import HUB_PREFIX
from stoker.models.gguf import part_paths
from stoker.models.naming import own_name
from stoker.models.onnx_folder import choose_graph
from stoker.models.onnx_hub import is_graph

_PREFERRED = "Q4_K_M"
_MAX_CHOICES = 40


def choose_file(repo: str, files: Sequence[str], quantization: str | None = None) -> str:
    """The GGUF model to take from a repository, of a split one the first part; or its ONNX graph, if it has no GGUF.

    Args:
        repo: for the error message.
        files: all files of the repository.
        quantization: a name such as `Q8_0`, a variant of a graph such as `q4f16`, or a graph; None = Q4_K_M if there
            is one, else the only model, or the graph that suits a CPU best.

    Raises:
        ModelFileNotFound: nothing fits, or more than one; the message lists the models.
    """
    models = sorted(file for file in files if _is_model(file))
    graphs = sorted(file for file in files if is_graph(file))
    graph = quantization if quantization in graphs else None if models else choose_graph(graphs, quantization or "")
    if graph is not None:
        return graph
    fitting = [file for file in models if _mentions(file, quantization or _PREFERRED)]
    if quantization is None:
        fitting = fitting or models
    if len(fitting) == 1:
        return fitting[0]
    raise ModelFileNotFound(_complaint(repo, models, graphs, fitting, quantization), path=repo)


def meant_download(asked: str, names: Iterable[str]) -> str | None:
    """The download that a name means which lacks its file: it is called `hf:org/repo:file.gguf`.

    >>> meant_download("org/repo:Q8_0", ["smollm2", "hf:org/repo:m-Q8_0.gguf", "hf:org/repo:m-Q4_K_M.gguf"])
    'hf:org/repo:m-Q8_0.gguf'
    >>> meant_download("hf.co/org/repo", ["hf:org/repo:m-Q8_0.gguf"])
    'hf:org/repo:m-Q8_0.gguf'

    Args:
        asked: `org/repo` or `org/repo:Q4_K_M`, also with `hf:` or `hf.co/` in front.
        names: of all models.

    Returns:
        One of `names`; None if none is meant, or more than one could be.
    """
    repo, _, quantization = own_name(asked).removeprefix(HUB_PREFIX).partition(":")
    if "/" not in repo:
        return None
    prefix = f"{HUB_PREFIX}{repo}:"
    files = [name.removeprefix(prefix) for name in names if name.startswith(prefix)]
    with suppress(ModelFileNotFound):
        return prefix + choose_file(repo, files, quantization or None)
    return None


def _is_model(file: str) -> bool:
    """A whole model or the first part of one; projectors and importance matrices lie beside them."""
    path = Path(file)
    name = path.name.lower()
    is_other = "mmproj" in name or name.startswith("imatrix")
    return path.suffix.lower() == ".gguf" and not is_other and part_paths(path)[0] == path


def _mentions(file: str, quantization: str) -> bool:
    pattern = rf"(?<![a-z0-9]){re.escape(quantization)}(?![a-z0-9_])"
    return re.search(pattern, file, re.IGNORECASE) is not None


def _complaint(
    repo: str, models: Sequence[str], graphs: Sequence[str], fitting: Sequence[str], quantization: str | None
) -> str:
    if not models:
        listed = "".join(f"\n  hf:{repo}:{graph}" for graph in graphs[:_MAX_CHOICES])
        if graphs:
            return f"hf:{repo} has no GGUF file, and several ONNX graphs. Name one of:{listed}"
        hint = f". Models as GGUF often lie in repositories of their own, such as {repo.partition('/')[2]}-GGUF"
        return f"hf:{repo} has no GGUF file{hint}"
    wanted = f" for {quantization}" if quantization else ""
    problem = f"has more than one model{wanted}" if fitting else f"has no model{wanted}"
    listed = "".join(f"\n  hf:{repo}:{file}" for file in models[:_MAX_CHOICES])
    rest = f"\n  … and {len(models) - _MAX_CHOICES} more" if len(models) > _MAX_CHOICES else ""
    return f"hf:{repo} {problem}. Name one of:{listed}{rest}"

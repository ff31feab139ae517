"""Makes the command line of a llama-server, with options that the present binary has. It starts nothing."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from itertools import chain

from stoker.backends.cores import usable_cores
from stoker.backends.llama.options import in_blocks
from stoker.engine.config import EngineConfig
from stoker.errors import ConfigError
from stoker.runtime.llama_server.binary import Binary
from stoker.runtime.llama_server.model_file import ModelFile, Task

_DRAFT_MODEL = ("--spec-draft-model", "--model-draft", "-md")
_SYNONYMS = (
    ("--spec-draft-n-max", "--draft-max", "--draft-n", "--draft"),
    ("--spec-draft-n-min", "--draft-min", "--draft-n-min"),
    ("--spec-draft-p-min", "--draft-p-min"),
    ("--spec-draft-p-split", "--draft-p-split"),
    _DRAFT_MODEL,
    ("--spec-draft-ngl", "--n-gpu-layers-draft", "--gpu-layers-draft", "-ngld"),
    ("--spec-draft-type-k", "--cache-type-k-draft", "-ctkd"),
    ("--spec-draft-type-v", "--cache-type-v-draft", "-ctvd"),
    ("--no-ui", "--no-webui"),
)
"""Spellings of one option in different versions of llama-server."""
_WITHOUT_EFFECT = ("--defrag-thold", "-dt")
"""Options with a value that had no effect before they were removed; a newer binary does not get them."""
_OWN = {
    "--model": "MODEL",
    "-m": "MODEL",
    "--ctx-size": "--ctx-size",
    "-c": "--ctx-size",
    "--parallel": "--parallel",
    "-np": "--parallel",
    "--pooling": "--pooling",
    "--mmproj": "--mmproj",
    "-mm": "--mmproj",
    "--image-min-tokens": "--image-min-tokens",
    "--image-max-tokens": "--image-max-tokens",
    **dict.fromkeys(("--host", "--port", "--reuse-port", "--alias", "-a", "--api-key", "--api-key-file"), ""),
    **dict.fromkeys(("--ssl-key-file", "--ssl-cert-file", "--api-prefix", "--slot-save-path", "--no-slots"), ""),
    **dict.fromkeys(("--kv-unified", "-kvu", "--no-kv-unified", "-no-kvu", "--models-dir", "--models-preset"), ""),
    **dict.fromkeys(("--embedding", "--embeddings", "--rerank", "--reranking"), ""),
}
"""Options that Stoker sets itself, each with the option of Stoker to use instead; empty = there is none."""
_ALL_LAYERS = 9999
_SPARE_HTTP_THREADS = 8
"""HTTP threads for health checks and tokenization, beside one for each running answer."""
_MEDIA_BATCH = 2048
"""Batch size in tokens of models with images: more than the embeddings of any image that is attended to as a whole."""
_FLAG = re.compile(r"--?[A-Za-z]")


def fixed_arguments(binary: Binary, model: ModelFile, config: EngineConfig) -> list[str]:
    """The arguments that are the same for every start of a server.

    Args:
        binary: the binary, with its options.
        model: the served model.
        config: the model's configuration.

    Raises:
        ConfigError: the binary has no option for a configured setting.
    """
    threads = config.threads or usable_cores()
    arguments = ["--model", str(model.path), "--host", "127.0.0.1", "--threads", str(threads)]
    arguments += ["--parallel", str(config.parallel), "--ctx-size", str(model.total_tokens)]
    arguments += _if_known(binary, "--kv-unified") if model.is_unified else []
    arguments += _if_known(binary, "--threads-http", str(config.parallel + _SPARE_HTTP_THREADS))
    arguments += _if_known(binary, "--slots")
    arguments += _if_known(binary, "--no-ui") or _if_known(binary, "--no-webui")
    # llama-server erases slots only if it has a folder. Without a configured folder, nothing is ever written there.
    arguments += _if_known(binary, "--slot-save-path", config.slot_save_path or tempfile.gettempdir())
    arguments += _if_known(binary, "--cache-ram", str(model.cache_ram_mib))
    parts = [_computing(binary, model, config), _task(binary, model)]
    parts += [_projector(binary, model, config), _draft(binary, model)]
    return [*arguments, *chain.from_iterable(parts)]


def start_arguments(port: int, name: str) -> list[str]:
    """The arguments that differ with each start.

    Args:
        port: port to listen on, which was free a moment ago.
        name: the model's alias, by which this server is identified.
    """
    return ["--port", str(port), "--alias", name]


def users_arguments(binary: Binary, further: Sequence[str]) -> list[str]:
    """The user's options, in the spelling of this version. They come last: the last of two equal options counts.

    Raises:
        ConfigError: the binary does not have an option, or Stoker sets it itself.
    """
    return list(_users(binary, further))


def _if_known(binary: Binary, flag: str, *values: str) -> list[str]:
    return [flag, *values] if flag in binary.flags else []


def _computing(binary: Binary, model: ModelFile, config: EngineConfig) -> Iterator[str]:
    """Options that only some versions know are passed only if they are configured."""
    kinds = model.cache_types
    wanted: dict[str, object] = {
        "--cache-type-k": None if kinds[0] == "f16" else kinds[0],  # the default of every version
        "--cache-type-v": None if kinds[1] == "f16" else kinds[1],
        "--flash-attn": config.flash_attn or ("on" if in_blocks(kinds[1]) else None),
        "--n-gpu-layers": _ALL_LAYERS if config.num_gpu_layers == -1 else config.num_gpu_layers,
        "--split-mode": config.split_mode,
        "--main-gpu": config.main_gpu,
        "--tensor-split": config.tensor_split or None,
        "--n-cpu-moe": config.n_cpu_moe or None,
        "--override-tensor": config.override_tensor or None,
    }
    for flag, value in wanted.items():
        if value is None:
            continue
        if flag not in binary.flags:
            message = f"llama-server {binary.version} has no option {flag}"
            raise ConfigError(message, key=flag.lstrip("-").replace("-", "_"))
        if flag in binary.with_value:
            yield from (flag, str(value))
        elif value == "on":  # a flag without a value in old versions
            yield flag


def _task(binary: Binary, model: ModelFile) -> list[str]:
    if model.task is Task.TEXT:
        return []
    spellings = ("--reranking", "--rerank") if model.task is Task.RANK else ("--embeddings", "--embedding")
    flag = binary.spelling(*spellings)
    if flag is None:
        raise ConfigError(f"llama-server {binary.version} has no option {spellings[0]}", key="llama_server_path")
    # An input without causal attention must be computed in one batch.
    longest = str(model.context_size)
    arguments = [flag, "--batch-size", longest, "--ubatch-size", longest]
    if model.task is Task.EMBEDDING and model.pooling is not None:
        arguments += ["--pooling", model.pooling.value]
    return arguments


def _projector(binary: Binary, model: ModelFile, config: EngineConfig) -> list[str]:
    if model.mmproj is None:
        return []
    if "--mmproj" not in binary.flags:
        raise ConfigError(f"llama-server {binary.version} has no option --mmproj", key="mmproj")
    # An image that is attended to as a whole must fit into one batch; else llama-server aborts.
    size = str(max(_MEDIA_BATCH, config.image_max_tokens or 0))
    limits = {"--image-min-tokens": config.image_min_tokens, "--image-max-tokens": config.image_max_tokens}
    given = [part for flag, limit in limits.items() if limit is not None for part in (flag, str(limit))]
    if missing := [flag for flag in given[::2] if flag not in binary.flags]:
        key = missing[0].removeprefix("--").replace("-", "_")
        raise ConfigError(f"llama-server {binary.version} has no option {missing[0]}", key=key)
    return ["--mmproj", str(model.mmproj), "--batch-size", size, "--ubatch-size", size, *given]


def _draft(binary: Binary, model: ModelFile) -> list[str]:
    if model.draft is None:
        return []
    flag = binary.spelling(*_DRAFT_MODEL)
    if flag is None:
        raise ConfigError(f"llama-server {binary.version} has no option {_DRAFT_MODEL[0]}", key="draft_model")
    return [flag, str(model.draft), *_if_known(binary, "--spec-type", "draft-simple")]


def _users(binary: Binary, further: Sequence[str]) -> Iterator[str]:
    is_dropped = False
    for part in further:
        if _FLAG.match(part) is None:
            if not is_dropped:
                yield part
            continue
        is_dropped = part in _WITHOUT_EFFECT and part not in binary.flags
        if not is_dropped:
            yield _known(binary, part)


def _known(binary: Binary, flag: str) -> str:
    if flag in _OWN:
        advice = f"; use Stoker's {_OWN[flag]}" if _OWN[flag] else ""
        raise ConfigError(f"--llama-server-args: {flag} is given by Stoker{advice}", key="llama_server_args")
    spelling = binary.spelling(flag, *next((names for names in _SYNONYMS if flag in names), ()))
    if spelling is None:
        close = get_close_matches(flag, binary.flags, n=1)
        meant = f" (did you mean {close[0]}?)" if close else ""
        message = f"--llama-server-args: llama-server {binary.version} has no option {flag}{meant}"
        raise ConfigError(message, key="llama_server_args")
    return spelling

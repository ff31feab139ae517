"""Names of parameters that do not exist, and those that were probably meant; it checks no values."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from difflib import get_close_matches
from functools import wraps
from inspect import signature
from typing import Any, TypeVar, cast

T = TypeVar("T", bound=type)

SYNONYMS = {
    "context_length": "ctx_size",
    "json_schema": "response_format",
    "max_completion_tokens": "max_tokens",
    "max_length": "max_tokens",
    "max_model_len": "ctx_size",
    "max_new_tokens": "max_tokens",
    "max_num_seqs": "parallel",
    "model_path": "model",
    "n_ctx": "ctx_size",
    "n_gpu_layers": "gpu_layers",
    "n_predict": "max_tokens",
    "n_threads": "threads",
    "num_ctx": "ctx_size",
    "num_gpu": "gpu_layers",
    "num_predict": "max_tokens",
    "num_thread": "threads",
    "repeat_last_n": "penalty_last_n",
    "repeat_penalty": "repetition_penalty",
    "stop_sequences": "stop",
    "temp": "temperature",
    "think": "reasoning",
    "thinking": "reasoning",
    "tfs_z": "typical_p",
}
"""Parameters of llama.cpp, Ollama, vLLM and transformers, and what they are called here."""


def unknown_keyword(function: str, name: str, known: Iterable[str]) -> TypeError:
    """The error for a keyword that a function does not have. It names the keyword that was probably meant."""
    names = list(known)
    meant = SYNONYMS.get(name)
    close = [meant] if meant in names else get_close_matches(name, names, n=1)
    hint = f". Did you mean {close[0]!r}?" if close else ""
    return TypeError(f"{function} got an unexpected keyword argument {name!r}{hint}")


def check_keywords(function: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Checks the names of keywords.

    Raises:
        TypeError: one does not exist.
    """
    names = set(known)
    for name in given:
        if name not in names:
            raise unknown_keyword(function, name, sorted(names))


def suggests_keywords(cls: T) -> T:
    """The same class. An unknown keyword of its constructor is answered with the one that was probably meant."""
    made: Any = cls
    init = cast("Callable[..., None]", made.__init__)
    known = frozenset(signature(init).parameters) - {"self"}

    @wraps(init)
    def checked(self: object, *values: object, **keywords: object) -> None:
        if not keywords.keys() <= known:
            check_keywords(f"{cls.__name__}()", keywords, known)
        init(self, *values, **keywords)

    made.__init__ = checked
    return cls

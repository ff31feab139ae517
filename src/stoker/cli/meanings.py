"""The meaning of each setting, read from the field docs of the rooms' configs. Only `--help` and the reference need it.

The docs are read from the source text, as help is rare: an import of the configs would slow down every command.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path

_CONFIGS = {
    "SamplingParams": "core/params.py",
    "EngineConfig": "engine/config.py",
    "ServerConfig": "server/config.py",
    "RegistryConfig": "runtime/config.py",
    "ReplicaConfig": "runtime/replica_config.py",
    "RuntimeConfig": "runtime/external/config.py",
}
_DEFAULT = re.compile(r"(?s)(?P<text>.*?)(?:\s*Default: (?P<default>.+?)\.?)?")
_SETTING = re.compile(r"`([a-z]+(?:_[a-z]+)+)`")


@cache
def meanings() -> Mapping[str, str]:
    """What `--help` says about each documented setting, by key.

    >>> meanings()["threads"]
    'Number of CPU threads. [default: one per physical core that this process may use]'
    """
    rooms = Path(__file__).resolve().parent.parent
    return {
        key: text
        for name, file in _CONFIGS.items()
        for key, text in _field_docs(name, (rooms / file).read_text(encoding="utf-8"))
    }


def _field_docs(config: str, source: str) -> Iterator[tuple[str, str]]:
    (body,) = (node.body for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name == config)
    for field, doc in pairwise(body):
        match field, doc:
            case (
                ast.AnnAssign(target=ast.Name(key), value=ast.Constant(default)),
                ast.Expr(value=ast.Constant(str(text))),
            ):
                yield key, _help(" ".join(text.split()), default)
            case ast.AnnAssign(target=ast.Name(key)), ast.Expr(value=ast.Constant(str(text))):
                yield key, _help(" ".join(text.split()), None)
            case _:
                pass


def _help(text: str, default: object) -> str:
    found = _DEFAULT.fullmatch(_SETTING.sub(lambda name: f"--{name[1].replace('_', '-')}", text))
    assert found is not None, "every text matches"
    shown = found["default"] or _shown(default)
    return f"{found['text']} [default: {shown}]" if shown else found["text"]


def _shown(default: object) -> str:
    """
    >>> _shown(True), _shown(5.0), _shown(None)
    ('yes', '5', '')
    """
    if isinstance(default, bool):
        return "yes" if default else "no"
    if isinstance(default, float):
        return f"{default:g}"
    return "" if default is None else str(default)

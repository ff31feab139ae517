"""Models with settings of their own, kept beside them in the cache: a base model, a system prompt, sampling, and more.

```
<cache>/models/presets.json     {"pirate": {"model": "smollm2", "system": "You are a pirate."}}
```
"""

from __future__ import annotations

from typing import Any

import msgspec

from stoker.errors import InvalidInput
from stoker.models.aliases import check_new_name, read_aliases
from stoker.models.cache import models_dir
from stoker.models.json_file import JsonFile

_MAX_PRESETS = 10_000


class Preset(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a preset's name stands for."""

    model: str
    """The base model, as `resolve` takes it; never a preset."""
    system: str = ""
    """System prompt of conversations that bring none."""
    template: str = ""
    """Chat template (Jinja) instead of the model's own."""
    sampling: dict[str, Any] = {}
    """Sampling parameters by name; they win over those that the model recommends."""
    lora: list[str] = []
    """Adapters, as `--lora` takes them."""
    ctx_size: int | None = None
    """In tokens."""


def read_presets() -> dict[str, Preset]:
    """All presets by name."""
    return _file().read()


def write_preset(name: str, preset: Preset) -> None:
    """Keeps a preset; one of the same name is replaced.

    Raises:
        InvalidInput: it cannot have this name, is based on itself or on a preset, or there are too many.
        ModelError: the cache cannot be written.
    """
    check_new_name(name)
    if name in read_aliases():
        raise InvalidInput(f"{name!r} is another name of a model; remove it first with `stoker rm {name}`")
    with _file().locked():
        presets = read_presets()
        if preset.model in (name, *presets):
            raise InvalidInput(f"{preset.model!r} is a preset; name its base model, {_base(presets, preset.model)!r}")
        if len(presets) >= _MAX_PRESETS and name not in presets:
            raise InvalidInput(f"there are {_MAX_PRESETS} presets already; remove some")
        _file().write(presets | {name: preset})


def remove_preset(name: str) -> bool:
    """Forgets a preset; false if there was none of this name. Its model stays.

    Raises:
        ModelError: the cache cannot be written.
    """
    if name not in read_presets():
        return False
    with _file().locked():
        presets = read_presets()
        removed = presets.pop(name, None)
        _file().write(presets)
    return removed is not None


def _base(presets: dict[str, Preset], name: str) -> str:
    return presets[name].model if name in presets else name


def _file() -> JsonFile[Preset]:
    return JsonFile(models_dir() / "presets.json", Preset)

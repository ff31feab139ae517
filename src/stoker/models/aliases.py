"""Further names for models, kept beside them in the cache. A model's file never changes, so a name is a whole copy.

```
<cache>/models/aliases.json     {"mine": "smollm2"}
```
"""

from __future__ import annotations

import re

from stoker.errors import InvalidInput
from stoker.models.cache import models_dir
from stoker.models.catalog import CATALOG
from stoker.models.json_file import JsonFile

_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)*(:[\w.-]+)?", re.ASCII)
_MAX_NAME_CHARS = 200
_MAX_ALIASES = 10_000


def read_aliases() -> dict[str, str]:
    """All aliases with the names that they stand for; none of those is an alias itself."""
    return _file().read()


def add_alias(alias: str, model: str) -> None:
    """From now on `alias` is another name of `model`; it may have been one of something else.

    Args:
        alias: letters, digits, `_`, `-`, `.`, with `/` and one `:` between them.
        model: what `resolve` takes, or an alias.

    Raises:
        InvalidInput: it cannot be an alias, or belongs to the catalog; or there are too many.
        ModelError: the cache cannot be written.
        ResourceExhausted: the disk is full.
    """
    check_new_name(alias)
    with _file().locked():
        aliases = read_aliases()
        target = aliases.get(model, model)
        if alias == target:
            raise InvalidInput(f"{alias!r} cannot be an alias of itself", parameter="destination")
        if len(aliases) >= _MAX_ALIASES and alias not in aliases:
            raise InvalidInput(f"there are {_MAX_ALIASES} aliases already; delete some", parameter="destination")
        _file().write(aliases | {alias: target})


def remove_alias(alias: str) -> bool:
    """Forgets an alias; false if there was none of this name. The model stays.

    Raises:
        ModelError: the cache cannot be written.
    """
    if alias not in read_aliases():
        return False
    with _file().locked():
        aliases = read_aliases()
        target = aliases.pop(alias, None)
        _file().write(aliases)
    return target is not None


def check_new_name(name: str) -> None:
    """Raises InvalidInput for what cannot be the name of a model, or is one of the catalog."""
    if len(name) > _MAX_NAME_CHARS or not _NAME.fullmatch(name):
        raise InvalidInput(f"{name[:_MAX_NAME_CHARS]!r} cannot be the name of a model", parameter="destination")
    if name in CATALOG:
        raise InvalidInput(f"{name!r} is a model of the catalog; choose another name", parameter="destination")


def _file() -> JsonFile[str]:
    return JsonFile(models_dir() / "aliases.json", str)

"""Names that are imported on first use, so that a program starts quickly: of a package, or modules as a whole."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType


def lazy_names(package: str, homes: Mapping[str, str]) -> Callable[[str], object]:
    """What a package is to have as its `__getattr__`.

    Args:
        package: its `__name__`.
        homes: for each name, the module that defines it.
    """

    def find(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value: object = getattr(import_module(homes[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return find


def lazy_module(name: str) -> ModuleType:
    """A stand-in for a module, which is imported when an attribute of the stand-in is first asked for.

    Type checkers are shown the import itself:

    ```python
    if TYPE_CHECKING:
        import rich.console
    else:
        rich = lazy_module("rich")
    ```

    Args:
        name: full name of the module. A submodule of it is imported when the stand-in is asked for it.
    """
    return _LazyModule(name)


class _LazyModule(ModuleType):
    def __getattr__(self, name: str) -> object:
        module = import_module(self.__name__)
        path = f"{self.__name__}.{name}"
        if not hasattr(module, name) and hasattr(module, "__path__") and find_spec(path) is not None:
            import_module(path)
        return getattr(module, name)

"""`stoker version`: shows versions for bug reports."""

from __future__ import annotations

import platform
from importlib import metadata
from typing import Any

from stoker import __version__
from stoker.cli.options import Flags, shared_options
from stoker.cli.table import AsJson, print_json, print_table

_EXTRAS = {"llama-cpp-python": "llama backend", "onnxruntime": "onnx backend"}


@shared_options()
def version(flags: Flags, as_json: AsJson = False) -> None:
    """Show versions for bug reports: Stoker, Python and the optional backends."""
    facts: dict[str, Any] = {
        "stoker": __version__,
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
        **{what: _installed(package) for package, what in _EXTRAS.items()},
    }
    if as_json:
        print_json(facts)
    else:
        print_table(("WHAT", "VERSION"), [(what, known or "not installed") for what, known in facts.items()])


def _installed(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None

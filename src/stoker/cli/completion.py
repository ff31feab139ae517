"""What a shell completes a model's name with."""

from __future__ import annotations

from stoker.cli.later import catalog, discovery, library


def model_names(incomplete: str) -> list[str]:
    """The names on this disk first, then the well-known ones that can be downloaded, if they begin like this."""
    here = [name for found in discovery.discover_models(None) for name in found.names]
    known = [name for model in library.library().values() for name in model.names]
    return list(dict.fromkeys(name for name in (*here, *catalog.CATALOG, *known) if name.startswith(incomplete)))

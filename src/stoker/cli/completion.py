"""What a shell completes a model's name with."""

from __future__ import annotations


def model_names(incomplete: str) -> list[str]:
    """The names on this disk first, then the well-known ones that can be downloaded, if they begin like this."""
    from stoker.models.catalog import CATALOG
    from stoker.models.discovery import discover_models
    from stoker.models.library import library

    here = [name for found in discover_models(None) for name in found.names]
    known = [name for model in library().values() for name in model.names]
    return list(dict.fromkeys(name for name in (*here, *CATALOG, *known) if name.startswith(incomplete)))

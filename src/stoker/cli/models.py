"""`stoker models`: what can be asked for by name, and what lies on this disk."""

from __future__ import annotations

from stoker.cli.options import Flags, shared_options
from stoker.cli.table import print_table


@shared_options()
def models(flags: Flags) -> None:
    """List the models of the catalog and on this disk."""
    from stoker.models.catalog import CATALOG
    from stoker.models.store import list_models

    rows = {
        entry.name: (entry.name, _size(entry.size_bytes), entry.title, "not here yet") for entry in CATALOG.values()
    }
    for found in list_models():
        title = CATALOG[found.name].title if found.name in CATALOG else ""
        rows[found.name] = (found.name, _size(found.size_bytes), title, str(found.path))
    print_table(("MODEL", "SIZE", "WHAT IT IS", "WHERE"), rows.values())


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.1f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:.0f} MB"

"""Tables on stdout, as good for `grep` and `awk` as for eyes; the same as JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

import typer

from stoker.cli.answer import write

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def print_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Columns are separated by at least two blanks and as wide as their longest cell."""
    table = [header, *rows]
    widths = [max(len(cell) for cell in column) for column in zip(*table, strict=True)]
    for row in table:
        write("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() + "\n")


def print_json(value: Any) -> None:
    """One JSON value, indented."""
    write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def print_rows(columns: Mapping[str, str], rows: Iterable[Mapping[str, Any]], *, is_json: bool) -> None:
    """Rows of values by key.

    Args:
        columns: key to heading, in the order of the table; JSON has all keys of the rows.
        rows: the values; a table shows them by `shown`.
        is_json: as a JSON list of objects instead.
    """
    listed = list(rows)
    if is_json:
        print_json(listed)
    else:
        print_table([*columns.values()], ([shown(key, row.get(key)) for key in columns] for row in listed))


def shown(key: str, value: Any) -> str:
    """A value as a cell: sizes in bytes with their unit, `-` for what is not known.

    >>> shown("size_bytes", 98362432), shown("context", 8192), shown("can", ["chat"]), shown("x", None)
    ('98 MB', '8192', 'chat', '-')
    >>> shown("sampling", {"temperature": 0.5, "seed": 1})
    'temperature 0.5, seed 1'
    """
    if value is None or value == "":
        return "-"
    if key.endswith("_bytes"):
        return size(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{name} {inner}" for name, inner in value.items()) or "-"  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, list | tuple):
        return ", ".join(str(item) for item in value) or "-"  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    return str(value)


def size(num_bytes: float) -> str:
    """Bytes for people, in decimal units as download pages have them.

    >>> size(1.5e9), size(98362432), size(300_000)
    ('1.5 GB', '98 MB', '0.3 MB')
    """
    if num_bytes >= 1e9:
        return f"{num_bytes / 1e9:.1f} GB"
    return f"{num_bytes / 1e6:.{0 if num_bytes >= 1e7 else 1}f} MB"

"""Prints tables on stdout, for readers as well as for `grep` and `awk`, or the same values as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

import typer

from stoker.cli.answer import write

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def print_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Prints a table whose columns are as wide as their longest cell, with two spaces between them."""
    table = [header, *rows]
    widths = [max(len(cell) for cell in column) for column in zip(*table, strict=True)]
    for row in table:
        write("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() + "\n")


def print_json(value: Any) -> None:
    """Prints a value as indented JSON."""
    write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def print_rows(columns: Mapping[str, str], rows: Iterable[Mapping[str, Any]], *, is_json: bool) -> None:
    """Prints rows as a table, or as JSON.

    Args:
        columns: key -> heading, in the order of the table. JSON contains all keys of the rows.
        rows: key -> value; in a table, `shown` formats the values.
        is_json: whether to print a JSON list of objects instead of a table.
    """
    listed = list(rows)
    if is_json:
        print_json(listed)
    else:
        print_table([*columns.values()], ([shown(key, row.get(key)) for key in columns] for row in listed))


def shown(key: str, value: Any) -> str:
    """A value as text of a table cell. A key that ends with `_bytes` gets a unit; `-` stands for an unknown value.

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
    """A number of bytes as text, in decimal units (MB, GB) as on download pages.

    >>> size(1.5e9), size(98362432), size(300_000)
    ('1.5 GB', '98 MB', '0.3 MB')
    """
    if num_bytes >= 1e9:
        return f"{num_bytes / 1e9:.1f} GB"
    return f"{num_bytes / 1e6:.{0 if num_bytes >= 1e7 else 1}f} MB"

"""Plain tables on stdout, as good for `grep` and `awk` as for eyes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stoker.cli.answer import write


def print_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Columns are separated by at least two blanks and as wide as their longest cell."""
    table = [header, *rows]
    widths = [max(len(cell) for cell in column) for column in zip(*table, strict=True)]
    for row in table:
        write("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() + "\n")

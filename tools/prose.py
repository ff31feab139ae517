"""Whether docstrings, doc literals and pages keep to the wording rules of the style guide, as far as a machine can see.

`python tools/prose.py [PATH...]` lists what breaks them; without PATH, in `src/stoker` and in the pages of `docs/`.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PERSONS = re.compile(r"\b(nobody|somebody|anybody|everybody|whoever|whom)\b", re.IGNORECASE)
LEANS = re.compile(r"(Those|Of both|Of these|The same[.,;:]|So (long|many|much) )")
"""How a literal begins that cannot be understood without the one above it."""
NEIGHBOR = re.compile(r"\b(the next one|the one above|the last two|the next two)\b")


def main() -> int:
    paths = [Path(path).resolve() for path in sys.argv[1:]] or default_paths()
    found = [line for path in paths for line in sorted(complaints(path))]
    for line in found:
        print(line)
    return 1 if found else 0


def default_paths() -> list[Path]:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]
    return [*sorted((ROOT / "src" / "stoker").rglob("*.py")), *sorted(pages)]


def complaints(path: Path) -> Iterator[str]:
    text = path.read_text(encoding="utf-8")
    where = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
    passages = literals(text) if path.suffix == ".py" else enumerate(text.splitlines(), 1)
    for line, passage in passages:
        if match := PERSONS.search(passage):
            yield f"{where}:{line}: {match[0]!r}: name the part (request, client, thread, process), not a person"
        if path.suffix == ".py" and (match := LEANS.match(passage) or NEIGHBOR.search(passage)):
            yield f"{where}:{line}: {match[0]!r}: name the subject; the literal must be readable alone"


def literals(source: str) -> Iterator[tuple[int, str]]:
    """Docstrings and doc literals, with the lines in which they begin; and comments."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, " ".join(node.value.value.split())
    for number, line in enumerate(source.splitlines(), 1):
        if "# " in line:
            yield number, line.rpartition("# ")[2]


if __name__ == "__main__":
    sys.exit(main())

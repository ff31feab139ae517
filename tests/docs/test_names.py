"""Names and paths that pages write in backticks are there: what a page says of the code is found in the code."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from tests.docs.pages import ROOT

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
CODE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
SOURCE_SUFFIXES = {".py", ".pyi", ".cpp", ".hpp", ".inl", ".toml", ".mjs", ".sh", ".md", ".csv", ".txt"}
FOLDERS = ("src", "native", "tests", "tools", "benchmarks", "examples", "deploy", "docs")
PATH = re.compile(r"[\w.*-]+(?:/[\w.*-]+)*/?")
CLASS = re.compile(r"[A-Z][a-z0-9]+(?:[A-Z][a-z0-9]*)+")
FOREIGN = {"AzureChatOpenAI", "ChatAnthropic", "ChatOllama", "CountSlots", "SlotCount"}
"""Classes of other projects, and of examples."""
MODULE = re.compile(r"stoker(?:\.[a-z_]+)+(?:\.[A-Z]\w*)?")


@cache
def sources() -> tuple[Path, ...]:
    found = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in SOURCE_SUFFIXES]
    return (*found, *ROOT.glob("*.toml"), ROOT / "CMakeLists.txt")


@cache
def words() -> frozenset[str]:
    """All identifiers of the code, and names of other projects. Pages do not prove each other."""
    code = [path for path in sources() if path.suffix not in {".md", ".csv", ".txt"}]
    found = frozenset(word for path in code for word in re.findall(r"\w+", path.read_text(encoding="utf-8")))
    return found | FOREIGN


def in_backticks(page: Path) -> list[str]:
    prose = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return [found[1] for found in CODE.finditer(prose)]


def is_path(text: str) -> bool:
    """Of a file or folder of this repository: a source file, or a folder below one of its own."""
    if not PATH.fullmatch(text) or text.startswith("."):
        return False
    return ("/" in text and Path(text).suffix in SOURCE_SUFFIXES) or (text.split("/")[0] in FOLDERS[:6] and "/" in text)


def leads_somewhere(text: str) -> bool:
    """From the root, or from any folder: pages write `server/api.py` for `src/stoker/server/api.py`."""
    pattern = text.rstrip("/")
    bases = (ROOT / folder for folder in FOLDERS)
    return any(ROOT.glob(pattern)) or any(any(base.glob(f"**/{pattern}")) for base in bases)


def is_module(text: str) -> bool:
    parts = text.split(".")
    path = ROOT / "src" / Path(*(part for part in parts if part.islower()))
    is_there = path.with_suffix(".py").exists() or path.is_dir()
    parent_is_there = path.parent.with_suffix(".py").exists() or path.parent.is_dir()
    return is_there or (parent_is_there and parts[-1] in words())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_names_is_there(page: Path) -> None:
    missing: list[str] = []
    for text in in_backticks(page):
        if is_path(text):
            missing += [text] if not leads_somewhere(text) else []
        elif MODULE.fullmatch(text):
            missing += [text] if not is_module(text) else []
        elif (name := text.split("(")[0].split(".")[0]) and CLASS.fullmatch(name):
            missing += [text] if name not in words() else []
    assert not missing, f"{page.name} names what is not there: {missing}"

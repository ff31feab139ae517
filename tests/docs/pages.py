"""Reads the project's Markdown pages: their fenced code blocks and their links. Runs nothing."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NOT_RUN = re.compile(r"<!-- not run: (?P<reason>\S.*) -->")
LINK = re.compile(r"\[[^\]]*\]\((?P<target>[^)\s#]+)(?:#[^)]*)?\)")
SECTION_LINK = re.compile(r"\[[^\]]*\]\((?P<target>[^)\s#]*)#(?P<section>[^)\s]+)\)")
HEADING = re.compile(r"^#+ (?P<title>.+)$", re.MULTILINE)
NOT_IN_ANCHOR = re.compile(r"[^\w\- ]")


@dataclass(frozen=True)
class Block:
    """One fenced block. `line` is that of its opening fence."""

    page: Path
    line: int
    language: str
    code: str
    not_run_because: str | None

    @property
    def where(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def all_pages() -> list[Path]:
    return [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page, in order. A `<!-- not run: reason -->` marks the block that follows it."""
    found: list[Block] = []
    body: list[str] | None = None
    line, language, marker = 0, "", None
    for number, text in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if body is not None and text.strip() == "```":
            found.append(Block(page, line, language, "\n".join(body) + "\n", marker))
            body, marker = None, None
        elif body is not None:
            body.append(text)
        elif text.startswith("```"):
            body, line, language = [], number, text[3:].strip()
        elif text.strip():
            matched = NOT_RUN.fullmatch(text.strip())
            marker = matched["reason"] if matched else None
    assert body is None, f"{page}: the block of line {line} is never closed"
    return found


def links(page: Path) -> list[str]:
    """Targets of the relative links outside code blocks."""
    return [found["target"] for found in LINK.finditer(_prose(page)) if "://" not in found["target"]]


def section_links(page: Path) -> list[tuple[str, str]]:
    """Target and section of the relative links to a section; the target is empty for a section of the same page."""
    found = SECTION_LINK.finditer(_prose(page))
    return [(link["target"], link["section"]) for link in found if "://" not in link["target"]]


def sections(page: Path) -> set[str]:
    """What links call the sections of a page: as GitHub makes it of their titles."""
    titles = (found["title"].lower() for found in HEADING.finditer(_prose(page)))
    return {NOT_IN_ANCHOR.sub("", title).replace(" ", "-") for title in titles}


def _prose(page: Path) -> str:
    return re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)

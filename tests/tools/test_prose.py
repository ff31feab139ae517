"""tools/prose.py finds what breaks the wording rules of the style guide, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import prose


def complaints_of(tmp_path: Path, name: str, text: str) -> list[str]:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return list(prose.complaints(path))


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ('"""Whoever asks for it is given it."""\n', "'Whoever'"),
        ("x = 1  # nobody waits for it\n", "'nobody'"),
        ('class C:\n    a: int\n    """Of both."""\n', "'Of both'"),
        ('def f():\n    """Those that are left."""\n', "'Those'"),
        ('a = 1\n"""So many requests are waiting."""\n', "'So many '"),
        ('a = 1\n"""Kept for the next one, until then."""\n', "'the next one'"),
    ],
)
def test_what_cannot_be_read_alone_is_named_with_its_line(tmp_path: Path, source: str, found: str) -> None:
    (complaint,) = complaints_of(tmp_path, "example.py", source)
    line = next(number for number, text in enumerate(source.splitlines(), 1) if '"""' in text or "#" in text)
    assert complaint.startswith(f"{tmp_path / 'example.py'}:{line}: {found}")


@pytest.mark.parametrize(
    "source",
    [
        '"""The request that waits longest comes first; those behind it keep their order."""\n',
        'NAME = "nobody"\nprint("Those", "whoever")\n',
        "x = 1  # a process has one owner\n",
    ],
)
def test_strings_that_are_no_prose_and_plain_sentences_pass(tmp_path: Path, source: str) -> None:
    assert complaints_of(tmp_path, "example.py", source) == []


def test_pages_may_lean_on_the_sentence_before_but_name_no_persons(tmp_path: Path) -> None:
    text = "# Page\n\nThose are two.\nSomebody sends a request.\n"
    (complaint,) = complaints_of(tmp_path, "page.md", text)
    assert ":4: 'Somebody'" in complaint


def test_all_code_and_all_pages_are_read() -> None:
    names = {str(path.relative_to(prose.ROOT)) for path in prose.default_paths()}
    assert {"README.md", "CONTRIBUTING.md", "docs/style.md", "src/stoker/core/scheduler.py"} <= names


@pytest.mark.slow
def test_the_code_and_the_pages_keep_to_the_rules() -> None:
    assert [line for path in prose.default_paths() for line in prose.complaints(path)] == []

"""The reader of the Markdown pages sees what a person sees."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.pages import blocks, links, section_links, sections

PAGE = """# Title

<!-- not run: takes a day -->
```sh
sleep 86400
```

See [there](other.md#part), [elsewhere](https://example.org), and:

```python
print("[not a link](gone.md)")
```

<!-- not run: this comment stands before a paragraph, not before a block -->
A paragraph.

```text
output
```
"""


@pytest.fixture
def page(tmp_path: Path) -> Path:
    path = tmp_path / "page.md"
    path.write_text(PAGE, encoding="utf-8")
    return path


def test_blocks_come_in_order_with_their_lines(page: Path) -> None:
    assert [(block.language, block.line) for block in blocks(page)] == [("sh", 4), ("python", 10), ("text", 17)]
    assert blocks(page)[1].code == 'print("[not a link](gone.md)")\n'


def test_a_marker_holds_for_the_block_right_after_it_only(page: Path) -> None:
    assert [block.not_run_because for block in blocks(page)] == ["takes a day", None, None]


def test_a_marker_needs_a_reason(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text("<!-- not run: -->\n```sh\ntrue\n```\n", encoding="utf-8")
    assert blocks(path)[0].not_run_because is None


def test_an_unclosed_block_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text("```sh\ntrue\n", encoding="utf-8")
    with pytest.raises(AssertionError, match="never closed"):
        blocks(path)


def test_links_are_relative_and_outside_code(page: Path) -> None:
    assert links(page) == ["other.md"]


def test_sections_are_called_as_github_calls_them(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text(
        "# KV cache types\n\n## Limits: `--max-queue`, and more\n\n[a](#b) [c](d.md#e-f)\n", encoding="utf-8"
    )
    assert sections(path) == {"kv-cache-types", "limits---max-queue-and-more"}
    assert section_links(path) == [("", "b"), ("d.md", "e-f")]

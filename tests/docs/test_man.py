"""Manual pages are written from the reference of the command line: every command and every option is in them."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT

REFERENCE = (ROOT / "docs" / "reference" / "cli.md").read_text()


@pytest.fixture(scope="module")
def manual(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("man")
    subprocess.run([sys.executable, "tools/man.py", str(folder)], cwd=ROOT, check=True, timeout=60)
    return folder


def test_every_command_has_a_page_with_all_its_options(manual: Path) -> None:
    for section in REFERENCE.split("\n## ")[1:]:
        name = re.match(r"`(stoker(?: [a-z]+)+)", section)
        assert name is not None, section[:80]
        page = (manual / f"{name[1].replace(' ', '-')}.1").read_text()
        for option in re.findall(r"^- `(--[a-z-]+)`", section, re.MULTILINE):
            assert "\\fB" + option.replace("-", "\\-") in page
        assert f"\\fB{name[1]}\\fR" in (manual / "stoker.1").read_text()


@pytest.mark.skipif(shutil.which("groff") is None, reason="groff is not installed")
def test_the_formatter_has_nothing_to_say(manual: Path) -> None:
    pages = sorted(map(str, manual.glob("*.1")))
    command = ["groff", "-man", "-ww", "-Tutf8", "-K", "utf8", "-z", *pages]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr == ""

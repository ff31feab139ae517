"""`docs/reference/` is what the code says. A process of its own: the generator switches typer's decorations off."""

from __future__ import annotations

import subprocess
import sys

from tests.docs.pages import ROOT


def test_the_reference_pages_are_current() -> None:
    done = subprocess.run(
        [sys.executable, "tools/reference.py", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr

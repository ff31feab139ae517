"""The page's vendored libraries are what their packages give."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NO_PACKAGES = 3


@pytest.mark.slow
def test_vendored_libraries_are_built_again_byte_by_byte() -> None:
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("node and npm are not installed")
    command = ["node", "tools/vendor_ui.mjs", "--check"]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    if built.returncode == NO_PACKAGES:
        pytest.skip("npm's registry is out of reach")
    assert built.returncode == 0, built.stderr

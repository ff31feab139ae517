"""The page's modules keep to their types: TypeScript reads their JSDoc, and checks what it can infer."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from tests.npm import npm_package

ROOT = Path(__file__).parents[2]
UI = ROOT / "src" / "stoker" / "ui"
COMPILER = "typescript@5.9.3", "10e108c9cf7d5f2879053dff18515fb405abf2ccef63eaaf017d9c571687a1d3"


@pytest.mark.slow
def test_the_modules_keep_to_their_types(tmp_path: Path) -> None:
    """Declarations stand in the place of vendored libraries, which are minified."""
    if shutil.which("node") is None:
        pytest.skip("node is not installed")
    with tarfile.open(npm_package(*COMPILER)) as files:
        files.extractall(tmp_path / "compiler", filter="data")
    staged = tmp_path / "ui"
    shutil.copytree(UI, staged, ignore=lambda folder, names: names if Path(folder).name == "vendor" else [])
    shutil.copytree(ROOT / "tools" / "ui_types", staged, dirs_exist_ok=True)
    declared = {path.stem.removesuffix(".d") for path in (staged / "vendor").glob("*.d.ts")}
    assert declared == {path.stem for path in (UI / "vendor").glob("*.js")}
    compiler = tmp_path / "compiler" / "package" / "lib" / "tsc.js"
    found = subprocess.run(["node", str(compiler), "-p", str(staged)], capture_output=True, text=True, timeout=600)
    assert found.returncode == 0, found.stdout

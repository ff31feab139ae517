"""The recipes of CONTRIBUTING.md lead where they say, with no more files than a change may touch."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from stoker import _native
from tests.brief import every
from tests.docs.pages import ROOT
from tests.docs.recipes import RECIPES, Recipe
from tests.docs.test_names import CODE, words

PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").split("\n## Recipes\n")[1]
NAME = re.compile(r"[A-Za-z]*_\w+|[A-Z][A-Z_]+")
EXAMPLES = {"the_field"}
"""Names that stand for those of a change."""
NOT_INSTALLED = """
import sys
sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in type(finder).__module__]
"""
"""Has Python find modules by its path only: an editable installation puts a finder of its own before the path."""


@pytest.fixture(scope="module")
def changed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package to which all recipes were applied."""
    source = tmp_path_factory.mktemp("recipes") / "src"
    shutil.copytree(ROOT / "src" / "stoker", source / "stoker")
    shutil.copy(_native.__file__, source / "stoker")
    (source / "sitecustomize.py").write_text(NOT_INSTALLED, encoding="utf-8")
    for recipe in RECIPES:
        for edit in recipe.edits:
            edit.apply(source / "stoker")
    return source


def heading_of(recipe: Recipe) -> str:
    return recipe.heading


@pytest.mark.parametrize("recipe", RECIPES, ids=heading_of)
def test_a_recipe_touches_few_files_which_it_names(recipe: Recipe) -> None:
    section = PAGE.split(f"### {recipe.heading}\n")[1].split("\n### ")[0]
    assert len(recipe.paths) <= recipe.max_files
    for path in recipe.paths:
        assert Path(path).name in section or f"{Path(path).parent}/`" in section, f"the recipe does not name {path}"


@pytest.mark.parametrize("recipe", every(2, RECIPES), ids=heading_of)
def test_a_change_by_the_recipe_works(recipe: Recipe, changed: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", recipe.shows, str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(changed)},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_programs_run_the_changed_copy(changed: Path) -> None:
    command = [sys.executable, "-c", "import stoker; print(stoker.__file__)"]
    environment = {**os.environ, "PYTHONPATH": str(changed)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=True)
    assert Path(done.stdout.strip()).is_relative_to(changed)


def test_names_in_recipes_are_those_of_the_code() -> None:
    code = re.sub(r"\w+\.(?:py|cpp|hpp|md)", "", " ".join(found[1] for found in CODE.finditer(PAGE)))
    assert set(NAME.findall(code)) - words() - EXAMPLES == set()

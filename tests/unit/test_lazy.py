"""Names that are imported on first use."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from stoker.lazy import lazy_module


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A package with one submodule, which it does not import itself."""
    name = "lazily_imported"
    folder = tmp_path / name
    folder.mkdir()
    (folder / "__init__.py").write_text("color = 'red'\n", encoding="utf-8")
    (folder / "part.py").write_text("size = 3\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    for module in (name, f"{name}.part"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    return name


def test_a_module_is_imported_when_an_attribute_is_asked_for(package: str) -> None:
    module = lazy_module(package)
    assert package not in sys.modules
    assert module.color == "red"
    assert package in sys.modules


def test_a_submodule_is_imported_when_it_is_asked_for(package: str) -> None:
    module = lazy_module(package)
    assert module.color == "red"
    assert f"{package}.part" not in sys.modules
    assert module.part.size == 3


def test_what_is_changed_in_the_module_is_seen(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = lazy_module(package)
    assert module.color == "red"
    monkeypatch.setattr(f"{package}.color", "blue")
    assert module.color == "blue"


def test_a_name_that_is_not_there_is_an_attribute_error(package: str) -> None:
    with pytest.raises(AttributeError, match=f"'{package}' has no attribute 'shape'"):
        _ = lazy_module(package).shape
    with pytest.raises(AttributeError, match="has no attribute 'shape'"):
        _ = lazy_module(f"{package}.part").shape


def test_a_package_that_is_not_installed_is_named() -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_package"):
        _ = lazy_module("no_such_package").anything

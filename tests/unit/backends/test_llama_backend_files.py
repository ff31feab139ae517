"""Backends of ggml that are libraries of their own. tests/gpu loads a real one."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import pytest

from stoker.backends.llama.backend_files import load_backend_files
from stoker.backends.llama.gpu import built_for
from stoker.backends.llama.native import library


class Function:
    """One of a library, as ctypes has it."""

    def __init__(self, result: int | None) -> None:
        self.result = result
        self.calls: list[tuple[object, ...]] = []

    def __call__(self, *arguments: object) -> int | None:
        self.calls.append(arguments)
        return self.result


class Library:
    """A libllama with so many devices, the CPU among them."""

    def __init__(self, num_devices: int, loaded: int | None = None) -> None:
        self.ggml_backend_dev_count: Any = Function(num_devices)
        self.ggml_backend_load: Any = Function(loaded)
        self.ggml_backend_load_all_from_path: Any = Function(None)


def test_a_libllama_without_any_device_takes_those_in_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLAMA_CPP_LIB_PATH", str(tmp_path))
    (tmp_path / "libggml-vulkan-0123.so").touch()
    found = Library(0)
    load_backend_files(found)
    assert found.ggml_backend_load_all_from_path.calls == [(os.fsencode(tmp_path),)]
    assert built_for() == "vulkan"


def test_one_with_a_cpu_takes_the_file_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GGML_BACKEND_PATH", raising=False)
    found = Library(1, loaded=7)
    load_backend_files(found)
    assert found.ggml_backend_load.calls == []
    monkeypatch.setenv("GGML_BACKEND_PATH", "/far/libggml-cuda.so")
    load_backend_files(found)
    assert found.ggml_backend_load.calls == [(b"/far/libggml-cuda.so",)]
    assert found.ggml_backend_load_all_from_path.calls == []
    assert built_for() == "cuda"


def test_what_is_no_backend_is_a_warning_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    libllama = library()._lib
    path = tmp_path / "libggml-vulkan.so"
    path.write_bytes(b"no library")
    monkeypatch.setenv("GGML_BACKEND_PATH", str(path))
    with caplog.at_level(logging.WARNING, logger="stoker.llama"):
        load_backend_files(libllama)
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]
    assert f"GGML_BACKEND_PATH={path} is not used" in caplog.records[-1].message

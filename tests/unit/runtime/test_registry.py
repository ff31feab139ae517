import asyncio
from typing import Any, cast

import pytest

from stoker.errors import ModelNotFound
from stoker.runtime.base import Runtime
from stoker.runtime.registry import Registry, ServedModel, served_names


class CountingRuntime:
    def __init__(self) -> None:
        self.calls: list[str] = []

    async def start(self) -> None:
        self.calls.append("start")

    async def close(self) -> None:
        self.calls.append("close")


def make_registry(**settings: Any) -> Registry:
    return Registry(ServedModel(("tiny", "short"), cast("Runtime", CountingRuntime())), **settings)


@pytest.mark.parametrize(
    ("model", "names"),
    [
        ("smollm2", ("smollm2",)),
        ("/models/Tiny-Q4.gguf", ("/models/Tiny-Q4.gguf", "Tiny-Q4")),
        ("tiny.gguf", ("tiny.gguf", "tiny")),
        ("hf:org/repo", ("hf:org/repo", "repo")),
        ("hf:org/repo:file.gguf", ("hf:org/repo:file.gguf", "file")),
    ],
)
def test_served_names(model: str, names: tuple[str, ...]):
    assert served_names(model) == names


def test_further_names_come_last_and_once():
    assert served_names("a/b.gguf", "b", "c", "") == ("a/b.gguf", "b", "c")


@pytest.mark.parametrize("model", ["tiny", "short", "anything", "", None])
def test_any_name_means_the_only_model(model: str | None):
    assert make_registry().resolve(model).model_id == "tiny"


def test_strict_refuses_other_names():
    registry = make_registry(strict=True)
    assert registry.resolve("short").model_id == "tiny"
    assert registry.resolve(None).model_id == "tiny"
    with pytest.raises(ModelNotFound, match="`other`") as caught:
        registry.resolve("other")
    assert caught.value.fields == {"model": "other", "parameter": "model"}


def test_find_is_always_exact():
    assert make_registry().find("short").model_id == "tiny"
    with pytest.raises(ModelNotFound):
        make_registry().find("other")


def test_starts_and_closes_its_runtimes():
    registry = make_registry()
    asyncio.run(registry.start())
    asyncio.run(registry.close())
    (served,) = registry.models
    assert cast("Any", served.runtime).calls == ["start", "close"]

"""LoRA adapters that vLLM is given at its start, and that requests choose by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stoker.engine.config import EngineConfig
from stoker.engine.question_messages import AdapterChoice, ChangeAdapters
from stoker.errors import AdapterInvalid, AdapterNotFound, ConfigError, UnsupportedParameter
from stoker.runtime.vllm.adapters import read_adapters
from tests.unit.runtime.vllm.fake import Fake, answer, ask
from tests.waiting import run


def adapter(folder: Path, rank: object = 12) -> Path:
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps({"r": rank}))
    (folder / "adapter_model.safetensors").write_bytes(bytes(40))
    return folder


def option(command: list[str], name: str) -> str:
    return command[command.index(name) + 1]


def test_requests_choose_adapters_by_name_or_id(fake: Fake, tmp_path: Path):
    sql, style = adapter(tmp_path / "one"), adapter(tmp_path / "two", 30)

    async def test() -> None:
        async with fake.started(lora=[f"sql={sql}", f"style={style}"]) as runtime:
            assert [(card.name, card.rank, card.size_bytes) for card in runtime.card.adapters] == [
                ("sql", 12, 40),
                ("style", 30, 40),
            ]
            assert (await runtime.ask(ChangeAdapters())).adapters == runtime.card.adapters
            choices: list[tuple[Any, str | None]] = [
                (None, None),
                ([], None),
                ([AdapterChoice(name="style")], "style"),
                ([AdapterChoice(adapter_id=0), AdapterChoice(name="style", scale=0)], "sql"),
            ]
            for chosen, name in choices:
                await answer(runtime, ask(adapters=chosen))
                assert fake.body().get("model") == name
            with pytest.raises(AdapterNotFound, match="there is sql, style"):
                await answer(runtime, ask(adapters=[AdapterChoice(name="poems")]))
            for wrong in (
                [AdapterChoice(name="sql", scale=0.5)],
                [AdapterChoice(name=name) for name in ("sql", "style")],
            ):
                with pytest.raises(UnsupportedParameter, match="one adapter per request"):
                    await answer(runtime, ask(adapters=wrong))

    run(test())
    (started,) = fake.asked()
    command = started["command"]
    assert option(command, "--max-lora-rank") == "32"
    at = command.index("--lora-modules")
    assert command[at + 1 : at + 3] == [f"sql={sql}", f"style={style}"]


def test_an_adapter_without_a_name_is_used_by_requests_that_choose_none(tmp_path: Path):
    plain = adapter(tmp_path / "plain")
    found = read_adapters(EngineConfig(lora=[str(plain)]))
    assert (found.chosen(None), found.chosen([])) == ("plain", None)
    other = adapter(tmp_path / "other")
    for wrong in ([f"{plain}:0.5"], [str(plain), str(other)]):
        with pytest.raises(ConfigError, match="one default adapter"):
            read_adapters(EngineConfig(lora=wrong))


@pytest.mark.parametrize("rank", [0, "8", None, [1]])
def test_what_is_no_adapter_is_refused(tmp_path: Path, rank: object):
    paths = [adapter(tmp_path / "odd", rank), tmp_path / "nothing", tmp_path]
    (tmp_path / "file").touch()
    for path in (*paths, tmp_path / "file"):
        with pytest.raises(AdapterInvalid, match="is not an adapter for vLLM"):
            read_adapters(EngineConfig(lora=[f"a={path}"]))


def test_a_rank_beyond_vllms_is_refused(tmp_path: Path):
    found = read_adapters(EngineConfig(lora=[f"a={adapter(tmp_path / 'large', 513)}"]))
    with pytest.raises(AdapterInvalid, match=r"rank 513.*at most 512"):
        found.arguments()
    assert read_adapters(EngineConfig()).arguments() == []

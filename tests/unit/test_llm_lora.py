"""Adapters in the Python interface: loaded with the model, chosen for each prompt, streamed or not, awaited or not."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stoker import LLM, AsyncLLM, EngineConfig, SamplingParams
from stoker.errors import AdapterInvalid, AdapterNotFound, InvalidInput

GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("lora")
    for name in ("poet", "clerk"):
        (folder / f"{name}.gguf").write_text(name)
    return {name: folder / f"{name}.gguf" for name in ("poet", "clerk")}


@pytest.fixture(scope="module")
def llm(files: dict[str, Path]) -> Iterator[LLM]:
    with LLM("scripted", backend="scripted", lora=files) as llm:
        yield llm


def test_each_prompt_chooses_its_adapters(llm: LLM) -> None:
    choices: list[Any] = [None, "poet", "clerk", {"poet": 0.5}, {"poet": 1.0, "clerk": 1.0}, {}]
    alone = [llm.generate("Q", GREEDY, lora=choice).token_ids for choice in choices]
    assert len({tuple(token_ids) for token_ids in alone}) == 5
    assert alone[0] == alone[5]
    together = llm.generate(["Q"] * 6, GREEDY, lora=choices)
    assert [completion.token_ids for completion in together] == alone
    assert [c.token_ids for c in llm.generate(["Q", "Q"], GREEDY, lora="poet")] == [alone[1]] * 2
    with llm.stream("Q", GREEDY, lora="poet") as stream:
        assert "".join(stream) == llm.generate("Q", GREEDY, lora="poet").text


def test_chats_choose_too(llm: LLM) -> None:
    messages = [{"role": "user", "content": "hi"}]
    said = [llm.chat(messages, GREEDY, lora=choice).token_ids for choice in (None, "poet")]
    assert said[0] != said[1]
    assert [c.token_ids for c in llm.chat([messages, messages], GREEDY, lora=[None, "poet"])] == said
    with llm.stream_chat(messages, GREEDY, lora="poet") as stream:
        list(stream)
    assert stream.completion.token_ids == said[1]


def test_asyncio_chooses_too(llm: LLM, files: dict[str, Path]) -> None:
    async def ask() -> list[list[int]]:
        async with AsyncLLM("scripted", backend="scripted", lora=[f"poet={files['poet']}"]) as other:
            both = await other.generate(["Q", "Q"], GREEDY, lora=[None, "poet"])
            streamed = other.stream("Q", GREEDY, lora="poet")
            async for _ in streamed:
                pass
            return [*(completion.token_ids for completion in both), streamed.completion.token_ids]

    plain, poet, streamed = asyncio.run(ask())
    assert plain == llm.generate("Q", GREEDY).token_ids
    assert poet == streamed == llm.generate("Q", GREEDY, lora="poet").token_ids


def test_what_cannot_be_had(llm: LLM, tmp_path: Path) -> None:
    with pytest.raises(AdapterNotFound, match=r"`sql`.*`poet`, `clerk`"):
        llm.generate("Q", lora="sql")
    wrong: Any
    for wrong in (["poet"], 3, {"poet": "much"}, {3: 1.0}):
        with pytest.raises(InvalidInput, match=r"lora|adapters"):
            llm.generate(["Q", "Q"], lora=wrong)
    with pytest.raises(AdapterInvalid, match=r"gone\.gguf"):
        LLM("scripted", backend="scripted", lora={"gone": tmp_path / "gone.gguf"})
    assert llm.generate("Q", GREEDY).token_ids


def test_a_wrong_choice_takes_nobodys_place(files: dict[str, Path]) -> None:
    config = EngineConfig(model="scripted", backend="scripted", parallel=1, max_queue=0)
    messages = [{"role": "user", "content": "hi"}]
    with LLM(config, lora=files) as llm:
        wrong: Any
        for wrong in (5, {"poet": "1.0"}, {3: 1.0}):
            for ask in (llm.generate, llm.stream):
                with pytest.raises(InvalidInput, match="lora"):
                    ask("Q", GREEDY, lora=wrong)
            with pytest.raises(InvalidInput, match="lora"):
                llm.chat(messages, GREEDY, lora=wrong)
        assert llm.generate("Q", GREEDY, lora="poet").usage.completion_tokens == 6


def test_a_default_scale_holds_for_who_chooses_nothing(llm: LLM, files: dict[str, Path]) -> None:
    with LLM("scripted", backend="scripted", lora=[f"poet={files['poet']}:0.5"]) as other:
        assert other.generate("Q", GREEDY).token_ids == llm.generate("Q", GREEDY, lora={"poet": 0.5}).token_ids
        assert other.generate("Q", GREEDY, lora={}).token_ids == llm.generate("Q", GREEDY).token_ids
        assert [card.scale for card in other.card.adapters] == [0.5]

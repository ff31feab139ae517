"""A model that plays recorded answers: which prompt gets which, and what a client sees of special tokens."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stoker import LLM, CallArguments, CallBegin, CallEnd, Content, EngineConfig, Reasoning
from stoker.backends.scripted import ScriptedTokenizer
from stoker.backends.scripted_answers import PlayedAnswer, PlayedScript, ScriptFile
from stoker.errors import ConfigError, UnsupportedParameter

QWEN = "tests/golden/chat_templates/qwen3.jinja"
TOOLS: Any = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
CALL = (
    "<think>\nTwo  cities.\n</think>\n\nI look.\n"
    '<tool_call>\n{"name": "weather", "arguments": {"city": "Bern"}}\n</tool_call>'
)


Play = Callable[..., LLM]


@pytest.fixture
def play(tmp_path: Path) -> Play:
    def play(script: object, **config: Any) -> LLM:
        (tmp_path / "script.json").write_text(json.dumps(script))
        return LLM(EngineConfig(model="recorded", script=str(tmp_path / "script.json"), **config))

    return play


class Clock:
    """A clock that a wait moves on, in place of the module `time`."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.slept.append(seconds)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("stoker.backends.scripted_answers.time", clock)
    return clock


def test_an_answer_can_be_as_slow_as_that_of_a_real_model(play: Play, clock: Clock) -> None:
    with play([{"text": "slow", "token_ms": 250}, "quick"]) as llm:
        assert llm.chat("a").text == "slow"
        assert clock.slept == [0.25] * 5, "its bytes and its end"
        assert llm.chat("b").text == "quick"
        assert len(clock.slept) == 5


def test_a_prompt_takes_time_unless_it_is_cached(play: Play, clock: Clock) -> None:
    with play({"answers": ["x"], "prompt_token_ms": 0.5}) as llm:
        usage = llm.generate("p" * 99).usage
        assert clock.slept == [pytest.approx(0.0005 * usage.prompt_tokens)]
        again = llm.generate("p" * 99 + "q" * 50).usage
        assert again.cached_tokens > 0
        assert clock.slept[1:] == [pytest.approx(0.0005 * (again.prompt_tokens - again.cached_tokens))]


def test_what_a_step_took_to_compute_is_a_part_of_its_time(clock: Clock) -> None:
    script = PlayedScript(ScriptFile([PlayedAnswer("answer", token_ms=20)], prompt_token_ms=1), ScriptedTokenizer())
    script.begin_step(30)
    script.next_token(0, [1] * 30, is_decode=False)
    clock.now += 0.04
    script.end_step()
    assert clock.slept == [pytest.approx(0.05 - 0.04)]
    script.begin_step(0)
    script.next_token(0, [1] * 31, is_decode=True)
    clock.now += 0.04
    script.end_step()
    assert len(clock.slept) == 1, "it took longer than it has to"


def test_each_new_prompt_gets_the_next_answer_and_a_known_one_its_own(play: Play) -> None:
    with play(["first", "second", {"text": "on paper", "when": "Write"}]) as llm:
        assert [llm.chat(said).text for said in ("a", "b", "Write!", "c", "a", "b")] == [
            "first",
            "second",
            "on paper",
            "first",
            "first",
            "second",
        ]
        assert llm.chat("a", max_tokens=2).text == "fi"


def test_answers_do_not_depend_on_company(play: Play) -> None:
    script = [{"text": f"answer {name} to nobody else", "when": f"[{name}]"} for name in "abcdefgh"]
    with play(script, parallel=3, ctx_size=256, kv_tokens=300) as llm:
        prompts = [f"tell me [{name}]" for name in "abcdefgh"]
        assert [answer.text for answer in llm.generate(prompts)] == [answer["text"] for answer in script]


def test_recorded_calls_and_thoughts_pass_through(play: Play) -> None:
    with play([CALL], chat_template_file=QWEN) as llm:
        stream = llm.stream_chat("How is the weather?", tools=TOOLS)
        events = list(stream.events())
        answer = stream.completion
    assert {type(event) for event in events} == {Reasoning, Content, CallBegin, CallArguments, CallEnd}
    assert (answer.reasoning, answer.text, answer.finish_reason) == ("Two  cities.", "I look.", "tool_calls")
    assert answer.tool_calls[0].values == {"city": "Bern"}
    assert answer.usage.reasoning_tokens > len("Two cities.")
    assert answer.message.reasoning == "Two  cities."


def test_reasoning_is_switched_and_bounded(play: Play) -> None:
    with play(["<think>\n" + "hm " * 50 + "</think>\n\nYes."], chat_template_file=QWEN) as llm:
        free, bounded = llm.chat("Is it?"), llm.chat("Is it?", reasoning=10)
        assert (free.reasoning.count("hm"), free.text) == (50, "Yes.")
        assert bounded.usage.reasoning_tokens <= 20
        assert len(bounded.reasoning) < 20
        prompts = [llm.chat("Is it?", reasoning=is_on, max_tokens=1).usage.prompt_tokens for is_on in (True, False)]
        assert prompts[0] < prompts[1], "the template writes an empty thought"


def test_special_tokens_of_a_script(play: Play) -> None:
    with play({"answers": ["a<|stop_here|>b"], "special_tokens": ["<|stop_here|>"]}) as llm:
        answer = llm.generate("x")
        assert (answer.text, len(answer.token_ids)) == ("ab", 4)
        assert llm.detokenize(answer.token_ids[:3]) == "a<|stop_here|>b"


def test_a_constraint_holds_for_a_played_answer(play: Play) -> None:
    with play(["maybe"]) as llm:
        assert llm.generate("x", response_format={"choice": ["yes", "no"]}).text in ("yes", "no")


@pytest.mark.parametrize("script", [[], {"answers": []}, {"answer": ["x"]}, [5], "x", [{"text": "x", "if": "y"}]])
def test_what_is_no_script_is_refused(play: Play, script: object) -> None:
    with pytest.raises(ConfigError, match=r"script\.json"):
        play(script)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"the script .*none\.json cannot be read"):
        LLM(EngineConfig(model="x", script=str(tmp_path / "none.json")))
    with pytest.raises(ConfigError, match=r"the chat template .*none\.jinja cannot be read"):
        LLM(EngineConfig(model="scripted", chat_template_file=str(tmp_path / "none.jinja")))


def test_the_settings_name_the_format_of_calls(play: Play) -> None:
    with play(['[TOOL_CALLS][{"name": "weather", "arguments": {}}]'], tool_format="mistral3") as llm:
        assert llm.chat("x", tools=TOOLS).tool_calls[0].name == "weather"
    with play([CALL], chat_template_file=QWEN, tool_format="none") as llm:
        with pytest.raises(UnsupportedParameter, match="turned off"):
            llm.chat("x", tools=TOOLS)
        assert llm.chat("x").reasoning == "Two  cities."
    with pytest.raises(ConfigError, match=r"no tool format 'herms'.*hermes"):
        play(["x"], tool_format="herms")

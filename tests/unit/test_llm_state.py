"""What `LLM` and `AsyncLLM` say about themselves, how they are loaded again, and how long an answer may take."""

from __future__ import annotations

import asyncio
import io
import sys
from collections.abc import Iterator

import pytest

from stoker import LLM, AsyncLLM, SamplingParams
from stoker.backends.scripted import ScriptedBackend
from stoker.errors import InvalidInput, ModelNotLoaded, StokerError, Timeout
from tests.waiting import until

GREEDY = SamplingParams(temperature=0, max_tokens=6)
ENDLESS = SamplingParams(ignore_eos=True, max_tokens=400)


@pytest.fixture
def llm() -> Iterator[LLM]:
    with LLM("scripted", backend="scripted", parallel=4) as llm:
        yield llm


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_metrics_count_what_was_computed(llm: LLM) -> None:
    before = llm.metrics()
    usage = llm.generate("Hello", GREEDY).usage
    asyncio.run(until(lambda: llm.metrics().num_running == 0))
    after = llm.metrics()
    assert after.num_steps > before.num_steps
    assert after.prompt_tokens - before.prompt_tokens == usage.prompt_tokens
    assert after.kv_capacity > 0


def test_health_follows_the_model(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (llm.health().is_ready, llm.health().state) == (True, "ready")

    def broken(*_: object) -> None:
        raise RuntimeError("boom")

    with monkeypatch.context() as patch:
        patch.setattr(ScriptedBackend, "forward", broken)
        with pytest.raises(StokerError):
            llm.generate("x")
    assert (llm.health().is_ready, llm.health().state) == (False, "failed")
    assert "boom" in str(llm.health().last_error)
    llm.reload()
    assert llm.health().is_ready
    assert len(llm.generate("x", GREEDY).token_ids) > 0
    llm.close()
    assert (llm.health().is_ready, llm.health().state) == (False, "closed")
    assert repr(llm).endswith("closed>")


def test_a_notebook_shows_the_model_as_a_table() -> None:
    with LLM("<b>hi</b>", backend="scripted") as llm:
        shown = llm._repr_html_()
    assert shown.startswith("<table>")
    assert "<td>&lt;b&gt;hi&lt;/b&gt;</td>" in shown
    assert f"{llm.card.context_size:,} tokens" in shown


def test_reload_ends_what_runs_and_opens_what_was_closed(llm: LLM) -> None:
    expected = llm.generate("x", GREEDY).text
    stream = llm.stream("x", ENDLESS)
    next(stream)
    card = llm.reload()
    with pytest.raises(ModelNotLoaded):
        list(stream)
    assert card is llm.card
    llm.close()
    llm.reload()
    assert llm.generate("x", GREEDY).text == expected


def test_a_model_that_cannot_be_loaded_again_may_be_tried_later(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise ModelNotLoaded("not now")

    with monkeypatch.context() as patch:
        patch.setattr("stoker.llm.session.build_engine", refused)
        with pytest.raises(ModelNotLoaded, match="not now"):
            llm.reload()
    with pytest.raises(ModelNotLoaded):
        llm.generate("x", GREEDY)
    assert llm.reload().name == "scripted"
    assert llm.health().is_ready


@pytest.mark.parametrize("timeout", [1e-9])
def test_an_answer_that_takes_longer_is_ended(llm: LLM, timeout: float) -> None:
    with pytest.raises(Timeout, match="not finished within"):
        llm.generate("x", ENDLESS, timeout=timeout)
    with pytest.raises(Timeout):
        list(llm.stream_chat("x", ENDLESS, timeout=timeout))
    assert llm.generate("x", GREEDY, timeout=1000).finish_reason in ("stop", "length")


@pytest.mark.parametrize("timeout", [0, -1.5, float("nan"), "3"])
def test_an_impossible_timeout_is_refused(llm: LLM, timeout: object) -> None:
    with pytest.raises(InvalidInput, match="`timeout` must be"):
        llm.chat("x", GREEDY, timeout=timeout)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]


@pytest.mark.parametrize(
    ("num_prompts", "is_terminal", "is_shown"), [(16, True, True), (15, True, False), (16, False, False)]
)
def test_a_long_batch_on_a_terminal_has_a_bar(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, num_prompts: int, is_terminal: bool, is_shown: bool
) -> None:
    stderr = Terminal() if is_terminal else io.StringIO()
    monkeypatch.setattr(sys, "stderr", stderr)
    llm.generate(["x"] * num_prompts, max_tokens=1)
    assert ("prompts" in stderr.getvalue()) is is_shown
    llm.generate(["x"] * num_prompts, max_tokens=1, progress=False)
    assert ("prompts" in stderr.getvalue()) is is_shown


def test_asyncio_has_the_same() -> None:
    async def run() -> None:
        llm = AsyncLLM("scripted", backend="scripted")
        assert llm.health().state == "starting"
        await llm.generate("x", GREEDY)
        assert llm.health().is_ready
        assert (await llm.metrics()).num_steps > 0
        with pytest.raises(Timeout):
            await llm.chat("x", ENDLESS, timeout=1e-9)
        await llm.close()
        assert llm.health().state == "closed"
        assert (await llm.reload()).name == "scripted"
        assert llm.health().is_ready
        await llm.generate("x", GREEDY)
        await llm.close()

    asyncio.run(run())

import asyncio
from collections.abc import AsyncGenerator
from typing import Any, cast

import msgspec
import pytest

from stoker.core.params import SamplingParams
from stoker.engine.cards import ModelCard
from stoker.engine.client import EngineClient, EngineHealth
from stoker.engine.protocol import Accepted, Output, Submit, Usage
from stoker.engine.supervisor import State
from stoker.errors import InvalidInput, ModelFileInvalid, ModelNotLoaded, TemplateError
from stoker.runtime.local import LocalRuntime
from stoker.text.messages import Message
from stoker.text.volatile import VolatileHeaders

CARD = ModelCard("m", "b", "a", "p", 1, 1, 1, 1, 1, 1, None, "<s>", "</s>", 1, 1, 1)
HI = [Message(role="user", content="hi")]


class FakeClient:
    def __init__(self, card: ModelCard = CARD) -> None:
        self.card = card
        self.calls: list[str] = []
        self.state = State.READY

    async def start(self) -> ModelCard:
        self.calls.append("start")
        return self.card

    async def close(self) -> None:
        self.calls.append("close")

    def health(self) -> EngineHealth:
        return EngineHealth(state=self.state, heartbeat=None, num_restarts=2, last_error="killed")

    async def generate(self, submit: Submit) -> AsyncGenerator[Accepted | Output, None]:
        try:
            yield Accepted(submit.request_id, 1)
            yield Output(submit.request_id, "x", [1], Usage(1, 1, 0), finish_reason="stop")
        finally:
            self.calls.append("freed")


def make_runtime(template: str | None = None, **state: Any) -> tuple[LocalRuntime, FakeClient]:
    client = FakeClient(msgspec.structs.replace(CARD, chat_template=template))
    for name, value in state.items():
        setattr(client, name, value)
    return LocalRuntime(cast("EngineClient", client)), client


def started(template: str | None = None) -> LocalRuntime:
    runtime, _ = make_runtime(template)
    asyncio.run(runtime.start())
    return runtime


def test_card_is_there_once_it_is_loaded():
    runtime, client = make_runtime()
    with pytest.raises(ModelNotLoaded):
        _ = runtime.card
    with pytest.raises(ModelNotLoaded):
        runtime.render_chat(HI)
    asyncio.run(runtime.start())
    asyncio.run(runtime.start())
    assert runtime.card == client.card
    assert client.calls == ["start"]


def test_load_error_is_passed_on():
    async def fail() -> ModelCard:
        raise ModelFileInvalid("truncated")

    runtime, _ = make_runtime(start=fail)
    with pytest.raises(ModelFileInvalid):
        asyncio.run(runtime.start())


@pytest.mark.parametrize("state", list(State))
def test_health_is_the_engines(state: State):
    runtime, _ = make_runtime(state=state)
    health = runtime.health()
    assert (health.is_ready, health.state) == (state is State.READY, state.value)
    assert (health.num_restarts, health.last_error) == (2, "killed")


def test_model_without_template_gets_chatml():
    assert started().render_chat(HI) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


def test_template_sees_tokens_flags_and_variables():
    runtime = started("{{ bos_token }}{{ messages[0].content }}{{ eos_token }}{{ add_generation_prompt }}{{ x }}")
    assert runtime.render_chat(HI, template_kwargs={"x": 7}) == "<s>hi</s>True7"
    assert runtime.render_chat(HI, add_generation_prompt=False) == "<s>hi</s>False"
    with pytest.raises(InvalidInput):
        runtime.render_chat(HI, template_kwargs={"messages": []})


def test_final_message_can_be_continued():
    messages = [*HI, Message(role="assistant", content="Well,")]
    assert started().render_chat(messages, continue_final_message=True).endswith("<|im_start|>assistant\nWell,")


def test_volatile_headers_are_dropped_before_rendering():
    client = FakeClient(msgspec.structs.replace(CARD, chat_template=None))
    runtime = LocalRuntime(cast("EngineClient", client), VolatileHeaders(["Request: .*"]))
    asyncio.run(runtime.start())
    prompts = {runtime.render_chat([Message(role="system", content=f"Request: {n}\nBe kind."), *HI]) for n in range(3)}
    assert len(prompts) == 1
    assert "Be kind." in prompts.pop()


def test_broken_template_fails_chats_only():
    runtime = started("{% if %}")
    for _ in range(2):
        with pytest.raises(TemplateError):
            runtime.render_chat(HI)


def test_generate_and_close_are_the_clients():
    runtime, client = make_runtime()

    async def ask() -> None:
        stream = runtime.generate(Submit("r", "hi", SamplingParams()))
        assert isinstance(await anext(stream), Accepted)
        await stream.aclose()
        await runtime.close()

    asyncio.run(ask())
    assert client.calls == ["freed", "close"]

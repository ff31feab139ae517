"""`stoker serve --runtime llama-server` with a real llama-server, asked by the real clients of every dialect."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anthropic
import httpx
import numpy as np
import ollama
import openai
import pytest
from psutil import Process

from stoker.engine.config import EngineConfig
from stoker.engine.question_messages import Embed, Tokenize
from stoker.errors import ConfigError, EngineCrashed, ModelNotLoaded
from stoker.runtime.external.config import RuntimeConfig
from stoker.runtime.external.runtime import ExternalRuntime
from stoker.runtime.llama_server.binary import find_binary
from stoker.runtime.llama_server.served import LlamaServed
from tests.bert_models import Bert, normalised
from tests.e2e.conftest import Server, serving
from tests.unit.runtime.llama_server.fake import answer, ask
from tests.waiting import BOUND_S, wait_until

MESSAGES: Any = [{"role": "user", "content": "Count from one to ten in words."}]


pytestmark = pytest.mark.usefixtures("computes_here")


@pytest.fixture(scope="module")
def computes_here(smollm2_path: Path) -> None:
    """Skips everything where there is no llama-server, or only one that was built for another CPU."""

    async def start() -> None:
        config = EngineConfig(model="m", model_path=str(smollm2_path), ctx_size=256, parallel=1)
        runtime = ExternalRuntime(LlamaServed(config, RuntimeConfig()), config)
        try:
            await runtime.start()
        finally:
            await runtime.close()

    try:
        find_binary()
        asyncio.run(start())
    except ConfigError as error:
        pytest.skip(error.message)
    except ModelNotLoaded as error:
        if "built for another CPU" not in error.message:
            raise
        pytest.skip(error.message)


@pytest.fixture(scope="module")
def server(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """SmolLM2 in a llama-server of four slots. Whoever harms it waits until it is well again."""
    log = tmp_path_factory.mktemp("served_by_llama_server") / "log"
    options = ("--runtime", "llama-server", "--ctx-size", "512", "--parallel", "4")
    with serving(str(smollm2_path), *options, log=log) as server:
        yield server


def post(url: str, path: str, body: object) -> Any:
    reply = httpx.post(url + path, json=body, trust_env=False, timeout=BOUND_S)
    assert reply.status_code == 200, reply.text
    return reply.json()


def llama_server_of(pid: int) -> Process:
    (child,) = [child for child in Process(pid).children() if "llama-server" in child.name()]
    return child


def test_every_dialect_gives_the_same_answer(server: Server):
    http = openai.DefaultHttpxClient(trust_env=False)
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", http_client=http) as client:
        asked: dict[str, Any] = {"model": "m", "messages": MESSAGES, "temperature": 0, "max_tokens": 24}
        whole: Any = client.chat.completions.create(**asked, logprobs=True, top_logprobs=2)
        stream: Any = client.chat.completions.create(**asked, stream=True)
        streamed = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
    choice = whole.choices[0]
    expected = choice.message.content
    assert expected
    assert streamed == expected
    assert choice.finish_reason == "length"
    assert whole.usage.completion_tokens == 24
    assert b"".join(bytes(token.bytes) for token in choice.logprobs.content).decode() == expected
    assert all(token.logprob <= 0 and len(token.top_logprobs) == 2 for token in choice.logprobs.content)
    claude_http = anthropic.DefaultHttpxClient(trust_env=False)
    with anthropic.Anthropic(base_url=server.url, api_key="none", http_client=claude_http) as claude:
        message: Any = claude.messages.create(
            model="m", max_tokens=24, messages=MESSAGES, extra_body={"temperature": 0}
        )
    assert message.content[0].text == expected
    assert message.usage.cache_read_input_tokens > 0, "the prompt was computed before"
    with ollama.Client(host=server.url, trust_env=False) as llama:
        reply: Any = llama.chat("m", MESSAGES, options={"temperature": 0, "num_predict": 24})
    assert reply.message.content == expected
    prompt = post(server.url, "/apply-template", {"messages": MESSAGES})["prompt"]
    native = post(server.url, "/completion", {"prompt": prompt, "temperature": 0, "n_predict": 24, "stop": [" three"]})
    assert native["content"] == expected.partition(" three")[0]


@pytest.mark.slow
def test_its_own_stop_its_own_template_and_every_parameter(server: Server):
    sampling: dict[str, Any] = {"temperature": 0.8, "top_k": 20, "top_p": 0.9, "min_p": 0.01, "seed": 7, "n": 2}
    sampling |= {"typical_p": 0.95, "top_n_sigma": 2, "repetition_penalty": 1.1, "presence_penalty": 0.1}
    sampling |= {"frequency_penalty": 0.1, "dry_multiplier": 0.8, "xtc_probability": 0.1, "dynatemp_range": 0.1}
    sampling |= {"logit_bias": {"5": -1, "hello": -9}}
    body = {"messages": MESSAGES, "max_tokens": 8, **sampling}
    first = post(server.url, "/v1/chat/completions", body)
    assert {choice["index"] for choice in first["choices"]} == {0, 1}
    brief = {"messages": [{"role": "user", "content": "Say hi."}], "temperature": 0}
    reply = post(server.url, "/v1/chat/completions", brief)
    assert reply["choices"][0]["finish_reason"] == "stop"
    assert "<|im_end|>" not in reply["choices"][0]["message"]["content"]
    echoed = post(server.url, "/v1/completions", {"prompt": "é 🙂", "echo": True, "max_tokens": 0})
    assert echoed["choices"][0]["text"] == "é 🙂"


def test_more_requests_than_slots(server: Server):
    def ask(number: int) -> int:
        body = {"prompt": f"{number}:", "max_tokens": 8, "ignore_eos": True}
        return post(server.url, "/v1/completions", body)["usage"]["completion_tokens"]

    with ThreadPoolExecutor(12) as pool:
        assert list(pool.map(ask, range(12))) == [8] * 12
    assert post(server.url, "/slots/0?action=erase", {})["id_slot"] == 0


def test_a_killed_llama_server_is_replaced(server: Server):
    body = {"prompt": "Tell me a story.", "max_tokens": 400, "ignore_eos": True, "stream": True}
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body, trust_env=False, timeout=BOUND_S) as response:
        parts = response.iter_bytes()
        received = next(parts)
        llama_server_of(server.pid).kill()
        received += b"".join(parts)
    assert b'"code":"engine_crashed"' in received
    assert b"[DONE]" not in received
    wait_until(lambda: httpx.get(f"{server.url}/health", trust_env=False, timeout=BOUND_S).status_code == 200)
    body = {"prompt": "1, 2,", "max_tokens": 2, "ignore_eos": True}
    assert post(server.url, "/v1/completions", body)["usage"]["completion_tokens"] == 2


def test_an_encoder_embeds(minilm_path: Path, minilm: Bert):
    async def test() -> None:
        config = EngineConfig(model="minilm", model_path=str(minilm_path), parallel=2)
        runtime = ExternalRuntime(LlamaServed(config, RuntimeConfig()), config)
        try:
            await runtime.start()
            token_ids = (await runtime.ask(Tokenize("a cat sits"))).token_ids
            embedded = await runtime.ask(Embed(["a cat sits"]))
            (row,) = embedded.rows()
            (num_tokens,) = embedded.num_tokens
            assert num_tokens == len(token_ids) + 1, "[SEP] behind it, and the prompt has [CLS] in front"
            separator = (await runtime.ask(Tokenize("[SEP]", wants_bos=False))).token_ids
            reference = normalised(minilm.hidden([*token_ids, *separator]).mean(axis=0))
            assert float(np.dot(row, reference)) > 0.999
        finally:
            await runtime.close()

    asyncio.run(test())


@pytest.mark.slow
def test_a_model_drafts_for_another(smollm2_path: Path):
    """The model drafts for itself, so nearly everything comes out; rounding may differ between lengths of batches."""

    async def test() -> None:
        settings: Any = {"model_path": str(smollm2_path), "draft_model": str(smollm2_path), "ctx_size": 256}
        config = EngineConfig(model="m", parallel=1, **settings)
        runtime = ExternalRuntime(LlamaServed(config, RuntimeConfig()), config)
        try:
            await runtime.start()
            last = (await answer(runtime, ask("1, 2, 3, 4, 5, 6,", temperature=0, max_tokens=32, ignore_eos=True)))[-1]
        finally:
            await runtime.close()
        assert last.usage.completion_tokens == 32
        assert last.timing is not None
        assert 8 < last.timing.num_accepted <= last.timing.num_drafted
        assert last.timing.num_accepted > last.timing.num_drafted / 2

    asyncio.run(test())


def test_a_damaged_model_is_named_in_the_error(smollm2_path: Path):
    async def test() -> None:
        config = EngineConfig(model="m", model_path=str(smollm2_path), ctx_size=256, parallel=1)
        further = RuntimeConfig(llama_server_args="--override-kv llama.block_count=int:99")
        runtime = ExternalRuntime(LlamaServed(config, further), config)
        with pytest.raises(EngineCrashed, match="failed to load model"):
            await runtime.start()
        await runtime.close()

    asyncio.run(test())

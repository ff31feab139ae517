"""`LLM` and `AsyncLLM` over the scripted backend: order, batching, streaming, stopping, closing."""

from __future__ import annotations

import asyncio
import copy
import gc
import pickle
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from stoker import LLM, AsyncLLM, Completion, EngineConfig, SamplingParams, Usage
from stoker.backends.scripted import BOS, EOS
from stoker.core.batch import Batch
from stoker.errors import (
    ContextLengthExceeded,
    InvalidInput,
    ModelFileNotFound,
    ModelNotLoaded,
    ModelUnsupported,
    StokerError,
)
from stoker.llm.inputs import Prompt
from stoker.text.messages import Message

REPLY = "Hello, how are you?"
GREEDY = SamplingParams(temperature=0, max_tokens=6)


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    """Babbles: each prompt gets another answer, always the same."""
    with LLM("scripted", backend="scripted", parallel=4) as llm:
        yield llm


@pytest.fixture(scope="module")
def parrot() -> Iterator[LLM]:
    """Always answers `REPLY`."""
    with LLM(REPLY, backend="scripted") as llm:
        yield llm


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    """Holds the forward passes of every scripted model built in this test."""
    gate = Gate()
    import stoker.backends.scripted as scripted

    original = scripted.ScriptedBackend.forward

    def forward(self: scripted.ScriptedBackend, batch: Batch):
        gate.pass_through()
        return original(self, batch)

    monkeypatch.setattr(scripted.ScriptedBackend, "forward", forward)
    return gate


class Gate:
    """Lets forward passes through one by one, or all."""

    def __init__(self) -> None:
        self._tickets = threading.Semaphore(0)
        self._is_open = threading.Event()

    def pass_through(self) -> None:
        if not self._is_open.is_set():
            assert self._tickets.acquire(timeout=30)

    def let(self, num_steps: int) -> None:
        self._tickets.release(num_steps)

    def open(self) -> None:
        self._is_open.set()
        self.let(1)


def has_work(llm: LLM) -> bool:
    """Whether a request is alive after one more has gone through the engine, and so all commands before it."""
    llm.generate("barrier", SamplingParams(max_tokens=2, ignore_eos=True))
    return llm._session._worker._engine.has_work


def test_one_prompt_gives_one_completion(parrot: LLM) -> None:
    found = parrot.generate("Hi!")
    assert found.text == REPLY
    assert found.token_ids == [*REPLY.encode(), EOS]
    assert found.finish_reason == "stop"
    assert (found.usage.prompt_tokens, found.usage.completion_tokens) == (4, len(REPLY) + 1)
    assert found.logprobs is None


def test_a_list_gives_a_list_in_its_order(llm: LLM) -> None:
    prompts = [f"prompt {index}" for index in range(20)]
    one_by_one = [llm.generate(prompt, GREEDY).text for prompt in prompts]
    assert len(set(one_by_one)) == 20
    assert [answer.text for answer in llm.generate(prompts, GREEDY)] == one_by_one
    assert llm.generate([], GREEDY) == []
    assert isinstance(llm.generate(prompts[:1], GREEDY), list)


def test_many_more_prompts_than_places() -> None:
    config = EngineConfig(model="scripted", backend="scripted", parallel=2, max_queue=3)
    with LLM(config) as llm:
        prompts = [f"prompt {index}" for index in range(100)]
        answers = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=2))
        assert [answer.usage.prompt_tokens for answer in answers] == [len(prompt) + 1 for prompt in prompts]


def test_token_ids_are_taken_as_they_are(llm: LLM) -> None:
    by_text = llm.generate("abc", GREEDY)
    by_ids = llm.generate([BOS, *b"abc"], GREEDY)
    assert by_ids.token_ids == by_text.token_ids
    mixed: list[Prompt] = ["abc", [BOS, *b"abc"]]
    assert [answer.text for answer in llm.generate(mixed, GREEDY)] == [by_text.text] * 2


def test_token_ids_may_be_of_any_integer_type(llm: LLM) -> None:
    expected = llm.generate([BOS, *b"abc"], GREEDY).text
    ids = np.array([BOS, *b"abc"])
    for prompt in (tuple(ids.tolist()), list(ids), ids):
        assert llm.generate(cast("Prompt", prompt), GREEDY).text == expected
        assert "".join(llm.stream(cast("Prompt", prompt), GREEDY)) == expected


@pytest.mark.parametrize("prompt", [None, 5, b"abc", [1.5], [[1.5]], ["a", 5], [5, "a"], [None], {"a": 1}])
def test_a_prompt_of_a_wrong_type_is_refused_and_stops_nobody(llm: LLM, prompt: Any) -> None:
    with pytest.raises(InvalidInput, match="text"):
        llm.generate(prompt, GREEDY)
    with pytest.raises(InvalidInput, match="text or a list of token ids"):
        llm.stream(prompt, GREEDY)
    assert llm.generate("a", GREEDY).text


@pytest.mark.parametrize(
    "wrong",
    [
        {"top_k": 2.5},
        {"seed": 1.5},
        {"logprobs": 1.5},
        {"stop": [5]},
        {"ignore_eos": "yes"},
        {"allowed_token_ids": ["a"]},
        {"dry_sequence_breakers": "x"},
        {"logit_bias": {"a": 1}},
        {"logit_bias": 5.0},
    ],
)
def test_a_sampling_value_of_a_wrong_type_is_refused_and_stops_nobody(llm: LLM, wrong: dict[str, Any]) -> None:
    params = SamplingParams()
    for name, value in wrong.items():
        object.__setattr__(params, name, value)
    for ask in (lambda: llm.generate("a", params), lambda: llm.stream("a", params)):
        with pytest.raises(InvalidInput) as caught:
            ask()
        assert caught.value.fields["parameter"] in wrong
    assert llm.generate("a", GREEDY).text


def test_sampling_must_be_sampling_params(llm: LLM) -> None:
    for wrong in ({"temperature": 0}, "hot", 5):
        with pytest.raises(InvalidInput, match="must be SamplingParams"):
            llm.generate("a", cast("SamplingParams", wrong))
    every = SamplingParams(
        temperature=np.float32(0),  # pyright: ignore[reportArgumentType]
        max_tokens=np.int64(3),  # pyright: ignore[reportArgumentType]
        stop=("zzz",),
        stop_token_ids=range(3),
        logit_bias={5: 1},
        ignore_eos=True,
        dry_sequence_breakers=["x"],
    )
    assert llm.generate("a", every).usage.completion_tokens == 3


@pytest.mark.parametrize(
    "option", [{"ctx_size": "64"}, {"parallel": None}, {"threads": 2.0}, {"kv_tokens": 1.5}, {"lora": 5}]
)
@pytest.mark.parametrize("kind", [LLM, AsyncLLM])
def test_an_option_of_a_wrong_type_is_named(kind: Any, option: dict[str, Any]) -> None:
    (name,) = option
    with pytest.raises(InvalidInput, match=f"`{name}` must be") as caught:
        kind("scripted", backend="scripted", **option)
    assert caught.value.fields["parameter"] == name


@pytest.mark.parametrize("model", [None, 5, b"smollm2"])
def test_a_model_must_be_a_name_or_a_path(model: Any) -> None:
    with pytest.raises(InvalidInput, match="`model` must be a name"):
        LLM(model, backend="scripted")


def test_adapters_may_be_given_in_several_ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    path = tmp_path / "sql.gguf"
    path.touch()
    given: list[Any] = [str(path), path, [str(path)], {"sql": path}, {"sql": "~/sql.gguf"}]
    for lora in given:
        with LLM("scripted", backend="scripted", lora=lora) as llm:
            assert [adapter.name for adapter in llm.card.adapters] == ["sql"]
    for wrong in ({"sql": None}, {1: path}, [path, None]):
        with pytest.raises(InvalidInput, match="`lora` must be"):
            LLM("scripted", backend="scripted", lora=cast("Any", wrong))


def test_texts_are_no_conversations(llm: LLM) -> None:
    with pytest.raises(InvalidInput, match="not str"):
        llm.chat(cast("Any", ["Hi", "Ho"]))


def test_a_model_is_neither_pickled_nor_copied(llm: LLM) -> None:
    for model in (llm, AsyncLLM("scripted", backend="scripted")):
        for take in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(TypeError, match="lives in one process"):
                take(model)


def test_each_prompt_may_have_its_own_sampling(llm: LLM) -> None:
    answers = llm.generate(["a", "b"], [SamplingParams(max_tokens=1), SamplingParams(max_tokens=3)])
    assert [answer.usage.completion_tokens for answer in answers] == [1, 3]
    with pytest.raises(InvalidInput, match="1 sampling params for 2 prompts"):
        llm.generate(["a", "b"], [GREEDY])


def test_logprobs_come_if_asked_for(llm: LLM) -> None:
    answer = llm.generate("x", SamplingParams(temperature=0, max_tokens=3, logprobs=2))
    assert answer.logprobs is not None
    assert [position.chosen.token_id for position in answer.logprobs] == answer.token_ids
    assert all(len(position.top) == 2 for position in answer.logprobs)


def test_generate_ends_after_512_tokens_unless_told_otherwise() -> None:
    params = SamplingParams(ignore_eos=True)
    with LLM("scripted", backend="scripted", ctx_size=1024) as llm:
        assert llm.generate("x", params).usage.completion_tokens == 512
        assert llm.stream("x", params) is not None
        answer = llm.chat([{"role": "user", "content": "x"}], params)
        assert answer.finish_reason == "length"
        assert answer.usage.prompt_tokens + answer.usage.completion_tokens == 1024
    config = EngineConfig(model="scripted", backend="scripted", sampling=SamplingParams(max_tokens=5))
    with LLM(config) as llm:
        assert llm.generate("x", params).usage.completion_tokens == 5


def test_chat_renders_the_template_for_one_conversation_or_several(parrot: LLM) -> None:
    messages = [{"role": "user", "content": "Hi!"}]
    answer = parrot.chat(messages)
    assert answer.text == REPLY
    rendered = "<|im_start|>user\nHi!<|im_end|>\n<|im_start|>assistant\n"
    assert answer.usage.prompt_tokens == parrot.generate(rendered).usage.prompt_tokens
    assert [a.text for a in parrot.chat([messages, [Message(role="user", content="Ho!")]])] == [REPLY] * 2
    with pytest.raises(InvalidInput, match="at least one message"):
        parrot.chat([])
    with pytest.raises(InvalidInput, match="role"):
        parrot.chat([{"content": "x"}])
    for wrong in (None, "Hi!", {"role": "user", "content": "Hi!"}):
        with pytest.raises(InvalidInput, match="must be a list"):
            parrot.chat(cast("list[Message]", wrong))


def test_a_later_turn_reuses_what_is_resident(parrot: LLM) -> None:
    prompt = "a prompt that nobody has sent before this one"
    parrot.generate(prompt)
    assert parrot.generate(prompt + REPLY + "and on").usage.cached_tokens >= len(prompt)


def test_a_stream_adds_up_to_the_answer(llm: LLM) -> None:
    stream = llm.stream("a prompt", GREEDY)
    assert "".join(stream) == llm.generate("a prompt", GREEDY).text
    assert stream.completion.finish_reason == "length"
    assert list(stream) == []


def test_a_stream_refuses_before_it_begins(llm: LLM) -> None:
    with pytest.raises(ContextLengthExceeded):
        llm.stream("x" * 600)
    with pytest.raises(InvalidInput, match="empty"):
        llm.stream([])


def test_closing_a_stream_stops_the_model(gate: Gate) -> None:
    with LLM("scripted", backend="scripted", ctx_size=100_000) as llm:
        stream = llm.stream("x", SamplingParams(temperature=0, ignore_eos=True))
        gate.let(8)
        first = next(stream)
        stream.close()
        stream.close()
        gate.open()
        assert not has_work(llm)
        assert stream.completion.finish_reason == "cancelled"
        assert (first + "".join(stream)) == stream.completion.text
        assert 0 < stream.completion.usage.completion_tokens <= 8


def test_a_stream_that_nobody_holds_stops_the_model(gate: Gate) -> None:
    with LLM("scripted", backend="scripted", ctx_size=100_000) as llm:
        stream = llm.stream("x", SamplingParams(ignore_eos=True))
        gc.disable()
        try:
            del stream
            gate.open()
            assert not has_work(llm)
        finally:
            gc.enable()


def test_a_stream_keeps_its_model() -> None:
    assert "".join(LLM(REPLY, backend="scripted").stream("x")) == REPLY


def test_a_forked_child_is_told_that_the_model_did_not_come_along() -> None:
    code = (
        "import os\n"
        "from stoker import LLM\n"
        "llm = LLM('Hello', backend='scripted')\n"
        "stream = llm.stream('x')\n"
        "''.join(stream)\n"
        "child = os.fork()\n"
        "try:\n"
        "    said = llm.generate('x').text\n"
        "except Exception as error:\n"
        "    said = type(error).__name__\n"
        "os.write(1, f'{said}\\n'.encode())\n"  # at once: two processes write to this pipe
        "if child:\n"
        "    os.waitpid(child, 0)\n"
        "llm.close()\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(done.stdout.split()) == ["Hello", "ModelNotLoaded"]


def test_one_refused_prompt_stops_the_others_and_is_named(llm: LLM) -> None:
    prompts = ["short"] * 5 + ["x" * 600] + ["short"] * 5
    with pytest.raises(ContextLengthExceeded) as caught:
        llm.generate(prompts, SamplingParams(ignore_eos=True, max_tokens=400))
    assert "in prompt 5 of 11, counted from 0" in caught.value.__notes__
    assert not has_work(llm)


def test_an_interrupt_stops_every_prompt(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def interrupted_bar(num_prompts: int, *, is_shown: bool) -> Generator[Callable[[], None]]:
        def advance() -> None:
            raise KeyboardInterrupt

        yield advance

    monkeypatch.setattr("stoker.llm.sync.progress_bar", interrupted_bar)
    params = [SamplingParams(max_tokens=1), *[SamplingParams(max_tokens=400, ignore_eos=True)] * 30]
    with pytest.raises(KeyboardInterrupt):
        llm.generate(["x"] * 31, params)
    monkeypatch.undo()
    assert not has_work(llm)
    assert not llm._session._answers


def test_threads_share_one_model(llm: LLM) -> None:
    expected = {f"p{index}": llm.generate(f"p{index}", GREEDY).text for index in range(8)}
    found: queue.Queue[tuple[str, str]] = queue.Queue(8)

    def ask(prompt: str) -> None:
        found.put((prompt, "".join(llm.stream(prompt, GREEDY))))

    threads = [threading.Thread(target=ask, args=(prompt,)) for prompt in expected]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert dict(found.get_nowait() for _ in threads) == expected


def test_the_progress_bar_goes_to_stderr(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    llm.generate(["a", "b"], GREEDY)
    assert capsys.readouterr() == ("", "")
    llm.generate(["a", "b"], GREEDY, progress=True)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "2/2" in shown.err


def test_after_close_everything_is_refused() -> None:
    llm = LLM("scripted", backend="scripted")
    stream = llm.stream("x", SamplingParams(ignore_eos=True))
    llm.close()
    llm.close()
    with pytest.raises(ModelNotLoaded):
        list(stream)
    with pytest.raises(ModelNotLoaded):
        llm.generate("x")


def test_what_ends_with_an_error_raises_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with LLM("scripted", backend="scripted") as llm:

        def forward(*_: object) -> None:
            raise ZeroDivisionError("a bug")

        monkeypatch.setattr("stoker.backends.scripted.ScriptedBackend.forward", forward)
        with pytest.raises(StokerError, match="a bug"):
            llm.generate(["a", "b"])
        with pytest.raises(StokerError, match="a bug"):
            llm.stream("a")


def test_a_backend_for_other_files_is_refused() -> None:
    with pytest.raises(ModelUnsupported, match="smollm2 is a GGUF file, and the backend `onnx` runs ONNX folders"):
        LLM("smollm2", backend="onnx")


def test_the_interpreter_ends_although_nobody_closed() -> None:
    code = (
        "from stoker import LLM, SamplingParams\n"
        "llm = LLM('scripted', backend='scripted', ctx_size=100_000)\n"
        "stream = llm.stream('x', SamplingParams(ignore_eos=True))\n"
        "next(stream)\n"
        "print('left')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "left\n", "")


def test_async_verbs_give_what_the_plain_ones_give(llm: LLM) -> None:
    async def ask() -> tuple[Completion, list[Completion], Completion, str, str]:
        async with AsyncLLM("scripted", backend="scripted") as model:
            one = await model.generate("p", GREEDY)
            many = await model.generate(["p", "q", "r"], GREEDY)
            chat = await model.chat([{"role": "user", "content": "p"}], GREEDY)
            streamed = "".join([text async for text in model.stream("p", GREEDY)])
            stream = model.stream_chat([{"role": "user", "content": "p"}], GREEDY)
            async for _ in stream:
                pass
            return one, many, chat, streamed, stream.completion.text

    one, many, chat, streamed, chat_streamed = asyncio.run(ask())
    assert one.text == streamed == llm.generate("p", GREEDY).text
    assert [answer.text for answer in many] == [answer.text for answer in llm.generate(["p", "q", "r"], GREEDY)]
    assert chat.text == chat_streamed == llm.chat([{"role": "user", "content": "p"}], GREEDY).text


def test_async_answers_can_be_iterated_over_in_order() -> None:
    prompts = [f"prompt {index}" for index in range(12)]

    async def ask() -> tuple[list[str], list[str], list[str]]:
        async with AsyncLLM("scripted", backend="scripted", parallel=3) as model:
            whole = [completion.text for completion in await model.generate(prompts, GREEDY)]
            each = [completion.text async for completion in model.generate(prompts, GREEDY)]
            task = asyncio.create_task(model.chat([{"role": "user", "content": "p"}], GREEDY))
            (chat,) = [c.text async for c in model.chat([{"role": "user", "content": "p"}], GREEDY)]
            return whole, each, [(await task).text, chat]

    whole, each, (awaited, iterated) = asyncio.run(ask())
    assert whole == each
    assert awaited == iterated


def test_leaving_an_async_iteration_stops_the_rest() -> None:
    async def ask() -> int:
        async with AsyncLLM("scripted", backend="scripted", ctx_size=100_000, parallel=2) as model:
            sampling = [SamplingParams(max_tokens=1), SamplingParams(max_tokens=90_000, ignore_eos=True)]
            answers = aiter(model.generate(["short", "endless"], sampling))
            first = await anext(answers)
            await answers.aclose()  # type: ignore[attr-defined]
            await model.generate("barrier", SamplingParams(max_tokens=1))
            assert not (await model._session())._answers
            return len(first.token_ids)

    assert asyncio.run(ask()) == 1


def test_async_with_more_prompts_than_places() -> None:
    async def ask() -> list[Completion]:
        async with AsyncLLM(EngineConfig(model="scripted", backend="scripted", parallel=2, max_queue=1)) as model:
            return await model.generate([f"prompt {index}" for index in range(50)], SamplingParams(max_tokens=2))

    assert len(asyncio.run(ask())) == 50


def test_cancelling_a_task_stops_its_request(gate: Gate) -> None:
    async def ask() -> int:
        async with AsyncLLM("scripted", backend="scripted", ctx_size=100_000) as model:
            task = asyncio.create_task(model.generate(["x", "y"], SamplingParams(ignore_eos=True, max_tokens=90_000)))
            stream = model.stream("z", SamplingParams(ignore_eos=True))
            gate.let(8)
            await anext(stream)
            task.cancel()
            await stream.aclose()
            with pytest.raises(asyncio.CancelledError):
                await task
            gate.open()
            await model.generate("barrier", SamplingParams(max_tokens=1))
            session = await model._session()
            assert not session._answers
            beat = session._worker._engine.heartbeat()
            return beat.num_running + beat.num_waiting

    assert asyncio.run(ask()) == 0


def test_async_errors_are_the_typed_ones() -> None:
    async def ask() -> None:
        async with AsyncLLM("scripted", backend="scripted") as model:
            with pytest.raises(ContextLengthExceeded):
                await model.generate(["ok", "x" * 600], SamplingParams(max_tokens=300, ignore_eos=True))
            with pytest.raises(InvalidInput):
                await anext(model.stream([]))
        with pytest.raises(ModelNotLoaded):
            await model.generate("x")
        await model.close()
        with pytest.raises(ModelUnsupported):
            await AsyncLLM("smollm2", backend="onnx").start()

    asyncio.run(ask())


def test_one_async_model_serves_one_event_loop_after_the_other() -> None:
    model = AsyncLLM(EngineConfig(model="scripted", backend="scripted", parallel=1, max_queue=1))

    async def ask() -> int:
        return len(await model.generate(["x"] * 20, SamplingParams(max_tokens=2)))

    async def begin_to_load() -> None:
        loading = asyncio.create_task(model.start())
        await asyncio.sleep(0)
        loading.cancel()

    asyncio.run(begin_to_load())
    assert [asyncio.run(ask()), asyncio.run(ask())] == [20, 20]
    asyncio.run(model.close())


def test_closing_what_could_not_be_loaded_is_no_error() -> None:
    async def ask() -> None:
        model = AsyncLLM("/nowhere/model.gguf")
        with pytest.raises(ModelFileNotFound):
            await model.start()
        await model.close()

    asyncio.run(ask())


def test_a_stream_never_started_costs_nothing() -> None:
    async def ask() -> Usage:
        async with AsyncLLM("scripted", backend="scripted") as model:
            stream = model.stream("x")
            await stream.aclose()
            return stream.completion.usage

    assert asyncio.run(ask()) == Usage(0, 0, 0)

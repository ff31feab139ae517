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
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from stoker import LLM, AsyncLLM, AsyncTextStream, Completion, EngineConfig, SamplingParams, Usage
from stoker.backends.scripted import BOS, EOS, ScriptedBackend, ScriptedTokenizer
from stoker.core.batch import Batch
from stoker.errors import (
    AdapterInvalid,
    ContextLengthExceeded,
    InvalidInput,
    ModelFileNotFound,
    ModelNotLoaded,
    ModelUnsupported,
    Overloaded,
    StokerError,
)
from stoker.llm.inputs import Prompt
from stoker.llm.places import Places
from stoker.llm.session import Session
from stoker.text.chat_template import ChatTemplate
from stoker.text.messages import Message
from tests.waiting import until

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


def test_models_and_answers_show_what_they_are(parrot: LLM) -> None:
    answer = parrot.generate("Hi")
    assert str(answer) == answer.text != ""
    assert repr(parrot) == f"<LLM {parrot.card.name}, context size {parrot.card.context_size}, ready>"


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


def test_numbers_of_numpy_are_as_good_as_plain_ones(llm: LLM) -> None:
    every: dict[str, Any] = {
        "seed": 5,
        "temperature": 1.5,
        "top_k": 0,
        "top_p": 1.0,
        "typical_p": 0.875,
        "dry_multiplier": 0.5,
        "dry_penalty_last_n": 100,
        "max_tokens": 120,
        "penalty_last_n": 64,
        "repetition_penalty": 1.5,
        "ignore_eos": True,
    }
    smallest = {name: np.min_scalar_type(value).type(value) for name, value in every.items()}
    plain = llm.generate("a", SamplingParams(**every, stop_token_ids=[3, 4], logit_bias={3: -99, 4: -99}))
    of_numpy = SamplingParams(
        **smallest,
        stop_token_ids=cast("Any", np.array([3, 4])),
        logit_bias=cast("Any", {np.int64(3): np.float32(-99), np.int8(4): np.int8(-99)}),
    )
    assert plain.usage.completion_tokens == 120
    assert llm.generate("a", of_numpy).token_ids == plain.token_ids
    assert llm.generate(["a"], [of_numpy])[0].token_ids == plain.token_ids


def test_sizes_of_numpy_are_as_good_as_plain_ones() -> None:
    sizes: dict[str, Any] = {"ctx_size": np.int64(128), "parallel": np.uint8(2), "kv_tokens": np.int32(256)}
    config = EngineConfig(model="scripted", backend="scripted", **sizes, max_queue=cast("Any", np.int8(100)))
    for make in (lambda: LLM(config), lambda: LLM("scripted", backend="scripted", **sizes)):
        with make() as llm:
            answers = llm.generate(["a"] * 5, SamplingParams(max_tokens=2, ignore_eos=True))
            assert [answer.usage.completion_tokens for answer in answers] == [2] * 5
            assert type(llm.card.context_size) is int


def test_sampling_must_be_sampling_params(llm: LLM) -> None:
    for wrong in ("hot", 5):
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


@pytest.mark.parametrize(
    "field",
    [
        {"parallel": "5"},
        {"parallel": None},
        {"ctx_size": "512"},
        {"max_queue": 2.5},
        {"model": 5},
        {"name": None},
        {"has_siblings": "yes"},
        {"lora": "sql.gguf"},
        {"control_vector": [5]},
        {"adapters": ("sql.gguf",)},
        {"sampling": {"temperature": 0}},
    ],
)
def test_a_field_of_a_wrong_type_is_named(field: dict[str, Any]) -> None:
    (name,) = field
    with pytest.raises(InvalidInput, match=f"`{name}` must be") as caught:
        EngineConfig(**field)
    assert caught.value.fields["parameter"] == name


def test_a_path_is_as_good_as_text() -> None:
    config = EngineConfig(model=cast("Any", Path("scripted")), backend="scripted")
    assert config == EngineConfig(model="scripted", backend="scripted")
    with LLM(config) as llm:
        assert llm.card.name == "scripted"


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
            with pytest.raises(TypeError, match="belongs to one process"):
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


def test_every_call_has_the_same_default_length() -> None:
    params = SamplingParams(ignore_eos=True)
    with LLM("scripted", backend="scripted", ctx_size=300) as llm:
        with llm.stream("x", params) as stream, llm.stream_chat("x", params) as chat:
            assert sum(map(len, stream)) > 0
            assert sum(map(len, chat)) > 0
        answers = [llm.generate("x", params), llm.chat("x", params), stream.completion, chat.completion]
        assert [answer.usage.completion_tokens for answer in answers] == [225] * 4
        assert {answer.finish_reason for answer in answers} == {"length"}
        answer = llm.chat("x", params, max_tokens=-1)
        assert answer.usage.prompt_tokens + answer.usage.completion_tokens == 300
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
    wrong: Any
    for wrong in (None, {"role": "user", "content": "Hi!"}, iter(messages)):
        for ask in (parrot.chat, parrot.stream_chat):
            with pytest.raises(InvalidInput, match=r"`messages` must be a .*list.*, not"):
                ask(wrong)
    for wrong in ([None], [5], [messages, None]):
        with pytest.raises(InvalidInput, match="must hold messages, or lists of messages, not"):
            parrot.chat(wrong)
        with pytest.raises(InvalidInput, match="must be an object, not"):
            parrot.stream_chat(wrong)


def test_a_conversation_may_be_any_sequence_of_messages_and_dicts(parrot: LLM) -> None:
    messages: list[Any] = [Message(role="system", content="Be short."), {"role": "user", "content": "Hi!"}]
    as_dicts: list[Any] = [{"role": "system", "content": "Be short."}, messages[1]]
    as_messages = [messages[0], Message(role="user", content="Hi!")]
    expected = parrot.chat(as_dicts).usage.prompt_tokens
    for conversation in (messages, tuple(messages), deque(messages), deque(as_dicts), as_messages):
        assert parrot.chat(conversation).usage.prompt_tokens == expected
        stream = parrot.stream_chat(conversation)
        assert "".join(stream) == REPLY
        assert stream.completion.usage.prompt_tokens == expected


@pytest.mark.parametrize("content", [5, [5], "\ud800", {"type": "text"}])
def test_a_message_is_checked_as_a_dict_is(parrot: LLM, content: Any) -> None:
    for message in (Message(role="user", content=content), {"role": "user", "content": content}):
        with pytest.raises(InvalidInput, match=r"messages\[0\]\.content") as caught:
            parrot.chat([cast("Message", message)])
        assert str(caught.value.fields["parameter"]).startswith("messages[0].content")


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


def test_a_stream_that_nobody_holds_stops_its_prompt_too(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    begun, dropped, ended = threading.Event(), threading.Event(), threading.Event()
    forward = ScriptedBackend.forward

    def slow(backend: ScriptedBackend, batch: Batch) -> Any:
        sizes.append(batch.num_tokens)
        begun.set()
        assert dropped.wait(60)
        return forward(backend, batch)

    with LLM("scripted", backend="scripted", ctx_size=20_000) as llm:
        monkeypatch.setattr(ScriptedBackend, "forward", slow)
        stream = llm.stream("x" * 15_000, SamplingParams(max_tokens=5))
        stream._answer.when_ended(ended.set)  # pyright: ignore[reportPrivateUsage] - a request beside it would hide it
        assert begun.wait(60)
        del stream
        dropped.set()
        assert ended.wait(60)
    assert sum(sizes) < 10_000


def test_a_prompt_that_fills_the_context_is_computed_without_an_answer() -> None:
    with LLM("scripted", backend="scripted", ctx_size=64) as llm:
        answer = llm.generate([1] * 64, SamplingParams(max_tokens=0))
        assert (answer.finish_reason, answer.usage.prompt_tokens) == ("length", 64)
        with pytest.raises(ContextLengthExceeded):
            llm.generate([1] * 65, SamplingParams(max_tokens=0))


def test_the_bound_on_waiting_tokens_holds_in_this_process(gate: Gate) -> None:
    config = EngineConfig(model="scripted", backend="scripted", ctx_size=100_000, max_queue_tokens=60, parallel=1)
    with LLM(config) as llm:
        streams = [llm.stream("x", ENDLESS), llm.stream("x" * 50, GREEDY)]
        with pytest.raises(Overloaded):
            llm.stream("x" * 50, GREEDY)
        gate.open()
        for stream in streams:
            stream.close()


def test_who_is_interrupted_in_the_queue_gives_no_place_back(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: Session) -> None:
        raise KeyboardInterrupt

    config = EngineConfig(model="scripted", backend="scripted", ctx_size=100_000, parallel=1, max_queue=0)
    with LLM(config) as llm:
        stream = llm.stream("x", ENDLESS)
        with monkeypatch.context() as patch:
            patch.setattr("stoker.llm.batch_run.POLL_S", 0.001)
            patch.setattr(Session, "check_alive", interrupt)
            with pytest.raises(KeyboardInterrupt):
                llm.stream("y", ENDLESS)
        gc.collect()
        gate.open()
        assert next(stream)
        stream.close()
        assert llm.generate("z", GREEDY).usage.completion_tokens == 6


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
            stream = model.stream("z", SamplingParams(ignore_eos=True))
            gate.let(8)
            await anext(stream)
            session = await model._session()
            task = asyncio.create_task(model.generate(["x", "y"], SamplingParams(ignore_eos=True, max_tokens=90_000)))
            await until(lambda: len(session._answers) == 3)
            task.cancel()
            await stream.aclose()
            with pytest.raises(asyncio.CancelledError):
                await task
            gate.open()
            await model.generate("barrier", SamplingParams(max_tokens=1))
            assert not session._answers
            beat = session._worker._engine.stats()
            return beat.num_running + beat.num_waiting

    assert asyncio.run(ask()) == 0


class Held:
    """Holds every call of a method from when it is made, until it is let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, kind: type, name: str) -> None:
        self.entered = threading.Event()
        self.opened = threading.Event()
        original = getattr(kind, name)

        def method(*args: Any, **named: Any) -> Any:
            self.entered.set()
            assert self.opened.wait(30)
            return original(*args, **named)

        monkeypatch.setattr(kind, name, method)


def note_return(monkeypatch: pytest.MonkeyPatch, kind: type, name: str) -> threading.Event:
    """Set as soon as the method has been called and has returned or raised."""
    has_returned = threading.Event()
    original = getattr(kind, name)

    def method(*args: Any, **named: Any) -> Any:
        try:
            return original(*args, **named)
        finally:
            has_returned.set()

    monkeypatch.setattr(kind, name, method)
    return has_returned


ENDLESS = SamplingParams(ignore_eos=True, max_tokens=90_000)
CHAT = [{"role": "user", "content": "x"}]
ASK: dict[str, Callable[[AsyncLLM], Any]] = {
    "generate": lambda model: model.generate("x", ENDLESS),
    "generate several": lambda model: model.generate(["x", "y", "z"], ENDLESS),
    "chat": lambda model: model.chat(CHAT, ENDLESS),
    "stream": lambda model: anext(model.stream("x", ENDLESS)),
    "stream_chat": lambda model: anext(model.stream_chat(CHAT, ENDLESS)),
    "embed": lambda model: model.embed(["x", "y"]),
}


@pytest.mark.parametrize(
    ("verb", "moment"),
    [
        *((verb, moment) for verb in ASK for moment in ("begin", "tokenize")),
        ("chat", "render"),
        ("stream_chat", "render"),
    ],
)
def test_what_is_cancelled_before_the_engine_has_it_is_never_computed(
    monkeypatch: pytest.MonkeyPatch, verb: str, moment: str
) -> None:
    begin = "ask" if verb == "embed" else "submit"
    places = {"render": (ChatTemplate, "render"), "begin": (Session, begin), "tokenize": (ScriptedTokenizer, "encode")}

    async def ask() -> None:
        # One place: as long as anything is inside, nobody else comes in.
        config = EngineConfig(model="scripted", backend="scripted", ctx_size=100_000, parallel=1, max_queue=0)
        async with AsyncLLM(config) as model:
            held = Held(monkeypatch, *places[moment])
            has_begun = note_return(monkeypatch, Session, begin)
            asked = asyncio.ensure_future(ASK[verb](model))
            assert await asyncio.to_thread(held.entered.wait, 30)
            asked.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asked
            later = asyncio.ensure_future(model.generate("later", GREEDY))
            held.opened.set()
            assert await asyncio.to_thread(has_begun.wait, 30)
            assert (await later).usage.completion_tokens == 6
            assert (await model.generate("barrier", GREEDY)).usage.completion_tokens == 6
            session = await model._session()
            assert not session._answers
            assert not session._questions
            assert not session._worker._live

    asyncio.run(asyncio.wait_for(ask(), 60))


def test_one_async_model_serves_several_event_loops_at_the_same_time(gate: Gate) -> None:
    model = AsyncLLM(EngineConfig(model="scripted", backend="scripted", parallel=1, max_queue=1))
    inside = threading.Barrier(3)
    found: queue.Queue[int | BaseException] = queue.Queue(maxsize=2)

    async def ask() -> int:
        await model.start()
        asked = asyncio.ensure_future(model.generate(["x"] * 20, SamplingParams(max_tokens=2, ignore_eos=True)))
        await asyncio.to_thread(inside.wait, 30)
        return len(await asked)

    def run() -> None:
        try:
            found.put(asyncio.run(ask()))
        except BaseException as error:
            found.put(error)
            raise

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    inside.wait(30)
    gate.open()
    assert [found.get(timeout=30) for _ in threads] == [20, 20]
    for thread in threads:
        thread.join(30)
    asyncio.run(model.close())


def test_a_place_that_comes_too_late_goes_to_the_next() -> None:
    async def ask() -> None:
        places = Places(1)
        await places.take(lambda: None)
        first, second = (asyncio.ensure_future(places.take(lambda: None)) for _ in range(2))
        await asyncio.sleep(0)
        places.give_back()
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        await asyncio.wait_for(second, 30)
        places.give_back()
        await asyncio.wait_for(places.take(lambda: None), 30)

    asyncio.run(ask())


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


def test_closing_before_the_first_request_means_that_nothing_is_loaded() -> None:
    async def ask() -> None:
        model = AsyncLLM("scripted", backend="scripted")
        await model.close()
        for request in (model.generate("x"), model.start(), model.embed("x")):
            with pytest.raises(ModelNotLoaded, match="closed"):
                await request

    asyncio.run(ask())


def test_after_a_failed_load_the_next_request_tries_again(tmp_path: Path) -> None:
    adapter = tmp_path / "poet.gguf"

    async def ask() -> str:
        model = AsyncLLM(REPLY, backend="scripted", lora={"poet": adapter})
        for _ in range(2):
            with pytest.raises(AdapterInvalid):
                await model.generate("x")
        adapter.write_text("poet")
        try:
            return (await model.generate("x")).text
        finally:
            await model.close()

    assert asyncio.run(ask()) == REPLY


def test_a_program_ends_although_a_model_is_still_downloaded() -> None:
    code = (
        "import asyncio, threading\n"
        "import stoker.models.store as store\n"
        "from stoker import AsyncLLM\n"
        "begun = threading.Event()\n"
        "def resolve(*_, **__):\n"
        "    begun.set()\n"
        "    threading.Event().wait()\n"
        "store.resolve = resolve\n"
        "async def main():\n"
        "    loading = asyncio.create_task(AsyncLLM('smollm2').start())\n"
        "    await asyncio.to_thread(begun.wait)\n"
        "    loading.cancel()\n"
        "    print('left', flush=True)\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "left\n", "")


def test_another_task_may_close_a_stream_that_is_being_read(gate: Gate) -> None:
    async def ask() -> None:
        async with AsyncLLM("scripted", backend="scripted", ctx_size=100_000) as model:
            stream = model.stream("x", ENDLESS)
            has_text = asyncio.Event()

            async def read() -> str:
                texts: list[str] = []
                async for text in stream:
                    texts.append(text)
                    has_text.set()
                return "".join(texts)

            gate.let(8)
            reading = asyncio.create_task(read())
            await has_text.wait()
            await stream.aclose()
            await stream.aclose()
            assert await reading == stream.completion.text
            assert stream.completion.finish_reason == "cancelled"
            gate.open()
            assert (await model.generate("barrier", GREEDY)).usage.completion_tokens == 6
            assert not (await model._session())._worker._live

    asyncio.run(asyncio.wait_for(ask(), 60))


def test_a_stream_may_be_closed_before_its_model_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held(monkeypatch, Session, "__init__")

    async def ask() -> None:
        model = AsyncLLM("scripted", backend="scripted")
        stream = model.stream("x", ENDLESS)
        reading = asyncio.ensure_future(_texts_of(stream))
        assert await asyncio.to_thread(held.entered.wait, 30)
        await stream.aclose()
        held.opened.set()
        assert await reading == []
        assert stream.completion.usage == Usage(0, 0, 0)
        await model.close()

    asyncio.run(asyncio.wait_for(ask(), 60))


async def _texts_of(stream: AsyncTextStream) -> list[str]:
    return [text async for text in stream]


def test_a_stream_that_its_event_loop_has_left_stops_when_nobody_holds_it(gate: Gate) -> None:
    model = AsyncLLM(EngineConfig(model="scripted", backend="scripted", ctx_size=100_000, parallel=1, max_queue=0))
    stream = model.stream("x", ENDLESS)
    gate.let(8)
    loop = asyncio.new_event_loop()
    assert loop.run_until_complete(anext(stream))
    loop.close()
    del stream
    gc.collect()
    gate.open()

    async def ask() -> int:
        async with model:
            return (await model.generate("y", GREEDY)).usage.completion_tokens

    # It has the only place, and would keep it for 90,000 tokens.
    assert asyncio.run(asyncio.wait_for(ask(), 60)) == 6

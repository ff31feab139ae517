"""Requests to a real child process with a scripted engine: what reaches them when it is killed, hangs or is full."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stoker.core.outline import GrammarText, Outline
from stoker.core.params import SamplingParams
from stoker.engine.client import EngineClient
from stoker.engine.config import EngineConfig, SupervisionConfig
from stoker.engine.inbox import InboxLimits
from stoker.engine.protocol import Accepted, Output, Submit
from stoker.engine.question_messages import Detokenize, Tokenize
from stoker.engine.supervisor import State
from stoker.errors import (
    Cancelled,
    ContextLengthExceeded,
    EngineCrashed,
    InvalidInput,
    ModelNotLoaded,
    Overloaded,
    StokerError,
    Timeout,
)
from stoker.text.messages import Message
from tests.waiting import run, until

COMMAND = (sys.executable, str(Path(__file__).with_name("scripted_child.py")))
ANSWER = "an answer."
QUICK = SupervisionConfig(heartbeat_every_s=0.05, backoff_min_s=0.01)
GREEDY = SamplingParams(temperature=0)
ENDLESS = SamplingParams(temperature=0, ignore_eos=True)
ANY_BACKLOG = InboxLimits(pause_bytes=2**40)
"""What nobody reads runs on all the same."""


HI = [Message(role="user", content="hi")]


@asynccontextmanager
async def started(
    supervision: SupervisionConfig = QUICK,
    limits: InboxLimits = ANY_BACKLOG,
    **config: Any,
) -> AsyncGenerator[EngineClient]:
    client = EngineClient(EngineConfig(**config), command=COMMAND, supervision=supervision, limits=limits)
    try:
        await client.start()
        yield client
    finally:
        await client.close()


@contextmanager
def supervised(client: EngineClient, **times: float) -> Generator[None]:
    """With other times of supervision, but only for a child that is lost already: a busy machine keeps none of them."""
    supervisor, usual = client._supervisor, client._supervisor._times
    supervisor._times = replace(usual, **times)
    yield
    supervisor._times = usual


async def answer(client: EngineClient, prompt: str = "Q:", sampling: SamplingParams = GREEDY, **more: Any) -> str:
    async with aclosing(client.generate(Submit(os.urandom(8).hex(), prompt, sampling, **more))) as events:
        return "".join([event.text async for event in events if isinstance(event, Output)])


async def first_output(events: AsyncGenerator[Accepted | Output]) -> Output:
    assert isinstance(await anext(events), Accepted)
    event = await anext(events)
    assert isinstance(event, Output)
    return event


async def collect(events: AsyncGenerator[Accepted | Output], outputs: list[Output]) -> None:
    async for event in events:
        assert isinstance(event, Output)
        outputs.append(event)


async def read_until(events: AsyncGenerator[Accepted | Output], condition: Callable[[], bool]) -> None:
    async for _ in events:
        if condition():
            return


async def drain(events: AsyncGenerator[Accepted | Output]) -> None:
    await collect(events, [])


def test_card_and_template_are_there_once_the_model_is_loaded():
    async def test() -> None:
        client = EngineClient(EngineConfig(), command=COMMAND, supervision=QUICK)
        with pytest.raises(ModelNotLoaded):
            _ = client.card
        with pytest.raises(ModelNotLoaded):
            client.render_chat(HI)
        try:
            card, pid = await client.start(), client.child_pid
            assert (await client.start(), client.card, client.child_pid) == (card, card, pid), "it starts once"
            assert client.render_chat(HI) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
            assert client.render_chat(HI, add_generation_prompt=False) == "<|im_start|>user\nhi<|im_end|>\n"
        finally:
            await client.close()

    run(test())


def test_answers_in_order_accepted_outputs_end():
    async def test() -> None:
        async with started() as client:
            events = [event async for event in client.generate(Submit("a", "Q:", GREEDY))]
            assert events[0] == Accepted("a", 3)
            outputs = [event for event in events[1:] if isinstance(event, Output)]
            assert "".join(output.text for output in outputs) == ANSWER
            assert [output.finish_reason for output in outputs][-1] == "stop"
            assert outputs[-1].usage.prompt_tokens == 3
            assert client.health().is_ready
            assert client.card.parallel == 8
            texts = await asyncio.gather(*(answer(client, f"question {i}") for i in range(30)))
            assert set(texts) == {ANSWER}
        assert client.health().state == "closed"

    run(test())


def test_refusals_come_before_accepted_with_their_type_and_fields():
    async def test() -> None:
        async with started() as client:
            with pytest.raises(ContextLengthExceeded) as caught:
                await answer(client, "x" * 100_001)
            assert caught.value.fields["num_prompt_tokens"] == 100_002
            with pytest.raises(InvalidInput):
                await answer(client, sampling=SamplingParams(stop_token_ids=[99999]))
            with pytest.raises(InvalidInput, match="Unicode"):
                await answer(client, "lone \ud800 surrogate")
            with pytest.raises(StokerError, match="a fault in the tokenizer"):
                await answer(client, "FAULT")
            assert await answer(client) == ANSWER

    run(test())


def test_full_queue_is_refused_before_anything_is_sent_and_leaving_makes_room():
    async def test() -> None:
        async with started(parallel=1, max_queue=1) as client:
            running = client.generate(Submit("running", "Q:", ENDLESS))
            await first_output(running)
            queued = client.generate(Submit("queued", "Q:", GREEDY))
            assert isinstance(await anext(queued), Accepted)
            with pytest.raises(Overloaded) as caught:
                await answer(client)
            assert caught.value.fields["retry_after_s"]
            with pytest.raises(InvalidInput, match="already in use"):
                await anext(client.generate(Submit("queued", "Q:", GREEDY)))
            await running.aclose()
            assert "".join([event.text async for event in queued if isinstance(event, Output)]) == ANSWER
            assert await answer(client) == ANSWER

    run(test())


def test_cancelled_task_frees_its_slot():
    async def test() -> None:
        async with started(parallel=1, max_queue=1) as client:
            for _ in range(3):
                begun = asyncio.Event()

                async def listen(begun: asyncio.Event = begun) -> None:
                    async with aclosing(client.generate(Submit("a", "Q:", ENDLESS))) as events:
                        async for event in events:
                            if isinstance(event, Output):
                                begun.set()

                task = asyncio.create_task(listen())
                await begun.wait()
                task.cancel()
                await asyncio.wait([task])
            assert await answer(client) == ANSWER
            await until(lambda: (beat := client.health().heartbeat) is not None and beat.num_running == 0)
            assert client.health().heartbeat.kv_used == 0  # type: ignore[union-attr]

    run(test())


def test_deadline_ends_a_request_and_only_that():
    async def test() -> None:
        async with started() as client:
            with pytest.raises(Timeout) as caught:
                await answer(client, sampling=ENDLESS, timeout_s=0.05)
            assert caught.value.fields == {"timeout_s": 0.05}
            assert await answer(client, timeout_s=60) == ANSWER

    run(test())


def test_slow_tokenizing_stops_neither_aborts_nor_others():
    async def test() -> None:
        async with started(parallel=1) as client:
            slow = asyncio.create_task(answer(client, "SLOW" + "x" * 3000))
            running = client.generate(Submit("a", "Q:", ENDLESS))
            await first_output(running)
            await running.aclose()
            assert await answer(client) == ANSWER
            slow.cancel()
            await asyncio.wait([slow])

    run(test())


def test_long_texts_wait_for_each_other_only():
    async def test() -> None:
        async with started(parallel=2) as client:
            text = "SLOW" + "x" * 300_000
            slow = [
                asyncio.create_task(task)
                for task in (answer(client, text), client.ask(Tokenize(text)), answer(client, text))
            ]
            assert await answer(client) == ANSWER
            assert (await client.ask(Detokenize([65]))).text == "A"
            for task in slow:
                task.cancel()
            await asyncio.wait(slow)

    run(test())


def test_killed_child_ends_begun_answers_and_repeats_the_others():
    async def test() -> None:
        async with started(parallel=1) as client:
            begun = client.generate(Submit("begun", "Q:", ENDLESS))
            await first_output(begun)
            waiting = asyncio.create_task(answer(client))
            also_waiting = client.generate(Submit("accepted", "Q:", GREEDY))
            assert isinstance(await anext(also_waiting), Accepted)
            kill(client)
            with pytest.raises(EngineCrashed, match="SIGKILL"):
                await drain(begun)
            assert client.health().state == "restarting"
            with pytest.raises(ModelNotLoaded) as caught:
                await answer(client)
            assert caught.value.fields["retry_after_s"]
            assert await waiting == ANSWER
            rest = [event async for event in also_waiting]
            assert all(isinstance(event, Output) for event in rest), "Accepted is said once"
            health = client.health()
            assert (health.state, health.num_restarts) == (State.READY, 1)
            assert health.last_error == "was killed by SIGKILL"
            assert await answer(client) == ANSWER

    run(test())


def test_a_successor_follows_the_constraint_of_a_request_that_is_given_to_it():
    async def test() -> None:
        async with started(parallel=1) as client:
            begun = client.generate(Submit("begun", "Q:", ENDLESS))
            await first_output(begun)
            outline = Outline(grammar=GrammarText(kind="json_schema", text='{"enum": ["an apple", "a pear"]}'))
            waiting = client.generate(Submit("waiting", "Q:", GREEDY, outline=outline))
            assert isinstance(await anext(waiting), Accepted), "the grammar is compiled"
            kill(client)
            with pytest.raises(EngineCrashed):
                await drain(begun)
            text = "".join([event.text async for event in waiting if isinstance(event, Output)])
            assert text in ('"an apple"', '"a pear"'), text

    run(test())


def test_request_that_kills_every_child_is_repeated_once():
    async def test() -> None:
        async with started() as client:
            with pytest.raises(EngineCrashed):
                await answer(client, "CRASH")
            await until(lambda: client.health().is_ready)
            assert client.health().num_restarts == 2
            assert await answer(client) == ANSWER

    run(test())


def test_engine_that_dies_of_a_bug_takes_its_process_along():
    async def test() -> None:
        async with started() as client:
            with pytest.raises(EngineCrashed, match="exited with code 1"):
                await answer(client, "BUG")
            await until(lambda: client.health().is_ready)
            assert await answer(client) == ANSWER

    run(test())


def test_requests_that_wait_for_a_restart_wait_only_so_long(tmp_path: Path):
    async def test() -> None:
        model = tmp_path / "model"
        model.touch()
        async with started(replace(QUICK, restart_wait_s=0.1), parallel=1, model_path=str(model)) as client:
            begun = client.generate(Submit("begun", "Q:", ENDLESS))
            await first_output(begun)
            waiting = asyncio.create_task(answer(client))
            await asyncio.sleep(0)
            model.unlink()
            kill(client)
            with pytest.raises(EngineCrashed):
                await waiting
            with pytest.raises(EngineCrashed):
                await drain(begun)

    run(test())


def test_stalled_engine_shows_in_health_and_is_killed_in_the_end():
    async def test() -> None:
        async with started(replace(QUICK, stall_after_s=0.1)) as client:
            hanging = asyncio.create_task(answer(client, "HANG"))
            await until(lambda: client.health().state == State.STALLED)
            assert not client.health().is_ready
            with supervised(client, stall_kill_s=0.2), pytest.raises(EngineCrashed):
                await hanging
            assert "finished no step" in (client.health().last_error or "")
            await until(lambda: client.health().is_ready)
            assert client.health().num_restarts == 2, "the request is given to one other"
            assert await answer(client) == ANSWER

    run(test())


def test_silent_child_is_killed_and_replaced():
    async def test() -> None:
        async with started() as client:
            await until(lambda: client.health().heartbeat is not None)
            assert client.child_pid is not None
            os.kill(client.child_pid, signal.SIGSTOP)
            with supervised(client, heartbeat_timeout_s=0.5):
                await until(lambda: client.health().num_restarts == 1)
            await until(lambda: client.health().is_ready)
            assert "said nothing" in (client.health().last_error or "")
            assert await answer(client) == ANSWER

    run(test())


def test_reader_that_stops_is_paused_nobody_waits_and_nothing_is_lost():
    async def test() -> None:
        limits = InboxLimits(pause_bytes=20_000, resume_bytes=5_000)
        sampling = replace(ENDLESS, max_tokens=2000)
        async with started(limits=limits, parallel=1) as client:
            whole = await answer(client, sampling=sampling)
            lazy = client.generate(Submit("lazy", "Q:", sampling))
            outputs = [await first_output(lazy)]
            await until(lambda: has_paused(client))
            for _ in range(2):
                assert await answer(client) == ANSWER, "the only place is free"
            assert has_paused(client)
            await collect(lazy, outputs)
            assert "".join(output.text for output in outputs) == whole
            assert sum(len(output.token_ids) for output in outputs) == outputs[-1].usage.completion_tokens == 2000
            assert outputs[-1].finish_reason == "length"

    run(test())


def test_reader_that_goes_on_taking_nothing_is_cancelled():
    async def test() -> None:
        async with started(limits=InboxLimits(pause_bytes=20_000, max_idle_s=0.3)) as client:
            lazy = client.generate(Submit("lazy", "Q:", ENDLESS))
            num_tokens = len((await first_output(lazy)).token_ids)
            await until(lambda: "lazy" not in client._requests._present)
            unread: list[Output] = []
            with pytest.raises(Cancelled, match="too far behind"):
                await collect(lazy, unread)
            for output in unread:
                num_tokens += len(output.token_ids)
                assert output.usage.completion_tokens == num_tokens, "no token is dropped"
            assert unread

    run(test())


def test_deadline_of_a_paused_request_is_kept():
    async def test() -> None:
        async with started(limits=InboxLimits(pause_bytes=20_000)) as client:
            for timeout_s in (0.5, 5.0, 50.0):  # on a busy machine a short one ends before the reader is behind
                lazy = client.generate(Submit("lazy", "Q:", ENDLESS, timeout_s=timeout_s))
                assert isinstance(await anext(lazy), Accepted)
                was_paused = await fell_behind(client, "lazy")
                with pytest.raises(Timeout):
                    await collect(lazy, [])
                if was_paused:
                    return
            raise AssertionError("it was never paused")

    run(test())


async def fell_behind(client: EngineClient, request_id: str) -> bool:
    """Whether a request whose outputs are not read was paused before it ended, once it has."""
    present = client._requests._present
    await until(lambda: request_id not in present or present[request_id].is_paused)
    was_paused = request_id in present
    await until(lambda: request_id not in present)
    return was_paused


def test_engine_that_does_not_pause_is_cut_off_by_size():
    async def test() -> None:
        async with started(limits=InboxLimits(pause_bytes=2**40, max_bytes=20_000)) as client:
            lazy = client.generate(Submit("lazy", "Q:", ENDLESS))
            await first_output(lazy)
            await until(lambda: (beat := client.health().heartbeat) is not None and beat.num_steps > 50)
            await until(lambda: (beat := client.health().heartbeat) is not None and beat.num_running == 0)
            with pytest.raises(Cancelled, match="too far behind"):
                await collect(lazy, [])

    run(test())


def has_paused(client: EngineClient) -> bool:
    beat = client.health().heartbeat
    return beat is not None and beat.num_paused == 1 and beat.num_running == 0


def test_close_ends_running_answers():
    async def test() -> None:
        async with started() as client:
            events = client.generate(Submit("a", "Q:", ENDLESS))
            await first_output(events)
            pid = client.child_pid
            assert pid is not None
            await client.close()
            with pytest.raises(ModelNotLoaded):
                await drain(events)
            with pytest.raises(ModelNotLoaded):
                await answer(client)
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)
            await client.close()

    run(test())


def kill(client: EngineClient) -> None:
    assert client.child_pid is not None
    os.kill(client.child_pid, signal.SIGKILL)

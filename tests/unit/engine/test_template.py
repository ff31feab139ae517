"""Engines that are forked: whose they are, how they end, and what becomes of them when what has forked them dies."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from stoker.core.params import SamplingParams
from stoker.engine import spare
from stoker.engine.client import EngineClient
from stoker.engine.config import EngineConfig, SupervisionConfig
from stoker.engine.protocol import Output, Submit
from stoker.engine.template import EXIT_UNTOLD, ChildProcess, Template
from stoker.errors import EngineCrashed, ModelFileInvalid

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="nothing is forked elsewhere")

BOUND_S = 60.0
CHILD = Path(__file__).with_name("scripted_child.py")
COMMAND = (sys.executable, str(CHILD))
QUICK = SupervisionConfig(heartbeat_every_s=0.05, backoff_min_s=0.001, backoff_max_s=0.01)
GREEDY = SamplingParams(temperature=0)


def command(before: str) -> tuple[str, ...]:
    """A scripted child that does this first, with `is_spare` defined."""
    code = "import os, runpy, sys, threading\nis_spare = 'STOKER_SPARE' in os.environ\n"
    run = f"\nsys.path.insert(0, {str(CHILD.parent)!r})\nrunpy.run_path({str(CHILD)!r}, run_name='__main__')"
    return sys.executable, "-c", code + before + run


def run(test: Coroutine[Any, Any, None]) -> None:
    """It leaves no file open; libzmq closes its own in the background."""
    spare.environment()  # opens one for good

    async def counted() -> None:
        files = psutil.Process().num_fds()
        await test
        await until(lambda: psutil.Process().num_fds() <= files)

    asyncio.run(asyncio.wait_for(counted(), BOUND_S))


async def until(condition: Callable[[], bool]) -> None:
    """The outer bound of the test ends a condition that never comes true."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.005)


def is_alive(pid: int) -> bool:
    """Nobody may wait for a process that was forked by one that is gone."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class Family:
    """A template, and clients of engines that are to be forked from it."""

    def __init__(self, program: tuple[str, ...] = COMMAND) -> None:
        self.program = program
        self.template = Template("", program)
        self.clients: list[EngineClient] = []

    async def engine(self, **config: Any) -> EngineClient:
        client = EngineClient(
            EngineConfig(**config), command=self.program, supervision=QUICK, repeats=False, template=self.template
        )
        self.clients.append(client)
        await client.start()
        return client

    def is_of_template(self, client: EngineClient) -> bool:
        return psutil.Process(pid_of(client)).ppid() == self.template.pid

    def kill_template(self) -> None:
        assert self.template.pid is not None
        os.kill(self.template.pid, signal.SIGKILL)


def pid_of(client: EngineClient) -> int:
    assert client.child_pid is not None
    return client.child_pid


async def answer(client: EngineClient, prompt: str = "Q:") -> str:
    events = client.generate(Submit("a", prompt, GREEDY))
    return "".join([event.text async for event in events if isinstance(event, Output)])


async def killed(client: EngineClient) -> None:
    """Kills its process, and waits for the next one."""
    num_restarts = client.health().num_restarts
    os.kill(pid_of(client), signal.SIGKILL)
    await until(lambda: client.health().num_restarts > num_restarts and client.health().is_ready)


@asynccontextmanager
async def family(program: tuple[str, ...] = COMMAND) -> AsyncGenerator[Family]:
    """Nothing of it is left afterwards."""
    found = Family(program)
    others = set(psutil.Process().children(recursive=True))
    try:
        yield found
        pids = [pid_of(client) for client in found.clients if client.child_pid is not None]
    finally:
        for client in found.clients:
            await client.close()
        found.template.close()
        found.template.close()
    assert set(psutil.Process().children(recursive=True)) <= others
    assert not any(map(is_alive, pids))


def test_engines_are_forked_from_one_process_and_answer() -> None:
    async def test() -> None:
        async with family() as ours:
            assert ours.template.pid is None, "nobody has asked yet"
            first, second = await ours.engine(), await ours.engine()
            assert ours.is_of_template(first)
            assert ours.is_of_template(second)
            assert pid_of(first) != pid_of(second)
            assert await asyncio.gather(answer(first), answer(second)) == ["an answer."] * 2
            assert {os.getsid(pid_of(client)) for client in ours.clients} == {pid_of(c) for c in ours.clients}

    run(test())


def test_engines_asked_for_at_once_are_forked_one_after_the_other() -> None:
    async def test() -> None:
        async with family() as ours:
            clients = await asyncio.gather(*(ours.engine() for _ in range(3)))
            assert all(map(ours.is_of_template, clients))
            assert len(set(map(pid_of, clients))) == 3

    run(test())


def test_a_killed_engine_is_forked_again_and_the_others_go_on() -> None:
    async def test() -> None:
        async with family() as ours:
            first, second = await ours.engine(), await ours.engine()
            with pytest.raises(EngineCrashed, match="was killed by SIGKILL"):
                await answer(first, "CRASH")
            await until(lambda: first.health().is_ready)
            assert ours.is_of_template(first)
            assert await asyncio.gather(answer(first), answer(second)) == ["an answer."] * 2
            assert second.health().num_restarts == 0
            assert len(psutil.Process(ours.template.pid).children()) == 2, "the dead one was waited for"

    run(test())


def test_an_end_is_noticed_by_a_python_that_has_no_name_for_such_descriptors() -> None:
    code = "import os; del os.P_PIDFD; from stoker.engine.template import _PIDFD; print(_PIDFD)"
    assert int(subprocess.check_output([sys.executable, "-c", code])) == os.P_PIDFD


def test_engines_outlive_what_has_forked_them_and_their_successors_are_forked_from_another() -> None:
    async def test() -> None:
        async with family() as ours:
            first, second = await ours.engine(), await ours.engine()
            before = ours.template.pid
            ours.kill_template()
            assert await asyncio.gather(answer(first), answer(second)) == ["an answer."] * 2
            await killed(first)
            assert ours.is_of_template(first)
            assert ours.template.pid != before
            assert second.health().num_restarts == 0
            assert await asyncio.gather(answer(first), answer(second)) == ["an answer."] * 2

    run(test())


def test_an_engine_that_ends_after_its_template_is_noticed() -> None:
    async def test() -> None:
        async with family() as ours:
            template = Template("", COMMAND)
            process, _ = await template.fork()
            waiting = asyncio.create_task(asyncio.to_thread(process.wait))
            template.close()
            assert is_alive(process.pid)
            process.kill()
            assert await waiting in (-signal.SIGKILL, EXIT_UNTOLD)
            process.kill()  # does nothing any more
            assert process.stdin is not None
            process.stdin.close()
            assert ours.clients == []

    run(test())


def test_all_killed_at_once_come_back() -> None:
    async def test() -> None:
        async with family() as ours:
            clients = [await ours.engine(), await ours.engine()]
            ours.kill_template()
            await asyncio.gather(*map(killed, clients))
            assert await asyncio.gather(*map(answer, clients)) == ["an answer."] * 2

    run(test())


def test_what_a_forked_engine_says_about_its_end_arrives() -> None:
    async def test() -> None:
        async with family() as ours:
            with pytest.raises(ModelFileInvalid, match="lies about itself"):
                await ours.engine(model="invalid")
            with pytest.raises(EngineCrashed, match="was killed by SIGSEGV"):
                await ours.engine(model="crash")
            assert await answer(await ours.engine()) == "an answer."

    run(test())


def test_one_that_nobody_waits_for_any_more_ends_by_itself() -> None:
    async def test() -> None:
        async with family() as ours:
            await ours.engine()
            template = psutil.Process(ours.template.pid)
            template.suspend()
            asked = asyncio.create_task(ours.template.fork())
            await asyncio.sleep(0)  # the order is on its way
            asked.cancel()
            await asyncio.wait([asked])
            template.resume()
            client = await ours.engine()
            assert ours.is_of_template(client)
            await until(lambda: len(template.children()) == 2)

    run(test())


def test_a_process_with_threads_is_not_forked(caplog: pytest.LogCaptureFixture) -> None:
    threads = "if is_spare: threading.Thread(target=threading.Event().wait, daemon=True).start()"

    async def test() -> None:
        async with family(command(threads)) as ours:
            client = await ours.engine()
            assert psutil.Process(pid_of(client)).ppid() == os.getpid()
            assert await answer(client) == "an answer."
            await killed(client)
            assert ours.template.pid is None, "it is not tried again"

    run(test())
    assert "the process that forks engines cannot do so here: engines are started instead" in caplog.messages


def test_one_that_dies_before_it_forks_is_done_without(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async with family(command("if is_spare: sys.exit(1)")) as ours:
            assert await answer(await ours.engine()) == "an answer."

    run(test())
    assert "the process that forks engines has died: engines are started instead" in caplog.messages


def test_one_that_cannot_be_started_is_an_error() -> None:
    async def test() -> None:
        with pytest.raises(OSError, match="No such file"):
            await Template("", ("/no/such/program",)).fork()

    run(test())


def test_a_template_that_dies_slowly_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    end, ticked, is_free = spare.end, threading.Event(), list[bool]()

    def end_slowly(process: spare.Process) -> None:
        end(process)
        is_free.append(ticked.wait(5))

    async def test() -> None:
        async with family() as ours:
            first = await ours.engine()
            ours.kill_template()
            monkeypatch.setattr(spare, "end", end_slowly)
            restarted = asyncio.create_task(killed(first))
            await until(lambda: ours.template.pid is None)
            monkeypatch.undo()
            ticked.set()
            await restarted
            assert is_free == [True]

    run(test())


def test_waiting_to_be_forked_is_not_loading(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, waited_s = asyncio.BaseEventLoop.time, 0.0
    monkeypatch.setattr(asyncio.BaseEventLoop, "time", lambda loop: clock(loop) + waited_s)

    class Slow(Template):
        async def fork(self) -> tuple[ChildProcess, dict[str, str]]:
            nonlocal waited_s
            forked = await super().fork()
            waited_s += BOUND_S / 2
            return forked

    async def test() -> None:
        async with family() as ours:
            ours.template = Slow("", COMMAND)
            times = replace(QUICK, load_timeout_s=BOUND_S / 4, heartbeat_timeout_s=0.004)  # it is looked at often
            client = EngineClient(EngineConfig(), command=COMMAND, supervision=times, template=ours.template)
            ours.clients.append(client)
            await client.start()

    run(test())


def test_what_has_changed_in_the_environment_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_TEST_CHANGED", "at first")
    spare.start(COMMAND)
    monkeypatch.setenv("STOKER_TEST_CHANGED", "before it is a template")

    async def test() -> None:
        template = Template("", COMMAND)
        try:
            told: list[dict[str, str]] = []
            for name in ("", "STOKER_TEST_NEW"):
                if name:
                    monkeypatch.setenv(name, "new")
                process, changed = await template.fork()
                told.append({key: value for key, value in changed.items() if key.startswith("STOKER_TEST")})
                assert process.stdin is not None
                process.stdin.close()
                assert await asyncio.to_thread(process.wait) == 4, "it is an orphan"
        finally:
            template.close()
        changed = {"STOKER_TEST_CHANGED": "before it is a template"}
        assert told == [changed, {**changed, "STOKER_TEST_NEW": "new"}]

    run(test())


def test_all_of_them_die_with_a_parent_that_is_killed() -> None:
    parent = f"""
        import asyncio, sys
        from stoker.engine.client import EngineClient
        from stoker.engine.config import EngineConfig
        from stoker.engine.template import Template

        async def main():
            command = (sys.executable, {str(CHILD)!r})
            template = Template("", command)
            clients = [EngineClient(EngineConfig(), command=command, template=template) for _ in range(2)]
            for client in clients:
                await client.start()
            print(template.pid, *(client.child_pid for client in clients), flush=True)
            await asyncio.Event().wait()

        asyncio.run(main())
    """
    with subprocess.Popen([sys.executable, "-c", textwrap.dedent(parent)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        pids = [int(pid) for pid in process.stdout.readline().split()]
        process.kill()
    assert len(pids) == 3
    asyncio.run(asyncio.wait_for(until(lambda: not any(map(is_alive, pids))), BOUND_S))

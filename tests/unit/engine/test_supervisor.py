"""Children that cannot load, do not stop, leak, or lose their parent."""

from __future__ import annotations

import asyncio
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import AsyncGenerator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import msgspec
import psutil
import pytest
import zmq

from stoker.backends.cores import environment_of_sharers
from stoker.core.params import SamplingParams
from stoker.engine.cards import ModelCard
from stoker.engine.child import describe_exit
from stoker.engine.client import EngineClient
from stoker.engine.config import AdapterSpec, EngineConfig, SupervisionConfig
from stoker.engine.protocol import Event, Launch, Output, Ready, Submit
from stoker.engine.question_messages import Tokenize
from stoker.errors import EngineCrashed, InvalidInput, ModelFileInvalid, ModelNotLoaded, ResourceExhausted, StokerError
from tests.spawns import record_spawns
from tests.waiting import BOUND_S, run, until, wait_until

NUM_RESTARTS = 20
CHILD = Path(__file__).with_name("scripted_child.py")
COMMAND = (sys.executable, str(CHILD))
QUICK = SupervisionConfig(heartbeat_every_s=0.05, backoff_min_s=0.001, backoff_max_s=0.01)

READY = Ready(ModelCard("light", "", "", "", 0, 0, 0, 0, 1, 1, None, "", "", 0, 0, 0))
LIGHT_CHILD = f"""
    import json, sys, zmq
    launch = json.loads(sys.stdin.readline())
    context = zmq.Context()
    commands, events = context.socket(zmq.PULL), context.socket(zmq.PUSH)
    commands.connect(launch["commands"])
    events.connect(launch["events"])
    events.send({msgspec.msgpack.encode([READY])!r})
    sys.stdin.read()
"""
"""It begins at once, since it imports nothing of Stoker."""


@pytest.fixture(autouse=True)
def own_temporary_folder(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Engines of others come and go beside these."""
    tmp_path_factory.getbasetemp()  # it would lie in this one, and go with it
    with tempfile.TemporaryDirectory(prefix="s-", ignore_cleanup_errors=True) as folder:
        monkeypatch.setenv("TMPDIR", folder)
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield


async def generate_hanging(client: EngineClient) -> AsyncGenerator[Output]:
    submit = Submit("hangs", "HANG", SamplingParams())
    async for event in client.generate(submit):
        if isinstance(event, Output):
            yield event


def make_client(supervision: SupervisionConfig = QUICK, **config: Any) -> EngineClient:
    return EngineClient(EngineConfig(**config), command=COMMAND, supervision=supervision)


def num_open_files() -> int:
    environment_of_sharers()  # makes one file for all children, which stays
    return psutil.Process().num_fds()


def channel_folders() -> set[Path]:
    return set(Path(tempfile.gettempdir()).glob("stoker-*"))


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.parametrize(
    ("model", "error", "words"),
    [("invalid", ModelFileInvalid, "lies about itself"), ("crash", EngineCrashed, "SIGSEGV")],
)
def test_first_load_failure_is_raised_and_not_tried_again(model: str, error: type[StokerError], words: str):
    async def test() -> None:
        client = make_client(model=model)
        with pytest.raises(error, match=words) as caught:
            await client.start()
        if isinstance(caught.value, ModelFileInvalid):
            assert caught.value.fields == {"path": "x.gguf"}
        assert client.health().state == "failed"
        assert client.health().num_restarts == 0
        with pytest.raises(ModelNotLoaded):
            _ = client.card
        await client.close()

    run(test())


def test_a_successor_is_told_the_sizes_that_the_first_one_found():
    async def test() -> None:
        client = EngineClient(EngineConfig(num_replicas=3), command=COMMAND, supervision=QUICK)
        card = await client.start()
        assert client.child_pid is not None
        config = client._supervisor._config
        assert (config.ctx_size, config.kv_tokens, config.num_replicas) == (card.context_size, card.kv_tokens, 1)
        await client.close()

    run(test())


def test_command_that_does_not_exist_is_an_error():
    async def test() -> None:
        client = EngineClient(EngineConfig(), command=("/no/such/program",), supervision=QUICK)
        with pytest.raises(ResourceExhausted, match="/no/such/program"):
            await client.start()
        await client.close()

    run(test())


def test_load_that_never_ends_is_ended():
    async def test() -> None:
        client = make_client(replace(QUICK, load_timeout_s=0.2), model="endless")
        with pytest.raises(EngineCrashed, match=r"within 0\.2 s"):
            await client.start()
        await client.close()

    run(test())


def test_a_start_that_is_cancelled_again_and_again_leaves_nothing_behind():
    async def test() -> None:
        client, num_before = make_client(model="endless"), num_open_files()
        starting = asyncio.create_task(client.start())
        await until(lambda: client.child_pid is not None)
        pid = client.child_pid
        assert pid is not None
        while not starting.done():
            starting.cancel()
            await asyncio.sleep(0)
        await until(lambda: is_gone(pid))
        await until(lambda: num_open_files() == num_before)

    run(test())


def test_start_can_be_cancelled():
    async def test() -> None:
        client = make_client(model="endless")
        starting = asyncio.create_task(client.start())
        await until(lambda: client.child_pid is not None)
        pid = client.child_pid
        assert pid is not None
        starting.cancel()
        await asyncio.wait([starting])
        assert starting.cancelled()
        assert is_gone(pid)
        await client.close()

    run(test())


def test_adapters_that_change_while_it_loads_are_there_when_it_is_ready():
    async def test() -> None:
        client = make_client()
        starting = asyncio.create_task(client.start())
        await until(lambda: client.child_pid is not None)
        outdated = client.child_pid
        client.begin_with([AdapterSpec(name="sql", path="sql.gguf")])
        card = await starting
        assert outdated is not None
        assert is_gone(outdated)
        assert card.created == client.child_pid != outdated
        client.begin_with([AdapterSpec(name="other", path="other.gguf")])  # one that is ready goes on
        assert client.health().is_ready
        assert (client.health().num_restarts, client.child_pid) == (0, card.created)
        await client.close()

    run(test())


def test_how_far_it_is_with_loading():
    async def test() -> None:
        client = make_client(model="endless")
        starting = asyncio.create_task(client.start())
        assert client.health().loaded_part is None
        await until(lambda: client.health().loaded_part == 0.25)
        starting.cancel()
        await asyncio.wait([starting])
        await client.close()

    run(test())


def test_a_machine_that_stood_still_is_no_stall_and_no_silence(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("stoker.engine.supervisor._WATCH_EVERY_S", 0.1)

    async def test() -> None:
        client = make_client()
        await client.start()
        pid, supervisor = client.child_pid, client._supervisor
        assert pid is not None
        hanging = asyncio.create_task(anext(generate_hanging(client)))
        await until(lambda: (beat := client.health().heartbeat) is not None and beat.stalled_s > 0)
        os.kill(pid, signal.SIGSTOP)
        time.sleep(0.6)  # noqa: ASYNC251  # this process stands still, too
        os.kill(pid, signal.SIGCONT)
        await until(lambda: any(end - begin > 0.6 for begin, end in supervisor._naps))
        await until(lambda: (beat := client.health().heartbeat) is not None and beat.stalled_s > 0.6)
        beat = client.health().heartbeat
        assert beat is not None
        assert supervisor._stalled_s() < beat.stalled_s - 0.5, "the time of the nap does not count"
        assert (client.child_pid, client.health().num_restarts) == (pid, 0)
        supervisor._times = replace(QUICK, stall_kill_s=0.1)
        await until(lambda: client.health().num_restarts == 1)  # a stall that goes on is one
        hanging.cancel()
        await asyncio.wait([hanging])
        await client.close()

    run(test())


class JumpingLoop(asyncio.SelectorEventLoop):
    """Its clock can be put forward, as that of a process which was frozen."""

    jumped_s = 0.0

    def time(self) -> float:
        return super().time() + self.jumped_s


@pytest.mark.parametrize("is_loading", [False, True])
def test_a_clock_that_jumps_kills_nobody(is_loading: bool):
    async def test() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, JumpingLoop)
        times = SupervisionConfig(heartbeat_every_s=1000, heartbeat_timeout_s=100, load_timeout_s=100)
        client = make_client(times, model="endless" if is_loading else "scripted")
        starting = asyncio.create_task(client.start())
        await until(lambda: client.health().loaded_part is not None if is_loading else starting.done())
        pid = client.child_pid
        naps = client._supervisor._naps
        for count in (1, 2):
            loop.jumped_s += 10_000
            await until(lambda: len(naps) >= count or client.child_pid != pid)  # noqa: B023
        assert (client.child_pid, client.health().num_restarts) == (pid, 0)
        assert starting.done() is not is_loading
        await client.close()
        await asyncio.wait([starting])
        starting.exception()

    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        runner.run(asyncio.wait_for(test(), 2 * 10_000 + BOUND_S))


def test_load_failure_at_a_restart_is_tried_again(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    async def test() -> None:
        model = tmp_path / "model"
        model.touch()
        client = make_client(model_path=str(model))
        await client.start()
        model.unlink()
        assert client.child_pid is not None
        os.kill(client.child_pid, signal.SIGKILL)
        await until(lambda: "the file has gone" in (client.health().last_error or ""))
        assert client.health().state == "restarting"
        model.touch()
        await until(lambda: client.health().is_ready)
        await client.close()

    run(test())
    pattern = r"the engine process could not load the model: .*the file has gone.*; starting another"
    assert re.search(pattern, caplog.text)


def test_an_engine_that_cannot_be_started_for_want_of_files_comes_back():
    async def test() -> None:
        client = make_client()
        await client.start()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        try:
            assert client.child_pid is not None
            os.kill(client.child_pid, signal.SIGKILL)
            await until(lambda: "cannot be started" in (client.health().last_error or ""))
            assert client.health().state == "restarting"
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        await until(lambda: client.health().is_ready)
        await client.close()

    run(test())


def test_an_engine_for_which_no_thread_can_be_started_is_ended_and_another_comes(monkeypatch: pytest.MonkeyPatch):
    start, denied = threading.Thread.start, list[threading.Thread]()

    def start_later(thread: threading.Thread) -> None:
        if thread.name == "stoker-child-wait" and not denied:
            denied.append(thread)
            raise RuntimeError("can't start new thread")
        start(thread)

    async def test() -> None:
        client = make_client()
        await client.start()
        started = record_spawns(monkeypatch)
        monkeypatch.setattr(threading.Thread, "start", start_later)
        assert client.child_pid is not None
        os.kill(client.child_pid, signal.SIGKILL)
        await until(lambda: client.health().num_restarts == 2 and client.health().is_ready)
        assert [process.returncode for process in started] == [-signal.SIGKILL, None]
        await client.close()
        assert len(channel_folders()) == 0

    run(test())


def test_a_file_that_was_changed_is_not_served_as_what_it_was(tmp_path: Path):
    async def test() -> None:
        model = tmp_path / "model"
        model.write_text("A: {{ messages }}")
        client = make_client(model_path=str(model))
        assert (await client.start()).chat_template == "A: {{ messages }}"
        model.write_text("B: {{ messages }}")
        assert client.child_pid is not None
        os.kill(client.child_pid, signal.SIGKILL)
        await until(lambda: f"another model in {model}" in (client.health().last_error or ""))
        assert client.health().state == "restarting"
        with pytest.raises(ModelNotLoaded, match="changed after it was loaded"):
            await client.ask(Tokenize("a"))
        model.write_text("A: {{ messages }}")
        await until(lambda: client.health().is_ready)
        await client.close()

    run(test())


def test_child_that_ignores_everything_is_killed(tmp_path: Path):
    deaf = tmp_path / "deaf.py"
    deafness = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    deaf.write_text(deafness + textwrap.dedent(LIGHT_CHILD))

    async def test() -> None:
        client = EngineClient(
            EngineConfig(), command=(sys.executable, str(deaf)), supervision=replace(QUICK, stop_grace_s=0.05)
        )
        await client.start()
        pid = client.child_pid
        assert pid is not None
        await client.close()
        assert is_gone(pid)

    run(test())


def own_bytes() -> int:
    """Memory of this process that is not mapped from files."""
    return int(Path("/proc/self/status").read_text().split("RssAnon:")[1].split()[0]) * 1024


def test_many_restarts_leave_nothing_behind_and_come_after_pauses_that_double(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    light = tmp_path / "light.py"
    light.write_text(textwrap.dedent(LIGHT_CHILD))

    async def test() -> None:
        folders, children = channel_folders(), set(psutil.Process().children())
        client = EngineClient(EngineConfig(), command=(sys.executable, str(light)), supervision=QUICK)
        await client.start()
        files, threads, memory = num_open_files(), threading.active_count(), own_bytes()
        for index in range(NUM_RESTARTS):
            await until(lambda index=index: client.health().num_restarts == index and client.health().is_ready)
            assert client.child_pid is not None
            os.kill(client.child_pid, signal.SIGKILL)
        await until(lambda: client.health().num_restarts == NUM_RESTARTS and client.health().is_ready)
        await until(lambda: num_open_files() <= files)  # libzmq closes in the background
        await until(lambda: threading.active_count() <= threads)
        assert own_bytes() - memory < NUM_RESTARTS * 2**18
        assert len(channel_folders() - folders) <= 1
        await client.close()
        assert set(psutil.Process().children()) <= children  # a server of other tests may be running

    run(test())
    pauses = [cast("tuple[object, ...]", r.args)[1] for r in caplog.records if "starting another" in r.msg]
    assert pauses == [0.001, 0.002, 0.004, 0.008, *[0.01] * (NUM_RESTARTS - 4)]


def test_closed_client_leaves_no_file_open():
    async def test() -> None:
        files = num_open_files()
        folders = channel_folders()
        client = make_client()
        await client.start()
        await client.close()
        await until(lambda: num_open_files() <= files)
        assert not channel_folders() - folders

    run(test())


def test_child_dies_with_a_parent_that_is_killed():
    parent = f"""
        import asyncio, sys
        from stoker.engine.client import EngineClient
        from stoker.engine.config import EngineConfig

        async def main():
            client = EngineClient(EngineConfig(), command=(sys.executable, {str(CHILD)!r}))
            await client.start()
            print(client.child_pid, flush=True)
            await asyncio.Event().wait()

        asyncio.run(main())
    """
    folders = channel_folders()
    with subprocess.Popen([sys.executable, "-c", textwrap.dedent(parent)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        assert not is_gone(pid)
        process.kill()
    wait_until(lambda: is_gone(pid))
    assert not channel_folders() - folders, "the orphan cleans up after its parent"


class HandMadeParent:
    """The parent's side, without any of our own code for it."""

    def __init__(self, folder: Path) -> None:
        self._context = zmq.Context()
        self.commands = self._context.socket(zmq.PUSH)
        self.events = self._context.socket(zmq.PULL)
        self.commands.bind(f"ipc://{folder / 'c'}")
        self.events.bind(f"ipc://{folder / 'e'}")
        self.events.set(zmq.RCVTIMEO, round(BOUND_S * 1000))
        launch = Launch(EngineConfig(), f"ipc://{folder / 'c'}", f"ipc://{folder / 'e'}", heartbeat_every_s=0.05)
        self.process = subprocess.Popen(COMMAND, stdin=subprocess.PIPE)
        assert self.process.stdin is not None
        self.process.stdin.write(msgspec.json.encode(launch) + b"\n")
        self.process.stdin.flush()

    def receive(self) -> list[Event]:
        return msgspec.msgpack.decode(self.events.recv(), type=list[Event])

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.kill()
        self.process.stdin.close()
        self.process.wait(BOUND_S)
        self._context.destroy(linger=0)


@pytest.fixture
def parent():
    with tempfile.TemporaryDirectory() as folder:  # short: a socket's path has a limit
        parent = HandMadeParent(Path(folder))
        yield parent
        parent.close()


def test_child_ignores_ctrl_c_and_stops_cleanly_at_sigterm(parent: HandMadeParent):
    assert isinstance(parent.receive()[0], Ready)
    parent.receive()  # the first heartbeat: everything runs
    parent.process.send_signal(signal.SIGINT)
    parent.receive()
    parent.receive()
    parent.process.send_signal(signal.SIGTERM)
    assert parent.process.wait(BOUND_S) == 0


def test_child_exits_at_the_end_of_its_stdin(parent: HandMadeParent):
    assert isinstance(parent.receive()[0], Ready)
    assert parent.process.stdin is not None
    parent.process.stdin.close()
    assert parent.process.wait(BOUND_S) == 4


@pytest.mark.parametrize(
    ("code", "words"),
    [(0, "exited with code 0"), (-11, "was killed by SIGSEGV"), (-250, "was killed by signal 250")],
)
def test_exit_codes_in_words(code: int, words: str):
    assert describe_exit(code) == words


@pytest.mark.parametrize("config", [{"parallel": 0}, {"max_queue": -1}, {"ctx_size": 0}, {"threads": 0}])
def test_config_out_of_range_is_refused_by_name(config: dict[str, int]):
    with pytest.raises(InvalidInput) as caught:
        EngineConfig(**config)  # type: ignore[arg-type]
    assert caught.value.fields["parameter"] in config


def test_config_crosses_the_process_border_whole():
    sampling = SamplingParams(stop=["a", "b"], logit_bias={5: -1.5}, seed=2**64 - 1, dry_sequence_breakers=("\n",))
    launch = Launch(EngineConfig(model="m", ctx_size=100, sampling=sampling), "c", "e")
    arrived = msgspec.json.decode(msgspec.json.encode(launch), type=Launch)
    assert arrived.config.sampling.logit_bias == {5: -1.5}
    assert arrived.config.sampling.seed == 2**64 - 1
    assert arrived.config.sampling.stop_strings == ("a", "b")
    assert arrived.config.ctx_size == 100
    with pytest.raises(InvalidInput):
        EngineConfig(sampling=SamplingParams(logit_bias={5: float("-inf")}))

"""`/engine/state` and `/engine/events` over a real engine that steps when the test says so."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator
from typing import Any

import httpx
import msgspec
import pytest
from starlette.types import ASGIApp

from stoker.backends.scripted import ScriptedBackend, scripted_info
from stoker.core.params import SamplingParams
from stoker.core.scheduler import SchedulerConfig
from stoker.engine.engine import Engine
from stoker.engine.protocol import Submit
from stoker.engine.question_messages import Answer, Look, Question, ReadPrefix
from stoker.errors import EngineCrashed, UnsupportedParameter
from stoker.runtime import watching
from stoker.runtime.model_events import ModelEvent
from stoker.runtime.watching import Watch
from stoker.server.config import ServerConfig
from stoker.server.live.entries import Differences, Reader, engine_entry
from stoker.server.live.types import Snapshot, Tick
from stoker.server.transport.app import create_app
from tests.harness import loaded
from tests.unit.server.fake_runtime import FakeRuntime, ask, events, make_app, registry_of, served
from tests.waiting import BOUND_S, run


class EngineRuntime(FakeRuntime):
    """Looks at an engine that the test drives."""

    def __init__(self, **info: Any) -> None:
        super().__init__()
        self.engine = Engine(
            loaded(ScriptedBackend(scripted_info(**info))), SchedulerConfig(max_running=8, max_waiting=8)
        )
        self.num_looks = 0
        self.fault: Exception | None = None

    def add(self, request_id: str, prompt: str, max_tokens: int = 50, client_key: str = "") -> None:
        sampling = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
        self.engine.add(self.engine.admit(Submit(request_id, prompt, sampling, client_key=client_key)))

    async def _answer(self, question: Question[Any]) -> Answer:
        if self.fault is not None:
            raise self.fault
        if isinstance(question, Look | ReadPrefix):
            self.num_looks += isinstance(question, Look)
            return self.engine.answer(question)
        return await super()._answer(question)


def state_of(app: ASGIApp, **headers: str) -> Any:
    response = ask(app, "GET", "/engine/state", headers=headers)
    assert response.status_code == 200, response.text
    return response.json()


def test_eight_requests_with_one_beginning_share_one_node():
    runtime = EngineRuntime(kv_tokens=4096, num_slots=24)
    state_of(make_app(runtime))
    for number in range(8):
        runtime.add(f"chatcmpl-{number}-0", "the beginning that all of them have in common: " + chr(65 + number))
        runtime.engine.step()
    runtime.engine.step()
    state = state_of(make_app(runtime))
    assert (state["v"], state["model"], state["may_read"]) == (1, "tiny", True)
    (engine,) = state["engines"]
    (trunk,) = [node for node in engine["tree"] if node["parent"] == 0]
    assert trunk["num_slots"] == 8
    num_prompt = len("<the beginning that all of them have in common: A")
    assert sorted(entry["cached"][0] for entry in engine["seq"]) == [0] + [num_prompt - 1] * 7
    assert sum(node["n"] for node in engine["tree"]) == engine["kv"]["held"] == runtime.engine.stats().kv_used
    assert sum(step[6] for step in engine["steps"]) == num_prompt, "the others compute one entry each, as decodes do"
    assert {moment["kind"] for moment in engine["moments"]} == {"arrived", "begun", "first"}


def apply(state: dict[int, Any], event: dict[str, Any]) -> dict[int, Any]:
    """What a page does with an event."""
    if "replica" not in (event["engines"] or [{"replica": 0}])[0]:
        raise AssertionError(event)
    for tick in event["engines"]:
        engine = state[tick["replica"]]
        for name in ("kv", "totals", "tiers"):
            engine[name] = tick.get(name, engine[name])
        for name in ("seq", "tree"):
            if name in tick:
                kept = {item["id"]: item for item in engine[name]}
                kept |= {item["id"]: item for item in tick[name]["set"]}
                engine[name] = [item for item in kept.values() if item["id"] not in tick[name]["gone"]]
    return state


@pytest.mark.parametrize("seed", range(5))
def test_ticks_applied_to_a_snapshot_are_the_next_snapshot(seed: int):
    rng = random.Random(seed)
    runtime = EngineRuntime(kv_tokens=300, context_size=200, num_slots=12)
    reader, differences, state = Reader(may_read=True, key_name=""), Differences(), dict[int, Any]()
    serial = num_ticks = 0
    for number in range(40):
        if rng.random() < 0.3:
            runtime.add(f"r{number}", "a beginning" * rng.randrange(1, 6) + str(number), rng.randrange(1, 30))
        for _ in range(rng.randrange(3)):
            if runtime.engine.has_work:
                runtime.engine.step()
        view = runtime.engine.answer(Look(since={0: serial})).engines[0]  # type: ignore[union-attr]
        serial = view.serial
        entry = engine_entry(view, reader, clock=lambda: 1000.0)
        news = differences.of(0.0, [entry], None)
        whole = msgspec.to_builtins(entry)
        if isinstance(news, Snapshot):
            state = {0: whole}
        elif news is not None:
            num_ticks += 1
            state = apply(state, msgspec.to_builtins(news))
        for name in ("seq", "tree"):
            assert sorted(state[0][name], key=str) == sorted(whole[name], key=str)
        assert [state[0][name] for name in ("kv", "totals", "tiers")] == [whole[n] for n in ("kv", "totals", "tiers")]
        assert differences.of(0.0, [msgspec.structs.replace(entry, steps=[], moments=[])], None) is None
    assert num_ticks > 10


def test_others_are_told_sizes_but_no_names():
    runtime = EngineRuntime()
    app = make_app(runtime, api_key="ann:one,bob:two", admin_key="root")
    state_of(app, authorization="Bearer root")
    runtime.add("chatcmpl-anns-0", "a secret prompt", client_key="ann")
    runtime.add("chatcmpl-bobs-0", "a secret prompt", client_key="bob")
    runtime.engine.step()
    response = ask(app, "GET", "/engine/state", headers={"authorization": "Bearer one"})
    assert "bob" not in response.text
    engine = response.json()["engines"][0]
    assert response.json()["may_read"] is False
    assert [(entry["own"], entry["key"]) for entry in engine["seq"]] == [(True, "ann"), (False, "")]
    assert engine["seq"][0]["id"] == "chatcmpl-anns-0"
    assert {moment["id"] for moment in engine["moments"]} == {entry["id"] for entry in engine["seq"]}
    everything = state_of(app, authorization="Bearer root")
    assert [entry["key"] for entry in everything["engines"][0]["seq"]] == ["ann", "bob"]
    assert ask(app, "GET", "/engine/state").status_code == 401
    assert ask(app, "GET", "/engine/events").status_code == 401


def test_the_administrator_reads_what_a_node_stands_for():
    runtime = EngineRuntime()
    app = make_app(runtime, api_key="ann:one", admin_key="root")
    for name in ("a", "b"):
        runtime.add(f"chatcmpl-{name}-0", f"one beginning, {'x' * 300}, {name}", max_tokens=2)
    while runtime.engine.has_work:
        runtime.engine.step()
    (engine,) = state_of(app, authorization="Bearer root")["engines"]
    texts: dict[int, str] = {}
    for node in engine["tree"]:
        reply = ask(app, "GET", f"/engine/prefix/{node['id']}", headers={"authorization": "Bearer root"}).json()
        assert (reply["id"], reply["n"]) == (node["id"], node["n"])
        assert reply["n_read"] == min(200, reply["n"])
        texts[reply["begin"]] = reply["text"]
    assert "one beginning, xxx" in texts[0]
    assert len(texts[0]) < 250, "a beginning of the text, not all of it"
    assert max(texts) > 300, "the nodes below begin where the shared one ends"
    path = f"/engine/prefix/{engine['tree'][0]['id']}"
    assert ask(app, "GET", path, headers={"authorization": "Bearer one"}).status_code == 403
    assert ask(app, "GET", path).status_code == 401


@pytest.mark.parametrize("path", ["987654321", "-1", "x", "1e3", "9" * 5000, "%00", "1?replica=x", "1?replica=-1"])
def test_a_node_that_is_not_there_is_refused(path: str):
    response = ask(make_app(EngineRuntime()), "GET", f"/engine/prefix/{path}")
    assert response.status_code == 400
    assert "`" in response.text or "no node" in response.text


def test_what_cannot_be_watched_is_refused_before_a_response_begins():
    runtime = EngineRuntime()
    runtime.fault = UnsupportedParameter("llama-server has no answer to Look")
    for path in ("/engine/state", "/engine/events"):
        response = ask(make_app(runtime), "GET", path)
        assert response.status_code == 400
        assert "no answer" in response.text
    assert ask(make_app(EngineRuntime()), "GET", "/engine/events?hz=1e9").status_code == 400
    assert ask(make_app(EngineRuntime()), "GET", "/engine/events?hz=nan").status_code == 400
    assert ask(make_app(EngineRuntime(), strict=True), "GET", "/engine/events?model=nobody").status_code == 404


def test_the_stream_begins_with_everything_and_goes_on_with_what_changes():
    asyncio.run(_follow())


async def _follow() -> None:
    runtime = EngineRuntime()
    app = make_app(runtime)
    async with _stream(app, "/engine/events") as events:
        name, hello = await anext(events)
        assert (name, hello["model"], hello["context"]) == ("hello", "tiny", 2048)
        name, snapshot = await anext(events)
        assert (name, snapshot["engines"][0]["seq"]) == ("snapshot", [])
        runtime.add("a", "prompt")
        runtime.engine.step()
        name, tick = await anext(events)
        assert name == "tick"
        (engine,) = tick["engines"]
        assert engine["seq"]["set"][0]["id"] == "a"
        assert len(engine["steps"]) == 1
        assert "kv" in engine
        runtime.fault = EngineCrashed("the engine process died")
        name, news = await anext(events)
        assert (name, news["kind"], news["id"], news["why"]) == ("news", "crashed", "tiny", "the engine process died")
        name, snapshot = await anext(events)
        assert (name, snapshot["engines"], snapshot["error"]) == ("snapshot", [], "the engine process died")
        runtime.fault = None
        name, news = await anext(events)
        assert (name, news["kind"], news["id"]) == ("news", "restarted", "tiny")
        name, snapshot = await anext(events)
        assert (name, len(snapshot["engines"])) == ("snapshot", 1)


def test_news_of_models_ride_on_the_stream():
    asyncio.run(_news())


async def _news() -> None:
    registry = registry_of(served(EngineRuntime()))
    async with _stream(create_app(registry, ServerConfig()), "/engine/events") as events:
        assert [(await anext(events))[0] for _ in range(2)] == ["hello", "snapshot"]
        registry.events.publish(ModelEvent(model="other", state="loading", stage="load", loaded_part=0.25))
        registry.events.publish(ModelEvent(model="other", state="unloaded", reason="failed", message="no memory"))
        told = [await anext(events) for _ in range(2)]
        assert [(name, news["kind"], news["id"]) for name, news in told] == [
            ("news", "loading", "other"),
            ("news", "unloaded", "other"),
        ]
        assert told[0][1]["part"] == 0.25
        assert told[1][1]["why"] == "no memory"


class _stream:
    """The events of a stream that does not end by itself."""

    def __init__(self, app: ASGIApp, path: str) -> None:
        self._app, self._path = app, path
        self._queue: asyncio.Queue[bytes] = asyncio.Queue()
        self._left = asyncio.Event()

    async def __aenter__(self) -> AsyncGenerator[tuple[str, Any], None]:
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "GET",
            "path": self._path,
            "raw_path": self._path.encode(),
            "query_string": b"hz=10",
            "root_path": "",
            "headers": [(b"host", b"test")],
            "client": ("127.0.0.1", 1),
            "server": ("test", 80),
            "scheme": "http",
            "state": {},
        }
        self._task = asyncio.create_task(self._app(scope, self._receive, self._send))  # type: ignore[arg-type]
        self._events = self._read()
        return self._events

    async def __aexit__(self, *_: object) -> None:
        self._left.set()
        await self._task
        await self._events.aclose()

    async def _receive(self) -> dict[str, Any]:
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            assert message["status"] == 200
        elif message["body"]:
            self._queue.put_nowait(message["body"])

    async def _read(self) -> AsyncGenerator[tuple[str, Any], None]:
        while True:
            async with asyncio.timeout(BOUND_S):
                block = await self._queue.get()
            name, data = block.decode().strip().split("\n")
            yield name.removeprefix("event: "), msgspec.json.decode(data.removeprefix("data: "))


def test_events_are_small_also_for_who_joins_late():
    asyncio.run(_join_late())


async def _join_late() -> None:
    runtime = EngineRuntime(kv_tokens=60_000, num_slots=400, context_size=2048)
    watch = Watch(lambda: runtime, hz=200)
    early = watch.follow()
    await anext(early)
    reader, differences = Reader(may_read=True, key_name=""), Differences()
    sizes: list[int] = []
    for number in range(600):
        if number % 3 == 0:
            runtime.add(f"chatcmpl-{number:032}-0", f"{number % 50} a beginning of its own, {number}", max_tokens=20)
        runtime.engine.step()
        if number % 4 == 3:  # at 10 looks a second, steps of 25 ms
            sight = await anext(early)
            news = differences.of(0.0, [engine_entry(view, reader) for view in sight.engines], None)
            if isinstance(news, Tick):
                sizes.append(len(msgspec.json.encode(news)))
    late = watch.follow()
    sight = await anext(late)
    first = Differences().of(0.0, [engine_entry(view, reader) for view in sight.engines], None)
    assert isinstance(first, Snapshot)
    assert len(first.engines[0].steps) == 200
    assert len(first.engines[0].tree) > 200
    assert len(msgspec.json.encode(first)) <= 64_000
    sizes.sort()
    assert sizes[int(0.95 * len(sizes))] <= 8_000, "more only where small nodes are added up in another way"
    await early.aclose()
    await late.aclose()


def test_followers_are_told_of_a_bug_and_see_engines_again_after_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(watching, "_FAILED_WAIT_S", 0.001)

    async def test() -> None:
        runtime = EngineRuntime()
        follower = Watch(lambda: runtime, hz=200).follow()
        assert (await anext(follower)).engines
        runtime.fault = RuntimeError("a bug")
        while (sight := await anext(follower)).error is None:
            pass
        assert "RuntimeError" in sight.error.message
        runtime.fault = None
        while not (await anext(follower)).engines:
            pass
        await follower.aclose()

    run(test())
    assert "a bug" in caplog.text


def test_any_number_of_followers_cost_one_look():
    asyncio.run(_crowd())


async def _crowd() -> None:
    runtime = EngineRuntime()
    watch = Watch(lambda: runtime, hz=200)
    followers = [watch.follow() for _ in range(16)]
    runtime.add("a", "prompt")
    first = [await anext(follower) for follower in followers]
    assert all(sight.engines[0].sequences for sight in first)
    with pytest.raises(Exception, match="16 clients watch"):
        await anext(watch.follow())
    runtime.engine.step()
    num_looks = runtime.num_looks
    seen = await asyncio.gather(*(_steps(follower) for follower in followers))
    assert seen == [[7]] * 16
    assert runtime.num_looks - num_looks <= 8, "each look is for all of them"
    for follower in followers:
        await follower.aclose()
    before = runtime.num_looks
    await asyncio.sleep(0.05)
    assert runtime.num_looks == before, "there is no follower any more"


async def _steps(follower: Any) -> list[int]:
    async with asyncio.timeout(BOUND_S):
        while True:
            sight = await anext(follower)
            if sight.engines[0].steps:
                return [step.num_prompt for step in sight.engines[0].steps]


def test_a_stream_tells_how_far_the_prompt_is():
    from stoker.engine.view import Progress

    def script(submit: Submit) -> list[Any]:
        assert submit.reports_progress
        report = {"text": "", "token_ids": [], "progress": Progress(100, 20, 60, 0.5)}
        return [report, "Hi", {"text": "", "finish_reason": "stop"}]

    body: dict[str, Any] = {"stream": True, "return_progress": True, "timings_per_token": True}
    told = {"total": 100, "cache": 20, "processed": 60, "time_ms": 500.0}
    messages = [{"role": "user", "content": "hi"}]
    for path, asked in (
        ("/v1/chat/completions", {"messages": messages}),
        ("/v1/completions", {"prompt": "x"}),
        ("/completion", {"prompt": "x"}),
    ):
        response: httpx.Response = ask(make_app(FakeRuntime(script)), "POST", path, json={**body, **asked})
        chunks = [chunk for chunk in events(response) if chunk != "[DONE]"]
        assert chunks[0]["prompt_progress"] == told
        assert all("prompt_progress" not in chunk and "timings" in chunk for chunk in chunks[1:])

"""Replicas that the cluster says there are: requests find those that are there, and finish where they are."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from typing import Any

import msgspec
import pytest

from stoker.cluster import fleet as fleets
from stoker.cluster import session as sessions
from stoker.cluster.fleet import ClusterFleet, Idle
from stoker.cluster.messages import Report
from stoker.cluster.remote import LinkBroken, RemoteEngine
from stoker.core.blocks import BLOCK_ENTRIES
from stoker.core.params import SamplingParams
from stoker.engine.blocks_held import POOL, StoredBlocks
from stoker.engine.cards import ModelCard
from stoker.engine.health import Health
from stoker.engine.protocol import Output, Submit
from stoker.engine.question_messages import BlocksHeld, ListSlots, Tokenize
from stoker.errors import EngineCrashed, ModelNotLoaded, Overloaded
from stoker.runtime import block_follower
from stoker.runtime.replica_request import beginning_of_submit
from stoker.runtime.replicas import ReplicatedRuntime
from stoker.runtime.standings import matched_by
from tests.unit.cluster.memory_link import MemoryLink
from tests.unit.runtime.fake_replica import CARD, FakeReplica
from tests.waiting import BOUND_S, run, until


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleets, "CHECK_S", 0.005)
    monkeypatch.setattr(sessions, "BEAT_S", 0.01)
    monkeypatch.setattr(block_follower, "LOOK_S", 0.005)


class Cluster:
    """Replicas by their ids, and the model over them."""

    def __init__(self, *present: str, start_s: float = BOUND_S, idle_s: float | None = None) -> None:
        self.fakes: dict[str, FakeReplica] = {}
        self.links: dict[str, list[MemoryLink]] = {}
        self.present = set(present)
        self.silent = set[str]()
        """Replicas that accept connections and say nothing."""
        self.blocks: BlocksHeld | None = None
        """What every replica says that it holds, at first."""
        self.num_calls = 0
        """Calls for a replica of the idle model that wait at this moment."""
        idle = None if idle_s is None else Idle(wake=self._call, wait_s=idle_s, max_waiting=2)
        self.fleet = ClusterFleet(lambda: self.present, self._connect, start_s=start_s, idle=idle)
        self.runtime = ReplicatedRuntime(self.fleet, restart_wait_s=5.0)

    def fake(self, replica_id: str) -> FakeReplica:
        if replica_id not in self.fakes:
            self.fakes[replica_id] = FakeReplica(len(self.fakes), None)
            self.fakes[replica_id].state = "ready"
            self.fakes[replica_id].blocks = self.blocks
        return self.fakes[replica_id]

    def _connect(self, replica_id: str) -> RemoteEngine:
        link = MemoryLink(self.fake(replica_id), node=f"node of {replica_id}")
        link.is_frozen = replica_id in self.silent
        self.links.setdefault(replica_id, []).append(link)
        return RemoteEngine(link)

    async def _call(self) -> None:
        """As a call in Ray's handle: it waits until there is a replica, or is cancelled."""
        self.num_calls += 1
        try:
            await until(lambda: self.present)
        finally:
            self.num_calls -= 1

    async def become_idle(self) -> None:
        """The cluster takes the last replica away."""
        self.present.clear()
        await until(lambda: not self.runtime.health().replicas)

    async def answer(self, request_id: str, timeout_s: float | None = None, prompt: str = "p") -> str:
        events = self.runtime.generate(Submit(request_id, prompt, SamplingParams(), timeout_s=timeout_s))
        return "".join([event.text async for event in events if isinstance(event, Output)])

    def holder(self, request_id: str) -> str | None:
        return next((name for name, fake in self.fakes.items() if request_id in fake.open), None)


def play(cluster: Cluster, test: Coroutine[Any, Any, None]) -> None:
    async def whole() -> None:
        await cluster.runtime.start()
        try:
            await test
        finally:
            await cluster.runtime.close()

    run(whole())


def healths(cluster: Cluster) -> list[Health]:
    return list(cluster.runtime.health().replicas.values())


def ready(cluster: Cluster) -> int:
    return sum(health.is_ready for health in healths(cluster))


def test_places_of_all_nodes_are_those_of_the_model():
    cluster = Cluster("a", "b")

    async def test() -> None:
        await until(lambda: ready(cluster) == 2)
        assert cluster.runtime.card.parallel == 2 * CARD.parallel
        assert {health.node for health in cluster.runtime.health().replicas.values()} == {"node of a", "node of b"}

    play(cluster, test())


def test_one_that_comes_later_gets_requests():
    cluster = Cluster("a")

    async def test() -> None:
        first = [asyncio.ensure_future(cluster.answer(f"r{i}")) for i in range(2)]
        await until(lambda: cluster.holder("r0") and cluster.holder("r1"))
        cluster.present.add("b")
        await until(lambda: ready(cluster) == 2)
        second = asyncio.ensure_future(cluster.answer("s"))
        await until(lambda: cluster.holder("s") == "b")
        for fake in cluster.fakes.values():
            for request_id in list(fake.open):
                fake.finish(request_id)
        assert await asyncio.gather(*first, second) == ["by 0", "by 0", "by 1"]

    play(cluster, test())


def test_replicas_are_found_after_a_bug_too(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    monkeypatch.setattr(fleets, "_RETRY_S", 0.001)
    cluster = Cluster("a")

    async def test() -> None:
        cluster.present = None  # type: ignore[assignment]
        await until(lambda: "cannot be checked" in caplog.text)
        cluster.present = {"a", "b"}
        await until(lambda: ready(cluster) == 2)

    play(cluster, test())


def test_replica_whose_connection_meets_a_bug_is_connected_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    cluster, compare = Cluster("a"), fleets.is_same_model

    def broken(*cards: ModelCard) -> bool:
        monkeypatch.setattr(fleets, "is_same_model", compare)
        raise RuntimeError("a bug")

    async def test() -> None:
        monkeypatch.setattr(fleets, "is_same_model", broken)
        cluster.present.add("b")
        await until(lambda: ready(cluster) == 2 and len(cluster.links["b"]) == 2)

    play(cluster, test())
    assert "a bug" in caplog.text


def test_one_that_leaves_finishes_what_it_has_and_gets_nothing_new():
    cluster = Cluster("a", "b")

    async def test() -> None:
        await until(lambda: ready(cluster) == 2)
        task = asyncio.ensure_future(cluster.answer("r"))
        await until(lambda: cluster.holder("r"))
        leaving = cluster.holder("r")
        assert leaving is not None
        cluster.present.discard(leaving)
        await until(lambda: ready(cluster) == 1)
        others = [asyncio.ensure_future(cluster.answer(f"s{i}")) for i in range(2)]
        await until(lambda: all(cluster.holder(f"s{i}") for i in range(2)))
        assert {cluster.holder(f"s{i}") for i in range(2)} == {"a", "b"} - {leaving}
        for fake in cluster.fakes.values():
            for request_id in list(fake.open):
                fake.finish(request_id)
        await asyncio.gather(task, *others)
        await until(lambda: len(cluster.runtime.health().replicas) == 1)

    play(cluster, test())


def test_those_that_leave_answer_until_a_successor_is_connected():
    cluster = Cluster("a", "b")

    async def test() -> None:
        await until(lambda: ready(cluster) == 2)
        cluster.silent = {"c"}
        cluster.present = {"c"}
        await until(lambda: "c" in cluster.links)
        await until(lambda: ready(cluster) == 1)
        answering = asyncio.ensure_future(cluster.answer("r"))
        await until(lambda: cluster.holder("r"))
        cluster.silent = set()
        cluster.present = {"d"}  # the first successor could not be connected
        await until(lambda: [h.node for h in healths(cluster) if h.is_ready] == ["node of d"])
        holder = cluster.holder("r")
        assert holder in ("a", "b")
        cluster.fakes[holder].finish("r")
        await answering
        asked = asyncio.ensure_future(cluster.answer("next"))
        await until(lambda: cluster.holder("next") == "d")
        cluster.fakes["d"].finish("next")
        await asked

    play(cluster, test())


def test_what_had_not_begun_goes_elsewhere_and_what_had_ends_with_an_error():
    cluster = Cluster("a", "b")

    async def test() -> None:
        await until(lambda: ready(cluster) == 2)
        task = asyncio.ensure_future(cluster.answer("waits"))
        await until(lambda: cluster.holder("waits"))
        killed = cluster.holder("waits")
        assert killed is not None
        begun = asyncio.ensure_future(cluster.answer("begun"))
        await until(lambda: cluster.holder("begun"))
        other = cluster.holder("begun")
        assert other is not None
        assert other != killed
        cluster.fakes[other].say("begun", "some")
        await until(lambda: cluster.fakes[other].open["begun"].empty())
        await asyncio.sleep(0.02)  # the output is on its way to the reader
        cluster.present.clear()
        cluster.links[killed][-1].break_off()
        cluster.present.add(other)
        await until(lambda: cluster.holder("waits") == other)
        cluster.fakes[other].finish("waits")
        assert await task == f"by {cluster.fakes[other].number}"
        cluster.links[other][-1].break_off()
        with pytest.raises(EngineCrashed):
            await begun

    play(cluster, test())


def test_only_replica_that_is_killed_is_waited_for():
    cluster = Cluster("a")

    async def test() -> None:
        task = asyncio.ensure_future(cluster.answer("r"))
        await until(lambda: cluster.holder("r") == "a")
        cluster.present.clear()
        cluster.links["a"][-1].break_off()
        await until(lambda: not cluster.runtime.health().replicas)
        with pytest.raises(ModelNotLoaded):
            await cluster.answer("new")
        cluster.present.add("b")
        await until(lambda: cluster.holder("r") == "b")
        cluster.fakes["b"].finish("r")
        assert await task == "by 1"

    play(cluster, test())


def test_what_other_fronts_have_sent_counts_as_work():
    cluster = Cluster("a", "b")

    async def test() -> None:
        await until(lambda: ready(cluster) == 2)
        other = cluster.links["a"][-1].join()
        other.obey([Submit("of another front", "p", SamplingParams())])
        await until(lambda: any(h.num_others for h in cluster.runtime.health().replicas.values()))
        task = asyncio.ensure_future(cluster.answer("r"))
        await until(lambda: cluster.holder("r"))
        assert cluster.holder("r") == "b"
        cluster.fakes["b"].finish("r")
        await task
        await other.close()

    play(cluster, test())


def test_what_another_front_has_just_sent_counts_before_the_next_beat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "BEAT_S", BOUND_S)
    cluster = Cluster("a", "b")

    async def test() -> None:
        await until(lambda: ready(cluster) == 2)
        other = cluster.links["a"][-1].join()
        other.obey([Submit("of another front", "p", SamplingParams())])
        await until(lambda: [h.num_others for h in healths(cluster)] == [1, 0])
        task = asyncio.ensure_future(cluster.answer("r"))
        await until(lambda: cluster.holder("r"))
        assert cluster.holder("r") == "b"
        cluster.fakes["b"].finish("r")
        await task
        cluster.fakes["a"].finish("of another front")
        await until(lambda: [h.num_others for h in healths(cluster)] == [0, 0])
        await other.close()

    play(cluster, test())


def test_what_others_have_sent_counts_by_the_tokens_that_it_still_costs():
    cluster = Cluster("a", "b")
    cluster.blocks = blocks_held(1, 1, 2, 3)
    sampling = SamplingParams(max_tokens=8)

    async def test() -> None:
        await until(lambda: [cluster.fleet.prefixes.num_blocks(number) for number in (0, 1)] == [3, 3])
        long, short = (cluster.links[replica][-1].join() for replica in ("a", "b"))
        for fake in cluster.fakes.values():
            fake.accept_gate.clear()
        long.obey([Submit("long", "x" * 40_000, sampling)])
        short.obey([Submit("short", "x" * 400, sampling)])
        await until(lambda: [h.num_others for h in healths(cluster)] == [1, 1])
        a, b = (health.others_tokens for health in healths(cluster))
        assert a > b > 0
        task = asyncio.ensure_future(cluster.answer("r"))
        await until(lambda: cluster.holder("r") == "b")
        for fake in cluster.fakes.values():
            fake.accepts, fake.prompt_tokens = [1, 2, 3, 4], 40_000
            fake.accept_gate.set()
        num_held = 3 * BLOCK_ENTRIES * 10_001 // 40_000  # in the tokens that fronts count in
        await until(lambda: healths(cluster)[0].others_tokens == a - num_held)
        cluster.fakes["a"].say("long", "its prompt is computed")
        await until(lambda: healths(cluster)[0].others_tokens <= 8)
        cluster.fakes["b"].finish("r")
        await task
        for front in (long, short):
            await front.close()

    play(cluster, test())


def test_cached_part_of_a_prompt_is_no_work_for_other_fronts_though_the_engine_has_not_accepted_it():
    cluster = Cluster("a", "b")
    stem = "a conversation that is long enough to be worth something " * 40

    async def test() -> None:
        await until(lambda: ready(cluster) == 2)
        first = asyncio.ensure_future(cluster.answer("first", prompt=stem))
        await until(lambda: cluster.holder("first"))
        home = cluster.holder("first") or ""
        cluster.fakes[home].finish("first")
        await first
        cluster.fakes[home].accept_gate.clear()
        second = asyncio.ensure_future(cluster.answer("second", prompt=stem))
        await until(lambda: cluster.holder("second") == home)
        told = cluster.fakes[home].submits[-1]
        assert told.num_cached > 500
        other = cluster.links[home][-1].join()
        other.obey([msgspec.structs.replace(told, request_id="of another front")])
        index = list(cluster.fakes).index(home)
        await until(lambda: healths(cluster)[index].others_tokens)
        usual_answer = 256
        assert healths(cluster)[index].others_tokens < usual_answer + 100
        cluster.fakes[home].accept_gate.set()
        cluster.fakes[home].finish("second")
        await second
        await other.close()

    play(cluster, test())


def test_conversation_that_began_at_another_front_finds_its_cache():
    cluster = Cluster("a", "b")
    stem = "a conversation that is long enough to be worth something " * 40

    async def test() -> None:
        await until(lambda: ready(cluster) == 2)
        prefixes = cluster.fleet.prefixes
        for number, (replica_id, text) in enumerate((("a", "quite another one " * 200), ("b", stem))):
            other = cluster.links[replica_id][-1].join()
            submit = Submit("of another front", text, SamplingParams())
            other.obey([submit])
            beginning = beginning_of_submit(submit)
            await until(lambda number=number, prompt=beginning: matched_by(number, prefixes.matches(prompt)))
            await other.close()
        await until(lambda: not any(health.num_others for health in healths(cluster)))
        for turn in range(3):
            events = cluster.runtime.generate(Submit(f"turn {turn}", stem + "and more", SamplingParams()))
            await anext(events)
            assert cluster.holder(f"turn {turn}") == "b"
            await events.aclose()

    play(cluster, test())


def blocks_held(serial: int, *numbers: int) -> BlocksHeld:
    stored = [StoredBlocks(POOL, list(numbers))] if numbers else []
    return BlocksHeld("", "one", serial, is_whole=serial == 1, stored=stored, removed=[])


def test_fronts_know_which_blocks_each_replica_holds():
    cluster = Cluster("a", "b")
    cluster.blocks = blocks_held(1, 7)

    async def test() -> None:
        prefixes = cluster.fleet.prefixes
        await until(lambda: [prefixes.num_blocks(number) for number in (0, 1)] == [1, 1])
        cluster.fakes["b"].blocks = blocks_held(2, 8, 9)
        await until(lambda: prefixes.num_blocks(1) == 3)
        assert prefixes.num_blocks(0) == 1

    play(cluster, test())


def test_front_that_missed_a_change_is_told_everything():
    cluster = Cluster("a")
    cluster.blocks = blocks_held(1, 7)

    async def test() -> None:
        prefixes, link = cluster.fleet.prefixes, cluster.links["a"][0]
        await until(lambda: prefixes.num_blocks(0) == 1)
        link.drops_blocks = True
        cluster.fakes["a"].blocks = blocks_held(2, 8)
        await until(lambda: link.num_dropped >= 1)
        link.drops_blocks = False
        assert prefixes.num_blocks(0) == 1
        cluster.fakes["a"].blocks = blocks_held(3, 9)
        await until(lambda: prefixes.num_blocks(0) == 3)

    play(cluster, test())


def test_front_that_lags_is_told_everything_at_once(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sessions, "MAX_UNREAD", 3)
    cluster = Cluster("a")
    cluster.blocks = blocks_held(1, 1)

    async def test() -> None:
        prefixes = cluster.fleet.prefixes
        await until(lambda: prefixes.num_blocks(0) == 1)
        cluster.fakes["a"].blocks = blocks_held(2, 2, 3, 4, 5, 6)
        await until(lambda: prefixes.num_blocks(0) == 6)

    play(cluster, test())


def test_lost_connection_to_one_that_is_still_there_is_made_anew():
    cluster = Cluster("a")

    async def test() -> None:
        cluster.links["a"][-1].break_off()
        await until(lambda: len(cluster.links["a"]) == 2 and ready(cluster) == 1)

    play(cluster, test())


def test_other_model_gets_no_requests():
    cluster = Cluster("a")
    cluster.fake("b").card = msgspec.structs.replace(CARD, vocab_size=7)

    async def test() -> None:
        cluster.present.add("b")
        await until(lambda: "b" in cluster.links)
        await until(lambda: len(cluster.runtime.health().replicas) == 1)
        await asyncio.sleep(0.05)  # it would be tried again meanwhile
        assert len(cluster.links["b"]) == 1

    play(cluster, test())


def test_replica_that_cannot_be_connected_to_is_named_as_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    async def reports(_link: MemoryLink) -> AsyncGenerator[list[Report], None]:
        raise LinkBroken("broke off: no such port")
        yield []

    monkeypatch.setattr(MemoryLink, "reports", reports)
    with pytest.raises(ModelNotLoaded, match=r"no replica of the model answered within .*broke off: no such port"):
        run(Cluster("a", start_s=0.05).runtime.start())


def test_no_replica_comes():
    cluster = Cluster(start_s=0.05)
    with pytest.raises(ModelNotLoaded, match="no replica"):
        run(cluster.runtime.start())


def test_requests_of_an_idle_model_wait_for_a_replica_that_they_ask_for():
    cluster = Cluster("a", idle_s=BOUND_S)

    async def test() -> None:
        await cluster.become_idle()
        health = cluster.runtime.health()
        assert (health.is_ready, health.state, cluster.runtime.card.parallel) == (True, "idle", CARD.parallel)
        assert cluster.num_calls == 0, "nothing is asked for before a request comes"
        requests = [asyncio.ensure_future(cluster.answer(f"r{i}")) for i in range(2)]
        await until(lambda: cluster.num_calls == 1)
        with pytest.raises(Overloaded):
            await cluster.answer("one too many")
        cluster.present.add("b")
        await until(lambda: all(cluster.holder(f"r{i}") == "b" for i in range(2)))
        assert cluster.runtime.health().state == "ready"
        for i in range(2):
            cluster.fakes["b"].finish(f"r{i}")
        assert await asyncio.gather(*requests) == ["by 1", "by 1"]
        await cluster.become_idle()
        assert (cluster.runtime.health().state, cluster.num_calls) == ("idle", 0)

    play(cluster, test())


def test_client_that_leaves_an_idle_model_asks_for_no_replica_any_more():
    cluster = Cluster("a", idle_s=BOUND_S)

    async def test() -> None:
        await cluster.become_idle()
        request = asyncio.ensure_future(cluster.answer("r"))
        await until(lambda: cluster.num_calls == 1)
        request.cancel()
        await until(lambda: cluster.num_calls == 0)
        again = asyncio.ensure_future(cluster.answer("r"))
        await until(lambda: cluster.num_calls == 1)
        cluster.present.add("a")
        await until(lambda: cluster.holder("r") == "a")
        cluster.fakes["a"].finish("r")
        assert await again == "by 0"

    play(cluster, test())


@pytest.mark.parametrize(("idle_s", "timeout_s"), [(0.05, None), (BOUND_S, 0.05)])
def test_no_replica_of_an_idle_model_comes_in_time(idle_s: float, timeout_s: float | None) -> None:
    cluster = Cluster("a", idle_s=idle_s)

    async def test() -> None:
        await cluster.become_idle()
        with pytest.raises(ModelNotLoaded, match=r"within 0.05 s|within 0.04"):
            await cluster.answer("r", timeout_s)
        await until(lambda: cluster.num_calls == 0)

    play(cluster, test())


def test_questions_that_need_an_engine_start_a_replica_and_those_about_replicas_do_not():
    cluster = Cluster("a", idle_s=BOUND_S)

    async def test() -> None:
        await cluster.become_idle()
        with pytest.raises(ModelNotLoaded, match="no replica of the model runs"):
            await cluster.runtime.ask(ListSlots())
        assert cluster.num_calls == 0
        asking = asyncio.ensure_future(cluster.runtime.ask(Tokenize("text")))
        await until(lambda: cluster.num_calls == 1)
        cluster.present.add("b")
        assert (await asking).token_ids is not None

    play(cluster, test())


def test_idle_model_that_is_closed_lets_nobody_wait():
    cluster = Cluster("a", idle_s=BOUND_S)

    async def test() -> None:
        await cluster.become_idle()
        request = asyncio.ensure_future(cluster.answer("r"))
        await until(lambda: cluster.num_calls == 1)
        await cluster.runtime.close()
        with pytest.raises(ModelNotLoaded, match="was closed"):
            await request

    play(cluster, test())

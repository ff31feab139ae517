"""What each scenario sends, in which order, and what it is about; and the order of servers and repetitions."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from stoker.bench.client import get
from stoker.bench.figures import Limits, figures_of
from stoker.bench.load import Load
from stoker.bench.request import NOWHERE, Answer, FailureKind, Target
from stoker.bench.results import Plan, Sample
from stoker.bench.runner import Measurement, make_plan, measure
from stoker.bench.scenarios import SCENARIOS, Measured, Turn
from stoker.bench.server import Ability
from stoker.errors import InvalidInput, ModelNotLoaded
from tests.unit.bench.scripted_server import Exchange, Script, Scripted, answer, scripted
from tests.waiting import BOUND_S

EVERYTHING: frozenset[Ability] = frozenset(("server", "restart", "launch", "first", "cold disk"))


@dataclass
class FakeServer:
    """A scripted server that can be asked for everything; `calls` is what it was asked for."""

    target: Target = NOWHERE
    name: str = "a"
    model_name: str = "by its file"
    command: Sequence[str] = ("serve",)
    offline_command: Sequence[str] = ()
    abilities: frozenset[Ability] = EVERYTHING
    pid: int | None = None
    calls: list[str] = field(default_factory=list[str])
    broken: str | None = None

    async def start(self) -> Target:
        self.calls.append("start")
        if self.broken:
            raise ModelNotLoaded(self.broken)
        return self.target

    async def spawn(self, *, is_first: bool = False) -> Target:
        self.calls.append("spawn first" if is_first else "spawn")
        return self.target

    def forget_files(self) -> None:
        self.calls.append("forget")

    def check_alive(self) -> None:
        if self.broken:
            raise ModelNotLoaded(self.broken)

    async def stop(self) -> None:
        self.calls.append("stop")


class Recorder:
    """A `Watch` that remembers."""

    def __init__(self) -> None:
        self.begun: list[tuple[str, str, int]] = []
        self.num_answers = 0
        self.ended: list[Sequence[Sample]] = []

    def begin(self, server: str, plan: Plan, repetition: int) -> None:
        self.begun.append((server, plan.scenario, repetition))

    def piece(self) -> None:
        pass

    def answered(self, answer: Answer) -> None:
        self.num_answers += 1

    def end(self, samples: Sequence[Sample]) -> None:
        self.ended.append(samples)


def small(scenario: str, **fields: Any) -> Plan:
    defaults: dict[str, Any] = {"prompt_tokens": 40, "output_tokens": 5, "concurrency": (3,)}
    return make_plan(scenario, **(defaults | fields))


@dataclass
class Ran:
    parts: list[Measured]
    requests: list[dict[str, Any]]
    most_active: int
    server: FakeServer

    @property
    def prompts(self) -> list[str]:
        return [body["prompt"] for body in self.requests]


def run_scenario(plan: Plan, script: Script = answer, repetition: int = 0) -> Ran:
    async def main() -> Ran:
        async with scripted(script) as running:
            server = FakeServer(running.target)
            ticks = itertools.count()
            turn = Turn(plan, server, Load(running.target, clock=lambda: float(next(ticks))), repetition)
            parts = [part async for part in SCENARIOS[plan.scenario].run(turn)]
            return Ran(parts, running.requests, running.most_active, server)

    return asyncio.run(main())


def test_distinct_sends_prompts_with_nothing_in_common() -> None:
    ran = run_scenario(small("distinct", concurrency=(1, 3), num_requests=6))
    assert [(part.concurrency, len(part.answers)) for part in ran.parts] == [(1, 6), (3, 6)]
    assert len({tuple(prompt.split()[:4]) for prompt in ran.prompts}) == 12
    assert {len(prompt.split()) for prompt in ran.prompts} == {40}
    assert {body["max_tokens"] for body in ran.requests} == {5}


def test_as_many_requests_are_under_way_as_are_asked_for() -> None:
    """Each pair waits for the other, and then long enough for a third one to be seen."""
    barrier = asyncio.Barrier(2)

    async def script(exchange: Exchange) -> None:
        await barrier.wait()
        address = exchange.writer.get_extra_info("sockname")
        for _ in range(3):
            await get(Target(url=f"http://{address[0]}:{address[1]}"), "/v1/models", BOUND_S)
        await answer(exchange)

    ran = run_scenario(small("distinct", concurrency=(2,), num_requests=6), script)
    assert ran.most_active == 2
    assert [answer.failure for answer in ran.parts[0].answers] == [None] * 6


def test_repetitions_have_other_prompts_and_servers_have_the_same() -> None:
    plan = small("distinct", num_requests=3)
    first, again, other = (run_scenario(plan, repetition=r).prompts for r in (0, 0, 1))
    assert sorted(first) == sorted(again)
    assert not set(first) & set(other)
    assert not set(first) & set(run_scenario(small("distinct", num_requests=3, seed=1)).prompts)


def test_shared_puts_one_system_prompt_before_every_question() -> None:
    prompts = run_scenario(small("shared")).prompts
    systems = {" ".join(prompt.split()[:40]) for prompt in prompts}
    assert (len(prompts), len(systems), len(set(prompts))) == (3, 1, 3)


def agents(**fields: Any) -> Plan:
    return small("agent", **({"concurrency": (2,), "num_requests": 5, "turns": 3, "shared_tokens": 30} | fields))


def test_agent_sends_the_history_again_behind_common_instructions() -> None:
    ran = run_scenario(agents())
    everything, first, later = ran.parts
    assert [part.phase for part in ran.parts] == ["", "first turn", "later turns"]
    assert [len(part.answers) for part in ran.parts] == [15, 5, 10]
    assert first.duration_s == later.duration_s
    assert everything.concurrency == 2
    openings = ran.prompts[:5]
    assert len({" ".join(prompt.split()[:30]) for prompt in openings}) == 1
    assert len({" ".join(prompt.split()[30:]) for prompt in openings}) == 5
    for opening in openings:
        turns = sorted((p for p in ran.prompts if p.startswith(opening)), key=len)
        assert len(turns) == 3
        assert turns[1].startswith(opening + " a" * 5)
        assert turns[2].startswith(turns[1] + " a" * 5)


def test_as_many_agents_are_under_way_as_are_asked_for() -> None:
    barrier = asyncio.Barrier(2)

    async def script(exchange: Exchange) -> None:
        await barrier.wait()  # alone, nobody ever gets on
        await answer(exchange)

    ran = run_scenario(agents(num_requests=6), script)
    assert (ran.most_active, len(ran.requests)) == (2, 18)


def test_agents_take_turns() -> None:
    prompts = run_scenario(agents(concurrency=(1,))).prompts
    assert [next(n for n in range(5) if prompt.startswith(prompts[n])) for prompt in prompts] == [*range(5)] * 3


def test_what_agents_repeat_and_what_was_cached_of_it_is_known_exactly() -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.head()
        await exchange.token(finish="length")
        await exchange.usage(100, 7, cached=80)
        await exchange.done()

    everything, first, later = run_scenario(agents(), script).parts
    assert {answer.resent_tokens for answer in first.answers} == {0}
    assert {answer.resent_tokens for answer in later.answers} == {107}
    assert figures_of(everything.answers, Limits()).resent_share == pytest.approx(80 / 107)
    assert figures_of(first.answers, Limits()).resent_share is None


async def fail(exchange: Exchange) -> None:
    await exchange.status(500, b"{}")


def test_a_conversation_ends_where_it_fails() -> None:
    (everything, first) = run_scenario(agents(), fail).parts
    assert len(everything.answers) == len(first.answers) == 5


def test_mixed_sends_the_long_prompt_when_every_stream_has_begun() -> None:
    begun = asyncio.Event()

    async def script(exchange: Exchange) -> None:
        is_long = len(exchange.body["prompt"].split()) == 400
        if is_long:
            begun.set()
        await exchange.head()
        for _ in range(30):
            await exchange.token()
        if not is_long:
            await begun.wait()  # the long prompt comes while the streams are under way, or this never ends
        await exchange.token(finish="length")
        await exchange.done()

    ran = run_scenario(small("mixed", prompt_tokens=400, output_tokens=31), script)
    assert [(part.phase, len(part.answers)) for part in ran.parts] == [("", 4), ("streams", 3), ("long prompt", 1)]
    assert [len(prompt.split()) for prompt in ran.prompts] == [32, 32, 32, 400]


def test_mixed_ends_too_if_no_stream_begins() -> None:
    assert all(a.failure for a in run_scenario(small("mixed"), fail).parts[0].answers)


def test_restart_asks_the_same_before_and_after() -> None:
    ran = run_scenario(small("restart"))
    assert [part.phase for part in ran.parts] == ["first", "again", "restarted"]
    assert ran.server.calls == ["stop", "start"]
    measured = [prompt for prompt in ran.prompts if len(prompt.split()) == 40]
    assert sorted(measured[:3]) == sorted(measured[3:6]) == sorted(measured[6:])
    assert len(ran.prompts) > len(measured), "the restarted server is warmed up with something else"


def test_cold_asks_until_the_server_answers() -> None:
    num_refused = 0

    async def load(exchange: Exchange) -> None:
        nonlocal num_refused
        if num_refused < 3:
            num_refused += 1
            await exchange.status(503, b"{}")
        else:
            await answer(exchange)

    ran = run_scenario(small("cold"), load)
    assert ran.server.calls == ["stop", "spawn"]
    (part,) = ran.parts
    assert part.answers[0].failure is None
    assert len(ran.requests) == 4
    assert part.answers[0].sent_s == 0, "the clock runs from before the process is started"


@pytest.mark.parametrize(
    ("scenario", "calls"),
    [
        ("first-start", ["stop", "spawn first", "stop"]),
        ("cold-disk", ["start", "stop", "forget", "spawn"]),
    ],
)
def test_first_starts_and_cold_disks_are_made_before_the_clock_runs(scenario: str, calls: list[str]) -> None:
    ran = run_scenario(small(scenario), answer)
    assert ran.server.calls == calls
    (part,) = ran.parts
    assert part.answers[0].failure is None
    assert len(ran.requests) == 1


def test_cold_says_how_the_server_ended() -> None:
    async def main() -> Measured:
        async with scripted(fail) as running:
            server = FakeServer(running.target, broken="it ended with code 1: no such file")
            turn = Turn(small("cold"), server, Load(running.target), 0)
            (part,) = [part async for part in SCENARIOS["cold"].run(turn)]
            return part

    failure = asyncio.run(main()).answers[0].failure
    assert failure is not None
    assert (failure.kind, failure.detail) == (FailureKind.UNREACHABLE, "it ended with code 1: no such file")


def run_measurement(
    *servers: FakeServer, plans: Sequence[Plan], watch: Recorder | None = None, models: object = None
) -> tuple[Measurement, Scripted]:
    async def main() -> tuple[Measurement, Scripted]:
        async with scripted(answer, models=models) as running:
            for server in servers:
                server.target = running.target
            return await measure(servers, plans, watch or Recorder()), running

    return asyncio.run(main())


def test_servers_take_turns() -> None:
    watch, servers = Recorder(), (FakeServer(name="a"), FakeServer(name="b"))
    done, _ = run_measurement(*servers, plans=[small("distinct", repetitions=2, num_requests=1)], watch=watch)
    assert watch.begun == [("a", "distinct", 0), ("b", "distinct", 0), ("a", "distinct", 1), ("b", "distinct", 1)]
    assert [(s.server, s.repetition) for s in done.samples] == [("a", 0), ("b", 0), ("a", 1), ("b", 1)]
    assert [len(samples) for samples in watch.ended] == [1, 1, 1, 1]
    assert watch.num_answers == 4, "those of the warm-up do not count"
    assert [call for call in servers[0].calls if call == "stop"] == ["stop"] * 3, "nobody waits in memory meanwhile"


def test_one_server_stays_up() -> None:
    server = FakeServer()
    run_measurement(server, plans=[small("distinct", repetitions=3, num_requests=1)])
    assert server.calls.count("stop") == 1
    assert server.calls[-1] == "stop"


def test_a_server_is_asked_for_the_model_that_it_lists() -> None:
    models = {"data": [{"id": "tiny", "meta": {"n_params": 5, "n_vocab": 9}}]}
    done, running = run_measurement(FakeServer(), plans=[small("distinct", repetitions=1)], models=models)
    assert {body["model"] for body in running.requests} == {"tiny"}
    model = done.servers["a"].model
    assert (model.name, model.num_parameters, model.vocab_size) == ("tiny", 5, 9)


def test_a_server_that_lists_nothing_is_named_after_its_file() -> None:
    done, _ = run_measurement(FakeServer(), plans=[small("distinct", repetitions=1)])
    assert done.servers["a"].model.name == "by its file"


def test_what_a_server_cannot_do_is_absent() -> None:
    servers = FakeServer(name="a", abilities=frozenset(("server",))), FakeServer(name="b")
    plans = [small(name, repetitions=1, concurrency=(1,)) for name in ("restart", "offline")]
    done, _ = run_measurement(*servers, plans=plans)
    assert [(a.server, a.scenario) for a in done.absent] == [("a", "restart"), ("a", "offline"), ("b", "offline")]
    assert {sample.server for sample in done.samples} == {"b"}


def test_a_server_that_does_not_come_up_is_absent_beside_others_and_an_error_alone() -> None:
    broken = FakeServer(name="a", broken="no such file")
    plans = [small("distinct", repetitions=2, num_requests=1)]
    done, _ = run_measurement(broken, FakeServer(name="b"), plans=plans)
    assert [(a.server, a.reason) for a in done.absent] == [("a", "no such file")]
    assert [sample.server for sample in done.samples] == ["b", "b"]
    with pytest.raises(ModelNotLoaded, match="no such file"):
        run_measurement(broken, plans=plans)
    assert broken.calls[-1] == "stop"


def test_two_servers_of_one_name_are_refused() -> None:
    with pytest.raises(InvalidInput, match="same name"):
        run_measurement(FakeServer(), FakeServer(), plans=[])

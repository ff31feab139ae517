"""Runs plans against servers, repetitions in turn (A B A B), so that other load on the machine affects all alike.

This module decides the order and which servers run; the scenarios decide what is sent.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from stoker.bench.figures import figures_of
from stoker.bench.load import Load
from stoker.bench.request import NOWHERE, Answer, Target
from stoker.bench.results import Absent, ModelIdentity, Plan, Sample, ServerAbout
from stoker.bench.scenarios import SCENARIOS, Measured, Scenario, Turn, warm_up
from stoker.bench.server import Server, identify
from stoker.errors import InvalidInput, StokerError

_REASONS = {
    "server": "it is not a server",
    "restart": "the server was not started here, so it cannot be restarted",
    "launch": "the server was not started here, so its start cannot be timed",
    "first": "the server was not started here, or where it prepares files for later starts is not known",
    "cold disk": "the files that the server reads are not known, or the system does not forget files",
    "offline": "there is no way to ask it without a server",
}


class Watch(Protocol):
    """Observes a measurement: its methods are called as it proceeds."""

    def begin(self, server: str, plan: Plan, repetition: int) -> None: ...
    def piece(self) -> None:
        """An event with text has arrived. This is called often."""
        ...

    def answered(self, answer: Answer) -> None: ...
    def end(self, samples: Sequence[Sample]) -> None:
        """One repetition against one server has ended; `samples` are all its results."""
        ...


def make_plan(
    scenario: str,
    *,
    prompt_tokens: int | None = None,
    output_tokens: int | None = None,
    concurrency: Sequence[int] | None = None,
    **more: Any,
) -> Plan:
    """The plan of a scenario. Lengths and concurrency that are not given are the scenario's defaults.

    Args:
        more: other fields of `Plan`.

    Raises:
        InvalidInput: there is no such scenario, or a number is out of its range.
    """
    if scenario not in SCENARIOS:
        raise InvalidInput(f"no scenario {scenario!r}; there are {', '.join(SCENARIOS)}", parameter="scenario")
    own = SCENARIOS[scenario]
    return Plan(
        scenario=scenario,
        prompt_tokens=own.prompt_tokens if prompt_tokens is None else prompt_tokens,
        output_tokens=own.output_tokens if output_tokens is None else output_tokens,
        concurrency=own.concurrency if concurrency is None else tuple(concurrency),
        **more,
    )


@dataclass(slots=True)
class Measurement:
    """The results of a measurement so far."""

    servers: dict[str, ServerAbout] = field(default_factory=dict[str, ServerAbout])
    samples: list[Sample] = field(default_factory=list[Sample])
    absent: list[Absent] = field(default_factory=list[Absent])


async def measure(servers: Sequence[Server], plans: Sequence[Plan], watch: Watch) -> Measurement:
    """Runs every plan against every server.

    A single server runs all the time. Several servers are started for each repetition and stopped after it, because an
    idle server that holds memory or spins would slow the others down. `Measurement.absent` records scenarios that a
    server does not support, and, if there are several servers, those that fail.

    Raises:
        InvalidInput: two servers have the same name.
        StokerError: the only server does not start.
    """
    if len({server.name for server in servers}) < len(servers):
        raise InvalidInput("two servers have the same name", parameter="name")
    done = Measurement()
    try:
        for plan in plans:
            for repetition in range(plan.repetitions):
                for server in servers:
                    await _repeat(done, server, plan, repetition, watch, is_only=len(servers) == 1)
    finally:
        for server in servers:
            await server.stop()
    return done


async def _repeat(
    done: Measurement, server: Server, plan: Plan, repetition: int, watch: Watch, *, is_only: bool
) -> None:
    scenario = SCENARIOS[plan.scenario]
    if any((absent.server, absent.scenario) == (server.name, plan.scenario) for absent in done.absent):
        return
    if scenario.needs not in server.abilities:
        done.absent.append(Absent(server=server.name, scenario=plan.scenario, reason=_REASONS[scenario.needs]))
        return
    watch.begin(server.name, plan, repetition)
    num_before = len(done.samples)
    try:
        async for part in _parts(done, server, scenario, Turn(plan, server, _load(watch), repetition)):
            done.samples.append(_sample(server, plan, repetition, part))
    except StokerError as error:
        if is_only:
            raise
        done.absent.append(Absent(server=server.name, scenario=plan.scenario, reason=error.message))
    if not is_only:
        await server.stop()
    watch.end(done.samples[num_before:])


def _load(watch: Watch) -> Load:
    return Load(NOWHERE, on_piece=watch.piece, on_answer=watch.answered)


async def _parts(done: Measurement, server: Server, scenario: Scenario, turn: Turn) -> AsyncIterator[Measured]:
    if scenario.needs in ("server", "restart"):
        turn = replace(turn, load=replace(turn.load, target=await _started(done, server)))
        await warm_up(turn.load)
    async for part in scenario.run(turn):
        yield part
    if scenario.needs == "offline":
        model = ModelIdentity(name=server.model_name)
        about = ServerAbout(name=server.name, command=tuple(server.offline_command), url="", model=model)
        done.servers.setdefault(server.name, about)
    else:
        await _started(done, server)


async def _started(done: Measurement, server: Server) -> Target:
    """Starts a server if needed, and records its model. A target without a model gets the name that it reports."""
    target = await server.start()
    about = done.servers.get(server.name)
    if about is None or not about.url:
        model = await identify(target, server.model_name)
        about = ServerAbout(name=server.name, command=tuple(server.command), url=target.url, model=model)
        done.servers[server.name] = about
    return replace(target, model=about.model.name or None) if target.model is None else target


def _sample(server: Server, plan: Plan, repetition: int, part: Measured) -> Sample:
    return Sample(
        server=server.name,
        scenario=plan.scenario,
        repetition=repetition,
        concurrency=part.concurrency,
        phase=part.phase,
        figures=figures_of(part.answers, plan.limits, part.resources, part.duration_s),
    )

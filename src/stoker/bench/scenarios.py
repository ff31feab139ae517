"""The scenarios of the benchmark: which requests are sent to one server, in which order. They compute no figures.

A scenario is a function of a `Turn`, and knows no particular server. It yields `Measured` parts with their answers.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from stoker.bench.figures import Resources
from stoker.bench.load import Load
from stoker.bench.offline import OfflineJob, run_offline
from stoker.bench.process_usage import watching
from stoker.bench.prompts import Prompts
from stoker.bench.request import Answer, Failure, FailureKind, Job, Message
from stoker.bench.results import Plan
from stoker.bench.server import Ability, Server
from stoker.errors import ModelNotLoaded

_CONVERSATIONS, _TURNS, _INSTRUCTION_TOKENS, _RESULT_TOKENS = 12, 6, 1024, 64
"""Defaults of `agent`: conversations, requests of each, tokens of the shared prompt, tokens that a later turn adds."""
_SHORT_TOKENS = 32
"""Length of a prompt, or of a part of it, that the scenario is not about."""
_MIXED_BEGUN = 8
"""Pieces that have arrived when `mixed` sends its long prompt, on average per stream."""
_RETRY_S = 0.01
_COLD_LIMIT_S = 900.0


@dataclass(frozen=True, slots=True)
class Measured:
    """Answers at one point of a scenario. `duration_s` is the time for rates; None = from first request to last end."""

    concurrency: int
    answers: Sequence[Answer]
    resources: Resources | None = None
    phase: str = ""
    duration_s: float | None = None


@dataclass(frozen=True, slots=True)
class Turn:
    """One repetition of one plan against one server."""

    plan: Plan
    server: Server
    load: Load
    repetition: int

    def prompts(self, *names: str | int) -> Prompts:
        """The texts of this repetition: all servers get the same texts, other repetitions get other texts."""
        return Prompts(self.plan.seed, self.plan.scenario, self.repetition, *names)

    def job(self, text: str, label: str = "") -> Job:
        return Job((("user", text),), self.plan.output_tokens, label)


Run: TypeAlias = Callable[[Turn], AsyncIterator[Measured]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A scenario, with default lengths (in tokens) and concurrency that show what it is about."""

    name: str
    about: str
    """Description in one line, for readers of the results."""
    run: Run
    needs: Ability = "server"
    """The ability that the server must have."""
    expects_cache: bool = False
    """Whether prompts repeat what the server has seen in the same run."""
    prompt_tokens: int
    output_tokens: int
    concurrency: tuple[int, ...]


async def distinct(turn: Turn) -> AsyncIterator[Measured]:
    """Short prompts with nothing in common, at rising concurrency."""
    for concurrency in turn.plan.concurrency:
        prompts = turn.prompts(concurrency)
        count = turn.plan.num_requests or max(8, 2 * concurrency)
        jobs = [turn.job(prompts.text(turn.plan.prompt_tokens)) for _ in range(count)]
        async with watching(turn.server.pid) as usage:
            answers = await turn.load.closed_loop(jobs, concurrency)
        yield Measured(concurrency, answers, usage.resources)


async def shared(turn: Turn) -> AsyncIterator[Measured]:
    """Concurrent requests that share one long system prompt, which is new to the server."""
    for concurrency in turn.plan.concurrency:
        prompts = turn.prompts(concurrency)
        system = ("system", prompts.text(turn.plan.prompt_tokens))
        questions = [("user", prompts.text(_SHORT_TOKENS)) for _ in range(turn.plan.num_requests or concurrency)]
        jobs = [Job((system, question), turn.plan.output_tokens) for question in questions]
        async with watching(turn.server.pid) as usage:
            answers = await turn.load.closed_loop(jobs, concurrency)
        yield Measured(concurrency, answers, usage.resources)


async def agent(turn: Turn) -> AsyncIterator[Measured]:
    """More conversations than concurrent requests, in turn; each request sends its whole history again.

    This is the load of a program that runs many agents: all begin with its instructions, each has a task of its own,
    and while some wait for the model, the others wait for their tools.
    """
    for concurrency in turn.plan.concurrency:
        instructions = turn.prompts(concurrency).text(turn.plan.shared_tokens or _INSTRUCTION_TOKENS)
        talks = [
            _Talk(turn, turn.prompts(concurrency, number), [("system", instructions)])
            for number in range(turn.plan.num_requests or _CONVERSATIONS)
        ]
        async with watching(turn.server.pid) as usage:
            answers = await _in_turn(talks, concurrency)
        yield Measured(concurrency, answers, usage.resources)
        duration_s = max(answer.ended_s for answer in answers) - min(answer.sent_s for answer in answers)
        for phase, own in _by_label(answers):
            yield Measured(concurrency, own, phase=phase, duration_s=duration_s)


@dataclass(slots=True)
class _Talk:
    """The state of one conversation."""

    turn: Turn
    prompts: Prompts
    history: list[Message]
    last: Answer | None = None
    num_turns: int = 0

    @property
    def has_more(self) -> bool:
        is_broken = self.last is not None and self.last.failure is not None
        return not is_broken and self.num_turns < (self.turn.plan.turns or _TURNS)

    async def go_on(self) -> Answer:
        """Sends the next request of the conversation."""
        before, plan = self.last, self.turn.plan
        self.history.append(("user", self.prompts.text(plan.prompt_tokens if before is None else _RESULT_TOKENS)))
        job = Job(tuple(self.history), plan.output_tokens, label="first turn" if before is None else "later turns")
        self.last = answer = await self.turn.load.ask(job)
        if before is not None:
            answer.resent_tokens = before.num_prompt + before.num_output
        self.history.append(("assistant", answer.text))
        self.num_turns += 1
        return answer


async def _in_turn(talks: Iterable[_Talk], concurrency: int) -> list[Answer]:
    """Runs all conversations, `concurrency` at a time: the one that has waited longest continues first."""
    waiting = deque(talks)

    async def work() -> list[Answer]:
        answers: list[Answer] = []
        while waiting:
            talk = waiting.popleft()
            answers.append(await talk.go_on())
            if talk.has_more:
                waiting.append(talk)
        return answers

    parts = await asyncio.gather(*(work() for _ in range(concurrency)))
    return [answer for part in parts for answer in part]


async def mixed(turn: Turn) -> AsyncIterator[Measured]:
    """Running streams, then one very long prompt: how long the streams stand still, and how long the prompt waits."""
    for concurrency in turn.plan.concurrency:
        prompts = turn.prompts(concurrency)
        streams = [turn.job(prompts.text(_SHORT_TOKENS), "streams") for _ in range(concurrency)]
        long = replace(turn.job(prompts.text(turn.plan.prompt_tokens), "long prompt"), output_tokens=_SHORT_TOKENS)
        begun = asyncio.Event()
        load = _noting_begin(turn.load, _MIXED_BEGUN * concurrency, begun)
        async with watching(turn.server.pid) as usage:
            running = asyncio.ensure_future(load.together(streams))
            await asyncio.wait([running, asyncio.ensure_future(begun.wait())], return_when=asyncio.FIRST_COMPLETED)
            begun.set()
            last = await turn.load.ask(long)
            answers = [*await running, last]
        yield Measured(concurrency, answers, usage.resources)
        for phase, own in _by_label(answers):
            yield Measured(concurrency, own, phase=phase)


def _noting_begin(load: Load, num_pieces: int, begun: asyncio.Event) -> Load:
    left = num_pieces

    def count() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            begun.set()
        if load.on_piece is not None:
            load.on_piece()

    return replace(load, on_piece=count)


async def restart(turn: Turn) -> AsyncIterator[Measured]:
    """The same prompts three times: new, again, and again after the server was restarted."""
    for concurrency in turn.plan.concurrency:
        prompts = turn.prompts(concurrency)
        count = turn.plan.num_requests or concurrency
        jobs = [turn.job(prompts.text(turn.plan.prompt_tokens)) for _ in range(count)]
        load = turn.load
        for phase in ("first", "again", "restarted"):
            if phase == "restarted":
                await turn.server.stop()
                target = await turn.server.start()
                load = replace(load, target=replace(target, model=load.target.model))
                await warm_up(load)
            async with watching(turn.server.pid) as usage:
                answers = await load.closed_loop(jobs, concurrency)
            yield Measured(concurrency, answers, usage.resources, phase)


async def cold(turn: Turn) -> AsyncIterator[Measured]:
    """The time from the start of the server's process to the first token of one request."""
    await turn.server.stop()
    yield await _until_first_token(turn)


async def first_start(turn: Turn) -> AsyncIterator[Measured]:
    """As `cold`, for a server that has never run with this model: it finds no files that an earlier start prepared."""
    await turn.server.stop()
    yield await _until_first_token(turn, is_first=True)


async def cold_disk(turn: Turn) -> AsyncIterator[Measured]:
    """As `cold`, for a server that has run before, as after a restart of the machine: its files come from the disk."""
    await turn.server.start()
    await turn.server.stop()
    await asyncio.to_thread(turn.server.forget_files)
    yield await _until_first_token(turn)


async def _until_first_token(turn: Turn, *, is_first: bool = False) -> Measured:
    job = turn.job(turn.prompts().text(turn.plan.prompt_tokens))
    began_s = turn.load.clock()
    target = await turn.server.spawn(is_first=is_first)
    async with watching(turn.server.pid) as usage:
        answer = await _first_answer(replace(turn.load, target=target, on_answer=None), job, turn.server)
    answer.sent_s = began_s
    if turn.load.on_answer is not None:
        turn.load.on_answer(answer)
    if is_first:
        await turn.server.stop()  # deletes the files that this start has prepared
    return Measured(1, [answer], usage.resources)


async def _first_answer(load: Load, job: Job, server: Server) -> Answer:
    """Repeats the request until the server answers it: a refusal means that the server is still loading."""
    deadline_s = time.monotonic() + _COLD_LIMIT_S
    while True:
        answer = await load.ask(job)
        is_loading = answer.failure and answer.failure.kind in (FailureKind.UNREACHABLE, FailureKind.REFUSED)
        if not is_loading or time.monotonic() > deadline_s:
            return answer
        try:
            server.check_alive()
        except ModelNotLoaded as error:
            answer.failure = Failure(FailureKind.UNREACHABLE, error.message)
            return answer
        await asyncio.sleep(_RETRY_S)


async def offline(turn: Turn) -> AsyncIterator[Measured]:
    """A list of prompts in one call, in a process without a server. Answers are not streamed, so they have no times."""
    count = turn.plan.num_requests or turn.plan.concurrency[0]
    prompts = turn.prompts()
    texts = [prompts.text(turn.plan.prompt_tokens) for _ in range(count)]
    outcome = await run_offline(turn.server.offline_command, OfflineJob(texts, turn.plan.output_tokens))
    answers = outcome.answers([turn.job(text) for text in texts])
    for answer in answers:
        if turn.load.on_answer is not None:
            turn.load.on_answer(answer)
    yield Measured(count, answers, outcome.resources, duration_s=outcome.duration_s)


async def warm_up(load: Load) -> None:
    """Sends two requests that are not measured, so that the first measured one does not wait for weights to be read."""
    prompts = Prompts("warm-up", time.time_ns())
    jobs = [Job((("user", prompts.text(_SHORT_TOKENS)),), output_tokens=8) for _ in range(2)]
    await replace(load, on_piece=None, on_answer=None).together(jobs)


def _by_label(answers: Iterable[Answer]) -> list[tuple[str, list[Answer]]]:
    parts: dict[str, list[Answer]] = {}
    for answer in answers:
        parts.setdefault(answer.job.label, []).append(answer)
    return list(parts.items())


SCENARIOS: dict[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        Scenario(
            name="distinct",
            about="short prompts with nothing in common, at rising concurrency",
            run=distinct,
            prompt_tokens=64,
            output_tokens=64,
            concurrency=(1, 2, 4, 8, 16, 32),
        ),
        Scenario(
            name="shared",
            about="requests at once behind one long system prompt",
            run=shared,
            expects_cache=True,
            prompt_tokens=512,
            output_tokens=32,
            concurrency=(8,),
        ),
        Scenario(
            name="agent",
            about="more conversations than slots, in turn, behind common instructions; each turn resends its history",
            run=agent,
            expects_cache=True,
            prompt_tokens=256,
            output_tokens=32,
            concurrency=(4,),
        ),
        Scenario(
            name="mixed",
            about="running streams, then one very long prompt: ITL max is how long they stand still",
            run=mixed,
            prompt_tokens=1500,
            output_tokens=192,
            concurrency=(4,),
        ),
        Scenario(
            name="restart",
            about="the same prompts: first, again, and after the server was restarted",
            run=restart,
            needs="restart",
            expects_cache=True,
            prompt_tokens=512,
            output_tokens=16,
            concurrency=(4,),
        ),
        Scenario(
            name="cold",
            about="from the start of the server's process to its first token",
            run=cold,
            needs="launch",
            prompt_tokens=16,
            output_tokens=8,
            concurrency=(1,),
        ),
        Scenario(
            name="first-start",
            about="from the start of a server that has never run with this model to its first token",
            run=first_start,
            needs="first",
            prompt_tokens=16,
            output_tokens=8,
            concurrency=(1,),
        ),
        Scenario(
            name="cold-disk",
            about="from the start of a server whose files no memory holds to its first token",
            run=cold_disk,
            needs="cold disk",
            prompt_tokens=16,
            output_tokens=8,
            concurrency=(1,),
        ),
        Scenario(
            name="offline",
            about="a list of prompts in one call of the library, without a server",
            run=offline,
            needs="offline",
            prompt_tokens=64,
            output_tokens=64,
            concurrency=(32,),
        ),
    )
}

"""Keeps a number of requests in flight, and collects their answers. It knows no scenario and computes no figures."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from stoker.bench.client import Clock, ask
from stoker.bench.request import Answer, Job, Target


@dataclass(slots=True)
class Load:
    """Sends requests to one target, and reports their progress.

    Args:
        on_piece: called for every event that carries text.
        on_answer: called when a request has ended, even if it failed.
    """

    target: Target
    clock: Clock = time.perf_counter
    on_piece: Callable[[], None] | None = None
    on_answer: Callable[[Answer], None] | None = None

    async def ask(self, job: Job) -> Answer:
        """Sends one request."""
        answer = await ask(self.target, job, clock=self.clock, on_piece=self.on_piece)
        if self.on_answer is not None:
            self.on_answer(answer)
        return answer

    async def closed_loop(self, jobs: Iterable[Job], concurrency: int) -> list[Answer]:
        """Sends all jobs, at most `concurrency` at a time: when one has ended, another one is sent.

        Returns:
            The answers, in no particular order.
        """
        waiting = iter(jobs)

        async def work() -> list[Answer]:
            return [await self.ask(job) for job in waiting]

        parts = await asyncio.gather(*(work() for _ in range(concurrency)))
        return [answer for part in parts for answer in part]

    async def together(self, jobs: Iterable[Job]) -> list[Answer]:
        """Sends all jobs at once. Returns the answers in the order of the jobs."""
        return await asyncio.gather(*(self.ask(job) for job in jobs))

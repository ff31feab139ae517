"""Offline inference: runs a program that answers a list of prompts with one call, without a server.

`python -m stoker.bench.offline ENGINE_CONFIG` (JSON) is Stoker's own: it reads an `OfflineJob` from stdin and writes an
`OfflineOutcome` as the last line of stdout. Any program that does the same can be measured.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence

import msgspec

import stoker
from stoker.bench.figures import Resources
from stoker.bench.process_usage import watching
from stoker.bench.request import Answer, Failure, FailureKind, Job
from stoker.core.params import SamplingParams
from stoker.engine.config import EngineConfig

_LIMIT_S = 3600.0


class OfflineJob(msgspec.Struct, frozen=True):
    """Prompts, and the length of each answer in tokens. Decoding is greedy and ignores end-of-generation tokens."""

    prompts: list[str]
    output_tokens: int


class TokenCounts(msgspec.Struct, frozen=True):
    """The token counts of one prompt and its answer."""

    prompt_tokens: int
    output_tokens: int
    cached_tokens: int | None = None


class OfflineOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """Duration of the call, without loading the model, and token counts; or the reason why the call failed."""

    duration_s: float = 0.0
    counts: list[TokenCounts] = []
    failure: str | None = None
    resources: Resources = Resources()

    def answers(self, jobs: Sequence[Job]) -> list[Answer]:
        """One answer without times for each job. All have failed if the call failed or the numbers do not match."""
        counts = self.counts if self.failure is None else []
        if self.failure is None and len(counts) != len(jobs):
            return _failed(jobs, f"{len(counts)} answers for {len(jobs)} prompts")
        if self.failure is not None:
            return _failed(jobs, self.failure)
        return [_answer(job, count) for job, count in zip(jobs, counts, strict=True)]


async def run_offline(command: Sequence[str], job: OfflineJob) -> OfflineOutcome:
    """Runs a program that answers an offline job, and measures its resources, loading included. Raises no failure."""
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        async with watching(process.pid) as usage, asyncio.timeout(_LIMIT_S):
            said, complaints = await process.communicate(msgspec.json.encode(job))
    except TimeoutError:
        return OfflineOutcome(failure=f"not finished after {_LIMIT_S:g} s")
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        return OfflineOutcome(failure=f"ended with code {process.returncode}: {_last_line(complaints)}")
    try:
        outcome = msgspec.json.decode(_last_line(said), type=OfflineOutcome)
    except msgspec.DecodeError as error:
        return OfflineOutcome(failure=f"said no outcome: {error}")
    return msgspec.structs.replace(outcome, resources=usage.resources)


def _failed(jobs: Sequence[Job], detail: str) -> list[Answer]:
    return [Answer(job, sent_s=0.0, failure=Failure(FailureKind.ERROR, detail)) for job in jobs]


def _answer(job: Job, count: TokenCounts) -> Answer:
    return Answer(
        job,
        sent_s=0.0,
        is_timed=False,
        prompt_tokens=count.prompt_tokens,
        completion_tokens=count.output_tokens,
        cached_tokens=count.cached_tokens,
    )


def _last_line(said: bytes) -> str:
    lines = said.decode("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else ""


def main() -> None:
    """Runs in the child process: loads the model, answers the job, and prints the outcome."""
    config = msgspec.json.decode(sys.argv[1], type=EngineConfig)
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=OfflineJob)
    sampling = SamplingParams(temperature=0, max_tokens=job.output_tokens, ignore_eos=True)
    with stoker.LLM(config) as llm:
        llm.generate("warm-up", SamplingParams(temperature=0, max_tokens=2, ignore_eos=True))
        began_s = time.perf_counter()
        completions = llm.generate(list(job.prompts), sampling)
        duration_s = time.perf_counter() - began_s
    usages = [completion.usage for completion in completions]
    counts = [TokenCounts(usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens) for usage in usages]
    outcome = OfflineOutcome(duration_s=duration_s, counts=counts)
    print(msgspec.json.encode(outcome).decode(), flush=True)


if __name__ == "__main__":
    main()

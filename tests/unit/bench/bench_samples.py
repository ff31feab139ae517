"""Answers, figures and results made by hand, for the tests of what is done with them."""

from __future__ import annotations

from typing import Any

from stoker.bench.figures import Figures, Limits, Resources, figures_of
from stoker.bench.request import Answer, Failure, FailureKind, Job
from stoker.bench.results import Machine, ModelIdentity, Plan, Results, Sample, ServerAbout
from stoker.bench.runner import make_plan

MACHINE = Machine(cpu="a CPU", num_cores=2, memory_bytes=2**30, system="Linux 6", python="3.11.7", load_before=0.1)
MODEL = ModelIdentity(name="m", num_parameters=135, vocab_size=49152)


def make_answer(
    *, ttft_s: float = 0.5, gap_s: float = 0.1, num_tokens: int = 4, sent_s: float = 0.0, words: int = 8
) -> Answer:
    pieces = [sent_s + ttft_s + gap_s * index for index in range(num_tokens)]
    job = Job((("user", " word" * words),), output_tokens=4)
    return Answer(
        job, sent_s, pieces, pieces[-1], " a" * num_tokens, words, num_tokens, cached_tokens=0, finish_reason="length"
    )


def make_failed(kind: FailureKind = FailureKind.STALLED, detail: str = "nothing came") -> Answer:
    job = Job((("user", " word"),), output_tokens=4)
    return Answer(job, 0.0, [0.001], 900.0, failure=Failure(kind, detail))


def make_figures(*answers: Answer, resources: Resources | None = None) -> Figures:
    return figures_of(answers or [make_answer()], Limits(), resources)


def make_sample(server: str = "a", repetition: int = 0, figures: Figures | None = None, **fields: Any) -> Sample:
    where: dict[str, Any] = {"scenario": "distinct", "concurrency": 1, "phase": ""} | fields
    return Sample(server=server, repetition=repetition, figures=figures or make_figures(), **where)


def make_about(name: str = "a", model: ModelIdentity = MODEL) -> ServerAbout:
    return ServerAbout(name=name, command=(), url="http://127.0.0.1:1", model=model)


def make_results(
    *samples: Sample, servers: tuple[ServerAbout, ...] | None = None, plans: tuple[Plan, ...] | None = None
) -> Results:
    return Results(
        stoker_version="0",
        started_at="2026-01-01T00:00:00+00:00",
        command=("stoker", "bench"),
        machine=MACHINE,
        servers=servers or tuple(make_about(name) for name in dict.fromkeys(sample.server for sample in samples)),
        plans=plans or (make_plan("distinct"),),
        samples=samples,
    )

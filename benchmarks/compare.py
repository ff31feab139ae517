"""Stoker beside its peers: the same GGUF, the same threads, the same total context, in turn (A B A B), in one run.

    make bench
    python benchmarks/compare.py --cases speed-smollm2 shared --out /tmp/bench

Writes one JSON file of results per case into `--out`, and `RESULTS.md` with its plots beside this file. Run it on a
machine that does nothing else: it takes about an hour.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

import msgspec
from limits import Machine, Work, measure_machine, work_of
from peers import (
    REQUIREMENTS,
    Absent,
    Ceiling,
    Present,
    Setting,
    batched_bench,
    find_peer,
    llama_cpp_python,
    llama_server,
    mistralrs,
    onnxruntime_genai,
    openvino,
)
from peers import stoker as stoker_server
from report import Peers, write_report
from requantize import requantize
from synthetic import Shape
from synthetic import write as write_synthetic

import stoker
from stoker.backends.cores import usable_cores
from stoker.bench import results as bench_results
from stoker.bench.results import Plan, Results, Sample, read_results, this_machine, write_results
from stoker.bench.runner import make_plan, measure
from stoker.bench.server import Server
from stoker.models.gguf import read_gguf
from stoker.models.store import resolve

HTTP_PEERS, LIBRARY_PEERS = ("llama-server",), ("openvino-genai", "mistralrs", "onnxruntime-genai")
_PARALLEL = 16
_CONTEXT = 32_768
_SHORT_PROMPT = 32
_LONG_PROMPT = 32_000
_SHAPES = {
    "llama-1b": Shape(),
    "two-layers": Shape(num_layers=2, hidden=2048, feed_forward=2048, num_heads=16, num_kv_heads=4, context=_CONTEXT),
}
"""Of our own models; two layers of heads of 128 show what attention to a long prompt costs in little time."""
_CEILING_BATCHES, _CEILING_OUTPUT = (1, 8, 16, 32), 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Some plans on one model file, with the peers that can do them."""

    name: str
    model: str
    plans: tuple[Plan, ...]
    peers: tuple[str, ...] = HTTP_PEERS
    parallel: int = _PARALLEL
    keeps_prefixes: bool = False
    """Stoker has a folder for them, empty at the beginning."""


def _speed(model: str, concurrency: tuple[int, ...] = (1, 8, 16), peers: tuple[str, ...] = HTTP_PEERS) -> list[Case]:
    """Output tokens per second at some concurrency, and prompt tokens per second at two lengths."""
    decode = make_plan("distinct", concurrency=concurrency, prompt_tokens=_SHORT_PROMPT)
    prompts = [
        Case(
            name=f"prompt-{length}-{model}",
            model=model,
            plans=(make_plan("distinct", prompt_tokens=length, output_tokens=1, concurrency=(1,), num_requests=count),),
        )
        for length, count in ((500, 6), (4000, 2))
    ]
    return [Case(name=f"speed-{model}", model=model, plans=(decode,), peers=peers), *prompts]


def _library(model: str) -> list[Case]:
    batches = tuple(make_plan("offline", num_requests=count, prompt_tokens=_SHORT_PROMPT) for count in (1, 8, 16, 32))
    prefill = (make_plan("offline", num_requests=1, prompt_tokens=2000, output_tokens=1),)
    return [
        Case(name=f"library-{model}", model=model, plans=batches, peers=LIBRARY_PEERS),
        Case(name=f"library-prompt-{model}", model=model, plans=prefill, peers=LIBRARY_PEERS),
    ]


def _one(scenario: str, model: str, *, parallel: int = _PARALLEL, **more: object) -> Case:
    name = f"{scenario}-{model}" if not more else f"{scenario}-{'-'.join(_names(more))}-{model}"
    return Case(name=name, model=model, parallel=parallel, plans=(make_plan(scenario, **more),))  # pyright: ignore[reportArgumentType]


def _names(more: dict[str, object]) -> list[str]:
    return [str(value).strip("(),") for value in more.values()]


CASES = {
    case.name: case
    for case in (
        *_speed("smollm2", (1, 2, 4, 8, 16, 32), (*HTTP_PEERS, "llama-cpp-python")),
        *_speed("smollm2-q4_0"),
        *_speed("smollm2-q8_0"),
        *_speed("smollm2-q4_k_m"),
        *_speed("gemma3"),
        *_speed("llama-1b-q4_k"),
        *_speed("llama-1b-q8_0", (1, 8)),
        _one(
            "distinct", "two-layers-q4_k", prompt_tokens=_LONG_PROMPT, output_tokens=1, concurrency=(1,), num_requests=1
        ),
        *(_one(scenario, "smollm2") for scenario in ("shared", "mixed", "cold")),
        replace(_one("restart", "smollm2"), keeps_prefixes=True),
        _one("agent", "smollm2", parallel=8),
        _one("agent", "smollm2", parallel=8, num_requests=40),
        *_library("smollm2-q4_0"),
        *_library("smollm2-q8_0"),
    )
}


@dataclass(slots=True)
class Bench:
    """Where files and peers are, and what has been found out about them."""

    folder: Path
    threads: int
    repetitions: int
    binary: Path | None
    found: dict[str, Present | Absent] = field(default_factory=dict[str, Present | Absent])

    def peer(self, name: str) -> Present | Absent:
        if name not in self.found:
            self.found[name] = find_peer(name, self.folder / "peers")
        return self.found[name]

    def model(self, name: str) -> Path:
        """The file, written first if it is one of ours."""
        family, _, quantization = name.rpartition("-")
        if not family:
            return resolve(name)
        path = self.folder / f"{name}.gguf"
        if not path.exists():
            part = path.with_suffix(".part")
            if family in _SHAPES:
                write_synthetic(part, _SHAPES[family], quantization.upper())
            else:
                requantize(resolve(family), part, quantization.upper())
            part.rename(path)
        return path

    def servers(self, case: Case) -> tuple[list[Server], list[bench_results.Absent]]:
        setting = Setting(
            model=self.model(case.model),
            threads=self.threads,
            parallel=case.parallel,
            context=_CONTEXT,
            cache_dir=self._empty_folder(f"prefixes-{case.name}") if case.keeps_prefixes else None,
        )
        servers: list[Server] = [stoker_server(setting)]
        absent: list[bench_results.Absent] = []
        for name in case.peers:
            peer = self.peer(name)
            if isinstance(peer, Absent):
                absent.append(bench_results.Absent(server=name, scenario=case.plans[0].scenario, reason=peer.reason))
            else:
                servers.append(self._server(peer, setting))
        return servers, absent

    def _empty_folder(self, name: str) -> Path:
        folder = self.folder / name
        shutil.rmtree(folder, ignore_errors=True)
        return folder

    def _server(self, peer: Present, setting: Setting) -> Server:
        if peer.name == "llama-server":
            return llama_server(peer, setting, self.binary)
        if peer.name == "onnxruntime-genai":
            return onnxruntime_genai(peer, setting, self.folder / f"{setting.model.stem}-onnx")
        return {"llama-cpp-python": llama_cpp_python, "openvino-genai": openvino, "mistralrs": mistralrs}[peer.name](
            peer, setting
        )


class Progress:
    """A line for each repetition, as it ends."""

    def begin(self, server: str, plan: Plan, repetition: int) -> None:
        print(f"  {plan.scenario} {repetition + 1}/{plan.repetitions} {server} ...", end="", flush=True)

    def piece(self) -> None:
        pass

    def answered(self, answer: object) -> None:
        pass

    def end(self, samples: Sequence[Sample]) -> None:
        rates = [f"{s.concurrency}: {s.figures.output_tokens_per_s:.0f}" for s in samples if not s.phase]
        print(f" tokens/s at {', '.join(rates)}" if rates else "", flush=True)


def run_case(bench: Bench, case: Case) -> Results:
    """Measures one case."""
    machine = this_machine()
    started_at = datetime.now().astimezone().isoformat(timespec="seconds")
    plans = [msgspec.structs.replace(plan, repetitions=bench.repetitions) for plan in case.plans]
    servers, absent = bench.servers(case)
    done = asyncio.run(measure(servers, plans, Progress()))
    return Results(
        stoker_version=stoker.__version__,
        started_at=started_at,
        command=tuple(sys.argv),
        machine=machine,
        servers=tuple(done.servers.values()),
        plans=tuple(plans),
        samples=tuple(done.samples),
        absent=(*absent, *done.absent),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="*", default=list(CASES), choices=list(CASES), metavar="CASE")
    parser.add_argument("--out", type=Path, default=Path("build/bench"), help="models, peers and results go there")
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--llama-server", type=Path, help="another binary than the packaged one")
    parser.add_argument("--llama-batched-bench", type=Path, help="libllama's ceiling is measured with this binary")
    parser.add_argument("--report-only", action="store_true", help="write RESULTS.md from what lies in --out")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    bench = Bench(arguments.out, arguments.threads, arguments.repetitions, arguments.llama_server)
    if not arguments.report_only:
        cases = [CASES[name] for name in arguments.cases]
        _measure_all(bench, cases)
        if arguments.llama_batched_bench:
            _measure_ceilings(bench, arguments.llama_batched_bench, {case.model for case in cases})
    _report(bench)


def _measure_all(bench: Bench, cases: Sequence[Case]) -> None:
    for case in cases:
        bench.model(case.model)
        for name in case.peers:
            bench.peer(name)
    limits = bench.folder / "machine.json"
    limits.write_bytes(msgspec.json.encode(measure_machine(bench.threads)))
    for case in cases:
        print(case.name, flush=True)
        write_results(run_case(bench, case), bench.folder / f"{case.name}.json")


def _measure_ceilings(bench: Bench, binary: Path, models: set[str]) -> None:
    for model in sorted(models):
        setting = Setting(model=bench.model(model), threads=bench.threads, parallel=_PARALLEL, context=_CONTEXT)
        found = batched_bench(binary, setting, _CEILING_BATCHES, _SHORT_PROMPT, _CEILING_OUTPUT)
        (bench.folder / f"{model}.ceiling.json").write_bytes(msgspec.json.encode(found))


def _ceilings(bench: Bench) -> dict[str, list[Ceiling]]:
    paths = {path.name.removesuffix(".ceiling.json"): path for path in sorted(bench.folder.glob("*.ceiling.json"))}
    return {model: msgspec.json.decode(path.read_bytes(), type=list[Ceiling]) for model, path in paths.items()}


def _report(bench: Bench) -> None:
    machine = msgspec.json.decode((bench.folder / "machine.json").read_bytes(), type=Machine)
    measured = {
        case: read_results(path) for case in CASES.values() if (path := bench.folder / f"{case.name}.json").exists()
    }
    work: dict[str, Work] = {}
    for model in {case.model for case in measured}:
        with read_gguf(bench.model(model)) as gguf:
            work[model] = work_of(gguf)
    peers = Peers({name: bench.peer(name) for name in REQUIREMENTS})
    by_name = {case.name: (case.model, results) for case, results in measured.items()}
    write_report(Path(__file__).parent, machine, work, by_name, peers, _ceilings(bench))


if __name__ == "__main__":
    main()

"""Results as `RESULTS.md`: figures side by side, ratios, distance from the limit, commands. It measures nothing."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from limits import Machine, Work, least_prefill_s, least_step_s
from peers import Absent, Ceiling, Present

from stoker.bench.plot import plot
from stoker.bench.results import Plan, Results
from stoker.bench.summary import FIGURE_KINDS, Spread, Summary, remarks, summaries

_SHOWN = {
    "distinct": ("output", "TTFT p50", "ITL p50", "ITL p99"),
    "prompt": ("prompt", "TTFT p50"),
    "shared": ("TTFT p50", "TTFT p95", "cached", "output"),
    "agent": ("TTFT p50", "TTFT p95", "cached", "resent cached", "output"),
    "mixed": ("TTFT p50", "ITL p50", "ITL max", "output"),
    "restart": ("TTFT p50", "TTFT p95", "cached"),
    "cold": ("TTFT p50", "peak PSS"),
    "offline": ("output",),
    "offline prompt": ("prompt",),
}
"""Which figures tell what a scenario is about; one token of answer makes it a matter of the prompt."""
_PLOT_FROM = 3
"""Levels of concurrency that make a curve."""
_KINDS = {kind.label: kind for kind in FIGURE_KINDS}
_FOLDERS = re.compile(r"(?<![\w.])/(?:[^/\s\"']+/)+")
_BEGIN, _END = "<!-- written by a person: begin -->", "<!-- end -->"


@dataclass(frozen=True, slots=True)
class Peers:
    """All that there are, found or not."""

    found: Mapping[str, Present | Absent]

    def lines(self) -> Iterator[str]:
        for name, peer in self.found.items():
            yield f"- {name}: " + (f"absent: {peer.reason}" if isinstance(peer, Absent) else peer.version)


def write_report(
    folder: Path,
    machine: Machine,
    work: Mapping[str, Work],
    measured: Mapping[str, tuple[str, Results]],
    peers: Peers,
    ceilings: Mapping[str, Sequence[Ceiling]],
) -> None:
    """Writes `folder/RESULTS.md`, keeping what a person has written there between two marks.

    Raises:
        ValueError: nothing was measured.
    """
    if not measured:
        raise ValueError("there are no results to report; measure some cases first")
    path = folder / "RESULTS.md"
    words = _kept(path)
    lines = ["# Stoker beside its peers", "", *_head(machine, measured, peers), "", _BEGIN, *words, _END]
    for name, (model, results) in measured.items():
        lines += ["", f"## {name}", "", *_case(machine, work[model], results), *_plot(folder, name, results)]
    lines += _ceilings(ceilings)
    path.write_text("\n".join(lines) + "\n")


def _ceilings(ceilings: Mapping[str, Sequence[Ceiling]]) -> Iterator[str]:
    if not ceilings:
        yield from ("", "`llama-batched-bench`, libllama's ceiling without a server, was not given: absent.")
        return
    yield from (
        "",
        "## llama-batched-bench: libllama without a server",
        "",
        "| model | batch | prompt tok/s | output tok/s |",
    )
    yield "| --- | --- | --- | --- |"
    for model, found in ceilings.items():
        for ceiling in found:
            yield f"| {model} | {ceiling.pl} | {_number(ceiling.speed_pp)} | {_number(ceiling.speed_tg)} |"


def _plot(folder: Path, name: str, results: Results) -> list[str]:
    """A picture of what changes with concurrency."""
    if max(len(plan.concurrency) for plan in results.plans) < _PLOT_FROM:
        return []
    (folder / "plots").mkdir(exist_ok=True)
    plot(results, folder / "plots" / f"{name}.png")
    return ["", f"![{name}: rates and times over concurrency](plots/{name}.png)"]


def _kept(path: Path) -> list[str]:
    text = path.read_text() if path.exists() else ""
    inside = text.partition(_BEGIN)[2].partition(_END)[0].strip()
    return [inside] if inside else []


def _head(machine: Machine, measured: Mapping[str, tuple[str, Results]], peers: Peers) -> Iterator[str]:
    about = next(iter(measured.values()))[1]
    yield (
        f"{about.machine.cpu}, {about.machine.num_cores} cores, {about.machine.memory_bytes / 2**30:.0f} GiB, "
        f"{about.machine.system}, Python {about.machine.python}; "
        f"Stoker {about.stoker_version}; {about.started_at[:10]}."
    )
    yield ""
    yield (
        f"Peaks (`python benchmarks/limits.py`), {machine.threads} threads: {machine.bytes_per_s / 1e9:.0f} GB/s, "
        f"int8 {machine.int8_ops_per_s / 1e9:,.0f} and float32 {machine.float32_ops_per_s / 1e9:,.0f} G operations/s."
    )
    yield ""
    yield "Peers:"
    yield ""
    yield from peers.lines()
    yield ""
    yield (
        "Every figure is a median over interleaved repetitions, with the least and the greatest in brackets. A ratio "
        "is Stoker's over the peer's, the other way round for times, so above 1 means that Stoker is better. "
        "`of the limit` is how much of what the machine could do at best Stoker reaches."
    )


def _case(machine: Machine, work: Work, results: Results) -> Iterator[str]:
    found = summaries(results.samples)
    names = [server.name for server in results.servers]
    others = [name for name in names if name != "stoker"]
    header = ["", "Stoker", *(part for name in others for part in (name, "ratio")), "of the limit"]
    yield "| " + " | ".join(header) + " |"
    yield "| --- |" + " --- |" * (len(header) - 1)
    own = [summary for summary in found if summary.server == "stoker"]
    for summary in own:
        plan = _plan_of(summary, results)
        for label in _SHOWN[_subject(plan)]:
            yield _row(summary, label, found, others, _limit(machine, work, plan, summary, label))
    yield ""
    yield from (f"- {remark}" for remark in remarks(results))
    yield from (f"- {server.name}: `{_command(server.command)}`" for server in results.servers if server.command)


def _command(command: Sequence[str]) -> str:
    """As it was run, without the folders of the machine that ran it."""
    return _FOLDERS.sub("", shlex.join(command)).replace("'{port}'", "PORT")


def _plan_of(summary: Summary, results: Results) -> Plan:
    plans = [plan for plan in results.plans if plan.scenario == summary.point.scenario]
    return next((plan for plan in plans if plan.num_requests == summary.point.concurrency), plans[0])


def _subject(plan: Plan) -> str:
    if plan.output_tokens > 1:
        return plan.scenario
    return "offline prompt" if plan.scenario == "offline" else "prompt"


def _row(own: Summary, label: str, found: Sequence[Summary], others: Sequence[str], limit: float | None) -> str:
    kind = _KINDS[label]
    point = own.point
    where = f"{point.phase or point.scenario} at {point.concurrency}"
    mine = own.spread(kind)
    cells = [f"{where}, {label} ({kind.unit})", _spread(mine)]
    for name in others:
        theirs = next((s.spread(kind) for s in found if (s.server, s.point) == (name, point)), None)
        cells += [_spread(theirs), _ratio(mine, theirs, kind.better)]
    return "| " + " | ".join([*cells, f"{mine.median / limit:.0%}" if mine and limit else ""]) + " |"


def _spread(spread: Spread | None) -> str:
    if spread is None:
        return "–"
    return f"{_number(spread.median)} ({_number(spread.low)}–{_number(spread.high)})"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _ratio(mine: Spread | None, theirs: Spread | None, better: str) -> str:
    if mine is None or theirs is None or better == "neither" or not (mine.median and theirs.median):
        return ""
    return f"**{mine.median / theirs.median if better == 'higher' else theirs.median / mine.median:.2f}**"


def _limit(machine: Machine, work: Work, plan: Plan, summary: Summary, label: str) -> float | None:
    """Tokens per second that the machine could reach at best, for the rates that have such a limit."""
    concurrency = summary.point.concurrency
    if label == "prompt":
        return plan.prompt_tokens / least_prefill_s(machine, work, plan.prompt_tokens)
    if label == "output" and plan.scenario in ("distinct", "offline"):
        length = plan.prompt_tokens + plan.output_tokens // 2
        return concurrency / least_step_s(machine, work, concurrency, length)
    return None

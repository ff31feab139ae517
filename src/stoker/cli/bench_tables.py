"""Prints the figures of `stoker bench`: a table per server and scenario, comparisons, profiles. It measures nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from stoker.bench.comparison import Comparison, Pair
from stoker.bench.profile import STAGES, TARGET_SHARE, StepProfile
from stoker.bench.results import Plan, Results
from stoker.bench.scenarios import SCENARIOS
from stoker.bench.summary import FIGURE_KINDS, FigureKind, Spread, Summary, remarks, summaries
from stoker.cli.answer import write
from stoker.cli.table import print_table
from stoker.core.stages import Stage

_TARGET_BATCH = 8


def print_results(results: Results) -> None:
    """Prints medians with their spread, in a table per scenario, phase and server, and then the remarks."""
    plans = {plan.scenario: plan for plan in results.plans}
    for (scenario, phase, server), group in groupby(summaries(results.samples), _block):
        title = f"{scenario}{phase and f' ({phase})'}, {server}"
        write(f"\n{title}: {_plan_text(plans[scenario])}\n")
        _print_block(list(group))
    print_remarks(results)


def print_remarks(results: Results) -> None:
    """Prints what a reader of the results must know, such as failures and guessed token counts, one per line."""
    lines = remarks(results)
    if lines:
        write("\n" + "".join(f"! {line}\n" for line in lines))


def print_comparisons(comparisons: Iterable[Comparison]) -> None:
    """Prints ratios of medians. The mark `~` says that the spreads of the two servers overlap."""
    for (scenario, phase, base, other), group in groupby(comparisons, _comparison_block):
        write(f"\n{scenario}{phase and f' ({phase})'}: {other} / {base}\n")
        _print_ratios(list(group))
    write("\n~ the spreads overlap: no clear difference.\n")


def print_profile_header() -> None:
    write(f"{'sampling':10}{'batch':>6}" + "".join(f"{stage:>12}" for stage in STAGES) + f"{'step':>10}{'beside':>9}\n")


def print_profile_row(profile: StepProfile) -> None:
    """Prints one line with times in milliseconds. Its last column is the share of the step beside the forward pass."""
    times = "".join(_milliseconds(profile, stage) for stage in STAGES)
    step = f"{1000 * profile.step_s:>10.2f}{profile.overhead_share:>9.1%}"
    write(f"{profile.sampling:10}{profile.batch_size:>6}{times}{step}\n")


def print_headline(profiles: Sequence[StepProfile]) -> None:
    """Prints the share of a step beside the forward pass at batch size 8, and whether it meets the target."""
    for profile in profiles:
        if profile.batch_size == _TARGET_BATCH:
            verdict = "within" if profile.overhead_share <= TARGET_SHARE else "ABOVE"
            write(
                f"overhead at batch {_TARGET_BATCH}, {profile.sampling}: {profile.overhead_share:.1%} of a step, "
                f"{verdict} the target of {TARGET_SHARE:.0%}\n"
            )


def _milliseconds(profile: StepProfile, stage: Stage) -> str:
    return f"{1000 * profile.stage_s[stage]:>12.3f}"


def _block(summary: Summary) -> tuple[str, str, str]:
    return summary.point.scenario, summary.point.phase, summary.server


def _comparison_block(comparison: Comparison) -> tuple[str, str, str, str]:
    return comparison.point.scenario, comparison.point.phase, comparison.base.server, comparison.other.server


def _plan_text(plan: Plan) -> str:
    about = SCENARIOS[plan.scenario].about
    return (
        f"{about}; {plan.prompt_tokens} prompt and {plan.output_tokens} output tokens, median "
        f"(least–greatest) of {plan.repetitions}"
    )


def _print_block(group: Sequence[Summary]) -> None:
    columns = [f"{summary.point.concurrency} at a time" for summary in group]
    rows = [_row(kind, group) for kind in FIGURE_KINDS]
    failed = ["failed", *(f"{sum(s.failures.values())} of {s.num_requests}" for s in group)]
    print_table(["", *columns], [*(row for row in rows if any(cell != "-" for cell in row[1:])), failed])


def _row(kind: FigureKind, group: Sequence[Summary]) -> list[str]:
    return [f"{kind.label}, {kind.unit}", *(_cell(summary.spread(kind)) for summary in group)]


def _cell(spread: Spread | None) -> str:
    if spread is None:
        return "-"
    if spread.low == spread.high:
        return _number(spread.median)
    return f"{_number(spread.median)} ({_number(spread.low)}–{_number(spread.high)})"


def _number(value: float) -> str:
    """The number with about three significant digits; the integer part is never shortened."""
    if value == 0:
        return "0"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def _print_ratios(group: Sequence[Comparison]) -> None:
    pairs = [{pair.kind.label: pair for pair in comparison.pairs()} for comparison in group]
    columns = [f"{comparison.point.concurrency} at a time" for comparison in group]
    rows = [
        [f"{kind.label}{_better(kind)}", *(_ratio(own.get(kind.label)) for own in pairs)]
        for kind in FIGURE_KINDS
        if any(kind.label in own for own in pairs)
    ]
    failed = ["failed", *(f"{_num_failed(c.other)} / {_num_failed(c.base)}" for c in group)]
    print_table(["", *columns], [*rows, failed])


def _num_failed(summary: Summary) -> int:
    return sum(summary.failures.values())


def _better(kind: FigureKind) -> str:
    return "" if kind.better == "neither" else f" ({kind.better} is better)"


def _ratio(pair: Pair | None) -> str:
    if pair is None or pair.ratio is None:
        return "-"
    medians = f"{_number(pair.other.median)} / {_number(pair.base.median)} {pair.kind.unit}"
    return f"×{pair.ratio:.2f}{'' if pair.is_clear else ' ~'}  ({medians})"

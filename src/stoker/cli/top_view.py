"""The screen of `stoker top`: keeps the state of `/engine/events` after each event, and draws it. It asks no server."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

State = dict[str, Any]

_RATE_S = 3.0
_MAX_STEPS = 400
_BAR = 40
_SPARKS = "▁▂▃▄▅▆▇█"
_SHOWN_STEPS = 60
_SHOWN_SEQUENCES = 40
_ORDER = ("decode", "prompt", "restoring", "queued", "paused")
_COLORS = {"decode": "green", "prompt": "blue", "restoring": "cyan", "queued": "yellow", "paused": "magenta"}


def applied(state: State, name: str, event: State) -> State:
    """The state after an event of `/engine/events`; the given state is not changed."""
    if name == "hello":
        return {**event, "engines": [], "t": 0.0}
    if name == "snapshot":
        return {**state, "error": "", **event}
    if name == "news":
        return {**state, "news": event}
    ticks = {tick["replica"]: tick for tick in event["engines"]}
    engines = [_ticked(engine, ticks.get(engine["replica"], {})) for engine in state.get("engines", [])]
    return {**state, "t": event["t"], "engines": engines}


def _ticked(engine: State, tick: State) -> State:
    changed = {name: tick[name] for name in ("kv", "totals", "tiers") if name in tick}
    lists = {name: _patched(engine[name], tick[name]) for name in ("seq", "tree") if name in tick}
    steps = [*engine["steps"], *tick.get("steps", [])][-_MAX_STEPS:]
    return {**engine, **changed, **lists, "steps": steps}


def _patched(items: list[State], changes: State) -> list[State]:
    kept = {item["id"]: item for item in [*items, *changes["set"]]}
    return [item for key, item in kept.items() if key not in changes["gone"]]


def screen(state: State) -> RenderableType:
    """The whole state as a screen, one engine below the other."""
    parts: list[RenderableType] = [_head(state)]
    if state.get("error"):
        parts.append(Text(state["error"], style="bold red"))
    if "news" in state:
        parts.append(_news(state["news"]))
    engines: list[State] = state.get("engines", [])
    for engine in engines:
        if len(engines) > 1:
            parts.append(Text(f"replica {engine['replica']}", style="bold"))
        parts += [_pool(engine), _steps(engine), _cache(engine), _sequences(engine)]
    return Group(*parts)


def _head(state: State) -> Text:
    engines: list[State] = state.get("engines", [])
    running, waiting = (sum(engine["totals"][name] for engine in engines) for name in ("running", "waiting"))
    written, prompt = rates(engines, state.get("t", 0.0))
    about = f"{state.get('model', '?')} ({state.get('backend', '?')}, context {state.get('context', 0):,})"
    return Text.assemble(
        (about, "bold"),
        f"   {running} running, {waiting} waiting of {state.get('parallel', 0)} places   ",
        (f"{written:.1f} tok/s", "green"),
        " written   ",
        (f"{prompt:.0f} tok/s", "blue"),
        " of prompts",
    )


def rates(engines: list[State], t: float) -> tuple[float, float]:
    """Tokens per second in the `_RATE_S` seconds before `t`: generated tokens, and prompt tokens."""
    recent = [step for engine in engines for step in engine["steps"] if step[1] >= t - _RATE_S]
    return sum(step[5] + step[8] for step in recent) / _RATE_S, sum(step[6] for step in recent) / _RATE_S


def _pool(engine: State) -> Text:
    kv = engine["kv"]
    scale = _BAR / max(1, kv["capacity"])
    running = round((kv["held"] - kv["retained"]) * scale)
    retained, promised = round(kv["retained"] * scale), round(kv["promised"] * scale)
    free = max(0, _BAR - running - retained - promised)
    shared = sum(
        node["n"] * (node["num_slots"] - 1) for node in engine["tree"] if node["num_slots"] > 1 and node["id"] > 0
    )
    return Text.assemble(
        "pool  ",
        ("█" * running, "green"),
        ("▒" * retained, "yellow"),
        ("░" * promised, "red"),
        ("·" * free, "dim"),
        f"  {kv['held']:,} of {kv['capacity']:,} tokens, {kv['retained']:,} of finished chats,",
        f" {shared:,} saved by sharing",
    )


def _steps(engine: State) -> Text:
    steps = engine["steps"][-_SHOWN_STEPS:]
    slowest = max((step[2] for step in steps), default=0.0)
    text = Text("steps ")
    for step in steps:
        level = min(len(_SPARKS) - 1, int(step[2] / slowest * (len(_SPARKS) - 1))) if slowest else 0
        text.append(_SPARKS[level], style="blue" if step[6] > step[5] else "cyan" if step[7] else "green")
    mean = sum(step[2] for step in steps) / len(steps) if steps else 0.0
    text.append(f"  {mean:.1f} ms in the mean, {slowest:.1f} ms at most")
    return text


def _cache(engine: State) -> Text:
    totals, tiers = engine["totals"], engine["tiers"]
    hit = 100 * totals["cached"] / totals["prompt"] if totals["prompt"] else 0.0
    drafts = f", drafts {totals['kept']:,} of {totals['drafted']:,} kept" if totals["drafted"] else ""
    found = f"pool {totals['pool_hits']:,}, memory {tiers['ram_hits']:,}, disk {tiers['disk_hits']:,}"
    lost = f"{totals['evicted']:,} evicted, {totals['preempted']:,} preemptions"
    return Text(f"cache {hit:.0f} % of {totals['prompt']:,} prompt tokens ({found}), {lost}{drafts}")


def _news(event: State) -> Text:
    part = f" {event['part']:.0%}" if event.get("part") is not None else ""
    why = f" ({event['why']})" if event.get("why") else ""
    return Text(f"{event['id']} {event['kind']}{part}{why}", style="dim")


def _sequences(engine: State) -> RenderableType:
    rows = sorted(engine["seq"], key=lambda row: (_ORDER.index(row["state"]), row["slot"] or 0))
    if not rows:
        return Text("no requests", style="dim")
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("REQUEST", "KEY", "STATE", "SLOT", "PROMPT", "CACHED", "WRITTEN", "DRAFTS"):
        table.add_column(
            heading, justify="right" if heading in ("SLOT", "PROMPT", "CACHED", "WRITTEN", "DRAFTS") else "left"
        )
    for row in rows[:_SHOWN_SEQUENCES]:
        table.add_row(
            row["id"] if row["own"] else "another client",
            row["key"],
            Text(row["state"], style=_COLORS[row["state"]]),
            "-" if row["slot"] is None else str(row["slot"]),
            f"{min(row['computed'], row['prompt']):,}/{row['prompt']:,}",
            f"{sum(row['cached']):,}",
            f"{row['written']:,}",
            f"{row['kept']}/{row['drafted']}" if row["drafted"] else "-",
        )
    if len(rows) > _SHOWN_SEQUENCES:
        return Group(table, Text(f"and {len(rows) - _SHOWN_SEQUENCES} more", style="dim"))
    return table

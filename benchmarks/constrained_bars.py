"""What constraints may cost, and what they do cost: one line for each bar, with the ratio or the time that was found.

    python benchmarks/constrained_bars.py smollm2

The two sides of a bar are measured in turn, in the same minutes, and the median over all rounds counts. Tokens a second
are those of steps in which every stream runs. Threads take turns as often as in the process of an engine. What is not
measured when the time is over is named.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import count

import numpy as np
from constrained import KINDS, QUESTIONS, compare, person_schema
from constrained import PROMPT as WORDS
from http_overhead import in_turn

from stoker.assembly import SWITCH_S, build_engine
from stoker.core.outline import GrammarText, Outline
from stoker.core.params import SamplingParams
from stoker.engine.config import EngineConfig
from stoker.engine.engine import Engine
from stoker.engine.protocol import Failed, Output, Submit
from stoker.errors import InvalidInput
from stoker.text.chat_formats.grammar import Tool, ToolChoice, call_grammar
from stoker.text.chat_formats.table import HERMES

HOSTILE: Mapping[str, GrammarText] = {
    "a long look back": GrammarText(kind="regex", text=".*a.{400}"),
    "nested repetitions": GrammarText(kind="regex", text="(.{1,1000}){1,1000}"),
    "10,000 properties": GrammarText(
        kind="json_schema",
        text=json.dumps({"type": "object", "properties": {f"p{i}": {} for i in range(10_000)}}),
        is_strict=False,
    ),
    "many alternatives": GrammarText(kind="choice", text=json.dumps([f"{i:x}" * 8 for i in range(20_000)])),
    "many combinations": GrammarText(
        kind="json_schema",
        text=json.dumps({"allOf": [{"anyOf": [{"required": [f"p{i}"]}, {"required": [f"q{i}"]}]} for i in range(9)]}),
    ),
}
"""Grammars that take long to compile, or that are refused after long work."""
_MAX_TOKENS = 64
_numbers = count()


@dataclass(frozen=True, slots=True)
class Bar:
    """What was found, and what it may be at most; at least, where `is_least`."""

    name: str
    found: float
    bound: float
    unit: str = "x"
    is_least: bool = False

    @property
    def is_met(self) -> bool:
        return self.found >= self.bound if self.is_least else self.found <= self.bound

    def __str__(self) -> str:
        relation = "at least" if self.is_least else "at most"
        verdict = "pass" if self.is_met else "MISS"
        return f"{verdict}  {self.name}: {self.found:.3g} {self.unit} ({relation} {self.bound:g})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--seconds", type=float, default=300, help="of all measurements; the last one may end later")
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--only", action="append", help="a measurement, by a part of its name; may be repeated")
    args = parser.parse_args()
    sys.setswitchinterval(SWITCH_S)
    until = time.perf_counter() + args.seconds
    with engines(args.model, args.threads) as (plain, drafting, one, one_drafting):
        measures: dict[str, Callable[[float], list[Bar]]] = {
            f"{num_streams} streams, temperature {heat:g}": partial(decoding, engine, num_streams, heat, bound)
            for engine, num_streams in ((one, 1), (plain, 16))
            for heat, bound in ((0.0, 1.03), (0.7, 1.06))
        }
        measures |= {
            "drafts": lambda seconds: drafts(one, one_drafting),
            "first tokens": partial(first_tokens, one),
            "neighbors": partial(neighbors, plain),
            "gaps": partial(gaps, drafting),
        }
        wanted = args.only or [""]
        measures = {name: each for name, each in measures.items() if any(part in name for part in wanted)}
        for number, (name, measure) in enumerate(measures.items()):
            left = until - time.perf_counter()
            if left <= 0:
                print(f"not measured, the time is over: {name}")
                continue
            for bar in measure(left / (len(measures) - number)):
                print(bar, flush=True)


@contextmanager
def engines(model: str, threads: int | None) -> Generator[tuple[Engine, Engine, Engine, Engine]]:
    """For 16 streams and for one, each without drafts and with them."""
    configs = [
        EngineConfig(model=model, threads=threads, max_draft=most, parallel=parallel)
        for parallel in (16, 1)
        for most in (0, None)
    ]
    built = [build_engine(config)[0] for config in configs]
    try:
        yield built[0], built[1], built[2], built[3]
    finally:
        for engine in built:
            engine.close()


def decoding(engine: Engine, num_streams: int, temperature: float, bound: float, seconds: float) -> list[Bar]:
    """Steps of answers that follow a schema, beside steps of free ones."""
    found = in_turn(
        {
            "free": lambda: step_s(engine, [None] * num_streams, temperature),
            "schema": lambda: step_s(engine, [KINDS["schema"]] * num_streams, temperature),
        },
        seconds,
    )
    way = "sampled" if temperature else "greedy"
    return [Bar(f"a schema, {way}, {num_streams} streams", ratio(found, "schema", "free"), bound)]


def neighbors(engine: Engine, seconds: float) -> list[Bar]:
    """Steps of 16 free answers, beside steps in which one of the 16 follows a schema."""
    found = in_turn(
        {
            "free": lambda: step_s(engine, [None] * 16, 0.7),
            "one": lambda: step_s(engine, [KINDS["schema"], *[None] * 15], 0.7),
        },
        seconds,
    )
    return [Bar("15 free streams beside one with a schema", ratio(found, "one", "free"), 1.01)]


def drafts(plain: Engine, drafting: Engine) -> list[Bar]:
    sampling = SamplingParams(temperature=0, seed=1, max_tokens=120)
    without, with_drafts = compare([plain, drafting], KINDS["function"], sampling, 1, 4)
    return [Bar("drafts of certain text, a function, 1 stream", with_drafts / without, 1.15, is_least=True)]


def first_tokens(engine: Engine, seconds: float) -> list[Bar]:
    """What constraints add to the time until the first token."""
    found = in_turn(
        {
            "free": lambda: first_token_s(engine, None),
            "cold": lambda: first_token_s(engine, _unknown_schema()),
            "warm": lambda: first_token_s(engine, KINDS["schema"]),
            "cold tools": lambda: first_token_s(engine, _tools(f"_{next(_numbers)}")),
            "warm tools": lambda: first_token_s(engine, _tools()),
        },
        seconds,
    )
    added = {name: 1e3 * (float(np.median(times)) - float(np.median(found["free"]))) for name, times in found.items()}
    return [
        Bar("first token, a new schema", added["cold"], 10, "ms more"),
        Bar("first token, a known schema", added["warm"], 1, "ms more"),
        Bar("first token, 100 new tools", added["cold tools"], 60, "ms more"),
        Bar("first token, 100 known tools", added["warm tools"], 2, "ms more"),
    ]


def gaps(engine: Engine, seconds: float) -> list[Bar]:
    """The longest of 100 gaps of eight free streams, while hostile grammars are compiled and while none is."""
    found = in_turn({"alone": lambda: gap_s(engine, is_attacked=False), "beside": lambda: gap_s(engine)}, seconds)
    return [Bar("p99 gap of 8 streams beside hostile grammars", ratio(found, "beside", "alone"), 1.3)]


def gap_s(engine: Engine, *, is_attacked: bool = True) -> float:
    over = threading.Event()

    def attack() -> None:
        while is_attacked:
            for grammar in HOSTILE.values():
                if over.is_set():
                    return
                # White space makes it new; in an expression, it has a meaning.
                mark = str(next(_numbers)) if grammar.kind == "regex" else " " * (next(_numbers) % 100_000)
                hostile = GrammarText(kind=grammar.kind, text=grammar.text + mark, is_strict=grammar.is_strict)
                with suppress(InvalidInput):  # most are refused
                    engine.admit(_submit("hostile", hostile, 0.0))

    with ThreadPoolExecutor(1) as pool:
        attacker = pool.submit(attack)
        times = step_times(engine, [None] * 8, 0.7)
        over.set()
        attacker.result()
    return float(np.quantile(np.diff(times), 0.99))


def ratio(found: Mapping[str, Sequence[float]], measured: str, beside: str) -> float:
    return float(np.median(np.array(found[measured]) / np.array(found[beside])))


def step_s(engine: Engine, grammars: Sequence[GrammarText | None], temperature: float) -> float:
    """Mean seconds of a step in which all streams write a token."""
    times = step_times(engine, grammars, temperature)
    return (times[-1] - times[0]) / (len(times) - 1)


def step_times(engine: Engine, grammars: Sequence[GrammarText | None], temperature: float) -> list[float]:
    """When the steps ended in which every stream wrote, from the first such step to the first end of a stream."""
    for index, grammar in enumerate(grammars):
        engine.add(engine.admit(_submit(str(index), grammar, temperature)))
    times: list[float] = []
    is_over = False
    while engine.has_work:
        events = engine.step()
        assert not any(isinstance(event, Failed) for event in events), events
        outputs = [event for event in events if isinstance(event, Output)]
        is_over = is_over or any(output.finish_reason for output in outputs)
        if not is_over and len({output.request_id for output in outputs}) == len(grammars):
            times.append(time.perf_counter())
    return times


def first_token_s(engine: Engine, grammar: GrammarText | None) -> float:
    begun_s = time.perf_counter()
    engine.add(engine.admit(_submit("first", grammar, 0.0)))
    while not any(isinstance(event, Output) and event.token_ids for event in engine.step()):
        pass
    taken_s = time.perf_counter() - begun_s
    engine.abort("first")
    return taken_s


def _submit(request_id: str, grammar: GrammarText | None, temperature: float) -> Submit:
    number = next(_numbers)
    sampling = SamplingParams(
        temperature=temperature, top_k=40, top_p=0.95, seed=number, max_tokens=_MAX_TOKENS, ignore_eos=grammar is None
    )
    prompt = WORDS.format(QUESTIONS[number % len(QUESTIONS)])
    return Submit(request_id, prompt, sampling, outline=Outline(grammar=grammar))


def _unknown_schema() -> GrammarText:
    schema = person_schema()
    schema["properties"][f"number_{next(_numbers)}"] = {"type": "integer"}
    return GrammarText(kind="json_schema", text=json.dumps(schema))


def _tools(mark: str = "") -> GrammarText | None:
    offered = [Tool(name=f"tool_{index}{mark}", parameters=person_schema()) for index in range(100)]
    return call_grammar(HERMES, offered, ToolChoice())


if __name__ == "__main__":
    main()

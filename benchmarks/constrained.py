"""What it costs to hold an answer to a grammar, and what drafts of certain text bring: tokens a second, in turn.

    python benchmarks/constrained.py smollm2 --temperature 0 0.7

For each kind of answer, an engine without drafts and one with drafts write the same answers in turn, so that both see
the same minutes. The answers are compared, too: they must be equal. `free` has no grammar. `constrained_bars.py` prints
what constraints may cost and do cost.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping
from typing import Any

from stoker.assembly import build_engine
from stoker.core.outline import GrammarText, Outline
from stoker.core.params import SamplingParams
from stoker.engine.config import EngineConfig
from stoker.engine.engine import Engine
from stoker.engine.protocol import Failed, Output, Submit
from stoker.text.chat_formats.grammar import Tool, ToolChoice, call_grammar
from stoker.text.chat_formats.table import HERMES

_PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer"},
        "email": {"type": "string", "format": "email"},
        "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 5},
        "description": {"type": "string", "maxLength": 400},
    },
    "required": ["name", "age", "email", "tags", "description"],
    "additionalProperties": False,
}
_FUNCTION: dict[str, Any] = {
    "type": "object",
    "properties": {
        "departure_airport": {"type": "string"},
        "destination_airport": {"type": "string"},
        "departure_date": {"type": "string", "format": "date"},
        "number_of_passengers": {"type": "integer", "minimum": 1, "maximum": 9},
        "cabin_class": {"enum": ["economy", "premium_economy", "business", "first"]},
        "direct_flights_only": {"type": "boolean"},
    },
    "additionalProperties": False,
}
_FUNCTION["required"] = [*_FUNCTION["properties"]]
_TOOLS = [Tool(name="search_for_available_flights", parameters=_FUNCTION)]
KINDS: Mapping[str, GrammarText | None] = {
    "free": None,
    "schema": GrammarText(kind="json_schema", text=json.dumps(_PERSON)),
    "function": call_grammar(HERMES, _TOOLS, ToolChoice(mode="required", max_calls=1)),
}
PROMPT = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
QUESTIONS = (
    "Describe a person who works in a lighthouse.",
    "Book a flight from Paris to Rome on 2026-03-04 for two people.",
    "Who is the author of your favorite book?",
    "I want to fly from Berlin to Lisbon tomorrow, alone.",
)


def person_schema() -> dict[str, Any]:
    """A copy of the schema of kind `schema`."""
    return json.loads(json.dumps(_PERSON))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--temperature", type=float, nargs="+", default=[0.0])
    parser.add_argument("--streams", type=int, nargs="+", default=[1])
    parser.add_argument("--max-tokens", type=int, default=120)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--threads", type=int, default=None)
    args = parser.parse_args()
    engines = [
        build_engine(EngineConfig(model=args.model, threads=args.threads, max_draft=most, parallel=max(args.streams)))[
            0
        ]
        for most in (0, None)
    ]
    print("answer, streams, temperature: tok/s without drafts, with, ratio")
    for temperature in args.temperature:
        for num_streams in args.streams:
            for kind, grammar in KINDS.items():
                sampling = SamplingParams(temperature=temperature, seed=1, max_tokens=args.max_tokens)
                plain, drafting = compare(engines, grammar, sampling, num_streams, args.rounds)
                figures = f"{plain:.0f}, {drafting:.0f}, {drafting / plain:.2f}"
                print(f"{kind}, {num_streams}, {temperature:g}: {figures}", flush=True)
    for engine in engines:
        engine.close()


def compare(
    engines: list[Engine], grammar: GrammarText | None, sampling: SamplingParams, num_streams: int, num_rounds: int
) -> tuple[float, float]:
    """Tokens a second of both, behind the prompts."""
    seconds, num_tokens = [0.0, 0.0], 0
    for number in range(num_rounds):
        answers: list[dict[str, list[int]]] = []
        for index, engine in enumerate(engines):
            prompts = [PROMPT.format(QUESTIONS[(number + each) % len(QUESTIONS)]) for each in range(num_streams)]
            taken_s, found = answer(engine, prompts, Outline(grammar=grammar), sampling)
            seconds[index] += taken_s
            answers.append(found)
        assert answers[0] == answers[1], "drafts have changed an answer"
        num_tokens += sum(len(token_ids) - 1 for token_ids in answers[0].values())
    return num_tokens / seconds[0], num_tokens / seconds[1]


def answer(
    engine: Engine, prompts: list[str], outline: Outline, sampling: SamplingParams
) -> tuple[float, dict[str, list[int]]]:
    """The seconds from the first token on, and all tokens of each answer."""
    for number, prompt in enumerate(prompts):
        engine.add(engine.admit(Submit(str(number), prompt, sampling, outline=outline)))
    found: dict[str, list[int]] = {str(number): [] for number in range(len(prompts))}
    first_s = 0.0
    while engine.has_work:
        for event in engine.step():
            assert not isinstance(event, Failed), event
            if isinstance(event, Output):
                found[event.request_id] += event.token_ids
        if not first_s and all(found.values()):
            first_s = time.perf_counter()
    return time.perf_counter() - first_s, found


if __name__ == "__main__":
    main()

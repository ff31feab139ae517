"""How to show that a field does what its row in the field table says. Each API brings its own probes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

import httpx
from starlette.types import ASGIApp

from stoker.engine.protocol import Submit
from stoker.engine.question_messages import AdapterChoice
from stoker.server.api import Endpoint
from stoker.server.endpoints import ENDPOINTS
from tests.unit.server.fake_runtime import FakeRuntime, Step, ask, events, make_app


@dataclass(frozen=True)
class Exchange:
    """One request, what came back, and what the engine was given."""

    response: httpx.Response
    runtime: FakeRuntime

    @property
    def submit(self) -> Submit:
        return self.runtime.submits[0]


def endpoint(method: str, path: str) -> Endpoint:
    """The endpoint that is declared with this method and path."""
    (found,) = [endpoint for endpoint in ENDPOINTS if (endpoint.method, endpoint.path) == (method, path)]
    return found


@dataclass(frozen=True)
class Probe:
    """A value to send, and what must be true because of it, and false without it."""

    value: Any
    effect: Callable[[Exchange], bool]
    beside: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Further fields of both requests."""
    is_strict: bool = False
    """The server refuses models that it does not serve."""
    script: Callable[[Submit], list[Step]] | None = None


@dataclass(frozen=True)
class EndpointProbes:
    """An endpoint with a body, the least that it accepts, and a probe for every field that it honours."""

    endpoint: Endpoint
    body: Mapping[str, Any]
    probes: Mapping[str, Probe]
    at: str = ""
    """A path, with a query, if the endpoint's own is a pattern."""
    prepare: Callable[[ASGIApp], Mapping[str, str]] | None = None
    """Makes what the pattern of the path names."""

    def send(self, fields: Mapping[str, Any] = MappingProxyType({}), probe: Probe | None = None) -> Exchange:
        """Sends the least body with these fields; null takes one out of it."""
        beside = {} if probe is None else probe.beside
        runtime = FakeRuntime() if probe is None or probe.script is None else FakeRuntime(probe.script)
        app = make_app(runtime, strict=probe is not None and probe.is_strict)
        body = {**self.body, **beside, **fields}
        path = self.at or self.endpoint.path
        if self.prepare is not None:
            path = path.format_map(self.prepare(app))
        return Exchange(ask(app, self.endpoint.method, path, json=body), runtime)


def _names_session(submit: Submit, session_id: str) -> bool:
    return submit.session is not None and submit.session.name.endswith(f"/{session_id}")


def sampled(name: str, value: Any) -> Callable[[Exchange], bool]:
    """The engine was given this sampling number."""
    return lambda exchange: getattr(exchange.submit.sampling, name) == value


def submitted(name: str, value: Any) -> Callable[[Exchange], bool]:
    """The engine was given this part of a request."""
    return lambda exchange: getattr(exchange.submit, name) == value


def rendered(name: str, value: Any) -> Callable[[Exchange], bool]:
    """The chat template was given this variable."""
    return lambda exchange: exchange.runtime.rendered[0][1].get(name) == value


def constrained(kind: str, text: str | None = None) -> Callable[[Exchange], bool]:
    """The engine was given this constraint."""

    def is_so(exchange: Exchange) -> bool:
        outline = exchange.submit.outline
        grammar = None if outline is None else outline.grammar
        return grammar is not None and grammar.kind == kind and (text is None or grammar.text == text)

    return is_so


def budgeted(budget: int) -> Callable[[Exchange], bool]:
    """The engine was given this budget of reasoning."""

    def is_so(exchange: Exchange) -> bool:
        outline = exchange.submit.outline
        return outline is not None and outline.reasoning is not None and outline.reasoning.budget == budget

    return is_so


def closes_with(text: str) -> Callable[[Exchange], bool]:
    """The engine was given this end of reasoning."""

    def is_so(exchange: Exchange) -> bool:
        outline = exchange.submit.outline
        return outline is not None and outline.reasoning is not None and outline.reasoning.closing_text == text

    return is_so


def offered(exchange: Exchange) -> bool:
    """The chat template was given tools."""
    return bool(exchange.runtime.rendered[0][1].get("tools"))


SCHEMA = {"type": "object"}
FUNCTION = {"name": "probe", "description": "", "parameters": SCHEMA}
TOOLS = [{"type": "function", "function": FUNCTION}]
CONSTRAINED_PROBES: dict[str, Probe] = {
    "response_format": Probe({"type": "json_object"}, constrained("json_object")),
    "json_schema": Probe(SCHEMA, constrained("json_schema")),
    "grammar": Probe('root ::= "a"', constrained("gbnf", 'root ::= "a"')),
    "structured_outputs": Probe({"regex": "a+"}, constrained("regex", "a+")),
    "guided_json": Probe('{"type": "object"}', constrained("json_schema")),
    "guided_regex": Probe("a+", constrained("regex", "a+")),
    "guided_choice": Probe(["a", "b"], constrained("choice", '["a", "b"]')),
    "guided_grammar": Probe("%llguidance {}\nstart: /a/", constrained("lark")),
    "regex": Probe("a+", constrained("regex", "a+")),
    "ebnf": Probe('root ::= "a"', constrained("gbnf")),
}


class Later(asyncio.Event):
    """Waiting for it takes longer than a millisecond."""

    async def wait(self) -> Literal[True]:
        await asyncio.sleep(0.002)
        return True


def late_line(submit: Submit) -> list[Step]:
    return ["a", Later(), "b\n", "ZEBRA"]


def is_cut(exchange: Exchange) -> bool:
    """The answer ends before its last word."""
    return exchange.response.status_code == 200 and "ZEBRA" not in exchange.response.text


STREAMED_PROBES: dict[str, Probe] = {
    "n_probs": Probe(2, sampled("logprobs", 2)),
    "t_max_predict_ms": Probe(1, is_cut, script=late_line),
    "n_indent": Probe(2, is_cut, script=lambda submit: ["a\n b", "ZEBRA"]),
    "timings_per_token": Probe(True, lambda x: "timings" in events(x.response)[0], beside={"stream": True}),
    "return_progress": Probe(True, submitted("reports_progress", True), beside={"stream": True}),
    "post_sampling_probs": Probe(True, sampled("post_sampling_probs", True)),
}
TRACED_PROBES: dict[str, Probe] = {
    "stoker": Probe({"trace": True}, submitted("traces", True), beside={"stream": True}),
}

ADAPTERS = [AdapterChoice(name="sql", scale=0.5), AdapterChoice(adapter_id=3), AdapterChoice(name="poet")]
LORA_VALUE: list[Any] = [{"name": "sql", "scale": 0.5}, {"id": 3}, "poet"]
LORA = Probe(LORA_VALUE, lambda exchange: exchange.submit.adapters == ADAPTERS)


def refused(exchange: Exchange) -> bool:
    return exchange.response.status_code in (400, 404)


SAMPLING_PROBES: dict[str, Probe] = {
    "max_tokens": Probe(5, sampled("max_tokens", 5)),
    "max_completion_tokens": Probe(6, sampled("max_tokens", 6)),
    "max_output_tokens": Probe(4, sampled("max_tokens", 4)),
    "n_predict": Probe(7, sampled("max_tokens", 7)),
    "num_predict": Probe(8, sampled("max_tokens", 8)),
    "max_new_tokens": Probe(9, sampled("max_tokens", 9)),
    "min_tokens": Probe(2, sampled("min_tokens", 2)),
    "ignore_eos": Probe(True, sampled("ignore_eos", True)),
    "stop": Probe(["a", "b"], sampled("stop_strings", ("a", "b"))),
    "stop_token_ids": Probe([4], sampled("stop_token_ids", [4])),
    "stop_ids": Probe([5], sampled("stop_token_ids", [5])),
    "seed": Probe(0, sampled("seed", 0)),
    "temperature": Probe(0, sampled("temperature", 0)),
    "dynatemp_range": Probe(0.5, sampled("dynatemp_range", 0.5)),
    "dynatemp_exponent": Probe(2, sampled("dynatemp_exponent", 2)),
    "top_k": Probe(-1, sampled("top_k", -1)),
    "top_p": Probe(0.5, sampled("top_p", 0.5)),
    "min_p": Probe(0.1, sampled("min_p", 0.1)),
    "typical_p": Probe(0.9, sampled("typical_p", 0.9)),
    "top_n_sigma": Probe(1.5, sampled("top_n_sigma", 1.5)),
    "xtc_probability": Probe(0.5, sampled("xtc_probability", 0.5)),
    "xtc_threshold": Probe(0.2, sampled("xtc_threshold", 0.2)),
    "dry_multiplier": Probe(0.8, sampled("dry_multiplier", 0.8)),
    "dry_base": Probe(1.5, sampled("dry_base", 1.5)),
    "dry_allowed_length": Probe(3, sampled("dry_allowed_length", 3)),
    "dry_penalty_last_n": Probe(-1, sampled("dry_penalty_last_n", -1)),
    "dry_sequence_breakers": Probe(["x"], sampled("dry_sequence_breakers", ["x"])),
    "presence_penalty": Probe(-1, sampled("presence_penalty", -1)),
    "frequency_penalty": Probe(1, sampled("frequency_penalty", 1)),
    "repetition_penalty": Probe(1.1, sampled("repetition_penalty", 1.1)),
    "repeat_penalty": Probe(1.2, sampled("repetition_penalty", 1.2)),
    "repeat_last_n": Probe(0, sampled("penalty_last_n", 0)),
    "mirostat": Probe(1, sampled("mirostat", 1)),
    "mirostat_tau": Probe(4, sampled("mirostat_tau", 4)),
    "mirostat_eta": Probe(0.2, sampled("mirostat_eta", 0.2)),
    "adaptive_target": Probe(0.4, sampled("adaptive_target", 0.4)),
    "adaptive_decay": Probe(0.5, sampled("adaptive_decay", 0.5)),
    "min_keep": Probe(3, sampled("min_keep", 3)),
    "logit_bias": Probe({"5": 1.5}, sampled("logit_bias", {5: 1.5})),
    "allowed_token_ids": Probe([1, 2], sampled("allowed_token_ids", [1, 2])),
    "banned_token_ids": Probe([3], sampled("banned_token_ids", [3])),
    "banned_tokens": Probe([6], sampled("banned_token_ids", [6])),
    "custom_token_bans": Probe("7, 8", sampled("banned_token_ids", [7, 8])),
    "samplers": Probe(["temp", "top_k"], sampled("samplers", ("temperature", "top_k"))),
}
"""For every field of `SamplingFields`."""

GENERATION_PROBES: dict[str, Probe] = {
    **SAMPLING_PROBES,
    "model": Probe("nobody", refused, is_strict=True),
    "stream": Probe(True, lambda x: x.response.headers["content-type"].startswith("text/event-stream")),
    "user": Probe("u1", submitted("client_key", "u1")),
    "safety_identifier": Probe("s1", submitted("client_key", "s1")),
    "priority": Probe(-3, submitted("priority", -3)),
    "timeout": Probe(2.5, submitted("timeout_s", 2.5)),
    "timeout_ms": Probe(1500, submitted("timeout_s", 1.5)),
    "cache_prompt": Probe(False, submitted("cache_prompt", False)),
    "session_id": Probe("talk-1", lambda exchange: _names_session(exchange.submit, "talk-1")),
    "lora": LORA,
}
"""For every field of `GenerationFields`."""

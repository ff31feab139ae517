"""`/metrics` tells what has happened, under our names and under those that dashboards for other servers ask for."""

from __future__ import annotations

import asyncio
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from stoker.cache.counters import TierCounters
from stoker.core.histogram import Distribution, Histogram
from stoker.engine.health import Health
from stoker.engine.protocol import Output, Usage
from stoker.engine.stats import AdapterLoad, EngineStats
from stoker.errors import BackendError, Overloaded
from stoker.media.load import EncoderLoad, TranscriberLoad
from stoker.runtime.request_metrics import RequestMetrics
from stoker.server.config import ServerConfig
from stoker.server.observe.front_metrics import Fronts
from stoker.server.observe.metric_aliases import ALIASES
from stoker.server.observe.response_counts import ResponseCounts
from stoker.server.transport.app import create_app
from tests.unit.server.fake_runtime import FakeRuntime, RawClient, ask, make_app, registry_of, served
from tests.unit.server.test_connection import held_open, run

DASHBOARD = Path(__file__).parents[3] / "deploy" / "grafana-dashboard.json"
CHAT = {"messages": [{"role": "user", "content": "hi"}]}
BEAT = EngineStats(
    num_steps=100,
    num_running=2,
    num_waiting=3,
    kv_used=1000,
    kv_retained=500,
    kv_capacity=4000,
    stalled_s=0.0,
    prompt_tokens=900,
    cached_tokens=300,
    pool_hit_tokens=250,
    pool_evicted_tokens=20,
    num_preemptions=4,
    step_s=Distribution((1,) + (0,) * 17, 0.0004),
    step_tokens=Distribution((2,) + (0,) * 13, 2),
    num_step_sequences=3,
    prefill_s=Distribution((0,) * 27 + (1,), 3.0),
    tiers=TierCounters(
        ram_hit_tokens=32,
        disk_hit_tokens=18,
        ram_bytes=7,
        restore_s=0.5,
        exported_tokens=64,
        disk_read_bytes=9,
        disk_read_ahead_blocks=2,
    ),
)


def scrape(app: Any) -> dict[str, float]:
    """`name{label=value,…}` -> value."""
    reply = ask(app, "GET", "/metrics")
    assert reply.headers["content-type"].startswith("text/plain")
    return {
        sample.name + "".join(f" {key}={value}" for key, value in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(reply.text)
        for sample in family.samples
    }


def beating() -> FakeRuntime:
    runtime = FakeRuntime()
    runtime.state = Health(is_ready=True, state="ready", num_restarts=1, heartbeat=BEAT)
    return runtime


def test_a_pool_that_borrows_and_one_that_lends():
    runtime = beating()
    assert not [name for name in scrape(make_app(runtime)) if "borrowed" in name], "the size of the pool is fixed"
    for capacity, borrowed, lent in ((500, 0, 300), (800, 0, 0), (1000, 200, 0)):
        beat = msgspec.structs.replace(BEAT, kv_capacity_bytes=capacity, kv_share_bytes=800)
        runtime.state = Health(is_ready=True, state="ready", heartbeat=beat)
        found = scrape(make_app(runtime))
        names = ("kv_capacity_bytes", "kv_share_bytes", "kv_borrowed_bytes", "kv_lent_bytes")
        assert [next(v for n, v in found.items() if n.startswith(f"stoker_{name} ")) for name in names] == [
            capacity,
            800,
            borrowed,
            lent,
        ]


def test_the_engines_numbers():
    found = scrape(make_app(beating()))
    expected = {
        "stoker_requests_running": 2,
        "stoker_requests_waiting": 3,
        "stoker_kv_usage_ratio": 0.25,
        "stoker_preemptions_total": 4,
        "stoker_engine_restarts_total": 1,
        "stoker_computed_prompt_tokens_total": 600,
        "stoker_prompt_tokens_per_second": 200,
        "stoker_step_seconds_count": 1,
        "stoker_prefill_seconds_sum": 3,
    }
    assert {name: found[f"{name} model=tiny"] for name in expected} == expected
    transfers = {
        "stoker_kv_transfer_seconds_total model=tiny transfer=restore": 0.5,
        "stoker_kv_transfer_tokens_total model=tiny transfer=export": 64,
        "stoker_kv_transfer_bytes_total model=tiny transfer=disk_read": 9,
        "stoker_kv_read_ahead_blocks_total model=tiny": 2,
    }
    assert {name: found[name] for name in transfers} == transfers
    hits = {tier: found[f"stoker_prefix_hits_tokens_total model=tiny tier={tier}"] for tier in ("pool", "ram", "disk")}
    assert hits == {"pool": 250, "ram": 32, "disk": 18}
    assert found["stoker_step_seconds_bucket le=0.0005 model=tiny"] == 1
    assert found["stoker_prefill_seconds_bucket le=1920 model=tiny"] == 0
    assert found["stoker_prefill_seconds_bucket le=+Inf model=tiny"] == 1


def test_the_requests_numbers_by_key():
    app = make_app(FakeRuntime(), api_key="alice:a,bob:b")
    for key in ("a", "a", "b"):
        ask(app, "POST", "/v1/completions", json={"prompt": "four"}, headers={"x-api-key": key})
    text = ask(app, "GET", "/metrics", headers={"x-api-key": "a"}).text
    assert 'stoker_requests_total{finish_reason="stop",key="alice",model="tiny"} 2.0' in text
    assert 'stoker_prompt_tokens_total{key="bob",model="tiny"} 4.0' in text
    assert 'stoker_completion_tokens_total{key="alice",model="tiny"} 6.0' in text
    assert 'stoker_time_to_first_token_seconds_count{model="tiny"} 3.0' in text
    assert 'stoker_inter_token_seconds_count{model="tiny"} 6.0' in text
    assert 'vllm:generation_tokens_total{engine="0",model_name="tiny"} 9.0' in text
    assert 'vllm:request_generation_tokens_bucket{engine="0",le="2",model_name="tiny"} 0.0' in text
    assert 'vllm:request_generation_tokens_bucket{engine="0",le="5",model_name="tiny"} 3.0' in text
    assert 'vllm:request_prompt_tokens_count{engine="0",model_name="tiny"} 3.0' in text
    assert 'vllm:request_success_total{engine="0",finished_reason="stop",model_name="tiny"} 3.0' in text


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/api/chat"])
@pytest.mark.parametrize("stream", [True, False])
def test_every_end_is_counted_once(path: str, stream: bool):
    runtime = FakeRuntime(lambda submit: ["a", BackendError("NaN")])
    app = make_app(runtime)
    body = {**CHAT, "max_tokens": 9, "stream": stream}
    ask(app, "POST", path, json=body)
    runtime.refuse = lambda submit: Overloaded("full", retry_after_s=1)
    ask(app, "POST", path, json=body)
    found = scrape(app)
    assert found["stoker_failures_total code=backend_error model=tiny"] == 1
    assert found["stoker_refusals_total code=overloaded model=tiny"] == 1
    assert found["stoker_requests_open model=tiny"] == 0
    assert not any(name.startswith("stoker_requests_total") for name in found)


def test_a_client_that_leaves_is_an_abort():
    app = make_app(FakeRuntime(held_open(asyncio.Event())))

    async def leave(stream: bool) -> None:
        client = RawClient(app, "/v1/chat/completions", {**CHAT, "n": 2, "stream": stream})
        if stream:
            await client.next_body()
        client.leave()
        await client.task

    run(leave(True))
    found = scrape(app)
    assert found["stoker_requests_total finish_reason=abort key= model=tiny"] == 2
    assert found["stoker_requests_open model=tiny"] == 0


def test_every_alias_has_the_value_of_its_own_name():
    app = make_app(beating())
    ask(app, "POST", "/v1/completions", json={"prompt": "x"})
    found = scrape(app)
    names = {name.partition(" ")[0] for name in found}
    for alias in ALIASES:
        assert names & {alias.name, f"{alias.name}_total", f"{alias.name}_count"}, alias.name
    assert found["vllm:num_requests_running engine=0 model_name=tiny"] == 2
    assert found["vllm:prefix_cache_hits_total engine=0 model_name=tiny"] == 250
    assert found["vllm:request_prefill_time_seconds_bucket engine=0 le=+Inf model_name=tiny"] == 1
    assert found["llamacpp:prompt_tokens_total model=tiny"] == 600
    assert found["llamacpp:requests_deferred model=tiny"] == 3
    assert found["llamacpp:prompt_tokens_cached_total model=tiny"] == 300
    assert found["llamacpp:n_busy_slots_per_decode model=tiny"] == 1.5


def test_tiers_are_what_vllm_calls_external():
    beat = msgspec.structs.replace(BEAT, tiers=TierCounters(ram_limit_bytes=9, ram_hit_tokens=32, disk_hit_tokens=18))
    runtime = FakeRuntime()
    runtime.state = Health(is_ready=True, state="ready", heartbeat=beat)
    found = scrape(make_app(runtime))
    of = "engine=0 model_name=tiny"
    assert found[f"vllm:external_prefix_cache_queries_total {of}"] == 900 - 250
    assert found[f"vllm:external_prefix_cache_hits_total {of}"] == 50
    sources = {"local_compute": 600, "local_cache_hit": 250, "external_kv_transfer": 50}
    assert {source: found[f"vllm:prompt_tokens_by_source_total {of} source={source}"] for source in sources} == sources
    assert scrape(make_app(beating()))[f"vllm:external_prefix_cache_queries_total {of}"] == 0, "there is no tier"


def test_adapters_in_use_are_named_with_the_time():
    loads = [AdapterLoad("sql", 2, 1, 10), AdapterLoad("fun", 0, 4, 3), AdapterLoad("new", 0, 0, 0)]
    runtime = FakeRuntime()
    runtime.state = Health(is_ready=True, state="ready", heartbeat=msgspec.structs.replace(BEAT, adapters=loads))
    before_s = time.time()
    found = scrape(make_app(runtime))
    labels = "engine=0 max_lora=3 model_name=tiny running_lora_adapters=sql waiting_lora_adapters=sql,fun"
    (said_s,) = [value for name, value in found.items() if name.startswith("vllm:lora_requests_info")]
    assert before_s <= said_s <= time.time()
    assert f"vllm:lora_requests_info {labels}" in found


def test_drafts_are_counted_but_who_cannot_say_it_is_not_spoken_for():
    drafts = "vllm:spec_decode_num_drafts_total engine=0 model_name=tiny"
    runtime = FakeRuntime()
    drafting = msgspec.structs.replace(BEAT, num_drafts=3, drafted_tokens=9, accepted_tokens=5)
    runtime.state = Health(is_ready=True, state="ready", heartbeat=drafting)
    found = scrape(make_app(runtime))
    assert found[drafts] == 3
    assert found["stoker_accepted_drafted_tokens_total model=tiny"] == 5
    assert found["llamacpp:spec_decode_num_draft_tokens_total model=tiny"] == 9
    runtime.state = Health(is_ready=True, state="ready", heartbeat=msgspec.structs.replace(BEAT, num_steps=0))
    assert drafts not in scrape(make_app(runtime))


def test_answers_to_one_prompt_are_one_request():
    app = make_app(FakeRuntime(lambda submit: ["a"] * (5 if int(submit.request_id[-1]) % 2 else 2)))
    ask(app, "POST", "/v1/completions", json={"prompt": ["four", "five5"], "n": 2, "max_tokens": 40})
    ask(app, "POST", "/v1/completions", json={"prompt": "x"})
    found = scrape(app)
    of = "engine=0 model_name=tiny"
    assert (found[f"vllm:request_params_n_sum {of}"], found[f"vllm:request_params_n_count {of}"]) == (5, 3)
    assert found[f"vllm:request_max_num_generation_tokens_sum {of}"] == 5 + 5 + 2
    assert found[f"vllm:request_params_max_tokens_sum {of}"] == 4 * 40, "who does not say it is not counted"
    assert found[f"vllm:request_params_max_tokens_bucket {of.replace(' ', ' le=50 ')}"] == 4
    assert found["llamacpp:n_tokens_max model=tiny"] == 5 + 5


def test_it_answers_while_the_model_loads():
    runtime = FakeRuntime()
    runtime.state = Health(is_ready=False, state="starting")
    assert scrape(make_app(runtime))["stoker_model_ready model=tiny"] == 0


def test_every_metric_of_the_dashboard_exists():
    app = make_app(beating())
    ask(app, "POST", "/v1/completions", json={"prompt": "x"})
    text = ask(app, "GET", "/metrics").text
    exposed = {family.name for family in text_string_to_metric_families(text)}
    named: set[str] = set()
    for panel in _dashboard():
        for target in panel.get("targets", ()):
            named |= set(re.findall(r"\b(?:stoker_|vllm:|llamacpp:)\w+", target["expr"]))
    assert len(named) > 15
    for name in named:
        assert {name, re.sub(r"_(total|bucket|sum|count)$", "", name)} & exposed, name


def test_every_label_of_the_dashboard_is_one_of_its_metric():
    runtime = beating()
    engines = {n: Health(is_ready=True, state="ready", heartbeat=BEAT, node="10.0.0.1") for n in range(2)}
    runtime.state = replace(runtime.state, replicas=engines)
    app = create_app(registry_of(served(runtime)), ServerConfig(), parts=[Fronts("of two"), ResponseCounts()])
    ask(app, "POST", "/v1/completions", json={"prompt": "x"})
    labels: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(ask(app, "GET", "/metrics").text):
        for sample in family.samples:
            labels.setdefault(sample.name, set()).update(sample.labels)
    targets = [target for panel in _dashboard() for target in panel.get("targets", ())]
    for target in targets:
        grouped = re.findall(r"by \(([\w, ]+)\) \((?:\w+\()?(stoker_\w+)", target["expr"])
        assert len(grouped) == target["expr"].count(" by ("), target["expr"]
        for names, metric in grouped:
            present = labels.get(metric, set(names.split(", ")))  # no request was refused, so nothing counts refusals
            assert set(names.split(", ")) <= present, target["expr"]
        shown = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
        assert shown <= {name for names, _ in grouped for name in names.split(", ")}, target["legendFormat"]
        if "stoker_replica_" in target["expr"]:
            assert all(names.startswith("model, ") for names, _ in grouped), "each model has a replica 0"
    assert {"model", "replica", "node", "front"} <= {name for found in labels.values() for name in found}


def _dashboard() -> list[dict[str, Any]]:
    return msgspec.json.decode(DASHBOARD.read_bytes())["panels"]


def test_durations_are_measured_from_submission_to_the_end():
    now = [10.0]
    metrics = RequestMetrics(lambda: now[0])
    watch = metrics.watch("")
    for at, tokens, reason in ((12.0, 1, None), (13.0, 3, None), (17.0, 4, "stop")):
        now[0] = at
        watch.output(Output("r", "", [0], Usage(5, tokens, 2), finish_reason=reason))
    watch.close()
    assert watch.ttft_s == 2.0
    assert metrics.token_s.snapshot().total == 2 * 0.5 + 4.0
    assert metrics.request_s.snapshot().total == 7.0
    assert metrics.decode_s.snapshot().total == 5.0
    assert (metrics.request_prompt.snapshot().total, metrics.request_completion.snapshot().total) == (5, 4)
    assert metrics.request_computed.snapshot().total == 5 - 2
    assert metrics.request_token_s.snapshot().total == 5.0 / 3
    assert metrics.longest_sequence == 9
    assert metrics.num_later_tokens == 3
    assert (metrics.num_open, dict(metrics.ends)) == (0, {("", "stop"): 1})


def test_a_value_on_a_bound_belongs_below_it():
    histogram = Histogram([1.0, 2.0])
    for value in (0.5, 1.0, 1.5, 2.0, 9.0):
        histogram.observe(value)
    assert histogram.snapshot().cumulative(histogram.bounds) == [("1", 2), ("2", 4), ("+Inf", 5)]
    assert Distribution().cumulative([1.0]) == [("1", 0), ("+Inf", 0)]


def test_embeddings_are_counted_with_how_they_end():
    runtime = FakeRuntime()
    app = make_app(runtime)
    for _ in range(2):
        assert ask(app, "POST", "/v1/embeddings", json={"input": ["abc", "de"]}).status_code == 200
    runtime.embed_error = Overloaded("full", retry_after_s=1.0)
    assert ask(app, "POST", "/v1/rerank", json={"query": "q", "documents": ["d"]}).status_code == 429

    async def leave() -> None:
        runtime.embed_error, runtime.embed_gate = None, asyncio.Event()
        await runtime.arrived(3)
        client = RawClient(app, "/v1/embeddings", {"input": "abc"})
        await runtime.arrived(1)
        client.leave()
        await client.task

    run(leave())
    found = scrape(app)
    ends = {
        end: found.get(f"stoker_embedding_requests_total end={end} key= model=tiny")
        for end in ("ok", "overloaded", "abort")
    }
    assert ends == {"ok": 2, "overloaded": 1, "abort": 1}
    assert found["stoker_embedding_tokens_total key= model=tiny"] == 10
    assert found["stoker_embedding_seconds_count model=tiny"] == 2


def test_responses_are_counted_by_route_and_class():
    app = make_app(FakeRuntime())
    for path, body in [
        ("/v1/completions", {"prompt": "a"}),
        ("/completions", {"prompt": "a"}),
        ("/v1/completions", {}),
    ]:
        ask(app, "POST", path, json=body)
    for number in range(3):
        ask(app, "GET", f"/nowhere/{number}")
        ask(app, "GET", f"/v1/models/m{number}")
    found = scrape(app)
    counts = {name: value for name, value in found.items() if name.startswith("stoker_http_responses_total")}
    assert counts == {
        "stoker_http_responses_total method=POST route=/v1/completions status=2xx": 2,
        "stoker_http_responses_total method=POST route=/v1/completions status=4xx": 1,
        "stoker_http_responses_total method=GET route=/v1/models/{model:path} status=4xx": 3,
        "stoker_http_responses_total method= route=none status=4xx": 3,
    }


def test_the_numbers_of_an_encoder_are_there_if_there_is_one():
    runtime = beating()
    assert not any("encoder" in name for name in scrape(make_app(runtime)))
    load = EncoderLoad(num_queued=1, kept_bytes=2, num_encoded=3, encode_s=4.5, num_hits=5, num_crashes=6)
    runtime.state = Health(is_ready=True, state="ready", heartbeat=BEAT, encoder=load)
    found = scrape(make_app(runtime))
    assert {name.split()[0]: value for name, value in found.items() if "encoder" in name} == {
        "stoker_encoder_queue": 1,
        "stoker_encoder_kept_bytes": 2,
        "stoker_encoder_parts_total": 3,
        "stoker_encoder_seconds_total": 4.5,
        "stoker_encoder_hits_total": 5,
        "stoker_encoder_crashes_total": 6,
    }
    aliases = {name.split()[0]: value for name, value in found.items() if "vllm:mm_cache" in name}
    assert aliases == {"vllm:mm_cache_queries_total": 8, "vllm:mm_cache_hits_total": 5}


def test_the_numbers_of_a_transcriber_are_there_if_there_is_one():
    runtime = beating()
    assert not any("transcriber" in name for name in scrape(make_app(runtime)))
    load = TranscriberLoad(num_open=1, num_segments=2, heard_s=3.5, compute_s=4.5, num_crashes=5)
    runtime.state = Health(is_ready=True, state="ready", transcriber=load)
    found = scrape(make_app(runtime))
    assert {name.split()[0]: value for name, value in found.items() if "transcriber" in name} == {
        "stoker_transcriber_open": 1,
        "stoker_transcriber_segments_total": 2,
        "stoker_transcriber_audio_seconds_total": 3.5,
        "stoker_transcriber_seconds_total": 4.5,
        "stoker_transcriber_crashes_total": 5,
    }


def test_each_engine_of_several_has_numbers_of_its_own():
    runtime = FakeRuntime()
    engines = {
        0: Health(is_ready=True, state="ready", heartbeat=BEAT),
        1: Health(is_ready=False, state="restarting", num_restarts=3),
    }
    runtime.state = Health(is_ready=True, state="ready", num_restarts=3, heartbeat=BEAT, replicas=engines)
    app = make_app(runtime)
    found = scrape(app)
    own = {name: value for name, value in found.items() if name.startswith("stoker_replica_")}
    first = {
        "ready": 1,
        "restarts_total": 0,
        "requests_running": 2,
        "requests_waiting": 3,
        "kv_used_tokens": 1000,
        "kv_retained_tokens": 500,
        "kv_capacity_tokens": 4000,
        "stalled_seconds": 0,
    }
    second = {"ready": 0, "restarts_total": 3}
    assert own == {
        **{f"stoker_replica_{name} model=tiny replica=0": value for name, value in first.items()},
        **{f"stoker_replica_{name} model=tiny replica=1": value for name, value in second.items()},
    }
    assert found["stoker_requests_running model=tiny"] == 2
    (model,) = ask(app, "GET", "/health").json()["models"]
    assert [(engine["id"], engine["state"]) for engine in model["replicas"]] == [("0", "ready"), ("1", "restarting")]
    assert model["replicas"][0]["kv_capacity"] == 4000


def test_one_engine_has_no_replicas():
    app = make_app(beating())
    assert not [name for name in scrape(app) if name.startswith("stoker_replica_")]
    assert "replicas" not in ask(app, "GET", "/health").json()["models"][0]

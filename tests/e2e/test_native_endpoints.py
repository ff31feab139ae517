"""llama-server's own endpoints and ours on a real server with a real model."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.waiting import wait_for

QUESTION = [{"role": "user", "content": "What is gravity?"}]
GREEDY: dict[str, Any] = {"temperature": 0, "n_predict": 8}


@pytest.fixture
def http(served_smollm2: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=served_smollm2, trust_env=False, timeout=120) as client:
        yield client


def test_tokens_there_and_back(http: httpx.Client):
    text = "<|im_start|>Schöne Grüße 🙂"
    tokens = http.post("/tokenize", json={"content": text}).json()["tokens"]
    assert http.post("/detokenize", json={"tokens": tokens}).json() == {"content": text, "prompt": text}
    plain = http.post("/tokenize", json={"content": text, "parse_special": False, "with_pieces": True}).json()["tokens"]
    assert len(plain) > len(tokens)
    raw = b"".join(bytes(t["piece"]) if isinstance(t["piece"], list) else t["piece"].encode() for t in plain)
    assert raw.decode() == text


def test_template_and_tokens_are_those_of_a_chat(http: httpx.Client):
    prompt = http.post("/apply-template", json={"messages": QUESTION}).json()["prompt"]
    assert "What is gravity?" in prompt
    tokens = http.post("/tokenize", json={"content": prompt, "add_special": True}).json()["tokens"]
    chat = http.post("/v1/chat/completions", json={"messages": QUESTION, "max_tokens": 8, "temperature": 0}).json()
    completion = http.post("/completion", json={"prompt": tokens, **GREEDY, "return_tokens": True}).json()
    assert chat["usage"]["prompt_tokens"] == completion["tokens_evaluated"] == len(tokens)
    assert completion["content"] == chat["choices"][0]["message"]["content"]
    assert (completion["stop_type"], len(completion["tokens"])) == ("limit", 8)


def test_model_without_the_tokens_says_that_it_cannot_fill_in(http: httpx.Client):
    response = http.post("/infill", json={"input_prefix": "a", "input_suffix": "b"})
    filled = http.post("/api/generate", json={"model": "smollm2", "prompt": "a", "suffix": "b", "stream": False})
    assert (response.status_code, filled.status_code) in ((200, 200), (400, 400))
    can = "insert" in http.post("/api/show", json={"model": "smollm2"}).json()["capabilities"]
    assert can == (response.status_code == 200)


def test_slots_and_cache_show_and_forget_what_was_left(http: httpx.Client):
    http.post("/completion", json={"prompt": "a text to be left behind", **GREEDY})
    slots = http.get("/slots").json()
    assert not any(slot["is_processing"] for slot in slots)
    fullest = max(slots, key=lambda slot: slot["n_tokens"])
    erased = http.post(f"/slots/{fullest['id']}?action=erase").json()
    assert erased == {"id_slot": fullest["id"], "n_erased": fullest["n_tokens"]}
    http.delete("/cache")
    assert {slot["n_tokens"] for slot in http.get("/slots").json()} == {0}
    (cache,) = http.get("/cache").json()["models"]
    assert cache["kv_capacity"] > 0


def test_props(http: httpx.Client):
    props = http.get("/props").json()
    assert props["default_generation_settings"]["n_ctx"] == 8192
    assert "im_start" in props["chat_template"]
    assert props["eos_token"] == "<|im_end|>"


VLLM = """
    num_requests_running num_requests_waiting kv_cache_usage_perc prefix_cache_queries_total prefix_cache_hits_total
    external_prefix_cache_queries_total external_prefix_cache_hits_total mm_cache_queries_total mm_cache_hits_total
    num_preemptions_total prompt_tokens_total prompt_tokens_by_source_total prompt_tokens_cached_total
    generation_tokens_total request_success_total request_prompt_tokens_sum request_generation_tokens_sum
    iteration_tokens_total_sum request_max_num_generation_tokens_sum request_params_n_sum request_params_max_tokens_sum
    time_to_first_token_seconds_sum inter_token_latency_seconds_sum request_time_per_output_token_seconds_sum
    e2e_request_latency_seconds_sum request_queue_time_seconds_sum request_inference_time_seconds_sum
    request_prefill_time_seconds_sum request_decode_time_seconds_sum request_prefill_kv_computed_tokens_sum
    cache_config_info spec_decode_num_drafts_total spec_decode_num_draft_tokens_total
    spec_decode_num_accepted_tokens_total
"""
LLAMA_SERVER = """
    prompt_tokens_total prompt_tokens_cached_total prompt_seconds_total tokens_predicted_total n_decode_total
    tokens_predicted_seconds_total n_tokens_max spec_decode_num_draft_tokens_total spec_decode_num_accepted_tokens_total
    spec_decode_num_drafts_total prompt_tokens_seconds predicted_tokens_seconds requests_processing requests_deferred
    n_busy_slots_per_decode
"""


def scrape(http: httpx.Client) -> dict[str, float]:
    """What `/metrics` says of all sums and values, added up over their labels."""
    found: defaultdict[str, float] = defaultdict(float)
    for family in text_string_to_metric_families(http.get("/metrics").text):
        for sample in family.samples:
            found[sample.name] += sample.value
    return found


def scrape_when(http: httpx.Client, is_there: Callable[[dict[str, float]], bool]) -> dict[str, float]:
    return wait_for(lambda: scrape(http), is_there)


def test_dashboards_of_other_servers_find_all_that_they_ask_for(http: httpx.Client):
    names = [*(f"vllm:{name}" for name in VLLM.split()), *(f"llamacpp:{name}" for name in LLAMA_SERVER.split())]
    # The engine's numbers are up to a second old: they are new when so long a prompt is among them.
    seen, counted = scrape(http), "vllm:iteration_tokens_total_sum"
    http.post("/v1/completions", json={"prompt": "mark " * 400, "max_tokens": 1})
    before = scrape_when(http, lambda found: found[counted] >= seen[counted] + 400)
    asked = {"prompt": "gravity is", "n": 2, "max_tokens": 8, "temperature": 0, "ignore_eos": True}
    usage = http.post("/v1/completions", json=asked).json()["usage"]
    done = before["vllm:request_inference_time_seconds_count"] + 2
    after = scrape_when(http, lambda found: found["vllm:request_inference_time_seconds_count"] >= done)
    assert [name for name in names if name not in after] == []
    more = {name: after[name] - before[name] for name in names}
    assert more["vllm:generation_tokens_total"] == more["llamacpp:tokens_predicted_total"] == 16
    assert more["vllm:request_params_n_sum"] == 2
    assert more["vllm:request_params_max_tokens_sum"] == more["vllm:request_generation_tokens_sum"] == 16
    assert more["vllm:request_max_num_generation_tokens_sum"] == 8
    computed = more["llamacpp:prompt_tokens_total"]
    assert more["vllm:iteration_tokens_total_sum"] == computed + 2 * 7, "a last token is not computed any more"
    assert more["vllm:request_prefill_kv_computed_tokens_sum"] == computed
    assert more["vllm:prompt_tokens_by_source_total"] == more["vllm:request_prompt_tokens_sum"]
    assert more["vllm:request_prompt_tokens_sum"] == 2 * usage["prompt_tokens"]
    assert after["llamacpp:n_tokens_max"] >= usage["prompt_tokens"] + 8
    assert 0 < after["llamacpp:n_busy_slots_per_decode"] <= 8
    times = [f"vllm:request_{name}_time_seconds_sum" for name in ("inference", "prefill", "decode")]
    assert more[times[0]] >= more[times[1]] > 0
    drafted, accepted = (after[f"vllm:spec_decode_num_{name}_tokens_total"] for name in ("draft", "accepted"))
    assert drafted >= accepted >= 0 == after["vllm:mm_cache_queries_total"], "whether one pays is a matter of speed"

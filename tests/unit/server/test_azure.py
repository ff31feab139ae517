"""The paths and the header of Azure OpenAI, for every endpoint of OpenAI's API and for no other."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.types import ASGIApp

from stoker.runtime.registry import ServedModel
from stoker.server.config import ServerConfig
from stoker.server.endpoints import AZURE_ENDPOINTS, ENDPOINTS
from stoker.server.transport.app import create_app
from tests.unit.server.fake_runtime import FakeRuntime, ask, make_app, registry_of
from tests.unit.server.openai_probes import PROBES
from tests.unit.server.test_transcription import SOUND, SpeechRuntime

CHAT = {"messages": [{"role": "user", "content": "hi"}]}
VERSION = "api-version=2024-10-21"
NAMES = ["tiny", "org/model:Q4", "/models/a b.gguf", "chat", "completions", "50%", "größe?"]
ENCODED = {"org/model:Q4": "org%2Fmodel:Q4", "50%": "50%25", "größe?": "gr%C3%B6%C3%9Fe%3F"}


def several() -> tuple[ASGIApp, dict[str, FakeRuntime]]:
    """A server with a model of each name, which answers only to its name."""
    runtimes = {name: FakeRuntime() for name in NAMES}
    registry = registry_of(*(ServedModel((name,), runtime) for name, runtime in runtimes.items()), strict=True)
    return create_app(registry, ServerConfig()), runtimes


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("operation", ["chat/completions", "completions", "responses"])
@pytest.mark.parametrize("sent", [None, "tiny", "missing"])
def test_a_deployment_is_a_model_whatever_the_body_says(name: str, operation: str, sent: str | None):
    app, runtimes = several()
    body = {"chat/completions": CHAT, "completions": {"prompt": "hi"}, "responses": {"input": "hi"}}[operation]
    encoded = ENCODED.get(name, name.replace("/", "%2F").replace(" ", "%20"))
    for path in (encoded, encoded.replace("%2F", "/")):  # some clients do not encode slashes
        reply = ask(app, "POST", f"/openai/deployments/{path}/{operation}?{VERSION}", json={**body, "model": sent})
        assert reply.status_code == 200, (path, reply.text)
        assert reply.json()["model"] == name
    assert {other for other, runtime in runtimes.items() if runtime.submits} == {name}


def test_names_that_look_like_paths_are_told_apart_if_they_are_encoded():
    runtimes = {name: FakeRuntime() for name in ("a", "a/chat")}
    app = create_app(registry_of(*(ServedModel((n,), r) for n, r in runtimes.items()), strict=True), ServerConfig())
    for path, name in (("a/chat", "a"), ("a%2Fchat/chat", "a/chat")):
        reply = ask(app, "POST", f"/openai/deployments/{path}/completions", json={**CHAT, "prompt": "hi"})
        assert reply.json()["model"] == name


@pytest.mark.parametrize("probes", [p for p in PROBES if p.endpoint.api == "OpenAI"], ids=lambda p: p.endpoint.path)
def test_every_endpoint_with_a_body_answers_at_azures_paths(probes: Any):
    for prefix in ("/openai/v1", "/openai", "/openai/deployments/tiny", "/openai/deployments/alias%2Fof-tiny"):
        app = make_app(FakeRuntime(), strict=True)
        path = probes.at or probes.endpoint.path
        if probes.prepare is not None:
            path = path.format_map(probes.prepare(app))
        reply = ask(app, probes.endpoint.method, path.replace("/v1", prefix, 1), json=dict(probes.body))
        assert reply.status_code == 200, reply.text


def test_recordings_go_to_the_deployment():
    files = {"file": ("a.wav", SOUND)}
    app = create_app(registry_of(ServedModel(("whisper",), SpeechRuntime()), strict=True), ServerConfig())
    for fields in ({}, {"model": "another"}):
        reply = ask(app, "POST", "/openai/deployments/whisper/audio/transcriptions", files=files, data=fields)
        assert reply.json()["text"] == "Guten Tag."
    assert ask(app, "POST", "/openai/deployments/x/audio/transcriptions", files=files).status_code == 404


@pytest.mark.parametrize("path", ["/openai/models", "/openai/v1/models", "/openai/models/", "/openai/v1/models/tiny"])
def test_models_are_listed(path: str):
    reply = ask(make_app(FakeRuntime()), "GET", f"{path}?{VERSION}").json()
    assert "tiny" in [entry["id"] for entry in reply.get("data", [reply])]


def test_an_unknown_deployment_is_404_as_in_openais_api():
    app = make_app(FakeRuntime(), strict=True)
    reply = ask(app, "POST", "/openai/deployments/missing/chat/completions", json={**CHAT, "model": "tiny"})
    assert reply.status_code == 404
    error = reply.json()["error"]
    assert (error["code"], error["param"]) == ("model_not_found", "model")
    assert "missing" in error["message"]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/openai/deployments/tiny/images/generations"),
        ("POST", "/openai/deployments//chat/completions"),
        ("POST", "/openai/deployments/tiny"),
        ("POST", "/openai"),
        ("POST", "/openai/"),
        ("POST", "/openaix/v1/chat/completions"),
        ("POST", "/openai/v1/v1/chat/completions"),
        ("POST", "/openai/openai/chat/completions"),
        ("POST", "/openai/models/load"),
        ("POST", "/openai/v1/models/load/"),
        ("POST", "/openai/deployments/tiny/models/load"),
        ("POST", "/openai/deployments/tiny/models/lo%61d"),
        ("POST", "/openai/deployments/tiny/models/load%0A"),
        ("POST", "/openai/deployments/a/b/models/unload"),
        ("PUT", "/openai/v1/nothing"),
        ("GET", "/openai/v1/health"),
        ("GET", "/openai/ui/app.js"),
        ("POST", "/openai/v1/messages"),
        ("POST", "/openai/api/chat"),
    ],
)
def test_other_paths_stay_unknown(method: str, path: str):
    reply = ask(make_app(FakeRuntime()), method, path, json={**CHAT, "max_tokens": 1})
    assert reply.status_code == 404
    assert reply.json()["error"]["code"] == "not_found"


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PUT", "/openai/v1/chat/completions", "POST"),
        ("GET", "/openai/deployments/tiny/chat/completions", "POST"),
        ("HEAD", "/openai/deployments/org%2Fmodel/chat/completions", "POST"),
        ("DELETE", "/openai/deployments/org/model/embeddings", "POST"),
        ("POST", "/openai/models/tiny", "GET, HEAD"),
        ("DELETE", "/openai/models", "GET, HEAD"),
        ("OPTIONS", "/openai/models", "GET, HEAD"),
    ],
)
def test_a_wrong_method_is_405_and_the_right_ones_are_named(method: str, path: str, allowed: str):
    runtime = FakeRuntime()
    reply = ask(make_app(runtime), method, path, json=CHAT)
    assert (reply.status_code, ", ".join(sorted(reply.headers["allow"].split(", ")))) == (405, allowed)
    assert runtime.submits == []


@pytest.mark.parametrize("path", ["/openai/models", "/openai/v1/models/tiny", "/openai/deployments/tiny/models"])
def test_the_head_of_a_list_is_answered_as_in_openais_api(path: str):
    assert ask(make_app(FakeRuntime()), "HEAD", path).status_code == 200


def test_a_stream_is_one_too():
    reply = ask(
        make_app(FakeRuntime()), "POST", "/openai/deployments/tiny/chat/completions", json={**CHAT, "stream": True}
    )
    assert reply.headers["content-type"].startswith("text/event-stream")
    assert reply.text.endswith("data: [DONE]\n\n")


def test_metrics_know_the_same_route_and_a_prefix_of_a_proxy_stays():
    app = make_app(FakeRuntime(), root_path="/llm")
    for path in ("/v1/chat/completions", "/openai/v1/chat/completions", "/openai/deployments/x%2Fy/chat/completions"):
        for root in ("", "/llm"):
            assert ask(app, "POST", f"{root}{path}", json=CHAT).status_code == 200, (root, path)
    families = text_string_to_metric_families(ask(app, "GET", "/metrics").text)
    (responses,) = [family for family in families if family.name == "stoker_http_responses"]
    counts = {s.labels["route"]: s.value for s in responses.samples if s.labels["method"] == "POST"}
    assert counts == {"/v1/chat/completions": 6}


def test_the_endpoints_are_those_of_openai():
    assert set(AZURE_ENDPOINTS) == {(e.method, e.path) for e in ENDPOINTS if e.api == "OpenAI"}


@pytest.mark.parametrize("path", ["/openai/v1/chat/completions", "/openai/deployments/tiny/chat/completions"])
def test_a_batch_or_a_foreign_page_gains_nothing_by_it(path: str):
    assert ask(make_app(FakeRuntime()), "POST", path, json=CHAT, headers={"Origin": "https://x.org"}).status_code == 403
    assert ask(make_app(FakeRuntime()), "POST", path, json=CHAT, headers={"Host": "x.org"}).status_code == 403

from __future__ import annotations

import msgspec
import pytest

from stoker.engine.cards import EmbeddingCard
from stoker.errors import ModelNotLoaded
from tests.unit.server.fake_runtime import CARD, FakeRuntime, ask, chat, make_app


def test_list_of_models():
    reply = ask(make_app(FakeRuntime()), "GET", "/v1/models").json()
    assert reply["object"] == "list"
    (entry,) = reply["data"]
    assert (entry["id"], entry["object"], entry["owned_by"]) == ("tiny", "model", "stoker")
    assert entry["created"] == 1700000000
    assert entry["max_model_len"] == 2048
    sizes = {"n_vocab": 300, "n_ctx_train": 4096, "n_ctx": 2048, "n_params": 135, "size": 1000}
    assert entry["meta"] == sizes, "how wide it is is only known of models that embed"


@pytest.mark.parametrize(("pooling", "size"), [("mean", 384), ("rank", None)])
def test_width_of_a_model_is_told_as_llama_server_does(pooling: str, size: int | None):
    runtime = FakeRuntime()
    runtime.model_card = msgspec.structs.replace(CARD, embedding=EmbeddingCard(pooling, 384, 512))
    (entry,) = ask(make_app(runtime), "GET", "/v1/models").json()["data"]
    assert entry["meta"].get("n_embd") == size


def test_one_model_by_id_or_alias_with_a_slash():
    app = make_app(FakeRuntime())
    for name in ("tiny", "tiny:latest", "alias/of-tiny", "alias%2Fof-tiny"):
        assert ask(app, "GET", f"/v1/models/{name}").json()["id"] == "tiny"
    missing = ask(app, "GET", "/v1/models/other")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "model_not_found")


def test_any_model_name_means_the_one_that_is_served():
    for model in ("tiny", "gpt-4o", "", None):
        assert chat(FakeRuntime(), model=model).json()["model"] == "tiny"


def test_strict_server_refuses_other_names():
    runtime = FakeRuntime()
    app = make_app(runtime, strict=True)
    body = {"messages": [{"role": "user", "content": "x"}]}
    for model, status in (("tiny", 200), ("alias/of-tiny", 200), ("gpt-4o", 404), (None, 200)):
        response = ask(app, "POST", "/v1/chat/completions", json={**body, "model": model})
        assert response.status_code == status
    refused = ask(app, "POST", "/v1/chat/completions", json={**body, "model": "gpt-4o"})
    assert refused.json()["error"]["param"] == "model"
    assert "tiny" in refused.json()["error"]["message"]


def test_model_that_was_never_loaded_is_503():
    class Unloaded(FakeRuntime):
        @property
        def card(self):
            raise ModelNotLoaded("still loading")

    response = ask(make_app(Unloaded()), "GET", "/v1/models")
    assert response.status_code == 503
    assert "retry-after" in response.headers

"""`/lora-adapters`, and how the name of a model asks for an adapter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from stoker.engine.cards import AdapterCard
from stoker.engine.config import AdapterSpec
from stoker.engine.question_messages import AdapterChoice
from stoker.runtime.registry import ServedModel
from stoker.server.config import ServerConfig
from stoker.server.transport.app import create_app
from tests.unit.server.fake_runtime import CARD, FakeRuntime, ask, complete, make_app, registry_of

ADMIN = {"authorization": "Bearer admin"}
SQL = AdapterCard(adapter_id=0, name="sql", path="/m/sql.gguf", scale=0.0, rank=8, size_bytes=9)


def with_adapters() -> FakeRuntime:
    runtime = FakeRuntime()
    runtime.model_card = msgspec.structs.replace(runtime.model_card, adapters=[SQL])
    return runtime


def send(runtime: FakeRuntime, method: str, path: str = "/lora-adapters", **more: Any) -> httpx.Response:
    return ask(make_app(runtime), method, path, **more)


def test_a_list_sets_scales_and_an_object_loads():
    runtime = FakeRuntime()
    assert send(runtime, "GET").json() == []
    assert send(runtime, "POST", json=[{"id": 0, "scale": 0.5}, {"id": 2, "scale": 1}]).json()["success"] is True
    assert send(runtime, "POST", json=[]).status_code == 200
    assert send(runtime, "POST", json={"path": "/m/sql.gguf"}).status_code == 200
    assert send(runtime, "DELETE", "/lora-adapters/some/sql").status_code == 200
    spec = AdapterSpec(name="sql", path="/m/sql.gguf")
    assert runtime.adapter_changes == [
        (None, None, None),
        (None, None, {0: 0.5, 2: 1.0}),
        (None, None, {}),
        (spec, None, None),
        (None, "some/sql", None),
    ]


@pytest.mark.parametrize(
    "content", [b"[", b"[1]", b'[{"id": 0}]', b'[{"id": 0, "scale": 1}, {"id": 0, "scale": 2}]', b"{}", b'{"path": 1}']
)
def test_what_is_neither(content: bytes):
    runtime = FakeRuntime()
    assert send(runtime, "POST", content=content).status_code == 400
    assert runtime.adapter_changes == []


def test_vllm_s_requests_load_and_remove_adapters():
    runtime = FakeRuntime()
    load, unload = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
    assert send(runtime, "POST", load, json={"lora_name": "sql", "lora_path": "/m/a.gguf"}).status_code == 200
    assert send(runtime, "POST", unload, json={"lora_name": "sql", "lora_int_id": 3}).json()["success"] is True
    assert runtime.adapter_changes == [(AdapterSpec(name="sql", path="/m/a.gguf"), None, None), (None, "sql", None)]
    for path, body, parameter in (
        (load, {"lora_name": "sql"}, "lora_path"),
        (load, {"lora_name": "", "lora_path": "/m/a.gguf"}, "lora_name"),
        (load, {"lora_name": "sql", "lora_path": "/m/a.gguf", "load_inplace": True}, "load_inplace"),
        (unload, {}, "lora_name"),
    ):
        refused = send(runtime, "POST", path, json=body)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, parameter)
    assert len(runtime.adapter_changes) == 2


def test_the_path_of_an_adapter_may_begin_with_the_home_folder(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", "/home/me")
    runtime = FakeRuntime()
    send(runtime, "POST", json={"path": "~/sql.gguf"})
    send(runtime, "POST", "/v1/load_lora_adapter", json={"lora_name": "sql", "lora_path": "~/sql.gguf"})
    assert [load for load, _, _ in runtime.adapter_changes] == [AdapterSpec(name="sql", path="/home/me/sql.gguf")] * 2


def test_they_are_listed_beside_their_model():
    runtime = FakeRuntime()
    runtime.adapters = [SQL]
    app = make_app(runtime)
    assert ask(app, "POST", "/lora-adapters", json={"path": "/m/sql.gguf"}).status_code == 200
    base, adapter = ask(app, "GET", "/v1/models").json()["data"]
    assert (base["id"], "parent" in base) == ("tiny", False)
    assert adapter["id"] == "tiny:sql"
    assert (adapter["parent"], adapter["path"], adapter["object"]) == ("tiny", "/m/sql.gguf", "model")
    for name in ("tiny:sql", "alias/of-tiny:sql"):
        assert ask(app, "GET", f"/v1/models/{name}").json() == adapter
    assert ask(app, "GET", "/v1/models/tiny:poet").status_code == 404
    claude = {"anthropic-version": "2023-06-01"}
    listed = ask(app, "GET", "/v1/models", headers=claude).json()
    assert [(model["id"], model["display_name"]) for model in listed["data"]] == [
        ("tiny", "alias/of-tiny"),
        ("tiny:sql", "alias/of-tiny:sql"),
    ]
    assert (listed["first_id"], listed["last_id"]) == ("tiny", "tiny:sql")
    assert ask(app, "GET", "/v1/models/tiny:sql", headers=claude).json() == listed["data"][1]


@pytest.mark.parametrize(
    ("aliases", "shown"),
    [
        ([CARD.path], "tiny"),
        (["~/models/tiny.GGUF"], "tiny"),
        (["small", CARD.path], "small"),
        ([CARD.path, "org/small"], "org/small"),
    ],
)
def test_to_anthropics_clients_no_model_is_called_by_where_its_file_lies(aliases: list[str], shown: str):
    runtime = FakeRuntime()
    runtime.adapters = [SQL]
    app = create_app(registry_of(ServedModel(("tiny", *aliases), runtime)), ServerConfig())
    assert ask(app, "POST", "/lora-adapters", json={"path": "/m/sql.gguf"}).status_code == 200
    listed = ask(app, "GET", "/v1/models", headers={"anthropic-version": "2023-06-01"}).json()["data"]
    assert [model["display_name"] for model in listed] == [shown, f"{shown}:sql"]


def test_to_anthropics_clients_a_folder_is_no_name_either():
    runtime = FakeRuntime()
    runtime.model_card = msgspec.structs.replace(CARD, path="exported/tiny")
    app = create_app(registry_of(ServedModel(("tiny", "./exported/tiny/"), runtime)), ServerConfig())
    (listed,) = ask(app, "GET", "/v1/models", headers={"anthropic-version": "2023-06-01"}).json()["data"]
    assert listed["display_name"] == "tiny"


def test_to_ollamas_clients_they_are_models_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("STOKER_CACHE_DIR", str(tmp_path))
    runtime = FakeRuntime()
    runtime.adapters = [SQL]
    app = make_app(runtime)
    assert ask(app, "POST", "/lora-adapters", json={"path": "/m/sql.gguf"}).status_code == 200
    base, _alias, adapter = ask(app, "GET", "/api/tags").json()["models"]
    assert (adapter["name"], adapter["model"], adapter["size"]) == ("tiny:sql", "tiny:sql", base["size"] + 9)
    assert adapter["details"] == {**base["details"], "parent_model": "tiny:latest"}
    assert adapter["digest"] != base["digest"]
    for name in ("tiny:sql", "alias/of-tiny:sql"):
        shown = ask(app, "POST", "/api/show", json={"model": name}).json()
        assert shown["modelfile"].endswith("ADAPTER /m/sql.gguf\n")
        assert shown["details"]["parent_model"] == "tiny:latest"
    assert "ADAPTER" not in ask(app, "POST", "/api/show", json={"model": "tiny"}).json()["modelfile"]
    assert ask(app, "POST", "/api/show", json={"model": "tiny:poet"}).status_code == 404
    assert ask(app, "DELETE", "/api/delete", json={"model": "tiny:sql"}).status_code == 400
    assert ask(app, "POST", "/api/copy", json={"source": "tiny:sql", "destination": "db"}).status_code == 200
    assert ask(app, "POST", "/api/generate", json={"model": "db", "prompt": "hi"}).status_code == 200
    assert runtime.submits[0].adapters == [AdapterChoice(name="sql")]
    names = [model["name"] for model in ask(app, "GET", "/api/tags").json()["models"]]
    assert names == ["tiny:latest", "alias/of-tiny:latest", "tiny:sql", "db:latest"]


def test_changing_takes_the_admin_key_and_looking_does_not():
    runtime = FakeRuntime()
    app = make_app(runtime, api_key="user", admin_key="admin")
    user = {"authorization": "Bearer user"}
    assert ask(app, "GET", "/lora-adapters", headers=user).status_code == 200
    for method, path in (("POST", "/lora-adapters"), ("DELETE", "/lora-adapters/a")):
        assert ask(app, method, path, headers=user, json={"path": "a"}).status_code == 403
        assert ask(app, method, path, headers=ADMIN, json={"path": "a"}).status_code == 200


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"model": "tiny"}, None),
        ({"model": "tiny:latest"}, None),
        ({"model": "somebody:else"}, None),
        ({"model": "tiny:sql"}, [AdapterChoice(name="sql")]),
        ({"model": "alias/of-tiny:a/b"}, [AdapterChoice(name="a/b")]),
        ({"lora": "sql"}, [AdapterChoice(name="sql")]),
        ({"lora": []}, []),
        ({"model": "tiny", "lora": [{"id": 0, "scale": 0.5}]}, [AdapterChoice(adapter_id=0, scale=0.5)]),
        ({"lora": [{"id": 0, "scale": None}]}, [AdapterChoice(adapter_id=0, scale=1.0)]),
    ],
)
def test_which_adapters_are_asked_for(body: dict[str, Any], expected: list[AdapterChoice] | None):
    runtime = with_adapters()
    assert complete(runtime, **body).status_code == 200
    assert runtime.submits[0].adapters == expected


def test_a_strict_server_knows_its_model_with_an_adapter_behind_it():
    runtime = with_adapters()
    app = make_app(runtime, strict=True)
    asked = [("tiny:sql", 200), ("alias/of-tiny:sql", 200), ("tin:sql", 404), ("tinysql", 404)]
    for model, status in asked:
        assert ask(app, "POST", "/v1/completions", json={"prompt": "hi", "model": model}).status_code == status


def test_a_tag_of_ollamas_is_no_adapter_of_a_model_that_has_none():
    runtime = FakeRuntime()
    for path in ("/v1/completions", "/api/generate"):
        assert ask(make_app(runtime), "POST", path, json={"prompt": "hi", "model": "tiny:135m"}).status_code == 200
    assert [submit.adapters for submit in runtime.submits] == [None, None]
    reply = ask(make_app(runtime, strict=True), "POST", "/v1/completions", json={"prompt": "hi", "model": "tiny:135m"})
    error = reply.json()["error"]
    assert (reply.status_code, error["code"], error["param"]) == (404, "model_not_found", "model")
    assert "`tiny:135m`" in error["message"]
    assert "`tiny` is, and it has no adapters" in error["message"]


@pytest.mark.parametrize(
    "body",
    [{"model": "tiny:sql", "lora": []}, {"lora": [{"scale": 1}]}, {"lora": [{"id": 1, "name": "a"}]}, {"lora": 3}],
)
def test_what_cannot_be_meant(body: dict[str, Any]):
    runtime = with_adapters()
    reply = complete(runtime, **body)
    assert reply.status_code == 400
    assert "lora" in reply.json()["error"]["param"]
    assert runtime.submits == []

"""Ollama's endpoints about models: what lies on the disk, what is served, what comes and goes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from starlette.types import ASGIApp

from stoker.engine.cards import ModelCard
from stoker.errors import Cancelled, DownloadFailed, ModelFileNotFound, StokerError
from stoker.models.aliases import add_alias, read_aliases
from stoker.models.cache import models_dir, write_receipt
from stoker.models.presets import Preset, read_presets
from stoker.runtime.registry import ModelSpec, Registry, ServedModel
from stoker.server.config import ServerConfig
from stoker.server.models.pulls import Pulls
from stoker.server.transport.app import create_app
from tests.unit.models.tiny_gguf import SHAPE, write_tiny_gguf
from tests.unit.server.downloads_source import Source
from tests.unit.server.fake_runtime import CARD, FakeRuntime, RawClient, ask, make_app, registry_of, served
from tests.unit.server.test_connection import run

HUB_NAME = "hf:org/repo:m.gguf"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STOKER_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def download(cache: Path) -> Path:
    path = models_dir() / "hf" / "org" / "repo" / "m.gguf"
    path.parent.mkdir(parents=True)
    write_tiny_gguf(path, **SHAPE)
    write_receipt(path, HUB_NAME, "test", path, "5" * 64)
    return path


class ServedFile(FakeRuntime):
    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    @property
    def card(self) -> ModelCard:
        return msgspec.structs.replace(CARD, path=str(self._path), size_bytes=self._path.stat().st_size)


def serving(path: Path, *names: str) -> ASGIApp:
    return create_app(registry_of(ServedModel(names, ServedFile(path))), ServerConfig())


def finding(model: ServedModel) -> ASGIApp:
    """A server that was started without a list of models."""
    registry = Registry(discover=list)
    registry.adopt(model)
    return create_app(registry, ServerConfig())


def call(app: ASGIApp, method: str, verb: str, **body: Any) -> httpx.Response:
    content: dict[str, Any] = {"json": body} if body else {}
    return ask(app, method, f"/api/{verb}", **content)


def test_tags_list_what_is_served_downloaded_and_renamed(download: Path):
    add_alias("mine", HUB_NAME)
    app = finding(served(FakeRuntime()))
    tags = {model["name"]: model for model in call(app, "GET", "tags").json()["models"]}
    assert list(tags) == ["tiny:latest", "alias/of-tiny:latest", "hf.co/org/repo:m.gguf", "mine:latest"]
    assert tags["alias/of-tiny:latest"]["digest"] == tags["tiny:latest"]["digest"]
    found = tags["hf.co/org/repo:m.gguf"]
    assert (found["model"], found["digest"], found["size"]) == (found["name"], "5" * 64, download.stat().st_size)
    assert tags["mine:latest"]["digest"] == found["digest"]
    assert found["details"]["format"] == "gguf"
    assert found["details"]["family"] == "llama"


def test_a_server_with_a_list_of_models_lists_no_download_that_it_does_not_serve(download: Path):
    for alias, target in (("mine", HUB_NAME), ("small", "tiny")):
        add_alias(alias, target)
    tags = call(make_app(FakeRuntime()), "GET", "tags").json()["models"]
    assert [tag["name"] for tag in tags] == ["tiny:latest", "alias/of-tiny:latest", "small:latest"]
    tags = call(serving(download, "own", str(download)), "GET", "tags").json()["models"]
    assert [tag["name"] for tag in tags] == ["own:latest"]


def test_served_file_is_called_by_its_name_not_by_its_path(cache: Path, tmp_path: Path):
    path = write_tiny_gguf(tmp_path / "own.Q4.gguf", **SHAPE)
    app = serving(path, "own.Q4", str(path))
    (tag,) = call(app, "GET", "tags").json()["models"]
    assert tag["name"] == "own.Q4:latest"
    assert len(tag["digest"]) == 64
    assert call(app, "POST", "show", model=tag["name"]).status_code == 200
    assert call(app, "POST", "generate", model=tag["name"], prompt="x").status_code == 200


def test_of_two_models_of_one_name_the_one_that_answers_is_listed(download: Path, tmp_path: Path):
    path = write_tiny_gguf(tmp_path / "own.gguf", **SHAPE)
    add_alias("own", HUB_NAME)
    app = finding(ServedModel(("own", str(path)), ServedFile(path)))
    tags = call(app, "GET", "tags").json()["models"]
    assert [tag["name"] for tag in tags] == ["own:latest", "hf.co/org/repo:m.gguf"]
    assert tags[0]["digest"] != tags[1]["digest"]


def test_model_that_is_not_loaded_is_listed_and_shown(cache: Path, tmp_path: Path):
    path = write_tiny_gguf(tmp_path / "own.gguf", **SHAPE)
    gone = ModelSpec(names=("gone",), make=lambda _plan: FakeRuntime(), path=str(tmp_path / "gone.gguf"))
    here = ModelSpec(names=("own", str(path)), make=lambda _plan: FakeRuntime(), path=str(path))
    app = create_app(Registry([here, gone]), ServerConfig())
    (tag,) = call(app, "GET", "tags").json()["models"]
    assert (tag["name"], tag["size"]) == ("own:latest", path.stat().st_size)
    assert call(app, "POST", "show", model="own").json()["details"]["family"] == "llama"
    assert call(app, "POST", "show", model="gone").status_code == 404
    assert call(app, "GET", "ps").json() == {"models": []}


TOOLS_TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}{% if tools %}{{ tools }}{% endif %}"


class ServedFolder(FakeRuntime):
    """A model in another format than GGUF, with a chat template that the server was started with."""

    @property
    def card(self) -> ModelCard:
        return msgspec.structs.replace(CARD, path="", architecture="qwen3", chat_template=TOOLS_TEMPLATE)


def test_model_without_a_gguf_file_stays_listed_when_it_is_unloaded(cache: Path, tmp_path: Path):
    folder = tmp_path / "graph"
    folder.mkdir()
    (folder / "model.onnx").write_bytes(b"12345")

    async def test() -> None:
        registry = Registry([ModelSpec(names=("graph",), make=lambda _plan: ServedFolder(), path=str(folder))])
        await registry.start()
        transport = httpx.ASGITransport(app=create_app(registry, ServerConfig()))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:

            async def seen() -> tuple[Any, Any]:
                (tag,) = (await client.get("/api/tags")).json()["models"]
                return tag, (await client.post("/api/show", json={"model": "graph"})).json()

            tag, shown = await seen()
            assert (tag["name"], tag["size"], tag["capabilities"]) == ("graph:latest", 5, [])
            assert (shown["capabilities"], shown["template"]) == ([], "")
            await client.post("/api/generate", json={"model": "graph"})
            loaded = await seen()
            await client.post("/models/unload", json={"model": "graph", "wait": True})
            assert (await client.get("/api/ps")).json() == {"models": []}
            assert await seen() == loaded
            tag, shown = loaded
            assert tag["details"]["family"] == "qwen3"
            assert tag["capabilities"] == shown["capabilities"] == ["completion", "insert", "tools"]
            assert shown["template"] == TOOLS_TEMPLATE
        await registry.close()

    run(test())


def test_show_tells_how_a_file_is_served(download: Path):
    plain = call(make_app(FakeRuntime()), "POST", "show", model=HUB_NAME).json()
    served = call(serving(download, "own"), "POST", "show", model="own").json()
    assert "num_ctx" not in plain["parameters"]
    assert served["parameters"].splitlines()[-1] == f"num_ctx {CARD.context_size}"
    assert served["model_info"] == plain["model_info"], "the length of the trained context among it"


def test_damaged_download_does_not_break_the_list(download: Path):
    status = download.stat()
    download.write_bytes(b"x" * status.st_size)
    names = [model["name"] for model in call(make_app(FakeRuntime()), "GET", "tags").json()["models"]]
    assert names == ["tiny:latest", "alias/of-tiny:latest"]


def test_show_a_file(download: Path):
    app = make_app(FakeRuntime())
    for body in ({"model": "hf.co/org/repo:m.gguf"}, {"name": HUB_NAME}):
        reply = call(app, "POST", "show", **body).json()
        assert reply["model_info"]["general.architecture"] == "llama"
        assert reply["details"]["quantization_level"]
        assert reply["capabilities"] == ["completion"]
        assert str(download) in reply["modelfile"]


def test_show_leaves_long_lists_out_unless_asked(cache: Path, tmp_path: Path):
    tokens = [f"t{i}" for i in range(100)]
    path = write_tiny_gguf(tmp_path / "m.gguf", **SHAPE, tokenizer__ggml__tokens=tokens)
    app = serving(path, "m")
    assert call(app, "POST", "show", model="m").json()["model_info"]["tokenizer.ggml.tokens"] is None
    reply = call(app, "POST", "show", model="m", verbose=True).json()
    assert reply["model_info"]["tokenizer.ggml.tokens"] == tokens


def test_show_a_served_model_without_a_file(cache: Path):
    reply = call(make_app(FakeRuntime()), "POST", "show", model="tiny").json()
    assert reply["model_info"] == {"general.architecture": "test", "test.context_length": 4096}


def test_show_what_is_not_here(cache: Path):
    response = call(make_app(FakeRuntime()), "POST", "show", model="other")
    assert response.status_code == 404
    assert response.json() == {"error": "model 'other' not found"}
    assert call(make_app(FakeRuntime()), "POST", "show", verbose=True).status_code == 400


def test_ps_lists_what_is_loaded(cache: Path):
    (model,) = call(make_app(FakeRuntime()), "GET", "ps").json()["models"]
    assert (model["name"], model["size"], model["context_length"]) == ("tiny:latest", 1000, 2048)
    assert model["expires_at"] > "2300"


def test_version_is_one_that_clients_know(cache: Path):
    version = call(make_app(FakeRuntime()), "GET", "version").json()["version"]
    assert tuple(map(int, version.split("."))) >= (0, 13, 4), "`codex --oss` asks for it"


def test_delete_a_download(download: Path):
    app = make_app(FakeRuntime())
    assert call(app, "DELETE", "delete", model="hf.co/org/repo:m.gguf").status_code == 200
    assert not download.exists()
    again = call(app, "DELETE", "delete", model="hf.co/org/repo:m.gguf")
    assert (again.status_code, "not found" in again.json()["error"]) == (404, True)


@pytest.mark.parametrize("names", [(HUB_NAME,), ("other",)])
def test_served_model_is_not_deleted(download: Path, names: tuple[str]):
    response = call(serving(download, *names), "DELETE", "delete", model=HUB_NAME)
    assert response.status_code == 400
    assert "served" in response.json()["error"]
    assert download.is_file()


def test_copy_is_another_name(download: Path):
    app = make_app(FakeRuntime(), strict=True)
    assert call(app, "POST", "copy", source=HUB_NAME, destination="mine:latest").status_code == 200
    assert call(app, "POST", "copy", source="tiny", destination="served").status_code == 200
    assert read_aliases() == {"mine": HUB_NAME, "served": "tiny"}
    assert call(app, "POST", "show", model="mine").status_code == 200
    assert call(app, "POST", "generate", model="served", prompt="x").status_code == 200
    assert call(app, "POST", "generate", model="mine", prompt="x").status_code == 404, "it is not served"
    assert call(app, "DELETE", "delete", model="mine").status_code == 200
    assert download.is_file(), "only the name is gone"


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"source": "none", "destination": "x"}, 404),
        ({"source": "tiny", "destination": "a b"}, 400),
        ({"source": "tiny", "destination": "smollm2"}, 400),
        ({"source": "tiny", "destination": "tiny"}, 400),
        ({"source": "tiny"}, 400),
        ({"destination": "x"}, 400),
    ],
)
def test_copies_that_cannot_be(cache: Path, body: dict[str, str], status: int):
    assert call(make_app(FakeRuntime()), "POST", "copy", **body).status_code == status
    assert read_aliases() == {}


def creating(path: str = "") -> ASGIApp:
    """A server that finds what is created from the file at `path`."""
    runtime = FakeRuntime()
    made = partial(ModelSpec, make=lambda _: runtime, path=path)
    registry = Registry(discover=lambda: [made(names=(name,)) for name in read_presets()])
    registry.adopt(ServedModel(("tiny",), runtime))
    return create_app(registry, ServerConfig())


def test_create_has_a_base_a_system_prompt_and_parameters(download: Path):
    app = creating(str(download))
    body: dict[str, Any] = {"from": HUB_NAME, "system": "Be brief.", "parameters": {"stop": ["a", "b"], "num_ctx": 64}}
    assert call(app, "POST", "create", model="mine", stream=False, **body).json() == {"status": "success"}
    made = Preset(model=HUB_NAME, system="Be brief.", sampling={"stop": ["a", "b"]}, ctx_size=64)
    assert read_presets() == {"mine": made}
    assert call(app, "POST", "create", model="other:latest", **{"from": "mine", "parameters": {"top_k": 3}}).is_success
    assert read_presets()["other"] == msgspec.structs.replace(made, sampling={"stop": ["a", "b"], "top_k": 3})
    again: dict[str, Any] = {"from": "other", "parameters": {"stop": ["a", "b"]}}
    assert call(app, "POST", "create", model="other", **again).is_success
    assert read_presets()["other"].sampling == {"stop": ["a", "b"], "top_k": 3}, "a parameter that is given replaces"
    shown = call(app, "POST", "show", model="other").json()
    assert (shown["system"], shown["details"]["parent_model"]) == ("Be brief.", "hf.co/org/repo:m.gguf")
    assert shown["parameters"].splitlines() == ["num_ctx 64", 'stop "a"', 'stop "b"', "top_k 3"]
    assert shown["modelfile"].startswith(f"FROM {HUB_NAME}\nSYSTEM")
    assert call(app, "DELETE", "delete", model="mine").is_success
    assert read_presets().keys() == {"other"}
    assert download.is_file()


@pytest.mark.parametrize(
    ("body", "status", "reason"),
    [
        ({"model": "x"}, 400, "`from` is missing"),
        ({"model": "x", "from": "none"}, 404, "'none' not found"),
        ({"model": "x", "from": "/etc/passwd"}, 404, "not found"),
        ({"model": "tiny", "from": "tiny"}, 400, "exists already"),
        ({"model": "a b", "from": "tiny"}, 400, "cannot be the name"),
        ({"model": "x", "from": "tiny", "parameters": {"mirostat": 1}}, 400, "parameters.mirostat: only num_ctx"),
        ({"model": "x", "from": "tiny", "parameters": {"top_k": "many"}}, 400, "'many' is not a number"),
        ({"model": "x", "from": "tiny", "parameters": {"temperature": -1}}, 400, "temperature"),
        ({"model": "x", "from": "tiny", "template": "{{ .Prompt }}"}, 400, "Jinja"),
    ],
)
def test_what_cannot_be_created(cache: Path, body: dict[str, Any], status: int, reason: str):
    response = call(creating(), "POST", "create", **body)
    assert (response.status_code, reason in response.json()["error"]) == (status, True), response.text
    assert read_presets() == {}


def test_a_server_with_a_list_of_models_creates_none(cache: Path):
    response = call(make_app(FakeRuntime()), "POST", "create", model="x", **{"from": "tiny"})
    assert (response.status_code, "list of models" in response.text) == (400, True)
    assert read_presets() == {}


# Pulls


@pytest.fixture
def source() -> Iterator[Source]:
    source = Source()
    yield source
    source.go_on.release(10)


def pulling(source: Source) -> ASGIApp:
    registry = registry_of(ServedModel(("tiny",), FakeRuntime()))
    return create_app(registry, ServerConfig(), parts=[Pulls(source)])


def pull(source: Source, **body: Any) -> httpx.Response:
    return call(pulling(source), "POST", "pull", **{"model": "hf.co/org/repo:Q8_0", **body})


def test_pull_tells_how_far_it_is(source: Source):
    source.go_on.release(3)
    response = pull(source)
    assert response.headers["content-type"] == "application/x-ndjson"
    lines = [msgspec.json.decode(line) for line in response.text.splitlines()]
    assert source.calls == ["hf:org/repo:Q8_0"]
    assert lines[0] == {"status": "pulling manifest"}
    assert lines[-1] == {"status": "success"}
    assert {line["status"] for line in lines[1:-1]} == {"pulling m.gguf"}
    assert all(line["total"] == 30 for line in lines[1:-1])
    assert lines[-2]["completed"] == 30, "the last line of progress is never left out"


def test_pull_without_a_stream_answers_when_it_is_there(source: Source):
    source.go_on.release(3)
    assert pull(source, stream=False, model="smollm2:latest").json() == {"status": "success"}
    assert source.calls == ["smollm2"]


@pytest.mark.parametrize(("error", "status"), [(DownloadFailed("no way"), 502), (ModelFileNotFound("no file"), 404)])
@pytest.mark.parametrize("stream", [True, False])
def test_what_cannot_be_had_is_refused_before_the_stream(error: StokerError, status: int, stream: bool):
    response = pull(Source(error), stream=stream)
    assert response.status_code == status
    assert response.json() == {"error": error.message}


@pytest.mark.parametrize("name", ["/etc/passwd", "../x", "own.gguf", "nothing"])
def test_pull_looks_for_no_files(source: Source, name: str):
    assert pull(source, model=name).status_code == 404
    assert source.calls == []


def test_client_that_leaves_ends_the_download(source: Source):
    async def test() -> None:
        client = RawClient(pulling(source), "/api/pull", {"model": "smollm2"})
        assert b"manifest" in await client.next_body()
        client.leave()
        await client.task
        source.go_on.release()
        assert await asyncio.to_thread(source.ended.wait, 5)
        assert isinstance(source.end, Cancelled)

    run(test())


def test_two_clients_wait_for_one_download(source: Source):
    async def test() -> None:
        app = pulling(source)
        first, second = (RawClient(app, "/api/pull", {"model": "smollm2"}) for _ in range(2))
        for client in (first, second):
            assert b"manifest" in await client.next_body()
        first.leave()
        await first.task
        source.go_on.release(3)
        body = b""
        while b"success" not in body:
            body = await second.next_body()
        await second.task
        assert source.calls == ["smollm2"]

    run(test())


def test_number_of_downloads_is_bounded():
    async def test() -> None:
        source = Source()
        app = pulling(source)
        clients = [RawClient(app, "/api/pull", {"model": f"hf:org/r{i}"}) for i in range(4)]
        for client in clients:
            await client.next_body()
        fifth = RawClient(app, "/api/pull", {"model": "hf:org/r5"})
        assert (await fifth.received.get())["status"] == 503
        for client in clients:
            client.leave()
            await client.task
        await fifth.task
        source.go_on.release(12)

    run(test())


def test_an_abandoned_download_counts_until_its_thread_has_ended(source: Source):
    async def status_of_another(app: ASGIApp) -> int:
        client = RawClient(app, "/api/pull", {"model": "hf:org/other"})
        status = (await client.received.get())["status"]
        client.leave()
        await client.task
        return status

    async def test() -> None:
        app = pulling(source)
        for number in range(4):
            client = RawClient(app, "/api/pull", {"model": f"hf:org/r{number}"})
            await client.next_body()
            client.leave()
            await client.task
        assert await status_of_another(app) == 503
        assert len(source.calls) == 4
        source.go_on.release(4)
        while await status_of_another(app) == 503:  # noqa: ASYNC110
            await asyncio.sleep(0)

    run(test())


def test_who_comes_back_does_not_wait_for_what_was_given_up(source: Source):
    async def test() -> None:
        app = pulling(source)
        first = RawClient(app, "/api/pull", {"model": "smollm2"})
        await first.next_body()
        first.leave()
        await first.task
        again = RawClient(app, "/api/pull", {"model": "smollm2"})
        await again.next_body()
        source.go_on.release(4)
        body = b""
        while b"success" not in body:
            body = await again.next_body()
            assert b"error" not in body
        await again.task
        assert source.calls == ["smollm2"] * 2

    run(test())

"""Who may ask for what: keys, pages of the Web, names of this machine, and how that is said in each dialect."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import httpx
import pytest
from starlette.datastructures import Headers

from stoker.errors import ConfigError, InvalidInput
from stoker.server.access.control import host_name, is_local, is_local_name
from stoker.server.access.keys import ApiKeys
from stoker.server.config import ServerConfig
from stoker.server.endpoints import AZURE_ENDPOINTS, ENDPOINTS
from stoker.server.transport.listener import check_exposure
from tests.unit.server.fake_runtime import FakeRuntime, ask, make_app

KEYS = "alice:secret-a, secret-b"
CHAT = {"messages": [{"role": "user", "content": "hi"}]}
ADMIN = [
    ("POST", "/api/create", {"model": "x", "from": "y"}),
    ("POST", "/api/pull", {"model": "x"}),
    ("DELETE", "/api/delete", {"model": "x"}),
    ("POST", "/api/copy", {"source": "x", "destination": "y"}),
    ("DELETE", "/cache", None),
    ("POST", "/slots/0?action=erase", None),
    ("POST", "/models", {"model": "x"}),
    ("DELETE", "/models?model=y", None),
    ("POST", "/models/load", {"model": "x"}),
    ("POST", "/models/unload", {"model": "x"}),
    ("POST", "/lora-adapters", []),
    ("DELETE", "/lora-adapters/x", None),
    ("POST", "/v1/load_lora_adapter", {"lora_name": "x", "lora_path": "/m/x.gguf"}),
    ("POST", "/v1/unload_lora_adapter", {"lora_name": "x"}),
    ("GET", "/engine/prefix/0", None),
]


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def request(method: str, path: str, *, headers: dict[str, str] | None = None, **settings: Any) -> httpx.Response:
    return ask(make_app(FakeRuntime(), **settings), method, path, headers=headers)


PATHS = [(endpoint.method, path) for endpoint in ENDPOINTS for path in endpoint.paths]


@pytest.mark.parametrize(("method", "path"), [*PATHS, ("GET", "/nothing"), ("PUT", "/v1/models")])
def test_only_health_and_the_page_are_answered_without_a_key(method: str, path: str):
    reply = request(method, path.replace("{name:path}", "app.js").replace("{", "").replace("}", ""), api_key=KEYS)
    if path in ("/health", "/v1/health", "/ping", "/", "/ui/{name:path}"):
        assert reply.status_code == 200
    else:
        assert reply.status_code == 401
        assert reply.headers["WWW-Authenticate"] == "Bearer"


@pytest.mark.parametrize("path", ["/health", "/v1/health", "/ping"])
def test_health_is_open_to_those_who_look_and_to_nobody_else(path: str):
    assert request("HEAD", path, api_key=KEYS).status_code == 200
    assert request("POST", path, api_key=KEYS).status_code == 401


@pytest.mark.parametrize(
    "headers",
    [
        bearer("secret-a"),
        bearer("secret-b"),
        {"Authorization": "bearer  secret-a"},
        {"x-api-key": "secret-b"},
        {"api-key": "secret-a"},
    ],
)
def test_a_key_opens_the_door(headers: dict[str, str]):
    assert request("GET", "/v1/models", headers=headers, api_key=KEYS).status_code == 200


@pytest.mark.parametrize("encoding", ["latin-1", "utf-8"])
def test_a_key_may_be_anything_that_can_be_typed(encoding: str):
    keys = ApiKeys(ServerConfig(api_key="schlüssel"))
    for text, is_known in (("schlüssel", True), ("schlússel", False)):
        sent = Headers(raw=[(b"authorization", b"Bearer " + text.encode(encoding))])
        assert (keys.match(sent) is not None) == is_known


def test_a_key_that_is_both_may_do_both():
    keys = {"api_key": "other,same", "admin_key": "same"}
    assert request("DELETE", "/cache", headers=bearer("same"), **keys).status_code == 200
    assert request("DELETE", "/cache", headers=bearer("other"), **keys).status_code == 403


@pytest.mark.parametrize(
    "headers", [bearer(""), bearer("alice"), bearer("secret-a2"), bearer("alice:secret-a"), {"x-api-key": "x"}]
)
def test_a_wrong_key_does_not(headers: dict[str, str]):
    assert request("GET", "/v1/models", headers=headers, api_key=KEYS).status_code == 401


@pytest.mark.parametrize(
    ("headers", "says"),
    [
        ({}, "an API key is needed"),
        (bearer(""), "an API key is needed"),
        ({"Authorization": "Basic abc"}, "an API key is needed"),
        (bearer("other"), "the API key is wrong"),
        ({"x-api-key": "other"}, "the API key is wrong"),
        ({"api-key": "other"}, "the API key is wrong"),
    ],
)
def test_a_wrong_key_is_told_from_none(headers: dict[str, str], says: str):
    reply = request("GET", "/v1/models", headers=headers, api_key=KEYS)
    assert reply.status_code == 401
    assert reply.json()["error"]["message"].startswith(says)


@pytest.mark.parametrize(
    ("authorization", "x_api_key", "status"),
    [("other", "secret-a", 200), ("secret-a", "other", 200), ("", "secret-a", 200), ("other", "others", 401)],
)
def test_of_two_keys_one_must_be_right(authorization: str, x_api_key: str, status: int):
    headers = {**bearer(authorization), "x-api-key": x_api_key}
    assert request("GET", "/v1/models", headers=headers, api_key=KEYS).status_code == status


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/v1/chat/completions", {"error": {"type": "authentication_error", "code": "invalid_api_key"}}),
        ("/v1/messages", {"type": "error", "error": {"type": "authentication_error"}}),
        ("/api/chat", {"error": str}),
    ],
)
def test_each_dialect_says_it_in_its_own_words(path: str, expected: dict[str, Any]):
    body = request("POST", path, api_key=KEYS).json()
    error = expected["error"]
    assert isinstance(body["error"], str) if error is str else error.items() <= body["error"].items()


def test_without_a_configured_key_any_key_is_ignored():
    assert request("GET", "/v1/models", headers=bearer("anything")).status_code == 200


def test_keys_are_compared_by_digest_with_all_of_them(monkeypatch: pytest.MonkeyPatch):
    compared: list[tuple[bytes, bytes]] = []

    def compare(a: bytes, b: bytes) -> bool:
        compared.append((a, b))
        return a == b

    monkeypatch.setattr("stoker.server.access.keys.hmac.compare_digest", compare)
    request("GET", "/v1/models", headers=bearer("secret-a"), api_key=KEYS)
    assert len(compared) == 2
    assert {len(part) for pair in compared for part in pair} == {32}


def test_keys_of_a_file(tmp_path: Path):
    file = tmp_path / "keys"
    file.write_text("# ours\n\nbob:secret-c\n  secret-d  \n", encoding="utf-8")
    for key, status in (("secret-c", 200), ("secret-d", 200), ("# ours", 401), ("", 401)):
        assert request("GET", "/v1/models", headers=bearer(key), api_key_file=str(file)).status_code == status


@pytest.mark.parametrize("content", [None, b"", b"# only this\n", b"\xff\xfe", b"name:\n", b":key\n"])
def test_a_file_without_usable_keys_is_a_config_error(content: bytes | None, tmp_path: Path):
    file = tmp_path / "keys"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError):
        ApiKeys(ServerConfig(api_key_file=str(file)))


def test_a_pipe_is_read_once(tmp_path: Path):
    pipe, now = tmp_path / "pipe", [0.0]
    os.mkfifo(pipe)
    writers = [threading.Thread(target=pipe.write_text, args=(f"alice:{key}",)) for key in ("first", "second")]
    writers[0].start()
    keys = ApiKeys(ServerConfig(api_key_file=str(pipe)), lambda: now[0])
    writers[0].join()
    writers[1].start()
    os.utime(pipe, (1, 1))
    now[0] = 10.0
    assert [keys.match(Headers(bearer(key))) is not None for key in ("first", "second")] == [True, False]
    assert pipe.read_text() == "alice:second"
    writers[1].join()


def test_a_changed_file_counts_within_a_second_and_a_broken_one_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    file, now = tmp_path / "keys", [0.0]
    file.write_text("alice:old")
    keys = ApiKeys(ServerConfig(api_key="root:fixed", api_key_file=str(file), admin_key="adm"), lambda: now[0])

    def known() -> list[str]:
        return [name for name in ("fixed", "old", "new", "newer", "adm") if keys.match(Headers(bearer(name)))]

    (tmp_path / "next").write_text("alice:new\nbob:newer")
    (tmp_path / "next").replace(file)
    now[0] = 0.9
    assert known() == ["fixed", "old", "adm"], "nobody looks at a file for every request"
    now[0] = 1.0
    assert known() == ["fixed", "new", "newer", "adm"]
    for number, damage in enumerate(
        (lambda: file.write_text("# nothing"), lambda: file.write_bytes(b"\xff"), file.unlink)
    ):
        caplog.clear()
        damage()
        for _ in range(3):
            now[0] += 1
            assert known() == ["fixed", "new", "newer", "adm"], number
        (record,) = [record for record in caplog.records if record.levelname == "WARNING"]
        assert "stay as they were" in record.message
        assert "newer" not in record.message
    file.write_text("old")
    now[0] += 1
    assert known() == ["fixed", "old", "adm"]


def test_no_key_shows_in_what_a_traceback_prints():
    assert "secret" not in repr(vars(ApiKeys(ServerConfig(api_key=KEYS))))


@pytest.mark.parametrize(("method", "path", "body"), ADMIN)
def test_what_changes_the_server_takes_the_admin_key(method: str, path: str, body: Any):
    app = make_app(FakeRuntime(), api_key=KEYS, admin_key="root")
    assert ask(app, method, path, json=body, headers=bearer("secret-a")).status_code == 403
    assert ask(app, method, path, json=body).status_code == 401
    assert ask(app, method, path, json={}, headers=bearer("root")).status_code not in (401, 403)


AZURE = ["/openai", "/openai/v1", "/openai/deployments/tiny", "/openai/deployments/x%2Fy", "/openai/v1/models/.."]


@pytest.mark.parametrize("prefix", AZURE)
@pytest.mark.parametrize("key", ["root", "secret-a"])
def test_azures_paths_lead_to_no_endpoint_of_the_administrator(prefix: str, key: str):
    runtime = FakeRuntime()
    app = make_app(runtime, api_key=KEYS, admin_key="root")
    for method, path, body in ADMIN:
        for rest in (path, path.removeprefix("/models"), f"/v1{path}"):
            reply = ask(app, method, f"{prefix}{rest}", json=body, headers={"api-key": key})
            assert reply.status_code in (404, 405), (path, reply.text)  # 405: the router knows no such endpoint
    assert (runtime.erased, runtime.adapter_changes, runtime.filed) == ([], [], [])


@pytest.mark.parametrize(("method", "path"), AZURE_ENDPOINTS)
def test_azures_paths_need_a_key_too(method: str, path: str):
    path = path.replace("{", "").replace("}", "").replace(":path", "").removeprefix("/v1")
    for prefix in ("/openai", "/openai/v1", "/openai/deployments/tiny"):
        for headers in ({}, {"api-key": "other"}):
            reply = request(method, f"{prefix}{path}", headers=headers, api_key=KEYS, admin_key="root")
            assert reply.status_code == 401
            assert request(method, f"{prefix}{path}", headers={"api-key": "secret-a"}, api_key=KEYS).status_code != 401


def test_the_admin_key_protects_also_a_server_without_other_keys():
    app = make_app(FakeRuntime(), admin_key="root")
    assert ask(app, "GET", "/v1/models").status_code == 200
    assert ask(app, "DELETE", "/cache").status_code == 403
    assert ask(app, "DELETE", "/cache", headers=bearer("root")).status_code == 200


@pytest.mark.parametrize("keys", [{"api_key": KEYS}, {"allow_unauthenticated": True}])
@pytest.mark.parametrize(
    ("client", "headers", "may"),
    [
        (("127.0.0.1", 9), {}, True),
        (("::1", 9), {}, True),
        (None, {}, True),
        (("192.0.2.7", 9), {}, False),
        (("127.0.0.1", 9), {"X-Forwarded-For": "127.0.0.1"}, False),
        (None, {"Forwarded": "for=192.0.2.7"}, False),
    ],
)
def test_without_an_admin_key_only_this_machine_changes_the_server(
    keys: dict[str, Any], client: Any, headers: dict[str, str], may: bool
):
    app = make_app(FakeRuntime(), **keys)
    sent = {**bearer("secret-a"), **headers}
    for method, path, body in ADMIN:
        reply = ask(app, method, path, client=client, json=body, headers=sent)
        assert (reply.status_code == 403) != may, path
        assert may or "--admin-key" in reply.text
    assert ask(app, "POST", "/v1/chat/completions", client=client, json=CHAT, headers=sent).status_code == 200


def test_the_admin_endpoints_are_these():
    assert {(endpoint.method, endpoint.path) for endpoint in ENDPOINTS if endpoint.is_admin} == {
        (
            method,
            path.partition("?")[0]
            .replace("slots/0", "slots/{slot}")
            .replace("prefix/0", "prefix/{node}")
            .replace("/x", "/{name:path}"),
        )
        for method, path, _ in ADMIN
    }


def test_a_key_is_a_client_for_fairness_whatever_it_calls_its_user():
    runtime = FakeRuntime()
    app = make_app(runtime, api_key=KEYS)
    for key in ("secret-a", "secret-b"):
        ask(app, "POST", "/v1/chat/completions", json={**CHAT, "user": "somebody"}, headers=bearer(key))
    assert [submit.client_key for submit in runtime.submits] == ["alice", "key-2"]


@pytest.mark.parametrize(
    ("settings", "is_refused"),
    [
        ({"host": "127.0.0.1"}, False),
        ({"host": "::1"}, False),
        ({"host": "localhost"}, False),
        ({"host": "0.0.0.0"}, True),
        ({"host": "::"}, True),
        ({"host": "192.0.2.1"}, True),
        ({"host": "example.com"}, True),
        ({"host": "0.0.0.0", "admin_key": "root"}, True),
        ({"host": "0.0.0.0", "api_key": "x"}, False),
        ({"host": "0.0.0.0", "allow_unauthenticated": True}, False),
        ({"host": "0.0.0.0", "unix_socket": "/tmp/s"}, False),
    ],
)
def test_nobody_opens_a_server_to_all_by_accident(settings: dict[str, Any], is_refused: bool):
    config = ServerConfig(**settings)
    if not is_refused:
        check_exposure(config, ApiKeys(config))
        return
    with pytest.raises(ConfigError, match="--allow-unauthenticated") as caught:
        check_exposure(config, ApiKeys(config))
    assert caught.value.fields["key"] == "host"


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:8080", 200),
        ("127.0.0.1:8080", 200),
        ("[::1]:8080", 200),
        ("my-machine", 200),
        ("stoker.localhost", 200),
        ("evil.example.com", 403),
        ("evil.example.com:8080", 403),
        ("127.0.0.1.evil.com", 403),
        ("llm.home.net", 200),
    ],
)
def test_a_strangers_name_for_this_machine_is_refused(host: str, status: int):
    reply = request("GET", "/v1/models", headers={"Host": host}, allowed_hosts="llm.home.net")
    assert reply.status_code == status


def test_a_server_for_others_is_asked_by_any_name():
    assert request("GET", "/v1/models", headers={"Host": "a.example.com"}, host="0.0.0.0").status_code == 200
    assert request("GET", "/v1/models", headers={"Host": "a.example.com"}, allowed_hosts="*").status_code == 200


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("https://evil.example.com", 403),
        ("http://evil.example.com:8080", 403),
        ("http://localhost:3000", 200),
        ("http://test", 200),
        ("http://192.168.1.7:3000", 200),
        ("http://[::1]:3000", 200),
        ("http://8.8.8.8", 403),
        ("http://[2600::1]", 403),
        ("https://chat.example.com", 200),
        ("null", 403),
        ("vscode-webview://abc", 200),
    ],
)
def test_a_strangers_web_page_cannot_use_a_server_without_keys(origin: str, status: int):
    settings = {"cors_origins": "https://chat.example.com"}
    assert request("POST", "/v1/chat/completions", headers={"Origin": origin}, **settings).status_code in (
        {status} if status == 403 else {400}
    )


@pytest.mark.parametrize(("origin", "status"), [("https://box.example.com", 200), ("https://other.example.com", 403)])
def test_a_page_of_the_servers_own_name_may_ask(origin: str, status: int):
    headers = {"Origin": origin, "Host": "box.example.com:8080"}
    assert request("GET", "/v1/models", headers=headers, allowed_hosts="box.example.com").status_code == status


def preflight(origin: str, more: Mapping[str, str] = MappingProxyType({}), **settings: Any) -> httpx.Response:
    headers = {
        **more,
        "Origin": origin,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type",
    }
    return request("OPTIONS", "/v1/chat/completions", headers=headers, **settings)


def test_a_preflight_needs_no_key_and_allows_the_keys_header():
    reply = preflight("https://chat.example.com", cors_origins="https://chat.example.com", api_key=KEYS)
    assert reply.status_code == 200
    assert reply.headers["Access-Control-Allow-Origin"] == "https://chat.example.com"
    assert "authorization" in reply.headers["Access-Control-Allow-Headers"]
    assert "Access-Control-Allow-Credentials" not in reply.headers


def test_other_pages_get_no_permission():
    reply = preflight("https://evil.example.com", cors_origins="https://chat.example.com", api_key=KEYS)
    assert "Access-Control-Allow-Origin" not in reply.headers
    assert "Access-Control-Allow-Origin" not in preflight("https://evil.example.com").headers


@pytest.mark.parametrize("settings", [{}, {"cors_origins": "https://chat.example.com"}, {"api_key": KEYS}])
def test_a_page_of_this_machine_gets_permission_without_being_named(settings: dict[str, Any]):
    for origin in ("http://localhost:3000", "http://127.0.0.1", "tauri://localhost"):
        reply = preflight(origin, **settings)
        assert (reply.status_code, reply.headers["Access-Control-Allow-Origin"]) == (200, origin)
    for origin in ("https://evil.example.com", "http://8.8.8.8", "null", "http://10.0.0.1", "http://box.local"):
        assert "Access-Control-Allow-Origin" not in preflight(origin, **settings).headers


def test_a_named_page_of_the_internet_may_ask_a_server_in_a_private_network():
    """Chromium asks for that in the preflight, and takes an error for a no."""
    asked, granted = "Access-Control-Request-Private-Network", "Access-Control-Allow-Private-Network"
    named = preflight("https://chat.example.com", {asked: "true"}, cors_origins="https://chat.example.com")
    assert (named.status_code, named.headers[granted]) == (200, "true")
    stranger = preflight("https://evil.example.com", {asked: "true"}, cors_origins="https://chat.example.com")
    assert stranger.status_code == 400
    assert "Access-Control-Allow-Origin" not in stranger.headers


def test_a_page_of_the_network_gets_permission_from_a_server_for_the_network():
    reply = preflight("http://10.0.0.1", host="0.0.0.0", api_key=KEYS)
    assert reply.headers["Access-Control-Allow-Origin"] == "http://10.0.0.1"
    assert "Access-Control-Allow-Origin" not in preflight("http://8.8.8.8", host="0.0.0.0", api_key=KEYS).headers


def test_a_page_can_read_that_its_key_is_wrong():
    headers = {"Origin": "https://chat.example.com"}
    reply = request("GET", "/v1/models", headers=headers, cors_origins="*", api_key=KEYS)
    assert (reply.status_code, reply.headers["Access-Control-Allow-Origin"]) == (401, "*")


@pytest.mark.parametrize("origins", ["chat.example.com", "https://a.example/", "https://a.example, b c"])
def test_what_is_not_an_origin_is_refused(origins: str):
    with pytest.raises(InvalidInput, match="must be origins such as"):
        ServerConfig(cors_origins=origins)


def test_origins_may_be_of_applications():
    settings: Any = {"cors_origins": "myapp://chat.example, null,http://[2001:db8::1]:3000", "api_key": KEYS}
    for origin in ("myapp://chat.example", "null", "http://[2001:db8::1]:3000"):
        assert preflight(origin, **settings).headers["Access-Control-Allow-Origin"] == origin
    assert "Access-Control-Allow-Origin" not in preflight("http://[2001:db8::2]:3000", **settings).headers


@pytest.mark.parametrize("setting", [{"otlp_endpoint": "127.0.0.1:4318"}, {"port": 80_000}, {"port": -1}])
def test_an_address_that_cannot_be_one_is_refused(setting: dict[str, Any]):
    with pytest.raises(InvalidInput, match=f"`{next(iter(setting))}` must be"):
        ServerConfig(**setting)


def test_credentials_are_for_named_pages_only():
    with pytest.raises(InvalidInput, match="cors_credentials"):
        ServerConfig(cors_origins="https://a.example, *", cors_credentials=True)
    reply = preflight("https://a.example", cors_origins="https://a.example", cors_credentials=True)
    assert reply.headers["Access-Control-Allow-Credentials"] == "true"
    assert reply.headers["Access-Control-Allow-Origin"] == "https://a.example"


@pytest.mark.parametrize("path", ["/llm/v1/models", "/v1/models"])
def test_a_path_prefix_is_taken_off(path: str):
    assert request("GET", path, root_path="/llm").status_code == 200


def test_behind_a_prefix_dialects_and_health_are_known_too():
    reply = request("POST", "/llm/v1/messages", root_path="/llm", api_key=KEYS)
    assert reply.json()["type"] == "error"
    assert request("GET", "/llm/health", root_path="/llm", api_key=KEYS).status_code == 200
    assert request("GET", "/llmx/health", root_path="/llm").status_code == 404
    assert request("GET", "/llm/llm/health", root_path="/llm", api_key=KEYS).status_code == 401


@pytest.mark.parametrize(
    "settings",
    [
        {"max_connections": 0},
        {"body_timeout_s": 0},
        {"drain_s": float("nan")},
        {"request_timeout_s": -1},
        {"root_path": "llm"},
        {"root_path": "/llm/"},
        {"tls_certificate": "x.pem"},
        {"tls_key": "x.pem"},
    ],
)
def test_a_setting_out_of_its_range_is_named(settings: dict[str, Any]):
    with pytest.raises(InvalidInput) as caught:
        ServerConfig(**settings)
    assert caught.value.fields["parameter"] == next(iter(settings))


def test_names_of_this_machine():
    assert [is_local(host) for host in ("127.0.0.1", "127.1.2.3", "::1", "LOCALHOST", "10.0.0.1", "x.org")] == [
        *[True] * 4,
        *[False] * 2,
    ]
    assert [is_local_name(name) for name in ("10.0.0.1", "::1", "box", "a.local", "a.b")] == [*[True] * 4, False]
    assert host_name("[::1") == "[::1"

"""The page at `/` and its files: who gets it, with which headers, and that no path leads out of its folder."""

from __future__ import annotations

import gzip
import json
import re
from hashlib import sha256
from typing import Any

import httpx
import pytest

from stoker.server.ui import POLICY, ROOT
from tests.unit.server.fake_runtime import FakeRuntime, ask, make_app
from tests.unit.server.test_listener import server
from tests.waiting import BOUND_S

HTML = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
FILES = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*") if path.is_file())
FIRST_PAINT_BYTES, ALL_BYTES, INSTALLED_BYTES = 90_000, 230_000, 700_000


def imported(name: str, known: frozenset[str] = frozenset()) -> frozenset[str]:
    """A module with all that it imports at once, in turn."""
    known |= {name}
    for found in IMPORT.finditer((ROOT / name).read_text()):
        other = ((ROOT / name).parent / found[1]).resolve().relative_to(ROOT).as_posix()
        known = known if other in known else imported(other, known)
    return known


IMPORT = re.compile(r"^(?:import|export)\b[^;(]*?'(\.[^']+)';", re.MULTILINE)
AT_ONCE = imported("app.js")
FIRST = AT_ONCE | {"index.html", "icon.svg", "manifest.json", "style/app.css", "style/chat.css"}
"""All that is fetched before anything is clicked."""


def get(path: str, *, method: str = "GET", headers: dict[str, str] | None = None, **settings: Any) -> httpx.Response:
    return ask(make_app(FakeRuntime(), **settings), method, path, headers=headers or {})


def test_browsers_get_the_page():
    page = get("/", headers=HTML)
    assert page.status_code == 200
    assert page.headers["Content-Type"].startswith("text/html")
    assert page.content == (ROOT / "index.html").read_bytes()
    assert "Accept" in page.headers["Vary"].split(", ")


@pytest.mark.parametrize("headers", [{"Accept": "*/*"}, {"Accept": "application/json"}, {"Accept": ""}])
def test_programs_get_the_text_of_ollama(headers: dict[str, str]):
    reply = get("/", headers=headers)
    assert reply.text == "Ollama is running"
    assert "Accept" in reply.headers["Vary"].split(", ")


@pytest.mark.parametrize("path", ["/", "/ui/app.js"])
def test_head_has_the_headers_of_get(path: str):
    head, whole = get(path, method="HEAD", headers=HTML), get(path, headers=HTML)
    assert head.status_code == 200
    assert not head.content
    assert head.headers["Content-Length"] == whole.headers["Content-Length"]
    assert head.headers["ETag"] == whole.headers["ETag"]


@pytest.mark.parametrize("name", FILES)
def test_every_file_is_served_as_what_it_is_and_runs_nothing_else(name: str):
    reply = get(f"/ui/{name}")
    assert reply.content == (ROOT / name).read_bytes()
    assert reply.headers["X-Content-Type-Options"] == "nosniff"
    assert reply.headers["Cache-Control"] == "no-cache"
    assert reply.headers["Content-Security-Policy"] == POLICY
    if name.endswith(".js"):
        assert reply.headers["Content-Type"].startswith("text/javascript")


def test_only_the_service_worker_may_act_for_the_folder_above_it():
    assert get("/ui/sw.js").headers["Service-Worker-Allowed"] == "../"
    assert "Service-Worker-Allowed" not in get("/ui/app.js").headers


def test_the_policy_allows_nothing_from_elsewhere():
    directives = {name: value for name, _, value in (part.partition(" ") for part in POLICY.split("; "))}
    assert directives["default-src"] == "'none'"
    assert directives["script-src"] == directives["style-src"] == directives["connect-src"] == "'self'"
    assert directives["require-trusted-types-for"] == "'script'"
    assert "unsafe" not in POLICY


def test_an_unchanged_file_is_not_sent_again():
    etag = get("/ui/app.js").headers["ETag"]
    again = get("/ui/app.js", headers={"If-None-Match": etag})
    assert again.status_code == 304
    assert not again.content
    assert get("/ui/app.js", headers={"If-None-Match": 'W/"other"'}).status_code == 200


def test_a_client_that_cannot_decompress_gets_the_file_as_it_is():
    reply = get("/ui/app.js", headers={"Accept-Encoding": "identity"})
    assert "Content-Encoding" not in reply.headers
    assert get("/ui/app.js", headers={"Accept-Encoding": "gzip"}).headers["Content-Encoding"] == "gzip"


@pytest.mark.parametrize(
    "name",
    [
        "",
        "nothing.js",
        "vendor",
        "..%2f__init__.py",
        "%2e%2e/__init__.py",
        "vendor/..%2f..%2f__init__.py",
        "%2fetc/passwd",
        "app.js%00",
    ],
)
def test_what_is_no_file_of_the_page_is_not_found(name: str):
    assert get(f"/ui/{name}").status_code == 404


@pytest.mark.parametrize("target", ["/ui/../__init__.py", "/ui//etc/passwd", "/ui/./../config.py"])
def test_a_raw_path_does_not_lead_out_of_the_folder(target: str):
    with server() as url, httpx.Client(base_url=url, timeout=BOUND_S) as client:
        request = client.build_request("GET", "/")
        request.url = request.url.copy_with(raw_path=target.encode())
        assert client.send(request).status_code == 404


def test_a_server_without_the_page_has_only_the_text():
    assert get("/", headers=HTML, ui=False).text == "Ollama is running"
    assert get("/ui/app.js", ui=False).status_code == 404


def test_the_page_needs_no_key_and_its_data_do():
    assert get("/", headers=HTML, api_key="secret").status_code == 200
    assert get("/ui/app.js", api_key="secret").status_code == 200
    assert get("/ui/../v1/models", api_key="secret").status_code == 401
    assert ask(make_app(FakeRuntime(), api_key="secret"), "POST", "/").status_code == 401
    for path in ("/v1/models", "/slots", "/props", "/uix"):
        assert get(path, api_key="secret").status_code == 401


def test_the_page_of_another_name_is_refused():
    assert get("/", headers={**HTML, "Host": "evil.example.com"}).status_code == 403


def test_the_page_works_below_a_path_prefix():
    page = get("/llm/", headers=HTML, root_path="/llm")
    assert page.content == (ROOT / "index.html").read_bytes()
    assert get("/llm/ui/app.js", root_path="/llm", api_key="secret").status_code == 200
    for text in (page.text, *((ROOT / name).read_text() for name in FILES if name.endswith(".js"))):
        assert 'src="/' not in text
        assert "fetch('/" not in text


def test_vendored_libraries_are_what_the_manifest_says():
    manifest = json.loads((ROOT / "vendor" / "MANIFEST.json").read_text())
    licenses = (ROOT / "vendor" / "LICENSES").read_text()
    assert {*manifest} == {path.name for path in (ROOT / "vendor").glob("*.js")}
    for name, entry in manifest.items():
        assert sha256((ROOT / "vendor" / name).read_bytes()).hexdigest() == entry["sha256"], name
        assert all(f"{package} {version}\n" in licenses for package, version in entry["packages"].items())


def test_modules_that_are_needed_at_once_are_fetched_at_once():
    page = (ROOT / "index.html").read_text()
    assert re.findall(r'rel="stylesheet" href="ui/([^"]+)"', page) == ["style/app.css", "style/chat.css"]
    assert {*re.findall(r'rel="modulepreload" href="ui/([^"]+)"', page)} == AT_ONCE - {"app.js"}
    assert len(AT_ONCE) > 30


def test_the_page_is_small():
    sizes = {name: len(gzip.compress((ROOT / name).read_bytes())) for name in FILES if name != "vendor/LICENSES"}
    assert sum(sizes.values()) <= ALL_BYTES
    assert sum(size for name, size in sizes.items() if name in FIRST) <= FIRST_PAINT_BYTES
    assert sum((ROOT / name).stat().st_size for name in FILES) <= INSTALLED_BYTES
    assert all(len((ROOT / name).read_text().splitlines()) <= 300 for name in FILES if not name.startswith("vendor/"))

"""Endpoints declared on their handlers: which route answers, and what a handler is given."""

from typing import Any

import httpx
import msgspec
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse, Response

from stoker.server.api import Call, Router, Server, routes_of
from stoker.server.config import ServerConfig
from stoker.server.fields import Honoured
from tests.unit.server.fake_runtime import FakeRuntime, ask, registry_of, served


class Body(msgspec.Struct, frozen=True):
    word: str


router = Router(api="test")
other = Router(api="other", error=Body)


@router.endpoint("GET", "/things/{name:path}", "By name.", aliases=("/t/{name:path}",))
async def thing(call: Call[None]) -> Response:
    return PlainTextResponse(f"thing {call.path_parameter('name')}")


@other.endpoint("GET", "/things/all", "All of them.")
async def things(call: Call[None]) -> Response:
    return PlainTextResponse(f"all {call.server.part(list, lambda: ['made'])}")


@other.endpoint("POST", "/decoded", "Decoded.", body=Body, fields={"word": Honoured()}, error=None)
async def decoded(call: Call[Body]) -> Response:
    return PlainTextResponse(call.body.word)


@other.endpoint("POST", "/raw", "Not decoded.", raw_body=Body, has_optional_body=True)
async def raw(call: Call[bytes]) -> Response:
    return PlainTextResponse(repr(call.body))


def send(method: str, path: str, *parts: object, **kwargs: Any) -> httpx.Response:
    app = Starlette(routes=routes_of([router, other]))
    app.state.server = Server(registry_of(served(FakeRuntime())), ServerConfig(), parts)
    return ask(app, method, path, **kwargs)


def test_a_literal_path_comes_before_a_pattern_that_matches_it_wherever_both_are_declared():
    assert send("GET", "/things/all").text == "all ['made']"
    assert send("GET", "/things/some").text == "thing some"
    assert send("GET", "/t/some").text == "thing some"


def test_a_part_that_the_application_brings_is_not_made():
    assert send("GET", "/things/all", ["brought"]).text == "all ['brought']"


def test_a_part_is_made_once():
    server = Server(registry_of(served(FakeRuntime())), ServerConfig())
    assert server.part(list, lambda: ["a"]) is server.part(list, lambda: ["b"])


def test_a_body_is_decoded_unless_the_handler_does_it():
    assert send("POST", "/decoded", json={"word": "hi", "more": 1}).text == "hi"
    assert send("POST", "/raw", content=b"{x").text == "b'{x'"
    assert send("POST", "/raw").text == "b''"


def test_an_endpoint_is_described_by_its_router_and_its_declaration():
    (first,) = router.endpoints
    assert (first.api, first.error, first.request, first.paths) == (
        "test",
        None,
        None,
        ("/things/{name:path}", "/t/{name:path}"),
    )
    assert [(endpoint.error, endpoint.request) for endpoint in other.endpoints] == [
        (Body, None),
        (None, Body),
        (Body, Body),
    ]

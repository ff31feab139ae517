"""The OpenAPI document describes what is really served, and what is served behaves as it says."""

from __future__ import annotations

from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from starlette.applications import Starlette
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Route

from stoker.server.endpoints import ENDPOINTS
from stoker.server.openapi import openapi_document
from tests.brief import IS_BRIEF, examples
from tests.unit.server.fake_runtime import FakeRuntime, ask, make_app

CHECKS = (not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance)
NOT_FOR_RANDOM_NAMES = ["/api/pull", "/api/delete", "/api/copy", "/models/sse"]
"""They act on the models of this computer, or fetch some; and the last one never ends."""

APP = make_app(FakeRuntime())
PATHS = [endpoint.path.replace(":path", "") for endpoint in ENDPOINTS if endpoint.path not in NOT_FOR_RANDOM_NAMES]
SCHEMA: Any = schemathesis.openapi.from_asgi("/openapi.json", APP).include(path=PATHS)
SCHEMA.config.phases.coverage.enabled = not IS_BRIEF
"""Whether every value at the border of what a schema allows is tried, beside random ones."""


def served() -> set[tuple[str, str]]:
    starlette: Any = APP
    while not isinstance(starlette, Starlette):
        starlette = starlette.app if isinstance(starlette, CORSMiddleware) else starlette._app
    routes = [route for route in starlette.routes if isinstance(route, Route)]
    return {(method, route.path) for route in routes for method in route.methods or () if method != "HEAD"}


def test_every_route_is_an_endpoint_and_every_endpoint_a_route():
    listed = [(endpoint.method, path) for endpoint in ENDPOINTS for path in endpoint.paths]
    assert len(listed) == len(set(listed))
    assert set(listed) == served()


def test_document_names_the_fields_and_what_becomes_of_them():
    document = ask(APP, "GET", "/openapi.json").json()
    assert document == openapi_document(ENDPOINTS, document["info"]["version"])
    operation = document["paths"]["/v1/chat/completions"]["post"]
    assert "- `audio` is refused: " in operation["description"]
    assert "- `id_slot` is ignored: " in operation["description"]
    wire = document["components"]["schemas"]["ChatCompletionRequest"]["properties"]
    assert {"messages", "temperature"} <= wire.keys()
    assert set(operation["responses"]["200"]["content"]) == {"application/json", "text/event-stream"}
    ids = [op["operationId"] for path in document["paths"].values() for op in path.values()]
    assert len(ids) == len(set(ids))


@pytest.mark.timeout(120)
@SCHEMA.parametrize()
@settings(
    max_examples=examples(12),
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)
def test_random_requests_get_documented_answers_and_never_a_server_error(case: Any):
    case.call_and_validate(checks=CHECKS)

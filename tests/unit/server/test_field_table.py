"""Every row of the field table is probed, for every endpoint of every API: what it promises is what happens."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import msgspec
import pytest

from stoker.server.endpoints import ENDPOINTS
from stoker.server.fields import Honoured, Ignored, Refused
from tests.unit.server import (
    adapter_probes,
    anthropic_probes,
    batches_probes,
    embeddings_probes,
    models_probes,
    native_probes,
    ollama_probes,
    openai_probes,
)
from tests.unit.server.field_probes import EndpointProbes, Exchange

PROBES: dict[str, EndpointProbes] = {
    f"{probes.endpoint.method} {probes.endpoint.path}": probes
    for probes in (
        *openai_probes.PROBES,
        *anthropic_probes.PROBES,
        *ollama_probes.PROBES,
        *native_probes.PROBES,
        *embeddings_probes.PROBES,
        *models_probes.PROBES,
        *batches_probes.PROBES,
        *adapter_probes.PROBES,
    )
}


def rows(kind: type) -> list[Any]:
    """Of each endpoint that has some, the fields with such a policy: a test for each field costs more than its work."""
    found = {
        name: [field for field, policy in probes.endpoint.fields.items() if isinstance(policy, kind)]
        for name, probes in PROBES.items()
    }
    return [pytest.param(name, fields, id=name) for name, fields in found.items() if fields]


@cache
def plain(name: str) -> Exchange:
    """The least that the endpoint accepts."""
    exchange = PROBES[name].send()
    assert exchange.response.status_code == 200
    return exchange


def given_to_engine(exchange: Exchange) -> list[object]:
    submits = [msgspec.structs.replace(s, request_id="", group="") for s in exchange.runtime.submits]
    return [*submits, *exchange.runtime.embeds]


def test_every_endpoint_with_a_body_is_probed():
    with_body = {f"{e.method} {e.path}" for e in ENDPOINTS if e.request is not None}
    assert with_body == PROBES.keys()


@pytest.mark.parametrize("name", PROBES)
def test_honoured_are_the_fields_of_the_wire_type_and_each_has_a_probe(name: str):
    probes = PROBES[name]
    assert probes.endpoint.request is not None
    honoured = {field for field, policy in probes.endpoint.fields.items() if isinstance(policy, Honoured)}
    assert honoured == set(probes.endpoint.request.__struct_encode_fields__) == set(probes.probes)


@pytest.mark.parametrize(("name", "fields"), rows(Honoured))
def test_honoured_fields_have_their_effect(name: str, fields: list[str]):
    for field in fields:
        probe = PROBES[name].probes[field]
        assert probe.effect(PROBES[name].send({field: probe.value}, probe)), field
        null = {} if field in PROBES[name].body else {field: None}
        without = PROBES[name].send(null, probe)
        assert without.response.status_code == 200, (field, without.response.text)
        assert not probe.effect(without), f"{field}: null is the same as not given"


@pytest.mark.parametrize(("name", "fields"), rows(Refused))
def test_refused_fields_are_errors_that_name_them(name: str, fields: list[str]):
    for field in fields:
        exchange = PROBES[name].send({field: {"probe": [1]}})
        assert exchange.response.status_code == 400, field
        assert f"`{field}`" in exchange.response.text
        assert given_to_engine(exchange) == [], field
        if PROBES[name].endpoint.api == "OpenAI":
            error = exchange.response.json()["error"]
            assert (error["code"], error["param"]) == ("unsupported_parameter", field)


@pytest.mark.parametrize(("name", "fields"), rows(Refused))
def test_refused_fields_pass_if_they_ask_for_nothing(name: str, fields: list[str]):
    for field in fields:
        policy = PROBES[name].endpoint.fields[field]
        assert isinstance(policy, Refused)
        for value in (None, *policy.neutral):
            assert PROBES[name].send({field: value}).response.status_code == 200, (field, value)


@pytest.mark.parametrize(("name", "fields"), rows(Ignored))
def test_ignored_fields_change_nothing(name: str, fields: list[str]):
    for field in fields:
        with_it = PROBES[name].send({field: {"any": ["thing"]}})
        assert with_it.response.status_code == 200, field
        assert given_to_engine(with_it) == given_to_engine(plain(name)), field
        assert with_it.runtime.rendered == plain(name).runtime.rendered, field


@pytest.mark.parametrize("name", PROBES)
def test_every_alias_is_the_same_endpoint(name: str):
    probes = PROBES[name]
    for path in probes.endpoint.aliases:
        alias = replace(probes, endpoint=replace(probes.endpoint, path=path))
        assert alias.send().response.status_code == 200


def nested_rows(kind: type) -> list[tuple[str, str, str]]:
    return [
        (name, outer, field)
        for name, probes in PROBES.items()
        for outer, table in probes.endpoint.nested.items()
        for field, policy in table.items()
        if isinstance(policy, kind)
    ]


@pytest.mark.parametrize(("name", "outer", "field"), nested_rows(Refused))
def test_refused_field_inside_another_is_an_error_that_names_both(name: str, outer: str, field: str):
    exchange = PROBES[name].send({outer: {field: {"probe": [1]}}})
    assert exchange.response.status_code == 400
    assert f"`{outer}.{field}`" in exchange.response.text
    assert given_to_engine(exchange) == []
    policy = PROBES[name].endpoint.nested[outer][field]
    assert isinstance(policy, Refused)
    for value in (None, *policy.neutral):
        assert PROBES[name].send({outer: {field: value}}).response.status_code == 200


@pytest.mark.parametrize(("name", "outer", "field"), nested_rows(Ignored))
def test_ignored_field_inside_another_changes_nothing(name: str, outer: str, field: str):
    with_it = PROBES[name].send({outer: {field: ["any"]}})
    assert with_it.response.status_code == 200
    assert given_to_engine(with_it) == given_to_engine(plain(name))


def test_nested_honoured_fields_are_those_of_a_wire_type():
    """Whether they have their effect is tested where the objects are, such as `options`, `stoker` and `reasoning`."""
    assert {(outer, field) for _, outer, field in nested_rows(Honoured) if outer != "options"} == {
        ("stream_options", "include_usage"),
        ("stream_options", "continuous_usage_stats"),
        ("stoker", "trace"),
        ("reasoning", "effort"),
        ("reasoning", "summary"),
        ("reasoning", "generate_summary"),
        ("output_config", "effort"),
        ("output_config", "format"),
        ("text", "format"),
    }

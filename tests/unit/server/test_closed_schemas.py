"""A schema of any API describes an answer whose objects have no members but those that it names."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.server.fake_runtime import FakeRuntime, ask, make_app

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
MESSAGES = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}}),
        ("/v1/chat/completions", {"response_format": {"type": "json_object", "schema": SCHEMA}}),
        ("/v1/chat/completions", {"structured_outputs": {"json": SCHEMA, "whitespace_pattern": " "}}),
        ("/v1/responses", {"input": "hi", "text": {"format": {"type": "json_schema", "schema": SCHEMA}}}),
        ("/v1/messages", {"max_tokens": 9, "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}),
        ("/api/chat", {"format": SCHEMA, "stream": False}),
        ("/completion", {"prompt": "hi", "json_schema": SCHEMA}),
    ],
)
def test_a_schema_is_closed(path: str, body: dict[str, Any]):
    runtime = FakeRuntime()
    messages = {} if path in ("/v1/responses", "/completion") else {"messages": MESSAGES}
    assert ask(make_app(runtime), "POST", path, json={**messages, **body}).status_code == 200
    outline = runtime.submits[-1].outline
    assert outline is not None
    assert outline.grammar is not None
    assert (outline.grammar.kind, outline.grammar.closes) == ("json_schema", True)

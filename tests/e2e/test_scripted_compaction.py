"""Compaction with the real `openai` client, against answers that a `qwen3` model would write."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from openai import OpenAI

from tests.e2e.scripts import serving_script

SCRIPT: list[Any] = [
    {"when": "about to be replaced by a summary", "text": "We count, and are at 2."},
    {"when": "We count, and are at 2.", "text": "3"},
    "<think>\nOne, two.\n</think>\n\n2",
]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with (
        serving_script(tmp_path_factory.mktemp("compaction"), SCRIPT) as url,
        OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
    ):
        yield client


def test_a_conversation_is_compacted_and_goes_on(client: Any):
    first = client.responses.create(model="", instructions="Count.", input="Say what comes after the number 1.")
    compacted = client.responses.compact(model="", instructions="Count.", previous_response_id=first.id)
    message, item = compacted.output
    assert (message.role, message.content[0].text) == ("user", "Say what comes after the number 1.")
    assert compacted.usage.input_tokens_details.cached_tokens > 40, "the prompt begins like the conversation"
    assert compacted.usage.total_tokens > compacted.usage.input_tokens
    kept = [part.to_dict(warnings=False) for part in compacted.output]  # the client knows only answers as output
    following = client.responses.create(model="", input=[*kept, {"role": "user", "content": "Next?"}])
    assert following.output_text == "3"
    listed = client.responses.input_items.list(following.id, order="asc").data
    assert [part.type for part in listed] == ["message", "compaction", "message"]
    assert listed[1].encrypted_content == item.encrypted_content


def test_a_trigger_is_answered_with_a_summary_in_a_stream(client: Any):
    talk = client.conversations.create(items=[{"role": "user", "content": "Say what comes after 1."}]).id
    trigger: Any = [{"type": "compaction_trigger"}]
    stream = client.responses.create(model="", conversation=talk, input=trigger, stream=True)
    events = list(stream)
    assert "response.compaction.compacting" in {event.type for event in events}
    (item,) = events[-1].response.output
    assert (events[-1].type, item.type) == ("response.completed", "compaction")
    assert client.responses.create(model="", conversation=talk, input="Next?").output_text == "3"


def test_a_long_conversation_is_compacted_before_the_answer(client: Any):
    first = client.responses.create(model="", input="Say what comes after the number 1.")
    limit: Any = [{"type": "compaction", "compact_threshold": 10}]
    asked: Any = {"model": "", "previous_response_id": first.id, "input": "Next?", "context_management": limit}
    response = client.responses.create(**asked)
    assert [item.type for item in response.output] == ["compaction", "message"]
    assert response.output_text == "3"
    with client.responses.stream(**asked) as stream:
        events = list(stream)
        final = stream.get_final_response()
    told = [event.type for event in events if event.type.startswith("response.output_item")]
    assert told == ["response.output_item.added", "response.output_item.done"] * 2
    assert ([item.type for item in final.output], final.output_text) == (["compaction", "message"], "3")
    assert final.usage.total_tokens == response.usage.total_tokens
    assert final.usage.total_tokens > 2 * first.usage.total_tokens

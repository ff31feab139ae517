"""OpenAI's client tools with the real `openai` client, against answers that a `qwen3` model would write."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from openai import OpenAI

from tests.e2e.scripts import serving_script

PATCH = {"type": "update_file", "path": "a.py", "diff": '@@ def main():\n-    print("é")\n+    print("🙂")'}
TOOLS: Any = [{"type": kind} for kind in ("shell", "local_shell", "apply_patch")]


def call(name: str, arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments}, ensure_ascii=False)}\n</tool_call>"


RUN = call("shell", {"commands": ["ls", "cat a.py"], "timeout_ms": 5000})
SCRIPT: list[Any] = [
    {"when": "completed: changed", "text": "It is done."},
    {"when": "[exit code 0]", "text": f"<think>\nI see.\n</think>\n\n{call('apply_patch', PATCH)}"},
    {"when": "Wrongly", "text": call("shell", {"commands": [1], "x": 2})},
    RUN,
]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving_script(tmp_path_factory.mktemp("client_tools"), SCRIPT) as url:
        yield url


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[Any]:
    with OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_an_agent_looks_patches_and_is_done(client: Any):
    conversation: Any = client.conversations.create().id
    options: dict[str, Any] = {"model": "", "tools": TOOLS, "conversation": conversation}
    with client.responses.stream(**options, input="Change the file.") as stream:
        commands = [event.command for event in stream if event.type == "response.shell_call_command.done"]
        (run,) = stream.get_final_response().output
    assert commands == run.action.commands == ["ls", "cat a.py"]
    printed = {"stdout": "def main():", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}
    result: Any = {"type": "shell_call_output", "call_id": run.call_id, "output": [printed]}
    second = client.responses.create(**options, input=[result])
    thought, patch = second.output
    assert (thought.type, patch.type, patch.operation.model_dump()) == ("reasoning", "apply_patch_call", PATCH)
    assert second.usage.input_tokens_details.cached_tokens > 500, "the call is written as the model wrote it"
    result = {
        "type": "apply_patch_call_output",
        "call_id": patch.call_id,
        "status": "completed",
        "output": "changed a.py",
    }
    third = client.responses.create(**options, input=[result])
    assert third.output_text == "It is done."
    computed = second.usage.input_tokens + second.usage.output_tokens
    assert third.usage.input_tokens_details.cached_tokens >= computed - 8


def test_the_arguments_obey_the_schema_whatever_the_model_wants(url: str):
    body: dict[str, Any] = {"input": "Wrongly.", "tools": TOOLS, "tool_choice": {"type": "shell"}, "temperature": 0}
    reply = httpx.post(f"{url}/v1/responses", json=body, trust_env=False, timeout=120)
    assert "stoker-relaxed" not in reply.headers
    (item,) = reply.json()["output"]
    assert (item["type"], item["status"]) == ("shell_call", "completed")
    assert item["action"]["commands"]
    assert all(isinstance(command, str) for command in item["action"]["commands"])


def test_the_token_limit_cuts_a_call_off(client: Any):
    whole = client.responses.create(model="", input="Change the file.", tools=TOOLS)
    for limit in range(1, whole.usage.output_tokens, 7):
        cut = client.responses.create(model="", input="Change the file.", tools=TOOLS, max_output_tokens=limit)
        assert cut.status == "incomplete"
        calls = [item for item in cut.output if item.type == "shell_call"]
        for item in calls:
            assert item.action.commands in ([], ["ls"], ["ls", "cat a.py"])
            assert item.status == "incomplete" or item.action.timeout_ms == 5000

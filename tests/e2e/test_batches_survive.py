"""A server is killed in the middle of a batch: the next one over the same folder goes on with it."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from tests.e2e.conftest import serving
from tests.waiting import wait_for, wait_until

NUM_LINES = 60


def client_of(url: str) -> openai.OpenAI:
    http = openai.DefaultHttpxClient(trust_env=False)
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", http_client=http)


def message_client_of(url: str) -> anthropic.Anthropic:
    http = anthropic.DefaultHttpxClient(trust_env=False)
    return anthropic.Anthropic(base_url=url, api_key="none", http_client=http)


def until(client: openai.OpenAI, batch_id: str, is_true: Callable[[Any], bool]) -> Any:
    return wait_for(lambda: client.batches.retrieve(batch_id), is_true)


@pytest.mark.slow
def test_a_killed_server_loses_and_repeats_nothing(smollm2_path: Path, tmp_path: Path) -> None:
    body = {"prompt": "Count: 1, 2, 3,", "max_tokens": 16, "temperature": 0, "ignore_eos": True}
    lines: list[dict[str, Any]] = [
        {"custom_id": f"r{index}", "method": "POST", "url": "/v1/completions", "body": body}
        for index in range(NUM_LINES)
    ]
    content = "".join(json.dumps(line) + "\n" for line in lines).encode()
    options = (str(smollm2_path), "--files-dir", str(tmp_path / "files"), "--parallel", "2", "--ctx-size", "256")
    with serving(*options, log=tmp_path / "first") as server, client_of(server.url) as client:
        file = client.files.create(file=("in.jsonl", content), purpose="batch")
        batch = client.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h")
        seen = until(client, batch.id, lambda found: found.request_counts.completed >= 3)
        assert seen.status == "in_progress", "the batch is too short for this test"
        os.kill(server.pid, signal.SIGKILL)
    (path,) = (tmp_path / "files" / "batches").glob("*.jsonl")
    before = path.read_bytes().splitlines(keepends=True)
    with serving(*options, log=tmp_path / "second") as server, client_of(server.url) as client:
        done = until(client, batch.id, lambda found: found.status not in ("in_progress", "finalizing"))
        assert (done.status, done.request_counts.completed) == ("completed", NUM_LINES)
        after = client.files.content(done.output_file_id).content.splitlines(keepends=True)
    whole = [line for line in before if line.endswith(b"\n")]
    assert after[: len(whole)] == whole
    found = [json.loads(line) for line in after]
    assert sorted(line["custom_id"] for line in found) == sorted(line["custom_id"] for line in lines)
    assert len({line["response"]["body"]["choices"][0]["text"] for line in found}) == 1


def test_message_batches_of_anthropics_client_survive_a_kill(tmp_path: Path) -> None:
    script = tmp_path / "script.json"
    script.write_text(json.dumps([{"when": "hi", "text": "Fine.", "token_ms": 20}]))
    params: dict[str, Any] = {"model": "scripted", "max_tokens": 16, "messages": [{"role": "user", "content": "hi"}]}
    asked: list[Any] = [{"custom_id": f"r{index}", "params": params} for index in range(NUM_LINES)]
    options = ("scripted", "--script", str(script), "--files-dir", str(tmp_path / "files"), "--parallel", "1")
    with serving(*options, log=tmp_path / "first") as server, message_client_of(server.url) as client:
        batch = client.messages.batches.create(requests=asked)
        (path,) = wait_for(lambda: list((tmp_path / "files" / "batches").glob("*.jsonl")), bool)
        wait_until(lambda: path.read_bytes().count(b"\n") >= 3)
        os.kill(server.pid, signal.SIGKILL)
    before = [json.loads(line) for line in path.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]
    assert len(before) < NUM_LINES, "the batch is too short for this test"
    script.write_text(json.dumps([{"when": "hi", "text": "Fine."}]))
    with serving(*options, log=tmp_path / "second") as server, message_client_of(server.url) as client:
        done = wait_for(
            lambda: client.messages.batches.retrieve(batch.id), lambda found: found.processing_status == "ended"
        )
        assert done.request_counts.succeeded == NUM_LINES
        assert done.results_url == f"{server.url}/v1/messages/batches/{batch.id}/results"
        found: dict[str, Any] = {line.custom_id: line.result for line in client.messages.batches.results(batch.id)}
        assert found.keys() == {request["custom_id"] for request in asked}
        assert all(found[line["custom_id"]].message.id == line["response"]["body"]["id"] for line in before)
        assert {result.message.content[0].text for result in found.values()} == {"Fine."}
        assert [each.id for each in client.beta.messages.batches.list()] == [batch.id]
        client.messages.batches.delete(batch.id)
    assert not list((tmp_path / "files").glob("*/*"))

"""A server is killed in the middle of a batch: the next one over the same folder goes on with it."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.e2e.conftest import serving
from tests.waiting import wait_for

NUM_LINES = 60


def client_of(url: str) -> openai.OpenAI:
    http = openai.DefaultHttpxClient(trust_env=False)
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", http_client=http)


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

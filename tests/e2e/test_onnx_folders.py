"""`stoker run FOLDER` and `stoker serve FOLDER`, as a user types them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import BadRequestError, OpenAI

from tests.e2e.conftest import serving
from tests.onnx_models import TinyOnnx, write_onnx_folder
from tests.onnx_vision import ROWS, write_seeing_folder
from tests.projector_files import data_url, picture
from tests.waiting import BOUND_S

pytestmark = pytest.mark.slow

LIMIT_S = 120


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_onnx_folder(tmp_path_factory.mktemp("onnx") / "tiny", TinyOnnx(external=True))


def test_run_and_serve_take_a_folder(folder: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "stoker", "run", str(folder), "Hello", "--max-tokens", "8", "--threads", "1"]
    done = subprocess.run(command, capture_output=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr
    with serving(str(folder), "--threads", "1", "--ctx-size", "200", log=tmp_path / "log") as server:
        client = OpenAI(base_url=f"{server.url}/v1", api_key="x")
        messages = [{"role": "user", "content": "Hello"}]
        answer = client.chat.completions.create(
            model="tiny",
            messages=messages,  # type: ignore[arg-type]
            max_tokens=8,
            temperature=0,
            extra_body={"ignore_eos": True},
        )
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 8
        shown = httpx.post(f"{server.url}/api/show", json={"model": "tiny"}, trust_env=False, timeout=BOUND_S).json()
        assert shown["model_info"]["general.architecture"] == "llama"
        metrics = httpx.get(f"{server.url}/metrics", trust_env=False, timeout=BOUND_S).text
        assert "stoker_kv_capacity_bytes{" in metrics
        client.close()


def asked(client: OpenAI, url: str, stream: bool = False) -> Any:
    part = {"type": "image_url", "image_url": {"url": url}}
    return client.chat.completions.create(
        model="sees",
        messages=[{"role": "user", "content": [part, {"type": "text", "text": "What is it?"}]}],  # type: ignore[list-item]
        max_tokens=8,
        temperature=0,
        stream=stream,
        extra_body={"ignore_eos": True},
    )


def encoded(server_url: str) -> float:
    text = httpx.get(f"{server_url}/metrics", trust_env=False, timeout=BOUND_S).text
    return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith("stoker_encoder_parts_total{"))


def test_a_server_takes_images_for_a_folder_that_sees(tmp_path: Path) -> None:
    folder = write_seeing_folder(tmp_path / "sees")
    with (
        serving(str(folder), "--threads", "1", "--ctx-size", "400", log=tmp_path / "log") as server,
        OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0) as client,
    ):
        assert encoded(server.url) == 0
        seen = asked(client, data_url(picture("red", (64, 40))))
        assert seen.usage.completion_tokens == 8
        assert seen.usage.prompt_tokens_details.model_dump()["image_tokens"] == 7 * ROWS
        assert encoded(server.url) == 7
        again = asked(client, data_url(picture("red", (64, 40), "GIF")))
        assert again.choices[0].message.content == seen.choices[0].message.content
        assert again.usage.prompt_tokens_details.cached_tokens > 7 * ROWS
        assert encoded(server.url) == 7
        stream = asked(client, data_url(picture("blue")), stream=True)
        broken = picture("lime")
        with pytest.raises(BadRequestError, match="damaged or cut off"):
            asked(client, data_url(broken[: len(broken) // 2]))
        assert "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
        shown = httpx.post(f"{server.url}/api/show", json={"model": "sees"}, trust_env=False, timeout=BOUND_S).json()
        assert "vision" in shown["capabilities"]

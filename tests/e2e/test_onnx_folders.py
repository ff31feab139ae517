"""`stoker run FOLDER` and `stoker serve FOLDER`, as a user types them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from openai import OpenAI

from tests.e2e.conftest import serving
from tests.onnx_models import TinyOnnx, write_onnx_folder
from tests.waiting import BOUND_S

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

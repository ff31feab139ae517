"""Which vLLM is started, with what, and what is refused before that."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import psutil
import pytest

from stoker.config import load_config
from stoker.engine.config import EngineConfig
from stoker.errors import ConfigError, EngineCrashed, InvalidInput, ModelError, ModelFileNotFound, ModelUnsupported
from stoker.runtime.external import launcher
from stoker.runtime.external.config import RuntimeConfig, check_engine
from stoker.runtime.vllm.model_folder import read_model_folder
from stoker.runtime.vllm.program import arguments, find_program
from stoker.serving import create_registry
from tests.unit.runtime.vllm.fake import Fake
from tests.waiting import run


@pytest.mark.parametrize(
    ("settings", "advice"),
    [
        ({"kv_tokens": 512}, "--kv-cache-memory-bytes"),
        ({"draft_model": "x.gguf"}, "--speculative-config"),
        ({"tensor_split": "1,1"}, "--tensor-parallel-size"),
        ({"kv_type": "q8"}, "--kv-cache-dtype"),
        ({"gpu_layers": 3}, "--gpu-layers is not available with --runtime vllm"),
        ({"backend": "native"}, "--backend"),
    ],
)
def test_settings_that_mean_nothing_to_it_are_refused(settings: dict[str, Any], advice: str):
    with pytest.raises(ConfigError, match=advice):
        check_engine(EngineConfig(**settings), "vllm")


def test_its_further_arguments_come_last_and_none_of_stokers(tmp_path: Path):
    assert arguments(tmp_path, 64, 3, ["--enforce-eager"])[-1] == "--enforce-eager"
    with pytest.raises(ConfigError, match="--max-model-len is given by Stoker; use Stoker's --ctx-size"):
        arguments(tmp_path, 64, 3, ["--max-model-len=8"])
    with pytest.raises(InvalidInput, match="vllm_args"):
        RuntimeConfig(vllm_args="'")
    with pytest.raises(InvalidInput, match="vllm_start_s"):
        RuntimeConfig(vllm_start_s=0)


def test_the_program_is_the_named_one_or_that_in_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: Path):
    assert find_program(str(program)) == program
    with pytest.raises(ConfigError, match="there is no program nothing"):
        find_program("nothing")
    monkeypatch.setenv("PATH", str(program.parent))
    assert find_program() == program
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(ConfigError, match="pip install vllm"):
        find_program()


def test_a_folder_says_what_its_model_is(model: Path):
    found = read_model_folder(EngineConfig(model="tiny", model_path=str(model)))
    assert (found.architecture, found.trained_context, found.context_size) == ("llama", 256, 256)
    assert found.defaults.temperature == 0.25
    assert found.chat_template is not None
    assert read_model_folder(EngineConfig(model_path=str(model), ctx_size=64)).context_size == 64


@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        ("missing", ModelFileNotFound, "there is no folder.*ORG/REPO of the hub"),
        ("file.gguf", ModelUnsupported, "leave --runtime vllm out"),
        (".", ModelFileNotFound, "no config.json"),
    ],
)
def test_what_is_no_folder_of_a_model_is_told(tmp_path: Path, name: str, error: type[ModelError], words: str):
    (tmp_path / "file.gguf").touch()
    with pytest.raises(error, match=words):
        read_model_folder(EngineConfig(model_path=str(tmp_path / name)))


def test_a_folder_without_a_tokenizer_is_told(tmp_path: Path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelFileNotFound, match=r"tokenizer\.json"):
        read_model_folder(EngineConfig(model_path=str(tmp_path)))


def test_a_start_that_fails_has_its_last_words(fake: Fake):
    fake.plan(fails="ValueError: the model is too long")

    async def test() -> None:
        runtime = fake.runtime()
        with pytest.raises(EngineCrashed, match="the model is too long"):
            await runtime.start()
        await runtime.close()

    run(test())
    assert not psutil.pid_exists(fake.worker)


def test_the_server_serves_it_by_its_path(fake: Fake):
    options = {"runtime": "vllm", "vllm_path": str(fake.path), "ctx_size": 64}
    registry = create_registry(load_config(options), [str(fake.model)])
    (spec,) = [status.spec for status in registry.statuses()]
    assert spec.measure() is None
    with pytest.raises(ModelUnsupported, match="folders of safetensors"):
        create_registry(load_config(options), [__file__])
    with pytest.raises(ConfigError, match="data-parallel-size"):
        create_registry(load_config({**options, "replicas": "2"}), [str(fake.model)]).statuses()[0].spec.make(None)


PARENT = """
    import asyncio, sys
    from stoker.engine.config import EngineConfig
    from stoker.runtime.external.config import RuntimeConfig
    from stoker.runtime.external.runtime import ExternalRuntime
    from stoker.runtime.vllm.served import VLLMServed

    async def main():
        config = EngineConfig(model="tiny", model_path=sys.argv[2], ctx_size=128, parallel=1)
        runtime = ExternalRuntime(VLLMServed(config, RuntimeConfig(vllm_path=sys.argv[1])), config)
        await runtime.start()
        print(runtime.server_pid, flush=True)
        await asyncio.sleep(600)

    asyncio.run(main())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux gives orphans to another process")
@pytest.mark.slow
def test_it_and_its_worker_die_with_their_parent(fake: Fake):
    command = [sys.executable, "-c", textwrap.dedent(PARENT), str(fake.path), str(fake.model)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        keeper = psutil.Process(int(parent.stdout.readline()))
        family = [keeper, *keeper.children(recursive=True)]
        assert fake.worker in [process.pid for process in family]
        parent.send_signal(signal.SIGKILL)
        _, alive = psutil.wait_procs(family, 60)
        assert not alive


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux gives orphans to another process")
def test_a_keeper_ends_what_the_program_leaves_and_has_its_exit_code(tmp_path: Path):
    left = tmp_path / "left"
    script = (
        "import subprocess, sys; child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], "
        f"start_new_session=True); open({str(left)!r}, 'w').write(str(child.pid)); sys.exit(3)"
    )
    command = [sys.executable, launcher.__file__, "--whole", str(os.getpid()), sys.executable, "-c", script]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as keeper:
        assert keeper.wait(60) == 3
    assert not psutil.pid_exists(int(left.read_text()))

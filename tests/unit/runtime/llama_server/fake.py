"""Sets up the program of `fake_llama_server.py` for one test, and a runtime over it."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from stoker.core.params import SamplingParams
from stoker.engine.config import EngineConfig, SupervisionConfig
from stoker.engine.protocol import Accepted, Output, Prompt, Submit
from stoker.runtime.external.config import RuntimeConfig
from stoker.runtime.external.runtime import ExternalRuntime
from stoker.runtime.llama_server.served import LlamaServed

VARIABLE = "FAKE_LLAMA_SERVER"
QUICK = SupervisionConfig(heartbeat_every_s=0.05, backoff_min_s=0.01, backoff_max_s=0.05)
_PROGRAM = Path(__file__).with_name("fake_llama_server.py")


def event(content: str = "", *, tokens: list[int] | None = None, **fields: Any) -> str:
    """One event of an answer, as bytes in latin-1."""
    value = {"content": content, "tokens": tokens or [], "stop": False, **fields}
    return f"data: {json.dumps(value, ensure_ascii=False)}\n\n".encode().decode("latin-1")


def end(stop_type: str = "eos", **fields: Any) -> str:
    """The last event of an answer."""
    return event(stop=True, stop_type=stop_type, **fields)


ANSWER = [event("Hel", tokens=[1], tokens_predicted=1), event("lo", tokens=[2], tokens_predicted=2), end()]


@dataclass(frozen=True)
class Fake:
    """The program, and what it was asked."""

    path: Path
    folder: Path
    """Its plan, and what it was asked."""
    model: Path

    def plan(self, **plan: object) -> None:
        """What it does from now on."""
        new = self.folder / "plan.new"
        new.write_text(json.dumps({"start": "ok", "answer": ANSWER, **plan}))
        new.replace(self.folder / "plan.json")

    def asked(self, path: str = "") -> list[dict[str, Any]]:
        """Its command lines, or the requests to this path."""
        log = self.folder / "asked.jsonl"
        entries = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
        return [entry for entry in entries if (entry["path"] == path if "path" in entry else not path)]

    def pids(self) -> list[int]:
        """All processes that were started."""
        return [entry["pid"] for entry in self.asked()]

    def config(self, **settings: Any) -> EngineConfig:
        chosen: dict[str, Any] = {"parallel": 2, "ctx_size": 128, "threads": 1, **settings}
        return EngineConfig(model="tiny", model_path=str(self.model), **chosen)

    def runtime(
        self,
        *,
        supervision: SupervisionConfig = QUICK,
        arguments: str = "",
        start_s: float = 30.0,
        engine: dict[str, Any] | None = None,
        **more: Any,
    ) -> ExternalRuntime:
        """A runtime over it that has not been started; `engine` and `more` are settings of `EngineConfig`."""
        config = self.config(**(engine or {}), **more)
        chosen = RuntimeConfig(
            runtime="llama-server",
            llama_server_path=str(self.path),
            llama_server_args=arguments,
            llama_server_start_s=start_s,
        )
        return ExternalRuntime(LlamaServed(config, chosen), config, supervision=supervision)

    @asynccontextmanager
    async def started(self, **settings: Any) -> AsyncGenerator[ExternalRuntime, None]:
        """A runtime that answers; nothing of it is left afterwards."""
        runtime = self.runtime(**settings)
        try:
            await runtime.start()
            yield runtime
        finally:
            await runtime.close()
        assert not [pid for pid in self.pids() if psutil.pid_exists(pid)], "a process was left, or not waited for"


def write_program(path: Path) -> Path:
    """The program as a file of its own."""
    path.write_text(f"#!{sys.executable} -IS\n{_PROGRAM.read_text()}")
    path.chmod(0o755)
    return path


def ask(prompt: Prompt = "hi", request_id: str = "r", **fields: Any) -> Submit:
    sampling = {name: fields.pop(name) for name in list(fields) if name in SamplingParams.__dataclass_fields__}
    return Submit(request_id, prompt, SamplingParams(**sampling), **fields)


async def answer(runtime: ExternalRuntime, submit: Submit) -> list[Output]:
    """All outputs of one request."""
    items = [item async for item in runtime.generate(submit)]
    assert isinstance(items[0], Accepted)
    return [item for item in items[1:] if isinstance(item, Output)]


async def text(runtime: ExternalRuntime, submit: Submit) -> str:
    return "".join(output.text for output in await answer(runtime, submit))

"""Sets up the program of `fake_vllm.py` for one test, and a runtime over it."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Sequence
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
from stoker.runtime.vllm.served import VLLMServed
from tests.waiting import BOUND_S

QUICK = SupervisionConfig(heartbeat_every_s=0.05, backoff_min_s=0.01, backoff_max_s=0.05)


def event(token_ids: Sequence[int], *, finish: str | None = None, **choice: object) -> dict[str, object]:
    """What one step of vLLM adds to an answer."""
    fields = {"index": 0, "text": "?", "token_ids": list(token_ids), "finish_reason": finish, **choice}
    return {"object": "text_completion", "choices": [fields]}


def usage(prompt_tokens: int = 2, cached_tokens: int = 0) -> dict[str, object]:
    """The last event before the end."""
    details = {"cached_tokens": cached_tokens}
    return {"choices": [], "usage": {"prompt_tokens": prompt_tokens, "prompt_tokens_details": details}}


@dataclass(frozen=True)
class Fake:
    """The program, a model for it, and what it was asked."""

    path: Path
    folder: Path
    model: Path
    letters: dict[str, int]
    """The token of each character, and of each special token."""

    def tokens(self, text: str) -> list[int]:
        return [self.letters[letter] for letter in text]

    def plan(self, *events: object, **plan: object) -> None:
        """What it does from now on."""
        new = self.folder / "plan.new"
        new.write_text(json.dumps({"events": events, **plan}))
        new.replace(self.folder / "plan.json")

    def answers(self, text: str) -> None:
        """It answers with this text from now on, in one event, and the end of the model."""
        end = self.letters["<|im_end|>"]
        self.plan(event(self.tokens(text)), event([end], finish="stop", stop_reason=end), usage(), "[DONE]")

    def asked(self, path: str = "") -> list[dict[str, Any]]:
        """Its command lines, or the requests to this path."""
        log = self.folder / "asked.jsonl"
        entries = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
        return [entry for entry in entries if (entry["path"] == path if "path" in entry else not path)]

    def body(self) -> dict[str, Any]:
        """The last request."""
        return self.asked("/v1/completions")[-1]["body"]

    def runtime(self, arguments: str = "", **settings: Any) -> ExternalRuntime:
        """A runtime over it that has not been started."""
        chosen: dict[str, Any] = {"parallel": 2, "ctx_size": 128, **settings}
        engine = EngineConfig(model="tiny", model_path=str(self.model), **chosen)
        config = RuntimeConfig(runtime="vllm", vllm_path=str(self.path), vllm_args=arguments, vllm_start_s=BOUND_S)
        return ExternalRuntime(VLLMServed(engine, config), engine, supervision=QUICK)

    @asynccontextmanager
    async def started(self, arguments: str = "", **settings: Any) -> AsyncGenerator[ExternalRuntime, None]:
        """A runtime that answers; nothing of it is left afterwards, its worker included."""
        runtime = self.runtime(arguments, **settings)
        try:
            await runtime.start()
            yield runtime
        finally:
            await runtime.close()
        assert not psutil.pid_exists(self.worker), "a worker was left"

    @property
    def worker(self) -> int:
        """The process id of its worker."""
        return int((self.folder / "worker").read_text())


def ask(prompt: Prompt = "hi", **fields: Any) -> Submit:
    sampling = {name: fields.pop(name) for name in list(fields) if name in SamplingParams.__dataclass_fields__}
    return Submit(fields.pop("request_id", "r"), prompt, SamplingParams(**sampling), **fields)


async def answer(runtime: ExternalRuntime, submit: Submit) -> list[Output]:
    """All outputs of one request."""
    items = [item async for item in runtime.generate(submit)]
    assert isinstance(items[0], Accepted)
    return [item for item in items[1:] if isinstance(item, Output)]

"""What a step costs beside its forward pass: scheduling, sampling, text. Decodes only, all requests running.

`scripted` has a vocabulary of 260 tokens and no model, so it shows the loop by itself; `smollm2` has one of 49,152, so
sampling costs what it really costs. Times are medians over the steps of one run, in milliseconds: on a machine that
does something else beside, they are those of the something else.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

from stoker import SamplingParams
from stoker.backends.base import Backend, Logits
from stoker.backends.llama import LlamaBackend, LlamaOptions
from stoker.backends.scripted import ScriptedBackend, ScriptedTokenizer, scripted_info
from stoker.core.batch import Batch
from stoker.core.model_info import ModelInfo
from stoker.core.scheduler import SchedulerConfig
from stoker.engine.engine import Engine
from stoker.engine.protocol import Submit
from stoker.models.store import resolve
from stoker.text.tokenizer import Tokenizer

BATCH_SIZES = (1, 8, 16)
NUM_WARM_UP, NUM_STEPS = 8, 40
CONTEXT_SIZE = 256
PROMPT = "A step of the engine takes"
GREEDY = SamplingParams(temperature=0)
BUILT_IN_SAMPLING = SamplingParams(seed=1)


@dataclass
class TimedBackend:
    """Another backend, and how long its last forward pass took."""

    inner: Backend
    forward_s: float = 0.0

    @property
    def info(self) -> ModelInfo:
        return self.inner.info

    def forward(self, batch: Batch) -> Logits:
        began = time.perf_counter()
        logits = self.inner.forward(batch)
        self.forward_s = time.perf_counter() - began
        return logits

    def close(self) -> None:
        self.inner.close()


def main() -> None:
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    print(f"{'model':10}{'sampling':10}{'batch':>6}{'forward ms':>12}{'beside it ms':>14}{'of the step':>13}")
    for model, load in (("scripted", scripted), ("smollm2", smollm2)):
        for num_running in BATCH_SIZES:
            for name, sampling in (("greedy", GREEDY), ("built in", BUILT_IN_SAMPLING)):
                print_row(model, name, num_running, measure(*load(num_running), num_running, sampling))


def scripted(num_running: int) -> tuple[Backend, Tokenizer]:
    info = scripted_info(context_size=CONTEXT_SIZE, kv_tokens=CONTEXT_SIZE * num_running, num_slots=num_running)
    return ScriptedBackend(info), ScriptedTokenizer()


def smollm2(num_running: int) -> tuple[Backend, Tokenizer]:
    options = LlamaOptions(
        context_size=CONTEXT_SIZE, kv_tokens=CONTEXT_SIZE * num_running, num_slots=num_running, threads=None
    )
    backend = LlamaBackend(resolve("smollm2"), options)
    return backend, backend.tokenizer


def measure(backend: Backend, tokenizer: Tokenizer, num_running: int, sampling: SamplingParams) -> tuple[float, float]:
    """Median seconds of the forward pass, and of the rest of the step."""
    timed = TimedBackend(backend)
    engine = Engine(timed, tokenizer, config=SchedulerConfig(max_running=num_running))
    endless = SamplingParams(ignore_eos=True, max_tokens=CONTEXT_SIZE).filled_from(sampling)
    for index in range(num_running):
        engine.add(engine.admit(Submit(request_id=str(index), prompt=PROMPT, sampling=endless)))
    times = list(steps(engine, timed))[NUM_WARM_UP:]
    engine.close()
    return median(forward_s for forward_s, _ in times), median(rest_s for _, rest_s in times)


def steps(engine: Engine, timed: TimedBackend) -> Iterator[tuple[float, float]]:
    for _ in range(NUM_WARM_UP + NUM_STEPS):
        began = time.perf_counter()
        engine.step()
        step_s = time.perf_counter() - began
        yield timed.forward_s, step_s - timed.forward_s


def print_row(model: str, sampling: str, num_running: int, times: tuple[float, float]) -> None:
    forward_ms, rest_ms = (1000 * seconds for seconds in times)
    share = rest_ms / (forward_ms + rest_ms)
    print(f"{model:10}{sampling:10}{num_running:>6}{forward_ms:>12.3f}{rest_ms:>14.3f}{share:>12.0%} ", flush=True)


if __name__ == "__main__":
    main()

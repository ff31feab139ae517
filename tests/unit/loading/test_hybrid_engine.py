"""Models with recurrent layers, and with no others, in a whole engine: conversations go on from their states, and
drafts change nothing.
"""

from __future__ import annotations

import random
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stoker.assembly import build_engine
from stoker.core.params import SamplingParams
from stoker.engine.config import EngineConfig
from stoker.engine.engine import Engine
from stoker.engine.protocol import Output, Submit
from stoker.errors import ResourceExhausted
from stoker.loading.choosing import measure
from tests.tiny_models import TinyModel, write_tiny_model


@pytest.fixture(scope="module", params=["qwen35", "mamba2"])
def path(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    model = TinyModel(architecture=request.param, type="Q8_0", has_head=False)
    return write_tiny_model(tmp_path_factory.mktemp("tiny") / "m.gguf", model)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_CACHE_DIR", str(tmp_path / "cache"))


@contextmanager
def opened(path: Path, *, max_draft: int | None = None) -> Generator[Engine]:
    engine, _ = build_engine(
        EngineConfig(
            model_path=str(path),
            ctx_size=256,
            kv_tokens=512,
            threads=1,
            parallel=1,
            cache_ram=8,
            max_draft=max_draft,
        )
    )
    yield engine
    engine.check_integrity()
    engine.close()


def answer(engine: Engine, name: str, prompt: list[int]) -> tuple[list[int], int]:
    """Its token ids, and how many entries of the prompt were not computed."""
    sampling = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    engine.add(engine.admit(Submit(name, prompt, sampling)))
    outputs: list[Output] = []
    while engine.has_work:
        outputs += [event for event in engine.step() if isinstance(event, Output)]
    return [token_id for output in outputs for token_id in output.token_ids], outputs[-1].usage.cached_tokens


def test_the_plan_has_room_for_a_state_of_every_slot(path: Path) -> None:
    sizes: dict[str, Any] = {"ctx_size": 256, "kv_tokens": 512, "threads": 1, "cache_ram": 0, "max_draft": 0}
    two, five = (measure(EngineConfig(model_path=str(path), parallel=slots, **sizes)) for slots in (2, 5))
    assert two is not None
    assert five is not None
    more = five.state_bytes - two.state_bytes
    assert more > 0
    assert more % 3 == 0
    plan = five.within(2**40)
    assert plan.total_bytes - replace(plan, state_bytes=0).total_bytes == five.state_bytes
    with pytest.raises(ResourceExhausted):
        five.within(plan.total_bytes - 1)


def prompts(count: int) -> list[list[int]]:
    rng = random.Random(3)
    return [rng.choices(range(97, 105), k=70) for _ in range(count)]


def test_drafts_change_no_answer(path: Path) -> None:
    with opened(path) as drafting, opened(path, max_draft=0) as plain:
        for number, prompt in enumerate(prompts(12)):
            assert answer(drafting, f"{number}", prompt) == answer(plain, f"{number}", prompt)
        beat = drafting.stats()
        assert beat.drafted_tokens > beat.accepted_tokens > 0
        assert beat.state_held_bytes > 0


def test_a_conversation_goes_on_from_its_state_wherever_that_is(path: Path) -> None:
    """In its slot, and when others have taken that."""
    first, *others = prompts(6)
    with opened(path) as engine, opened(path) as fresh:
        found, _ = answer(engine, "first", first)
        longer = [*first, *found, *first[:20]]
        expected, num_cached = answer(fresh, "longer", longer)
        assert num_cached == 0
        again, num_cached = answer(engine, "longer", longer)
        assert again == expected
        assert num_cached == len(first) + len(found) - 1
        for number, other in enumerate(others):
            answer(engine, f"{number}", other)
        again, num_cached = answer(engine, "again", [*longer, *expected, 97])
        assert num_cached > len(longer) - 32, "a state that was kept of the prompt"
        assert again == answer(fresh, "much longer", [*longer, *expected, 97])[0]

"""A slot that is saved and restored: nothing of it is computed again, here or in another engine."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import NoReturn, TypeVar

import pytest

from stoker.backends.scripted import ScriptedBackend, reply_with, scripted_info
from stoker.cache.slot_files import SlotFiles
from stoker.cache.store import KVStore
from stoker.core.model_info import CacheTraits
from stoker.core.params import SamplingParams
from stoker.core.scheduler import SchedulerConfig
from stoker.engine.adapters import Adapters
from stoker.engine.config import AdapterSpec
from stoker.engine.engine import Engine
from stoker.engine.protocol import Output, Submit
from stoker.engine.question_messages import AdapterChoice, ListSlots, RestoreSlot, SaveSlot, SlotFiled, SlotList
from stoker.engine.slot_files import file_slot
from stoker.errors import InvalidInput, ResourceExhausted, StokerError, UnsupportedParameter
from stoker.loading.scripted import scripted_adapter
from tests.harness import ALL_TRAITS, loaded
from tests.unit.engine.test_engine import add, outputs
from tests.unit.engine.test_engine import run as run_engine

T = TypeVar("T")
EXPORTING = [replace(traits, can_export=True) for traits in ALL_TRAITS]


class AtOnce:
    """The thread that owns the slots is this one."""

    def perform(self, work: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()
        try:
            future.set_result(work())
        except StokerError as error:
            future.set_exception(error)
        return future


def make_engine(
    folder: Path, *, traits: CacheTraits = EXPORTING[0], kv_tokens: int = 400, has_port: bool = True
) -> Engine:
    info = scripted_info(context_size=100, kv_tokens=kv_tokens, num_slots=4, traits=traits)
    backend = ScriptedBackend(info, next_token=reply_with("abc"))
    config = SchedulerConfig(max_running=2)
    port, store = (backend, KVStore(10**6)) if has_port else (None, None)
    model = loaded(backend, kv_port=port, adapters=Adapters(backend, scripted_adapter))
    return Engine(model, config, kv_store=store, slot_files=SlotFiles(folder, lambda: b"m" * 32))


def left_slot(engine: Engine, prompt: str = "a prompt that was long") -> int:
    """The slot in which an answer was left."""
    add(engine, "first", prompt, max_tokens=3)
    run_engine(engine)
    states = engine.answer(ListSlots())
    assert isinstance(states, SlotList)
    return max(states.slots, key=lambda state: state.num_tokens).slot


def save(engine: Engine, slot: int, filename: str = "a") -> SlotFiled:
    return file_slot(SaveSlot(slot, filename), engine.slot_files, engine.slot_port, AtOnce())


def restore(engine: Engine, slot: int, filename: str = "a") -> SlotFiled:
    return file_slot(RestoreSlot(slot, filename), engine.slot_files, engine.slot_port, AtOnce())


@pytest.mark.parametrize("traits", EXPORTING)
@pytest.mark.parametrize("slot", [0, 3])
def test_restored_in_another_engine_only_what_is_new_is_computed(tmp_path: Path, traits: CacheTraits, slot: int):
    engine = make_engine(tmp_path, traits=traits)
    saved = save(engine, left_slot(engine))
    other = make_engine(tmp_path, traits=traits)
    left_slot(other, "what was there before, in the way")
    restored = restore(other, slot)
    assert (restored.num_tokens, restored.num_bytes) == (saved.num_tokens, saved.num_bytes)
    other.check_integrity()
    prompt = "a prompt that was longabc and goes on"
    add(other, "second", prompt, max_tokens=2)
    answer = outputs(run_engine(other)["second"])
    other.check_integrity()
    assert answer[-1].usage.cached_tokens == saved.num_tokens
    fresh = make_engine(tmp_path, traits=traits)
    add(fresh, "second", prompt, max_tokens=2)
    expected = outputs(run_engine(fresh)["second"])
    assert [output.token_ids for output in answer] == [output.token_ids for output in expected]


def test_saving_leaves_the_slot_as_it_is(tmp_path: Path):
    engine = make_engine(tmp_path)
    slot = left_slot(engine)
    num_tokens = save(engine, slot).num_tokens
    assert save(engine, slot, "b").num_tokens == num_tokens
    engine.check_integrity()


def test_what_cannot_be_saved_or_filled_is_refused(tmp_path: Path):
    engine = make_engine(tmp_path)
    slot = left_slot(engine)
    save(engine, slot)
    add(engine, "running", "other", max_tokens=50, ignore_eos=True)
    engine.step()
    states = engine.answer(ListSlots())
    assert isinstance(states, SlotList)
    running = next(state.slot for state in states.slots if state.request_id)
    empty = next(state.slot for state in states.slots if not state.num_tokens)
    for attempt in (save, restore):
        with pytest.raises(InvalidInput, match="running"):
            attempt(engine, running)
        with pytest.raises(InvalidInput, match="no slot 99"):
            attempt(engine, 99)
    with pytest.raises(InvalidInput, match="empty"):
        save(engine, empty)
    engine.check_integrity()


def test_private_kv_is_not_saved(tmp_path: Path):
    engine = make_engine(tmp_path)
    engine.add(engine.admit(Submit("private", "a secret", SamplingParams(max_tokens=8), cache_prompt=False)))
    engine.step()
    engine.pause("private")
    states = engine.answer(ListSlots())
    assert isinstance(states, SlotList)
    for state in states.slots:
        with pytest.raises(InvalidInput, match="may read it" if state.num_tokens else "empty"):
            save(engine, state.slot)


def adapted(folder: Path, engine: Engine, *names: str) -> Engine:
    """The same engine, with files of these names as adapters."""
    for name in names:
        path = folder / f"{name}.gguf"
        path.write_text(name)
        engine.adapters.load([AdapterSpec(name=name, path=str(path))])
    return engine


def answer(engine: Engine, prompt: str, *choices: AdapterChoice) -> list[Output]:
    sampling = SamplingParams(temperature=0, max_tokens=3)
    engine.add(engine.admit(Submit("r", prompt, sampling, adapters=list(choices))))
    return outputs(run_engine(engine)["r"])


@pytest.mark.parametrize("traits", EXPORTING)
def test_what_was_computed_with_adapters_is_restored_for_them_only(tmp_path: Path, traits: CacheTraits):
    poet, twin = AdapterChoice(name="poet"), AdapterChoice(name="verse")
    engine = adapted(tmp_path, make_engine(tmp_path / "slots", traits=traits), "poet")
    first = answer(engine, "a prompt that was long", poet)
    states = engine.answer(ListSlots())
    assert isinstance(states, SlotList)
    saved = save(engine, max(states.slots, key=lambda state: state.num_tokens).slot)
    second = make_engine(tmp_path / "slots", traits=traits)
    (tmp_path / "verse.gguf").write_text("poet")
    second.adapters.load([AdapterSpec(name="verse", path=str(tmp_path / "verse.gguf"))])
    assert restore(second, 3).num_tokens == saved.num_tokens
    second.check_integrity()
    prompt = "a prompt that was long" + "".join(output.text for output in first) + " and goes on"
    for choices in ((), (AdapterChoice(name="verse", scale=0.5),)):
        assert answer(second, prompt, *choices)[-1].usage.cached_tokens == 0
    got = answer(second, prompt, twin)
    assert got[-1].usage.cached_tokens == saved.num_tokens
    fresh = adapted(tmp_path, make_engine(tmp_path, traits=traits), "poet")
    expected = answer(fresh, prompt, poet)
    assert [output.token_ids for output in got] == [output.token_ids for output in expected]


def test_what_was_computed_with_adapters_is_refused_without_them(tmp_path: Path):
    engine = adapted(tmp_path, make_engine(tmp_path / "slots"), "poet")
    answer(engine, "a prompt that was long", AdapterChoice(name="poet"))
    save(engine, 0)
    other = adapted(tmp_path, make_engine(tmp_path / "slots"), "clerk")
    left_slot(other)
    before = other.answer(ListSlots())
    with pytest.raises(InvalidInput, match="adapters that are not loaded"):
        restore(other, 0)
    assert other.answer(ListSlots()) == before
    other.check_integrity()


def test_no_memory_for_a_copy_is_no_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    engine = make_engine(tmp_path)
    slot = left_slot(engine)

    def fail(*_: object) -> NoReturn:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(ScriptedBackend, "export_kv", fail)
        with pytest.raises(ResourceExhausted):
            save(engine, slot)
    assert save(engine, slot).num_tokens


def test_running_requests_keep_their_room(tmp_path: Path):
    engine = make_engine(tmp_path)
    save(engine, left_slot(engine))
    small = make_engine(tmp_path, kv_tokens=30)
    add(small, "running", "x" * 20, max_tokens=5, ignore_eos=True)
    small.step()
    with pytest.raises(ResourceExhausted):
        restore(small, 3)
    small.check_integrity()
    assert outputs(run_engine(small)["running"])[-1].finish_reason == "length"


def test_longer_than_a_sequence_may_be(tmp_path: Path):
    engine = make_engine(tmp_path)
    save(engine, left_slot(engine, "x" * 80))
    with pytest.raises(InvalidInput, match="more than the"):
        restore(make_engine(tmp_path, kv_tokens=40), 3)


def test_without_a_folder_or_a_backend_that_gives_kv(tmp_path: Path):
    engine = make_engine(tmp_path)
    with pytest.raises(UnsupportedParameter, match="--slot-save-path"):
        file_slot(SaveSlot(0, "a"), None, engine.slot_port, AtOnce())
    with pytest.raises(UnsupportedParameter, match="backend"):
        save(make_engine(tmp_path, has_port=False), 0)

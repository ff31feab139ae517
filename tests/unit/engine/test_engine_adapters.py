"""Adapters by name in one engine: chosen when a request comes, held while it runs, freed when nobody needs them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stoker.backends.scripted import ScriptedBackend, ScriptedEmbedder, scripted_info
from stoker.core.params import SamplingParams
from stoker.core.scheduler import SchedulerConfig
from stoker.engine.adapters import Adapters
from stoker.engine.cards import AdapterCard
from stoker.engine.config import AdapterSpec, EngineConfig, adapter_specs
from stoker.engine.engine import Engine
from stoker.engine.protocol import Output, Submit
from stoker.engine.question_messages import AdapterChoice, AdapterList, ChangeAdapters, Embed
from stoker.engine.stats import AdapterLoad
from stoker.errors import AdapterInvalid, AdapterNotFound, InvalidInput, UnsupportedParameter
from stoker.loading.scripted import scripted_adapter
from tests.harness import loaded


class Bench:
    """An engine over a scripted backend, and files that count as adapters."""

    def __init__(self, folder: Path, **scales: float) -> None:
        self.folder = folder
        self.backend = ScriptedBackend(scripted_info())
        self.adapters = Adapters(self.backend, scripted_adapter)
        self.adapters.load([self.spec(name, scale) for name, scale in scales.items()])
        self.engine = Engine(
            loaded(self.backend, embedder=ScriptedEmbedder(), adapters=self.adapters),
            SchedulerConfig(max_running=4, max_waiting=8),
        )
        self.tokens: dict[str, list[int]] = {}

    def spec(self, name: str, scale: float = 0.0, content: str | None = None) -> AdapterSpec:
        path = self.folder / f"{name}.gguf"
        path.write_text(content or name)
        return AdapterSpec(name=name, path=str(path), scale=scale)

    def change(self, **change: Any) -> list[AdapterCard]:
        answer = self.engine.answer(ChangeAdapters(**change))
        assert isinstance(answer, AdapterList)
        return answer.adapters

    def add(self, request_id: str, *choices: AdapterChoice, max_tokens: int = 8, says: bool = True) -> None:
        sampling = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
        submit = Submit(request_id, "Q:", sampling, adapters=list(choices) if says else None)
        self.tokens[request_id] = []
        self.engine.add(self.engine.admit(submit))

    def step(self) -> None:
        for event in self.engine.step():
            assert isinstance(event, Output)
            self.tokens[event.request_id] += event.token_ids
        self.engine.check_integrity()

    def run(self) -> None:
        while self.engine.has_work:
            self.step()

    def answer(self, *choices: AdapterChoice, says: bool = True) -> list[int]:
        self.add("r", *choices, says=says)
        self.run()
        return self.tokens["r"]


def named(name: str, scale: float = 1.0) -> AdapterChoice:
    return AdapterChoice(name=name, scale=scale)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path, poet=0.0, clerk=0.0)


def test_a_request_computes_with_what_it_names(bench: Bench) -> None:
    plain, poet, half = bench.answer(), bench.answer(named("poet")), bench.answer(named("poet", 0.5))
    both = bench.answer(named("poet"), named("clerk"))
    assert len({tuple(tokens) for tokens in (plain, poet, half, both)}) == 4
    assert bench.answer(AdapterChoice(adapter_id=0)) == poet
    assert bench.answer(named("clerk"), named("poet")) == both, "one set, however it is asked for"
    assert bench.answer(named("poet"), named("clerk", 0.0)) == poet
    assert bench.answer(says=False) == plain


def test_a_default_scale_holds_for_those_who_choose_nothing(bench: Bench) -> None:
    plain, poet = bench.answer(), bench.answer(named("poet", 0.5))
    assert [card.scale for card in bench.change(scales={0: 0.5})] == [0.5, 0.0]
    assert bench.answer(says=False) == poet
    assert bench.answer() == plain, "an empty choice is a choice"
    assert [card.scale for card in bench.change(scales={})] == [0.0, 0.0]
    assert bench.answer(says=False) == plain


@pytest.mark.parametrize("choice", [named("sql"), AdapterChoice(adapter_id=7), named("")])
def test_an_unknown_adapter_is_named_and_so_are_the_known(bench: Bench, choice: AdapterChoice) -> None:
    with pytest.raises(AdapterNotFound, match=r"`poet`, `clerk`") as failure:
        bench.add("r", named("poet"), choice)
    assert f"`{choice.name if choice.name is not None else 7}`" in failure.value.message
    assert not bench.engine.has_work


@pytest.mark.parametrize("scale", [float("nan"), float("inf"), 1e6])
def test_scales_are_checked(bench: Bench, scale: float) -> None:
    with pytest.raises(InvalidInput, match="scale"):
        bench.add("r", named("poet", scale))
    with pytest.raises(InvalidInput, match="scale"):
        bench.change(scales={0: scale})
    with pytest.raises(InvalidInput, match="twice"):
        bench.add("r", named("poet"), named("poet", 0.5))


def test_neighbours_of_other_adapters_change_nothing(bench: Bench) -> None:
    choices = [[], [named("poet")], [named("clerk")], [named("poet", 0.5), named("clerk")]]
    alone = [bench.answer(*each) for each in choices]
    for index, each in enumerate(choices * 2):
        bench.add(f"r{index}", *each)
    bench.run()
    assert [bench.tokens[f"r{index}"] for index in range(8)] == alone * 2


def test_a_removed_adapter_finishes_what_it_began(bench: Bench) -> None:
    expected = bench.answer(named("poet"))
    bench.add("r", named("poet"))
    bench.step()
    assert [card.name for card in bench.change(unload="poet")] == ["clerk"]
    with pytest.raises(AdapterNotFound):
        bench.add("late", named("poet"))
    assert len(bench.backend.adapters) == 2, "somebody computes with it"
    bench.run()
    assert bench.tokens["r"] == expected
    assert len(bench.backend.adapters) == 1, "nobody does any more"


@pytest.mark.parametrize("way", ["abort", "refused", "never queued"])
def test_it_is_freed_however_its_request_ends(bench: Bench, way: str) -> None:
    if way == "abort":
        bench.add("r", named("poet"))
        bench.change(unload="poet")
        bench.engine.abort("r")
    elif way == "refused":
        with pytest.raises(InvalidInput):
            bench.engine.admit(Submit("r", [], SamplingParams(), adapters=[named("poet")]))
        bench.change(unload="poet")
    else:
        stream = bench.engine.admit(Submit("r", "Q:", SamplingParams(), adapters=[named("poet")]))
        bench.change(unload="poet")
        assert len(bench.backend.adapters) == 2
        del stream
    bench.answer()
    assert len(bench.backend.adapters) == 1


def test_a_name_may_mean_another_file_afterwards(bench: Bench) -> None:
    old = bench.answer(named("poet"))
    bench.add("running", named("poet"))
    bench.step()
    bench.change(unload="poet")
    cards = bench.change(load=bench.spec("poet", content="another"))
    assert [(card.adapter_id, card.name) for card in cards] == [(1, "clerk"), (2, "poet")], "ids are not used again"
    new = bench.answer(named("poet"))
    bench.change(unload="poet")
    assert bench.change(load=bench.spec("sql"))[-1].adapter_id == 3
    assert new != old
    assert bench.tokens["running"] == old


def test_two_names_of_one_content_are_one_adapter(bench: Bench) -> None:
    poet, half = bench.answer(named("poet")), bench.answer(named("poet", 0.5))
    bench.change(load=bench.spec("bard", content="poet"))
    assert len(bench.backend.adapters) == 2
    assert bench.answer(named("bard")) == poet
    assert bench.answer(named("bard", 0.25), named("poet", 0.25)) == half
    bench.change(unload="poet")
    assert bench.answer(named("bard")) == poet
    bench.change(unload="bard")
    assert len(bench.backend.adapters) == 1


def test_what_cannot_be_loaded_changes_nothing(bench: Bench) -> None:
    before = bench.change()
    with pytest.raises(InvalidInput, match="loaded already"):
        bench.change(load=bench.spec("poet"))
    with pytest.raises(AdapterInvalid, match="gone"):
        bench.change(load=AdapterSpec(name="gone", path=str(bench.folder / "gone.gguf")))
    for name in ("", "a:b", " a"):
        with pytest.raises(InvalidInput, match="cannot be an adapter's name"):
            bench.change(load=bench.spec("sql", content="s").__class__(name=name, path=before[0].path))
    with pytest.raises(AdapterNotFound, match="sql"):
        bench.change(unload="sql")
    with pytest.raises(AdapterNotFound, match="9"):
        bench.change(scales={0: 1.0, 9: 1.0})
    assert bench.change() == before


def test_a_file_that_changes_under_the_load_is_refused(bench: Bench) -> None:
    spec = bench.spec("sql")
    change = ChangeAdapters(load=spec)
    bench.adapters.prepare(change)
    Path(spec.path).write_text("something else")
    with pytest.raises(AdapterInvalid, match="was changed"):
        bench.engine.answer(change)
    assert len(bench.backend.adapters) == 2


def test_what_is_not_required_may_be_missing(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    gone = AdapterSpec(name="gone", path=str(tmp_path / "gone.gguf"), adapter_id=4)
    with pytest.raises(AdapterInvalid):
        bench.adapters.load([gone])
    bench.adapters.load([AdapterSpec(name="gone", path=gone.path, is_required=False), bench.spec("poet")])
    assert [card.name for card in bench.change()] == ["poet"]


def test_embeddings_are_not_computed_under_adapters(bench: Bench) -> None:
    def embed(adapters: list[AdapterChoice] | None) -> None:
        bench.engine.admit_embedding(Embed(["text"], question_id="e", adapters=adapters))

    embed(None)
    embed([])
    with pytest.raises(UnsupportedParameter, match="without adapters"):
        embed([named("poet")])
    with pytest.raises(AdapterNotFound):
        embed([named("sql")])
    bench.change(scales={0: 1.0})
    embed(None)
    embed([])


def test_a_backend_without_adapters_says_so() -> None:
    backend = ScriptedBackend(scripted_info())
    engine = Engine(loaded(backend), SchedulerConfig())
    assert engine.answer(ChangeAdapters(question_id="q")) == AdapterList("q", [])
    with pytest.raises(UnsupportedParameter, match="cannot apply adapters"):
        engine.answer(ChangeAdapters(load=AdapterSpec(name="a", path="a")))
    with pytest.raises(AdapterNotFound, match="loaded: none"):
        engine.admit(Submit("r", "Q:", SamplingParams(), adapters=[named("a")]))


def test_how_busy_each_adapter_is(bench: Bench) -> None:
    for index in range(5):
        bench.add(f"r{index}", named("poet"), max_tokens=4)
    bench.step()
    assert bench.engine.stats().adapters == [AdapterLoad("poet", 4, 1, 4), AdapterLoad("clerk", 0, 0, 0)]
    bench.run()
    bench.change(unload="poet")
    assert bench.engine.stats().adapters == [AdapterLoad("clerk", 0, 0, 0), AdapterLoad("poet", 0, 0, 20)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("sql=/m/s.gguf", ("sql", "/m/s.gguf", 0.0)),
        ("sql=/m/s.gguf:0.5", ("sql", "/m/s.gguf", 0.5)),
        ("sql=~/s.gguf:0.5", ("sql", str(Path.home() / "s.gguf"), 0.5)),
        ("/m/s.gguf", ("s", "/m/s.gguf", 1.0)),
        ("/m/s.gguf:0.5", ("s", "/m/s.gguf", 0.5)),
        ("/m/a=b.gguf", ("a=b", "/m/a=b.gguf", 1.0)),
        ("x=a=b:c.gguf", ("x", "a=b:c.gguf", 0.0)),
        ("x=C:\\m\\s.gguf:-1", ("x", "C:\\m\\s.gguf", -1.0)),
    ],
)
def test_how_adapters_are_written(text: str, expected: tuple[str, str, float]) -> None:
    (spec,) = adapter_specs(EngineConfig(lora=[text]))
    assert (spec.name, spec.path, spec.scale) == expected


@pytest.mark.parametrize("lora", [["a="], ["a=x.gguf", "a=y.gguf"], ["m/a.gguf", "n/a.gguf"], ["a:b=x.gguf"], [""]])
def test_what_cannot_be_written(lora: list[str]) -> None:
    with pytest.raises(InvalidInput):
        EngineConfig(lora=lora)

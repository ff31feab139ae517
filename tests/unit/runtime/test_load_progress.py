"""How far a model is with loading: told from the child to whoever follows the models, and never less than before."""

from __future__ import annotations

from stoker.engine.orders import LoadProgress
from stoker.engine.protocol import Loading
from stoker.errors import EngineCrashed
from stoker.runtime.model_events import ModelEvent
from tests.unit.runtime.fake_models import FakeModel, live, running
from tests.waiting import until


def test_it_tells_now_and_then_and_at_the_end():
    told: list[Loading] = []
    now = 0.0
    progress = LoadProgress(told.append, lambda: now)
    progress.start(None, "of unknown size")
    progress.advance(5)
    assert told == []
    progress.start(1000, "weights")
    for step in range(1, 11):
        now = 0.03 * step
        progress.advance(100)
    progress.close()
    assert told == [Loading(0.1), Loading(0.5), Loading(0.9), Loading(1.0)]


@live
async def test_followers_hear_how_far_it_is_and_it_never_falls():
    heard: list[float] = []

    def listen(event: ModelEvent) -> None:
        if event.loaded_part is not None:
            heard.append(event.loaded_part)

    async with running(model := FakeModel("a")) as machine:
        machine.registry.events.listen(listen)
        model.errors.append(EngineCrashed("it died; another one is started"))
        model.gate.clear()
        asked = machine.ask("a")
        await _looked_at(model, 0.25)
        assert machine.registry.find("a").loaded_part == 0.25
        await _looked_at(model, 0.254)
        model.gate.set()
        await until(lambda: not model.errors)
        model.gate.clear()
        await until(lambda: len(model.made) == 2)
        await _looked_at(model, 0.1)  # the second attempt begins anew
        await _looked_at(model, 0.5)
        model.gate.set()
        (await asked).close()
        assert heard == [0.25, 0.5]
        assert machine.registry.find("a").loaded_part is None


async def _looked_at(model: FakeModel, part: float) -> None:
    model.loaded_part, looks = part, model.num_looks
    await until(lambda: model.num_looks > looks + 1)

"""Downloads that no client waits for, as llama-server's router has them. Events of the models show their progress."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from typing import Final

from stoker.errors import InvalidInput, StokerError
from stoker.models.catalog import HUB_PREFIX
from stoker.models.naming import HUB_NAME, own_name
from stoker.runtime.model_events import ModelEvent
from stoker.runtime.registry import Registry
from stoker.server.models.local_models import can_be_pulled, pullable
from stoker.server.models.pulls import Pulls, PullState, first_news

ALL_MODELS: Final = "*"


class Downloads:
    """The downloads of one server that no client waits for. Belongs to one event loop, and ends with it.

    Args:
        pulls: brings the files, a few models at a time.
        registry: looks again for models when one has come.
    """

    def __init__(self, pulls: Pulls, registry: Registry) -> None:
        self._pulls = pulls
        self._registry = registry
        self._states: dict[str, PullState] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    @property
    def states(self) -> Mapping[str, PullState]:
        """How far each download is, by the name with which it was asked for."""
        return self._states

    async def begin(self, model: str) -> None:
        """Returns when the first file is being transferred, or the model is here already.

        Args:
            model: a known name, or a repository of the hub, `org/repo` or `org/repo:Q4_K_M`.

        Raises:
            InvalidInput: the model is being downloaded already, or this server finds no new models.
            StokerError: it cannot be downloaded.
        """
        if not self._registry.finds_models:
            message = (
                "this server was started with a list of models; `stoker serve` without one finds downloaded models"
            )
            raise InvalidInput(message, parameter="model")
        if model in self._states:
            raise InvalidInput(f"model '{model}' is being downloaded already", parameter="model")
        states = self._pulls.follow(pullable(_hub_name(model)))
        self._states[model] = PullState()
        is_begun = False
        try:
            self._states[model] = await first_news(states) or PullState()
            is_begun = True
        finally:
            if not is_begun:
                del self._states[model]
                await states.aclose()
        self._tasks[model] = asyncio.create_task(self._follow(model, states), name="stoker-download")

    async def cancel(self, model: str) -> bool:
        """Gives a download up. A later download of the same model continues it. False: there is none."""
        task = self._tasks.get(model)
        if task is None:
            return False
        task.cancel()
        await asyncio.wait([task])
        return True

    async def _follow(self, model: str, states: AsyncGenerator[PullState, None]) -> None:
        end = ModelEvent(model=model, state="download_failed", message="the download was given up")
        try:
            async for state in states:
                self._states[model] = state
                self._registry.events.publish(
                    ModelEvent(
                        model=model,
                        state="downloading",
                        file=state.label,
                        total_bytes=state.total_bytes or 0,
                        completed_bytes=state.completed_bytes,
                    )
                )
            await self._registry.refresh()
            end = ModelEvent(model=model, state="downloaded")
        except StokerError as error:
            end = ModelEvent(model=model, state="download_failed", message=error.message)
        finally:
            del self._states[model], self._tasks[model]
            await states.aclose()
            self._registry.events.publish(end)
        self._registry.events.publish(ModelEvent(model=ALL_MODELS, state="listed"))


def _hub_name(model: str) -> str:
    name = own_name(model)
    return HUB_PREFIX + name if not can_be_pulled(name) and HUB_NAME.fullmatch(name) else name

"""Downloads in the background, as in llama-server's router. Model events report their progress."""

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
    """The background downloads of one server. Belongs to one event loop, and ends with it.

    Args:
        pulls: downloads the files, a few models at a time.
        registry: searches for models again after each download.
    """

    def __init__(self, pulls: Pulls, registry: Registry) -> None:
        self._pulls = pulls
        self._registry = registry
        self._states: dict[str, PullState] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    @property
    def states(self) -> Mapping[str, PullState]:
        """Progress of each download, by the name under which the model was requested."""
        return self._states

    async def begin(self, model: str) -> None:
        """Begins a download, and returns when the first file is being transferred or the model is on disk already.

        Args:
            model: a known name, or a repository of the hub, `org/repo` or `org/repo:Q4_K_M`.

        Raises:
            InvalidInput: the model is being downloaded already, or the server has a fixed list of models.
            StokerError: the model cannot be downloaded.
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
        """Cancels a download, which a later download of the same model resumes. Returns whether there was one."""
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

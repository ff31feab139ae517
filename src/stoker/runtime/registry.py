"""The registry of models: it resolves the name in a request to a model and has that model loaded. Knows no wire format.

The module `residency` decides which models are in memory and which one is unloaded to make room.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from stoker.engine.cards import AdapterCard
from stoker.engine.question_messages import ChangeAdapters
from stoker.errors import InvalidInput, ModelNotFound, ModelNotLoaded, Overloaded, error_from_code
from stoker.models.hub_choice import meant_download
from stoker.models.memory import available_memory
from stoker.runtime.config import RegistryConfig
from stoker.runtime.entry import ModelEntry, ModelStatus
from stoker.runtime.instance import Instance, Lease
from stoker.runtime.model_events import ModelEvent, ModelEvents
from stoker.runtime.model_spec import ModelSpec
from stoker.runtime.residency import Residency
from stoker.runtime.served import ServedModel, without_adapter

__all__ = ["Lease", "ModelSpec", "ModelStatus", "Registry", "ServedModel"]

logger = logging.getLogger(__name__)

_FAILURE_REST_S = 5.0
"""Seconds after a failed load in which requests get that error at once: a new attempt may unload other models."""
_QUEUE_RETRY_S = 10.0
_DISCOVER_EVERY_S = 1.0
_MAX_NAMED = 20
"""Maximum number of model ids that the error about an unknown name lists."""
_NO_MODEL = "No model is here yet: `stoker pull MODEL` downloads one, which is then served"


class Registry:
    """All models that a server serves, loaded or not. Belongs to one event loop.

    A registry of one model accepts any name for it, as llama-server does, unless `strict` is set.

    Args:
        specs: models that are known from the beginning; ids and aliases all differ.
        config: limits and times.
        strict: refuse names other than the model's own even if only one model is served.
        discover: lists further models, which may appear and disappear; runs on a thread. None = there are no others.
        available: returns the free memory of this machine, in bytes.
        clock: seconds; only differences count.
    """

    def __init__(
        self,
        specs: Iterable[ModelSpec] = (),
        config: RegistryConfig | None = None,
        *,
        strict: bool = False,
        discover: Callable[[], Sequence[ModelSpec]] | None = None,
        available: Callable[[], int] = available_memory,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config or RegistryConfig()
        self._strict = strict
        self._discover = discover
        self._discovered: dict[str, ModelSpec] = {}
        """Specifications from the last discovery, by id. An entry that has since become another model keeps its own."""
        self._discovered_at = -_DISCOVER_EVERY_S
        self._clock = clock
        self._entries: dict[str, ModelEntry] = {}
        self._adopted: list[ServedModel] = []
        self._residency = Residency(lambda: list(self._entries.values()), self._config, available, clock)
        self._changes: set[asyncio.Future[list[AdapterCard]]] = set()
        self._is_open = self._is_closed = False
        for spec in specs:
            self._add(spec)

    def adopt(self, served: ServedModel) -> None:
        """Adds a runtime that the caller has made. It is started with the registry, and stays loaded until `close`."""
        spec = ModelSpec(names=served.names, make=lambda _plan: served.runtime, is_pinned=True)
        entry = self._add(spec)
        entry.metrics = served.metrics
        entry.instance = Instance(served, None, self._clock, self._residency.wake)
        self._adopted.append(served)

    @property
    def models(self) -> tuple[ServedModel, ...]:
        """The loaded models."""
        instances = [entry.instance for entry in list(self._entries.values())]
        return tuple(instance.served for instance in instances if instance is not None)

    @property
    def takes_any_name(self) -> bool:
        """Whether any name in a request means the only model."""
        return not self._strict and len(self._entries) == 1 and self._discover is None

    @property
    def finds_models(self) -> bool:
        """Whether the registry discovers models that are added after the start."""
        return self._discover is not None

    @property
    def is_starting(self) -> bool:
        """Whether the server is still loading the models that it loads at its start."""
        return not (self._is_open or self._is_closed) and any(e.instance is None for e in self._entries.values())

    @property
    def events(self) -> ModelEvents:
        """Events about models that are loaded, unloaded, downloaded or removed, see `ModelEvent`."""
        return self._residency.events

    def statuses(self) -> list[ModelStatus]:
        """The status of every model, loaded or not. Safe to call from any thread."""
        return [entry.status() for entry in list(self._entries.values())]

    def find(self, name: str) -> ModelStatus:
        """The model of exactly this name or alias, loaded or not.

        Raises:
            ModelNotFound: no model has that name.
        """
        return self._find(name).status()

    def resolve(self, model: str | None) -> ModelStatus:
        """The model that answers a request naming `model`; `None` and the empty string name no model.

        Raises:
            ModelNotFound: no model has that name.
            InvalidInput: the request names no model, and there is no default.
        """
        return self._resolve(model).status()

    def lease_loaded(self, model: str | None, *, keep_alive_s: float | None = None) -> Lease | None:
        """A lease as from `lease` if the model takes requests now; None if it does not, or if the name is unknown.

        Raises:
            InvalidInput: the request names no model, and there is no default.
        """
        try:
            entry = self._resolve(model)
        except ModelNotFound:
            return None
        return entry.grant(keep_alive_s) if entry.takes_requests else None

    async def lease(self, model: str | None, *, keep_alive_s: float | None = None) -> Lease:
        """A lease on the model that answers a request naming `model`; the model stays loaded until the lease is closed.

        Waits until the model is loaded. Loading may first unload other models.

        Args:
            model: a name; None or empty names no model.
            keep_alive_s: from now on, seconds that the model stays loaded without a request; None = unchanged.

        Raises:
            ModelNotFound: no model has that name.
            ModelNotLoaded: the server starts or stops, or is configured to load no model on request.
            Overloaded: too many requests wait for models already, or loading took too long.
            ResourceExhausted: there is not enough memory for the model, even if others are unloaded.
            StokerError: the model cannot be loaded.
        """
        return await self._lease(await self._look_up(model), keep_alive_s)

    async def change_adapters(self, model: str | None, change: ChangeAdapters) -> list[AdapterCard]:
        """Changes the LoRA adapters of a model. The change outlasts unloading and reloading the model.

        Cancelling the caller does not stop a change that has begun.

        Args:
            model: a name; None or empty names no model.
            change: what is loaded, unloaded or scaled; requests that use an unloaded adapter end first.

        Returns:
            All adapters that the model has after the change.

        Raises:
            ModelNotLoaded: the model is being reloaded.
            StokerError: see `lease` and `Runtime.ask`.
        """
        entry = await self._look_up(model)
        lease = await self._lease(entry)
        changing = asyncio.ensure_future(self._change_adapters(entry, lease, change))
        self._changes.add(changing)
        changing.add_done_callback(self._changes.discard)
        return await asyncio.shield(changing)

    async def _change_adapters(self, entry: ModelEntry, lease: Lease, change: ChangeAdapters) -> list[AdapterCard]:
        try:
            async with entry.changing_adapters:
                instance = entry.instance
                if entry.job is not None or instance is None or instance.served is not lease.served:
                    message = f"the model `{entry.model_id}` is being loaded or unloaded: try again when that is done"
                    raise ModelNotLoaded(message, retry_after_s=_QUEUE_RETRY_S)
                cards = (await instance.served.runtime.ask(change)).adapters
                entry.adapters = tuple(cards)
        finally:
            lease.close()
        return cards

    async def _lease(self, entry: ModelEntry, keep_alive_s: float | None = None) -> Lease:
        if entry.takes_requests:
            return entry.grant(keep_alive_s)
        self._check_can_wait(entry)
        self._residency.wake()
        try:
            return await entry.wait(self._config.load_wait_s, keep_alive_s)
        finally:
            self._residency.wake()

    async def load(
        self, model: str, *, source: str | None = None, is_reload: bool = False, waits: bool = False
    ) -> None:
        """Loads a model, or replaces a loaded one without downtime if memory allows.

        Args:
            model: the model's name.
            source: the name of another model that `model` becomes a copy of, unless that copy cannot be loaded.
            is_reload: load a model from its file again if it is loaded already.
            waits: return when the model is loaded; else as soon as loading has begun.

        Raises:
            ModelNotFound: no model has the name `model` or `source`.
            ModelNotLoaded: the server starts or stops, or the model is being loaded or unloaded already.
            StokerError: the model cannot be loaded; only with `waits`.
        """
        entry = await self._look_up(model, exact=True)
        self._check_is_open(entry)
        spec = entry.spec
        if source:
            other = (await self._look_up(source, exact=True)).spec
            spec = _copy(other, spec)
        if entry.instance is not None and (is_reload or source):
            self._check_is_ours(entry)
            job = self._residency.reload(entry, spec)
            if waits:
                await asyncio.wait([job])
                if entry.reload_error is not None:
                    raise entry.reload_error
            return
        if source:
            entry.become(spec)
        await self._load(entry, waits=waits)

    async def unload(self, model: str, *, waits: bool = False) -> None:
        """Unloads a model once its requests have ended. The next request for the model loads it again.

        Args:
            model: the model's name.
            waits: return when the model is unloaded; else as soon as unloading has begun.

        Raises:
            ModelNotFound: no model has that name.
            ModelNotLoaded: the model is being reloaded.
        """
        entry = await self._look_up(model, exact=True)
        self._check_is_ours(entry)
        self._residency.unload(entry, "asked")
        if waits and entry.job is not None:
            await asyncio.wait([entry.job])

    async def refresh(self) -> None:
        """Discovers models again: adds new ones, and removes those that are gone and not loaded."""
        if self._discover is None:
            return
        self._discovered_at = self._clock()
        specs = await asyncio.to_thread(self._discover)
        found = {spec.model_id: spec for spec in reversed(specs)}  # of two with the same id, the first one wins
        idle = {model_id: self._entries[model_id] for model_id in self._discovered}
        idle = {n: entry for n, entry in idle.items() if entry.spec is self._discovered[n] and entry.job is None}
        for model_id in idle.keys() - found.keys():
            if idle[model_id].instance is None:
                idle[model_id].end_waiting(ModelNotLoaded(f"the file of the model `{model_id}` was removed"))
                del self._entries[model_id]
                del self._discovered[model_id]
                self.events.publish(ModelEvent(model=model_id, state="removed"))
        for model_id, spec in sorted(found.items()):
            if model_id in idle:
                idle[model_id].spec = self._discovered[model_id] = spec
            elif (new := self._without_taken_names(spec)) is not None:
                self._add(new)
                self._discovered[model_id] = new

    async def start(self) -> None:
        """Loads the models that are configured to load at the start, as far as they fit; the first one must fit.

        Raises:
            StokerError: a model cannot be loaded.
        """
        for served in self._adopted:
            await served.runtime.start()
        self._residency.open()
        await self.refresh()
        is_first = True
        for entry in [entry for entry in self._entries.values() if entry.spec.loads_at_start]:
            if not await self._residency.load_first(entry, must_fit=is_first):
                logger.warning("%s does not fit beside the others: it is loaded when it is asked for", entry.model_id)
            is_first = False
        self._is_open = True

    async def close(self) -> None:
        """Closes every runtime; running requests end with an error."""
        self._is_open, self._is_closed = False, True
        await self._residency.close()
        await asyncio.gather(*self._changes, return_exceptions=True)

    def _add(self, spec: ModelSpec) -> ModelEntry:
        assert not self._taken_names() & set(spec.names), "every name means one model"
        entry = self._entries[spec.model_id] = ModelEntry(spec, self._clock)
        return entry

    def _taken_names(self) -> set[str]:
        return {name for entry in self._entries.values() for name in entry.spec.names}

    def _without_taken_names(self, spec: ModelSpec) -> ModelSpec | None:
        """The specification without names that earlier models have; None if its id is such a name."""
        taken = self._taken_names()
        names = tuple(name for name in spec.names if name not in taken)
        return replace(spec, names=names) if spec.model_id in names else None

    def _find(self, name: str) -> ModelEntry:
        found = self._named(name) or self._named(meant_download(name, self._entries))
        if found is not None:
            return found
        message = f"The model `{name}` is not served here. {self._known()}"
        raise ModelNotFound(message, model=name, parameter="model")

    def _known(self) -> str:
        ids = list(self._entries)
        if not ids:
            return _NO_MODEL
        more = f" and {len(ids) - _MAX_NAMED} more" if len(ids) > _MAX_NAMED else ""
        return f"Served: {', '.join(ids[:_MAX_NAMED])}{more}"

    def _named(self, name: str | None) -> ModelEntry | None:
        return next((entry for entry in self._entries.values() if name in entry.spec.names), None)

    def _resolve(self, model: str | None) -> ModelEntry:
        entries = list(self._entries.values())
        if model and not self.takes_any_name:
            return self._find(without_adapter(model, self._taken_names()))
        first = next((entry for entry in entries if entry.spec.loads_at_start or len(entries) == 1), None)
        if not entries:
            raise ModelNotFound(_NO_MODEL, model=model, parameter="model")
        if first is None:
            message = f"several models are served here: name one of them in `model`. {self._known()}"
            raise InvalidInput(message, parameter="model")
        return first

    async def _look_up(self, model: str | None, *, exact: bool = False) -> ModelEntry:
        """As `_find` or `_resolve`, but if there is no such model, or none at all, new models are discovered first."""
        find = self._find if exact else self._resolve
        try:
            return find(model or "")
        except ModelNotFound:
            if self._discover is None or self._clock() < self._discovered_at + _DISCOVER_EVERY_S:
                raise
        await self.refresh()
        return find(model or "")

    async def _load(self, entry: ModelEntry, *, waits: bool) -> None:
        if not waits:
            if entry.instance is None:
                entry.order()
                self._residency.wake()
        elif entry.takes_requests:
            return
        else:
            self._residency.wake()
            (await entry.wait(self._config.load_wait_s)).close()

    def _check_can_wait(self, entry: ModelEntry) -> None:
        self._check_is_open(entry)
        if entry.instance is None and not self._config.autoload and entry.job is None:
            raise ModelNotLoaded(f"the model `{entry.model_id}` is not loaded: load it with POST /models/load first")
        if entry.error is not None and self._clock() < entry.failed_at + _FAILURE_REST_S:
            raise error_from_code(entry.error.code, entry.error.message, entry.error.fields)
        if sum(other.num_waiting for other in self._entries.values()) >= self._config.max_load_queue:
            message = f"{self._config.max_load_queue} requests wait for models to be loaded already"
            raise Overloaded(message, retry_after_s=_QUEUE_RETRY_S)

    def _check_is_open(self, entry: ModelEntry) -> None:
        if self._is_closed:
            raise ModelNotLoaded("the server is stopping")
        if not self._is_open:
            raise ModelNotLoaded(f"the model `{entry.model_id}` is still loading")

    def _check_is_ours(self, entry: ModelEntry) -> None:
        if any(entry.instance is not None and entry.instance.served is served for served in self._adopted):
            raise InvalidInput(f"the model `{entry.model_id}` stays loaded as long as this server runs")


def _copy(source: ModelSpec, named: ModelSpec) -> ModelSpec:
    """The model `source` with the names, pinning, keep-alive time and start behavior of `named`."""
    return replace(
        source,
        names=named.names,
        is_pinned=named.is_pinned,
        keep_alive_s=named.keep_alive_s,
        loads_at_start=named.loads_at_start,
    )

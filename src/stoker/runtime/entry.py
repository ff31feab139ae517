"""The state of one model in a registry, with the requests that wait for it. `residency` loads and unloads the model."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from math import inf

from stoker.engine.cards import AdapterCard, ModelCard
from stoker.engine.closing import closing_on_error
from stoker.errors import ModelNotLoaded, Overloaded, StokerError, error_from_code
from stoker.models.memory_plan import MemoryNeeds, MemoryPlan
from stoker.runtime.eviction import Waiting
from stoker.runtime.instance import Instance, Lease
from stoker.runtime.model_spec import ModelSpec
from stoker.runtime.request_metrics import RequestMetrics
from stoker.runtime.served import ServedModel

_BUSY_RETRY_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelStatus:
    """A snapshot of a model's state, loaded or not."""

    spec: ModelSpec
    state: str
    """`unloaded`, `loading` or `loaded`."""
    metrics: RequestMetrics
    served: ServedModel | None
    """The loaded model; None = it is not loaded."""
    plan: MemoryPlan | None
    """Memory plan of the loaded model; None = it is not loaded, or its memory is not counted."""
    expires_in_s: float
    """Seconds until the model is unloaded if no request arrives; `inf` = never."""
    error: StokerError | None
    """Why the last attempt to load or to reload the model failed."""
    loaded_part: float | None
    """Fraction of the weights that is loaded, while the model loads; None = unknown. Range 0 … 1."""
    num_waiting: int
    """Requests that wait for the model to be loaded."""
    num_loads: int
    adapters: tuple[AdapterCard, ...] | None
    """Adapters that were chosen while the server ran; None = the configured ones."""
    unloads: Counter[str]
    """Times that the model was unloaded, by reason: `asked`, `expired`, `evicted`, `replaced`."""
    last_card: ModelCard | None
    """Card of the model when it was last unloaded; None = it never was."""

    @property
    def model_id(self) -> str:
        return self.spec.model_id


@dataclass(frozen=True, slots=True)
class _Waiter:
    future: asyncio.Future[Lease]
    keep_alive_s: float | None


class ModelEntry:
    """One model that can be asked for, from its registration until it is removed. Belongs to one event loop.

    Args:
        spec: how the model is loaded, and its names.
        clock: seconds; only differences count.
    """

    def __init__(self, spec: ModelSpec, clock: Callable[[], float]) -> None:
        self.spec = spec
        self._former: tuple[ModelSpec, tuple[AdapterCard, ...] | None] | None = None
        """Specification and adapters before `become`, to return to if the new ones cannot be loaded."""
        self.metrics = RequestMetrics()
        self.instance: Instance | None = None
        """The loaded instance; it takes new requests unless `is_draining` or `yields` is set."""
        self.job: asyncio.Task[None] | None = None
        """The running job: measuring, loading, reloading or unloading the model."""
        self.is_loading = False
        """The model has no `instance`, and a runtime is being started or about to be."""
        self.is_draining = False
        """No new requests: the instance is closed when its last request has ended."""
        self.yields = False
        """No new requests: another model has waited for this model's memory long enough."""
        self.needs: MemoryNeeds | None = None
        self.is_measured = False
        """`needs` is up to date with the model's file."""
        self.loaded_part: float | None = None
        """Fraction of the weights that is loaded, while the model loads. Range 0 … 1."""
        self.reserved_bytes = 0
        """Memory that is promised to the running load, in bytes."""
        self.reserved_device_bytes = 0
        """Memory of GPUs with memory of their own that is promised to the running load, in bytes."""
        self.keep_alive_s = spec.keep_alive_s
        self.error: StokerError | None = None
        self.failed_at = -inf
        self.reload_error: StokerError | None = None
        """Why the last reload, or the last load after `become`, failed; the former specification is in force."""
        self.num_loads = 0
        self.adapters: tuple[AdapterCard, ...] | None = None
        """Adapters that were chosen while the server ran, kept over reloads; None = the configured ones."""
        self.changing_adapters = asyncio.Lock()
        """Held while adapters change, and while a new runtime takes them over."""
        self.unloads: Counter[str] = Counter()
        self.last_card: ModelCard | None = None
        """Card of the last instance that was taken out; None = none was since the model has its specification."""
        self._clock = clock
        self._waiters: deque[_Waiter] = deque()
        self._is_ordered = False
        self.wanted_at = 0.0
        self._seen: dict[Instance, Waiting] = {}
        """For each instance whose memory this model waits for: since when, and how many leases it had granted then."""

    @property
    def model_id(self) -> str:
        return self.spec.model_id

    @property
    def takes_requests(self) -> bool:
        return self.instance is not None and not (self.is_draining or self.yields)

    @property
    def is_wanted(self) -> bool:
        """Whether the model is not loaded and should be."""
        return self.instance is None and (self._is_ordered or bool(self._waiters))

    @property
    def num_waiting(self) -> int:
        return len(self._waiters)

    @property
    def expires_at(self) -> float:
        """The time on `clock` when the model is unloaded if no request arrives; `inf` = never."""
        if self.instance is None or self.spec.is_pinned:
            return inf
        used_at = self.instance.used_at if self.instance.is_idle else self._clock()
        return used_at + self.keep_alive_s

    def status(self) -> ModelStatus:
        is_coming = self.is_loading or self.is_wanted
        return ModelStatus(
            spec=self.spec,
            state="loaded" if self.instance is not None else "loading" if is_coming else "unloaded",
            metrics=self.metrics,
            served=self.instance.served if self.instance is not None else None,
            plan=self.instance.plan if self.instance is not None else None,
            expires_in_s=max(0.0, self.expires_at - self._clock()),
            error=self.error or self.reload_error,
            loaded_part=self.loaded_part,
            num_waiting=self.num_waiting,
            num_loads=self.num_loads,
            adapters=self.adapters,
            unloads=self.unloads,
            last_card=self.last_card,
        )

    def grant(self, keep_alive_s: float | None = None) -> Lease:
        """Leases the model, which must take requests.

        Args:
            keep_alive_s: from now on, seconds that the model stays loaded without a request; None = unchanged.
        """
        assert self.instance is not None, "nothing is loaded"
        if keep_alive_s is not None:
            self.keep_alive_s = keep_alive_s
        return self.instance.lease()

    def take_out(self) -> None:
        """Forgets the instance, which must be there, but not its card."""
        assert self.instance is not None, "nothing is loaded"
        with suppress(ModelNotLoaded):  # an adopted runtime may be stopped before it is ready
            self.last_card = self.instance.served.runtime.card
        self.instance = None

    def order(self) -> None:
        """Marks the model as to be loaded, whether a request waits for it or not."""
        self._note_wanted()
        self._is_ordered = True

    def become(self, spec: ModelSpec) -> None:
        """Replaces the specification of a model that is not loaded. If loading fails, the former one is restored.

        Raises:
            ModelNotLoaded: the model is being loaded or measured.
        """
        if self.job is not None:
            raise ModelNotLoaded(
                f"the model `{self.model_id}` is being loaded or unloaded already", retry_after_s=_BUSY_RETRY_S
            )
        self._former = self._former or (self.spec, self.adapters)
        if spec.path != self.spec.path:
            self.adapters = self.last_card = None
        self.spec, self.is_measured = spec, False

    async def wait(self, limit_s: float, keep_alive_s: float | None = None) -> Lease:
        """Waits until the model is loaded and takes requests. The caller wakes `Residency`, which starts the load.

        Raises:
            Overloaded: the model was not loaded within `limit_s` seconds.
            StokerError: the model cannot be loaded.
        """
        self._note_wanted()
        waiter = _Waiter(asyncio.get_running_loop().create_future(), keep_alive_s)
        self._waiters.append(waiter)
        with closing_on_error(lambda: _give_back(waiter.future)):
            try:
                async with asyncio.timeout(limit_s):
                    return await waiter.future
            except TimeoutError:
                message = f"the model `{self.model_id}` was not loaded within {limit_s:g} s: the others are in use"
                raise Overloaded(message, retry_after_s=_BUSY_RETRY_S) from None
            finally:
                self._waiters = deque(other for other in self._waiters if other is not waiter)

    def admit(self) -> None:
        """Grants a lease to every waiting request; the model must take requests."""
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.future.done():
                waiter.future.set_result(self.grant(waiter.keep_alive_s))

    def settle(self, instance: Instance) -> None:
        """Notes that the model is loaded, and admits the waiting requests."""
        self.instance, self.error, self.failed_at = instance, None, -inf
        self._former = None
        self.keep_alive_s = self.spec.keep_alive_s
        self.num_loads += 1
        self._forget_wish()
        self.admit()

    def fail(self, error: StokerError) -> None:
        """Notes that the model cannot be loaded, and ends the waiting requests with the error."""
        if self._former is None:
            self.error, self.failed_at = error, self._clock()
        else:
            (self.spec, self.adapters), self._former = self._former, None
            self.reload_error = error
        self.end_waiting(error)

    def end_waiting(self, error: StokerError) -> None:
        """Ends all waiting requests with this error."""
        self._forget_wish()
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.future.done():
                # Each task raises its own copy of the error: a traceback belongs to one task.
                waiter.future.set_exception(error_from_code(error.code, error.message, error.fields))

    def waiting_for(self, instance: Instance) -> Waiting:
        """Since when this model has waited for the memory of `instance`, and the leases granted there meanwhile."""
        first = self._seen.get(instance)
        if first is None:
            first = Waiting(max(self.wanted_at, instance.loaded_at), instance.num_granted)
            self._seen[instance] = first
        return Waiting(first.since, instance.num_granted - first.num_requests)

    def _note_wanted(self) -> None:
        if not (self._is_ordered or self._waiters):
            self.wanted_at = self._clock()
            self.is_measured = False
            self._seen.clear()

    def _forget_wish(self) -> None:
        self._is_ordered = False
        self._seen.clear()


def _give_back(future: asyncio.Future[Lease]) -> None:
    """Closes a lease that was granted in the moment in which the waiting task was cancelled."""
    if future.done() and not future.cancelled() and future.exception() is None:
        future.result().close()

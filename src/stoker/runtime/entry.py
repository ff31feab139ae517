"""One model of a registry: what is loaded of it, and who waits for it. It loads and unloads nothing itself."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from stoker.engine.cards import AdapterCard
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
    """What is known of a model now, loaded or not."""

    spec: ModelSpec
    state: str
    """`unloaded`, `loading` or `loaded`."""
    metrics: RequestMetrics
    served: ServedModel | None
    """None = it is not loaded."""
    plan: MemoryPlan | None
    """What it takes, if it is loaded and counts."""
    expires_in_s: float
    """Until it is unloaded unless a request comes; `inf` = never."""
    error: StokerError | None
    """Why the last attempt to load or to reload it failed."""
    loaded_part: float | None
    """How far the weights are on their way into memory, if that is known. Range 0 … 1."""
    num_waiting: int
    """Requests that wait for it to be loaded."""
    num_loads: int
    adapters: tuple[AdapterCard, ...] | None
    """That were chosen while the server ran; None = those that it is configured with."""
    unloads: Counter[str]
    """By reason: `asked`, `expired`, `evicted`."""

    @property
    def model_id(self) -> str:
        return self.spec.model_id


@dataclass(frozen=True, slots=True)
class _Waiter:
    future: asyncio.Future[Lease]
    keep_alive_s: float | None


class ModelEntry:
    """Belongs to one event loop.

    Args:
        spec: what it is.
        clock: seconds; only differences count.
    """

    def __init__(self, spec: ModelSpec, clock: Callable[[], float]) -> None:
        self.spec = spec
        self._former: tuple[ModelSpec, tuple[AdapterCard, ...] | None] | None = None
        """What it was, with its adapters, until it is loaded as what it has become."""
        self.metrics = RequestMetrics()
        self.instance: Instance | None = None
        """Takes new requests, unless it is closed to them."""
        self.job: asyncio.Task[None] | None = None
        """What is being done to it."""
        self.is_loading = False
        """There is, or will be, a runtime that is no instance yet."""
        self.is_draining = False
        """No new requests: it will be closed when the last one has ended."""
        self.yields = False
        """No new requests: another model waits for its memory, and has waited long enough."""
        self.needs: MemoryNeeds | None = None
        self.is_measured = False
        """`needs` is what its file says now."""
        self.loaded_part: float | None = None
        """How far the weights are, while they are loaded."""
        self.reserved_bytes = 0
        """What it will take when it is loaded."""
        self.reserved_device_bytes = 0
        """What it will take on devices with memory of their own."""
        self.keep_alive_s = spec.keep_alive_s
        self.error: StokerError | None = None
        self.failed_at = -inf
        self.reload_error: StokerError | None = None
        """Why the last attempt to make it another one failed, loaded or not; it is what it was."""
        self.num_loads = 0
        self.adapters: tuple[AdapterCard, ...] | None = None
        """Adapters of the model, kept over reloads; None = those of the configuration."""
        self.changing_adapters = asyncio.Lock()
        """Held while adapters change, and while a new runtime copies them."""
        self.unloads: Counter[str] = Counter()
        self._clock = clock
        self._waiters: deque[_Waiter] = deque()
        self._is_ordered = False
        self._wanted_at = 0.0
        self._seen: dict[Instance, Waiting] = {}
        """Since when it has waited for the memory of an instance, and how many requests that had had then."""

    @property
    def model_id(self) -> str:
        return self.spec.model_id

    @property
    def takes_requests(self) -> bool:
        return self.instance is not None and not (self.is_draining or self.yields)

    @property
    def is_wanted(self) -> bool:
        """It is to be loaded."""
        return self.instance is None and (self._is_ordered or bool(self._waiters))

    @property
    def wanted_at(self) -> float:
        return self._wanted_at

    @property
    def num_waiting(self) -> int:
        return len(self._waiters)

    @property
    def expires_at(self) -> float:
        """When it is to be unloaded, as it looks now."""
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
        )

    def grant(self, keep_alive_s: float | None = None) -> Lease:
        """Of a model that takes requests.

        Args:
            keep_alive_s: from now on it stays so long without a request; None = as before.
        """
        assert self.instance is not None, "nothing is loaded"
        if keep_alive_s is not None:
            self.keep_alive_s = keep_alive_s
        return self.instance.lease()

    def order(self) -> None:
        """It is to be loaded, whether a request waits for it or not."""
        self._note_wanted()
        self._is_ordered = True

    def become(self, spec: ModelSpec) -> None:
        """It is this from now on, and nothing is loaded of it; if that cannot be loaded, it is again what it was.

        Raises:
            ModelNotLoaded: it is being loaded or measured.
        """
        if self.job is not None:
            raise ModelNotLoaded(
                f"the model `{self.model_id}` is being loaded or unloaded already", retry_after_s=_BUSY_RETRY_S
            )
        self._former = self._former or (self.spec, self.adapters)
        if spec.path != self.spec.path:
            self.adapters = None
        self.spec, self.is_measured = spec, False

    async def wait(self, limit_s: float, keep_alive_s: float | None = None) -> Lease:
        """Waits until the model is loaded and takes requests. The caller has started the load.

        Raises:
            Overloaded: it was not within `limit_s`.
            StokerError: it cannot be loaded.
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
        """It takes requests: those who wait for it go on."""
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.future.done():
                waiter.future.set_result(self.grant(waiter.keep_alive_s))

    def settle(self, instance: Instance) -> None:
        """It is loaded."""
        self.instance, self.error, self.failed_at = instance, None, -inf
        self._former = None
        self.keep_alive_s = self.spec.keep_alive_s
        self.num_loads += 1
        self._forget_wish()
        self.admit()

    def fail(self, error: StokerError) -> None:
        """It cannot be loaded: those who wait for it hear why."""
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
                # Each raises one of its own: a traceback belongs to one task.
                waiter.future.set_exception(error_from_code(error.code, error.message, error.fields))

    def waiting_for(self, instance: Instance) -> Waiting:
        """How long this model has waited for the memory of that one."""
        first = self._seen.get(instance)
        if first is None:
            first = Waiting(max(self._wanted_at, instance.loaded_at), instance.num_granted)
            self._seen[instance] = first
        return Waiting(first.since, instance.num_granted - first.num_requests)

    def _note_wanted(self) -> None:
        if not (self._is_ordered or self._waiters):
            self._wanted_at = self._clock()
            self.is_measured = False
            self._seen.clear()

    def _forget_wish(self) -> None:
        self._is_ordered = False
        self._seen.clear()


def _give_back(future: asyncio.Future[Lease]) -> None:
    """The one who waited has gone, maybe in the moment in which it was granted."""
    if future.done() and not future.cancelled() and future.exception() is None:
        future.result().close()

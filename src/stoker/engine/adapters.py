"""The LoRA adapters of one engine, by name: loaded, chosen by requests, and freed when no request uses them.

```
    name --> adapter --> key of its content          requests, KV cache and backend use keys only:
    "sql"    id 0        9f2c…                       two names with the same content are one adapter for them
```

A name is resolved once, when a request is admitted. From then on the request's lease keeps the content loaded. If the
name is removed or given to another file, running requests are not affected.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import TypeAlias
from weakref import WeakSet

from stoker.backends.base import AdapterPort
from stoker.core.batch import AdapterSet
from stoker.engine.cards import AdapterCard
from stoker.engine.config import AdapterSpec, check_adapter_name
from stoker.engine.question_messages import AdapterChoice, ChangeAdapters
from stoker.engine.stats import AdapterLoad
from stoker.errors import AdapterInvalid, AdapterNotFound, InvalidInput, StokerError, UnsupportedParameter
from stoker.models.lora import LoraFile, file_version

logger = logging.getLogger(__name__)

ReadAdapter: TypeAlias = Callable[[Path], LoraFile]
"""Reads and checks an adapter file; raises `AdapterInvalid`. Any thread may call it."""

_MAX_SCALE = 1000.0


@dataclass(frozen=True, slots=True)
class _Adapter:
    adapter_id: int
    spec: AdapterSpec
    file: LoraFile
    scale: float
    """Scale for requests that select no adapters."""


class Lease:
    """The adapters of one request, which stay loaded while the lease is open. `Adapters.close` closes it."""

    __slots__ = ("__weakref__", "adapters", "is_open", "names", "num_tokens")

    def __init__(self, adapters: AdapterSet, names: tuple[str, ...]) -> None:
        self.adapters = adapters
        self.names = names
        self.num_tokens = 0
        """Number of tokens generated with the adapters so far."""
        self.is_open = True


class Adapters:
    """An engine's adapters. Any thread may call `prepare`, `lease` and `check_embeds`; the engine's thread the rest.

    Args:
        port: loads adapters into the backend; None = the backend cannot apply adapters.
        read_file: reads an adapter file and checks that it fits the model.
    """

    def __init__(self, port: AdapterPort | None = None, read_file: ReadAdapter | None = None) -> None:
        self._port = port
        self._read_file = read_file
        self._lock = threading.Lock()
        """Guards `_by_name`, `_prepared`, `_leases`, `_num_ids` and `_tokens`."""
        self._by_name: dict[str, _Adapter] = {}
        self._prepared: dict[str, LoraFile] = {}
        """Files that were checked for a change, by question id. The number of open questions bounds it."""
        self._leases: WeakSet[Lease] = WeakSet()
        """All leases; one whose request was refused after `lease` disappears with its last reference."""
        self._num_ids = 0
        self._tokens: Counter[str] = Counter()
        self._loaded: set[str] = set()
        """Keys of the adapters that the backend holds."""
        self._has_left = False
        """The backend may hold an adapter that no name refers to."""

    def load(self, specs: Iterable[AdapterSpec]) -> None:
        """Loads the adapters that an engine starts with.

        Raises:
            StokerError: an adapter that is required cannot be loaded.
        """
        for spec in specs:
            try:
                self._add(spec, self._read(spec.path))
            except StokerError as error:
                if spec.is_required:
                    raise
                logger.error("the adapter %s is gone: %s", spec.name, error.message)

    def prepare(self, change: ChangeAdapters) -> None:
        """Does the slow part of a change, reading and checking the file, before the engine's thread makes the change.

        Raises:
            AdapterInvalid: see `read_lora`.
        """
        if change.load is not None:
            file = self._read(change.load.path)
            with self._lock:
                self._prepared[change.question_id] = file

    def change(self, change: ChangeAdapters) -> None:
        """Makes a change (new scales, a load, or an unload), completely or not at all.

        Raises:
            InvalidInput: a name is in use or not allowed, or a scale is out of range.
            AdapterNotFound: no adapter has this name or id.
            AdapterInvalid, ResourceExhausted: the adapter cannot be loaded.
        """
        with self._lock:
            file = self._prepared.pop(change.question_id, None)
        if change.scales is not None:
            self._set_scales(change.scales)
        if change.load is not None:
            self._add(change.load, file or self._read(change.load.path))
        if change.unload is not None:
            self._remove(change.unload)

    def cards(self) -> list[AdapterCard]:
        """The loaded adapters, in the order of their ids."""
        with self._lock:
            present = sorted(self._by_name.values(), key=lambda adapter: adapter.adapter_id)
        return [_card(adapter) for adapter in present]

    def lease(self, choices: Sequence[AdapterChoice] | None) -> Lease:
        """Resolves the adapters of a request and keeps them loaded until the lease is closed.

        Args:
            choices: the adapters that the request selects; None = every adapter with its default scale.

        Raises:
            AdapterNotFound: no adapter has this name or id; the message lists the loaded ones.
            InvalidInput: an adapter is selected twice, or a scale is out of range.
        """
        with self._lock:
            if choices is None:
                chosen = [(adapter, adapter.scale) for adapter in self._by_name.values()]
            else:
                chosen = [(self._find(choice), _checked_scale(choice.scale)) for choice in choices]
            lease = _lease_of(chosen)
            self._leases.add(lease)
        return lease

    def has_all(self, adapters: AdapterSet) -> bool:
        """Whether each of these adapters is loaded under some name."""
        with self._lock:
            return {key for key, _ in adapters} <= {adapter.file.key for adapter in self._by_name.values()}

    def check_embeds(self, choices: Sequence[AdapterChoice] | None) -> None:
        """Checks a request for embeddings, which are computed without adapters, whatever adapters apply by default.

        Raises:
            UnsupportedParameter: the request selects adapters.
            AdapterNotFound: the request selects an adapter that is not loaded.
        """
        if choices is None:
            return
        lease = self.lease(choices)
        self.close(lease)
        if lease.adapters:
            raise UnsupportedParameter("embeddings are computed without adapters: leave `lora` out", parameter="lora")

    def close(self, lease: Lease) -> None:
        """Closes the lease of a request that has ended. Calling it twice is allowed."""
        with self._lock:
            if lease.is_open:
                lease.is_open = False
                self._tokens.update(dict.fromkeys(lease.names, lease.num_tokens))

    def sweep(self) -> None:
        """Unloads adapters that no name and no open lease refers to. To be called between two steps, now and then."""
        if not self._has_left:
            return
        assert self._port is not None, "it has loaded them"
        with self._lock:
            named = {adapter.file.key for adapter in self._by_name.values()}
            used = {key for lease in self._leases if lease.is_open for key, _ in lease.adapters}
        for key in self._loaded - named - used:
            self._port.unload_adapter(key)
        self._loaded &= named | used
        self._has_left = bool(self._loaded - named)

    def loads(self, leases: Iterable[tuple[Lease, bool]]) -> list[AdapterLoad]:
        """The load of each adapter: running and waiting requests, and generated tokens.

        Args:
            leases: the leases of all live requests, each with whether the request is running.
        """
        running: Counter[str] = Counter()
        waiting: Counter[str] = Counter()
        with self._lock:
            tokens = Counter(self._tokens)
            names = list(self._by_name)
        for lease, is_running in leases:
            (running if is_running else waiting).update(lease.names)
            tokens.update(dict.fromkeys(lease.names, lease.num_tokens))
        known = dict.fromkeys((*names, *tokens))
        return [AdapterLoad(name, running[name], waiting[name], tokens[name]) for name in known]

    def _read(self, path: str) -> LoraFile:
        if self._read_file is None:
            message = "the backend of this model cannot apply adapters; those for GGUF models can"
            raise UnsupportedParameter(message, parameter="lora")
        return self._read_file(Path(path))

    def _find(self, choice: AdapterChoice) -> _Adapter:
        for adapter in self._by_name.values():
            if choice.name == adapter.spec.name or (choice.name is None and choice.adapter_id == adapter.adapter_id):
                return adapter
        raise self._not_found(str(choice.adapter_id) if choice.name is None else choice.name)

    def _not_found(self, name: str) -> AdapterNotFound:
        known = ", ".join(f"`{known}`" for known in self._by_name) or "none"
        message = f"there is no adapter `{name}` here; loaded: {known}"
        return AdapterNotFound(message, adapter=name, parameter="lora")

    def _add(self, spec: AdapterSpec, file: LoraFile) -> None:
        check_adapter_name(spec.name)
        scale = _checked_scale(spec.scale)
        if spec.name in self._by_name:
            message = f"an adapter `{spec.name}` is loaded already; remove it first, or choose another name"
            raise InvalidInput(message, parameter="name")
        assert self._port is not None, "a backend that reads adapters applies them"
        if file.key not in self._loaded:
            self._port.load_adapter(file.key, file.path)
            self._loaded.add(file.key)
        if file_version(file.path) != file.version:
            self._has_left = True
            self.sweep()
            raise AdapterInvalid(f"the adapter {file.path} was changed while it was loaded", path=str(file.path))
        with self._lock:
            adapter_id = self._num_ids if spec.adapter_id is None else spec.adapter_id
            self._num_ids = max(self._num_ids, adapter_id + 1)
            self._by_name[spec.name] = _Adapter(adapter_id, spec, file, scale)

    def _remove(self, name: str) -> None:
        with self._lock:
            if name not in self._by_name:
                raise self._not_found(name)
            del self._by_name[name]
        self._has_left = True
        self.sweep()

    def _set_scales(self, scales: dict[int, float]) -> None:
        """Sets scales by adapter id. As in llama-server, adapters without an entry get scale 0."""
        with self._lock:
            for adapter_id in scales:
                self._find(AdapterChoice(adapter_id=adapter_id))
            changed = {adapter_id: _checked_scale(scale) for adapter_id, scale in scales.items()}
            for name, adapter in self._by_name.items():
                scale = changed.get(adapter.adapter_id, 0.0)
                self._by_name[name] = _Adapter(adapter.adapter_id, adapter.spec, adapter.file, scale)


def _lease_of(chosen: Sequence[tuple[_Adapter, float]]) -> Lease:
    names = [adapter.spec.name for adapter, _ in chosen]
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        raise InvalidInput(f"`lora` names the adapter `{twice}` twice", parameter="lora")
    scales: dict[str, float] = {}
    for adapter, scale in chosen:
        scales[adapter.file.key] = scales.get(adapter.file.key, 0.0) + scale
    # Sorted by key, so that the same adapters with the same scales give the same set in any order of selection.
    adapters = tuple((key, float(scale)) for key, scale in sorted(scales.items()) if scale)
    return Lease(adapters, tuple(adapter.spec.name for adapter, scale in chosen if scale))


def _checked_scale(scale: float) -> float:
    if not (isfinite(scale) and abs(scale) <= _MAX_SCALE):
        raise InvalidInput(f"an adapter's scale must be within ±{_MAX_SCALE:g}, not {scale}", parameter="scale")
    return scale


def _card(adapter: _Adapter) -> AdapterCard:
    return AdapterCard(
        adapter_id=adapter.adapter_id,
        name=adapter.spec.name,
        path=adapter.spec.path,
        scale=adapter.scale,
        rank=adapter.file.rank,
        size_bytes=adapter.file.size_bytes,
    )

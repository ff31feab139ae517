"""When there should be one replica more or less, by how many requests wait. It starts nothing and has no clock.

```
waiting ≥ up × n        for hold_s                           n ──► n + 1
open    < down × (n-1)  for hold_s, cooldown_s after a change  n ──► n - 1        up > down
```

Because `up > down`, no steady load satisfies both for neighboring numbers: it never swings.
"""

from __future__ import annotations

from dataclasses import dataclass

from stoker.runtime.replica_config import ReplicaConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What the replicas have to do at one moment."""

    num_replicas: int
    """Replicas that answer or are starting, without those that are draining."""
    num_open: int
    """Requests, running and waiting."""
    num_waiting: int
    is_loading: bool = False
    """One of them is not there yet: what it will change cannot be seen."""


class Autoscaler:
    """Asked now and then; what it says is taken to be done.

    Args:
        config: bounds, thresholds and times.
    """

    def __init__(self, config: ReplicaConfig) -> None:
        self._config = config
        self._wish = 0
        self._wished_since = 0.0
        self._changed_at = float("-inf")
        self._pauses_until = float("-inf")

    def decide(self, now: float, demand: Demand) -> int:
        """1 = add a replica, -1 = give one up, 0 = neither.

        Args:
            now: seconds on any clock that does not go back.
            demand: what there is to do now.
        """
        wish = 0 if demand.is_loading else self._wish_for(demand)
        if wish != self._wish:
            self._wish, self._wished_since = wish, now
        if wish == 0 or now < self._pauses_until:
            return 0
        if demand.num_replicas >= self._config.min_replicas:
            if now - self._wished_since < self._config.scale_hold_s:
                return 0
            if wish < 0 and now - self._changed_at < self._config.scale_cooldown_s:
                return 0
        self._wish, self._changed_at = 0, now
        return wish

    def note_failure(self, now: float) -> None:
        """A replica could not be loaded: none is added for as long as something must hold."""
        self._pauses_until = now + self._config.scale_hold_s

    def _wish_for(self, demand: Demand) -> int:
        config, count = self._config, demand.num_replicas
        if count < config.min_replicas:
            return 1
        if count < config.max_replicas and demand.num_waiting >= config.scale_up_waiting * count:
            return 1
        if count > config.min_replicas and demand.num_open < config.scale_down_open * (count - 1):
            return -1
        return 0

"""The autoscaling policy: when to add or remove a replica, by waiting requests. It starts nothing and has no clock.

```
waiting ≥ up × n        for hold_s                           n ──► n + 1
open    < down × (n-1)  for hold_s, cooldown_s after a change  n ──► n - 1        up > down
```

Because `up > down`, no steady load satisfies both conditions for neighboring numbers of replicas: the number does not
oscillate.
"""

from __future__ import annotations

from dataclasses import dataclass

from stoker.runtime.replica_config import ReplicaConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """The load of a model's replicas at one moment."""

    num_replicas: int
    """Replicas that answer or are starting, without those that are draining."""
    num_open: int
    """Requests at all replicas, running and waiting."""
    num_waiting: int
    is_loading: bool = False
    """A replica is still loading, so that its effect on the load is unknown yet."""


class Autoscaler:
    """The autoscaler of one model. It assumes that each change that it returns is carried out.

    Args:
        config: limits, thresholds and times.
    """

    def __init__(self, config: ReplicaConfig) -> None:
        self._config = config
        self._wish = 0
        self._wished_since = 0.0
        self._changed_at = float("-inf")
        self._pauses_until = float("-inf")

    def decide(self, now: float, demand: Demand) -> int:
        """1 = add a replica, -1 = remove one, 0 = neither.

        Args:
            now: seconds on any monotonic clock.
            demand: the present load.
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
        """Notes that a replica could not be loaded: nothing changes for `scale_hold_s` seconds."""
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

"""Measures the energy of this machine's processors and memory with the kernel's RAPL counters. It knows no server.

```
/sys/class/powercap/intel-rapl:0/     name `package-0`, energy_uj, max_energy_range_uj      also on AMD
                    intel-rapl:0:0/   name `dram`, a zone of its own; `core` and `uncore` are parts of the package
```
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

POWERCAP = Path("/sys/class/powercap")


@dataclass(frozen=True, slots=True)
class _Zone:
    folder: Path
    range_uj: int

    def energy_uj(self) -> int:
        return int((self.folder / "energy_uj").read_text())


class EnergyMeter:
    """Measures from its creation on: CPU packages and memory, for everything that the machine does meanwhile.

    Args:
        powercap: folder of the kernel's counters. Most systems let only root read them.
    """

    def __init__(self, powercap: Path = POWERCAP) -> None:
        self._began: dict[_Zone, int] = {}
        try:
            self._began = {zone: zone.energy_uj() for zone in _zones(powercap)}
        except (OSError, ValueError):  # some counters alone would look like the whole energy
            self._began = {}

    def joules(self) -> float | None:
        """The energy since the meter was created, in joules. A counter that wrapped around counts as wrapped once.

        Returns:
            None if the machine has no counters, or they cannot be read.
        """
        try:
            used = [(zone.energy_uj() - began) % zone.range_uj for zone, began in self._began.items()]
        except (OSError, ValueError):
            return None
        return sum(used) / 1e6 if used else None


def _zones(powercap: Path) -> list[_Zone]:
    found: list[_Zone] = []
    for folder in sorted(powercap.glob("intel-rapl:*")):
        name = (folder / "name").read_text().strip()
        if name.startswith("package") or name == "dram":
            found.append(_Zone(folder, int((folder / "max_energy_range_uj").read_text()) + 1))
    return found

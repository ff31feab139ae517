"""Takes from a process what decoding a file does not need: more files, sockets, processes, memory and time."""

from __future__ import annotations

import resource

from stoker.media.system_calls import restrict_system_calls

MEMORY_BYTES = 2 << 30
CPU_S, SOUND_CPU_S = 30, 120
_STANDARD_FILES = 3
"""Standard input, output and error stay open."""


class FileRefused(Exception):
    """A file cannot be used; the text says why."""


def confine(*, memory_bytes: int = MEMORY_BYTES, cpu_s: int = CPU_S) -> bool:
    """Lowers the limits of this process for good. What it will import must be imported before.

    Args:
        memory_bytes: of addresses.
        cpu_s: after which the kernel ends the process, by SIGXCPU.

    Returns:
        Whether system calls are refused, too; if not, this system has only the limits.
    """
    _lower(resource.RLIMIT_CORE, 0)
    _lower(resource.RLIMIT_CPU, cpu_s, cpu_s + 1)
    _lower(resource.RLIMIT_AS, memory_bytes)
    _lower(resource.RLIMIT_FSIZE, 0)
    _lower(resource.RLIMIT_NPROC, 0)
    _lower(resource.RLIMIT_NOFILE, _STANDARD_FILES)
    return restrict_system_calls()


def _lower(kind: int, soft: int, hard: int | None = None) -> None:
    _, present = resource.getrlimit(kind)
    limits = [each if present == resource.RLIM_INFINITY else min(each, present) for each in (soft, hard or soft)]
    resource.setrlimit(kind, (limits[0], limits[1]))

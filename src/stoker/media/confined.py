"""Confines a process that decodes an untrusted file: no new files, sockets or processes; limited memory and time."""

from __future__ import annotations

import resource

from stoker.media.system_calls import restrict_system_calls

MEMORY_BYTES = 2 << 30
CPU_S, SOUND_CPU_S = 30, 120
_STANDARD_FILES = 3
"""Standard input, output and error stay open."""


class FileRefused(Exception):
    """A file cannot be used. The message is a predicate without a subject, such as `is encrypted`."""


def confine(*, memory_bytes: int = MEMORY_BYTES, cpu_s: int = CPU_S) -> bool:
    """Irrevocably lowers the resource limits of this process. No module can be imported afterwards.

    Args:
        memory_bytes: limit of the address space (RLIMIT_AS).
        cpu_s: CPU time in seconds, after which the kernel ends the process by SIGXCPU.

    Returns:
        Whether system calls are filtered, too (seccomp). False = this system supports only the resource limits.
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

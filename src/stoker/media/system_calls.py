"""Irrevocably forbids this process every system call that computing in memory does not need (seccomp, Linux only).

Allowed calls: memory, reading and writing open files, clocks, waiting for own threads, and exit. Everything else fails
with EPERM: opening files, sockets, processes, programs, signals, other processes' memory.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys
from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple


class _Machine(NamedTuple):
    audit_id: int
    """Identifier of the architecture in the kernel's data for a filter."""
    seccomp: int
    """Number of the system call `seccomp`, which sets a filter."""
    allowed: Sequence[int]
    """Numbers of the system calls that stay allowed."""


# read, write, close, fstat, lseek, mmap, mprotect, munmap, brk, rt_sigaction, rt_sigprocmask, rt_sigreturn, readv,
# writev, sched_yield, mremap, madvise, getpid, gettid, exit, exit_group, restart_syscall, futex, sched_getaffinity,
# clock_gettime, clock_getres, clock_nanosleep, nanosleep, gettimeofday, times, getrusage, sigaltstack, sysinfo, uname,
# getrandom, rseq
_X86_64 = (
    *(0, 1, 3, 5, 8, 9, 10, 11, 12, 13, 14, 15, 19, 20, 24, 25, 28, 39, 186, 60, 231),
    *(219, 202, 204, 228, 229, 230, 35, 96, 100, 98, 131, 99, 63, 318, 334),
)
_AARCH64 = (
    *(63, 64, 57, 80, 62, 222, 226, 215, 214, 134, 135, 139, 65, 66, 124, 216, 233, 172, 178, 93, 94),
    *(128, 98, 123, 113, 114, 115, 101, 169, 153, 165, 132, 179, 160, 278, 293),
)
_MACHINES = {
    "x86_64": _Machine(0xC000003E, 317, _X86_64),
    "aarch64": _Machine(0xC00000B7, 277, _AARCH64),
}

_INSTRUCTION = struct.Struct("=HBBI")
"""A cBPF instruction: operation, numbers of instructions to skip if it is true and if it is false, operand."""
_LOAD, _IS_EQUAL, _RETURN = 0x20, 0x15, 0x06
_AT_NUMBER, _AT_MACHINE = 0, 4
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000 | errno.EPERM
_NO_NEW_PRIVILEGES = 38
_SET_FILTER, _OF_ALL_THREADS = 1, 1


class _Filter(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def restrict_system_calls() -> bool:
    """Installs a filter in every thread of this process that refuses all but the allowed system calls.

    Returns:
        Whether the filter is installed. False = another operating system or architecture, or a kernel without seccomp.
    """
    machine = _MACHINES.get(os.uname().machine) if sys.platform == "linux" and sys.maxsize > 2**32 else None
    if machine is None:
        return False
    program = _program(machine)
    given = _Filter(len(program) // _INSTRUCTION.size, program)
    system = ctypes.CDLL(None)
    system.prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]
    system.syscall.argtypes = [ctypes.c_long, ctypes.c_ulong, ctypes.c_ulong, ctypes.POINTER(_Filter)]
    if system.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0) != 0:
        return False
    return system.syscall(machine.seccomp, _SET_FILTER, _OF_ALL_THREADS, ctypes.byref(given)) == 0


def _program(machine: _Machine) -> bytes:
    """The filter, in the instructions of the kernel's packet filter (cBPF).

    ```
    another machine? ──yes──────────────────────┐
    number is the first allowed one? ──yes──┐   │
    ...                                     │   │
    the last? ──yes─────────────────────────┤   │
    refuse  ◄───────────────────────────────┼───┘
    allow   ◄───────────────────────────────┘
    ```
    """
    count = len(machine.allowed)
    tests = [(_IS_EQUAL, count - index, 0, number) for index, number in enumerate(machine.allowed)]
    head = [(_LOAD, 0, 0, _AT_MACHINE), (_IS_EQUAL, 0, count + 1, machine.audit_id), (_LOAD, 0, 0, _AT_NUMBER)]
    ends = [(_RETURN, 0, 0, _REFUSE), (_RETURN, 0, 0, _ALLOW)]
    return b"".join(_INSTRUCTION.pack(*each) for each in chain(head, tests, ends))

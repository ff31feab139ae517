"""A program that becomes another one, which then dies with the process that asked for it. Imports nothing of ours.

    python launcher.py PARENT_PID PROGRAM ARGUMENT...

On Linux the kernel is asked for that (`PR_SET_PDEATHSIG`), and this program is replaced by the other one. Elsewhere it
stays: it waits for the end of its stdin, which it has when the parent dies, however it dies.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from types import FrameType

_PR_SET_PDEATHSIG = 1
_GRACE_S = 1.0
_FAILED = 126


def main(arguments: list[str]) -> int:
    """See the module. Returns the exit code of the other program, if it returns."""
    parent, command = int(arguments[0]), arguments[1:]
    try:
        if not _dies_with_parent():
            return _keep(command)
        if os.getppid() != parent:  # it died before we asked
            return _FAILED
        os.execv(command[0], command)
    except OSError as error:
        print(f"{command[0]} cannot be started: {error.strerror}", file=sys.stderr)
        return _FAILED


def _dies_with_parent() -> bool:
    if sys.platform != "linux":
        return False
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    return libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) == 0


def _keep(command: list[str]) -> int:
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL)

    def pass_on(number: int, _frame: FrameType | None) -> None:
        process.send_signal(number)

    signal.signal(signal.SIGTERM, pass_on)
    threading.Thread(target=_end_with_stdin, args=(process,), daemon=True).start()
    code = process.wait()
    return code if code >= 0 else 128 - code


def _end_with_stdin(process: subprocess.Popen[bytes]) -> None:
    while os.read(0, 1):
        continue
    process.terminate()
    try:
        process.wait(_GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

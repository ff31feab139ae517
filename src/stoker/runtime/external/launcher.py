"""A script that runs a program so that the program dies with the parent process. It imports nothing of Stoker.

    python launcher.py [--whole] PARENT_PID PROGRAM ARGUMENT...

On Linux, the script asks the kernel for that (`PR_SET_PDEATHSIG`), and replaces itself with the program. Elsewhere, and
with `--whole`, it stays as the program's parent, and ends the program at the end of its stdin, which comes when its own
parent dies for any reason. With `--whole`, it also ends all processes that the program has started and left behind.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from types import FrameType

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_GRACE_S = 1.0
_FAILED = 126


def main(arguments: list[str]) -> int:
    """Runs the program, see the module. Returns the program's exit code, unless this process is replaced by it."""
    is_whole = arguments[0] == "--whole"
    first, *command = arguments[is_whole:]
    try:
        if is_whole or not _ask_kernel(_PR_SET_PDEATHSIG, signal.SIGKILL):
            return _keep(command, is_whole=is_whole)
        if os.getppid() != int(first):  # the parent died before the kernel was asked
            return _FAILED
        os.execv(command[0], command)
    except OSError as error:
        print(f"{command[0]} cannot be started: {error.strerror}", file=sys.stderr)
        return _FAILED


def _ask_kernel(request: int, value: int) -> bool:
    """Calls `prctl`; returns whether it succeeded. Only Linux has it."""
    if sys.platform != "linux":
        return False
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    return libc.prctl(request, value, 0, 0, 0) == 0


def _keep(command: list[str], *, is_whole: bool) -> int:
    has_orphans = is_whole and _ask_kernel(_PR_SET_CHILD_SUBREAPER, 1)
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL)

    def pass_on(number: int, _frame: FrameType | None) -> None:
        process.send_signal(number)

    signal.signal(signal.SIGTERM, pass_on)
    threading.Thread(target=_end_with_stdin, args=(process,), daemon=True).start()
    code = process.wait()
    if has_orphans:
        _end_orphans()
    return code if code >= 0 else 128 - code


def _end_with_stdin(process: subprocess.Popen[bytes]) -> None:
    while os.read(0, 1):
        continue
    process.terminate()
    try:
        process.wait(_GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()


def _end_orphans() -> None:
    """Kills every process that the program left behind. Their children become children of this process, and follow."""
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    while orphans := children.read_text().split():
        for orphan in orphans:
            with suppress(ProcessLookupError):
                os.kill(int(orphan), signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(int(orphan), 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""What a process may still do after it has given up system calls, in each of its threads."""

import logging
import subprocess
import sys
from pathlib import Path

import pytest

from stoker.media.confined import FileRefused
from stoker.media.verdicts import DONE, ONLY_LIMITED, REFUSED, Verdicts

PROGRAM = """
import os, socket, sys, threading
from stoker.media.system_calls import restrict_system_calls

attempts = {
    "open": lambda: os.open("/etc/passwd", os.O_RDONLY),
    "create": lambda: os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY),
    "stat": lambda: os.stat("/"),
    "delete": lambda: os.unlink(sys.argv[0]),
    "socket": socket.socket,
    "pair": socket.socketpair,
    "pipe": os.pipe,
    "fork": os.fork,
    "program": lambda: os.execv(sys.executable, [sys.executable]),
    "signal": lambda: os.kill(os.getppid(), 0),
    "thread": threading.Thread(target=int).start,
}

def attempt():
    for name, call in attempts.items():
        try:
            call()
        except PermissionError:
            continue
        except RuntimeError as error:
            if "thread" in str(error):
                continue
        print(name, "was possible", flush=True)

go = threading.Event()
older = threading.Thread(target=lambda: go.wait() and attempt())
older.start()
print("restricted" if restrict_system_calls() else "there is no filter")
attempt()
go.set()
older.join()
print(len(bytes(1 << 24)), sum(range(1000)))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="filters of system calls are Linux's")
def test_every_thread_of_a_restricted_process_can_compute_and_nothing_else(tmp_path: Path):
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "new")], capture_output=True, text=True, check=True
    )
    lines = found.stdout.splitlines()
    if lines[0] == "there is no filter":
        pytest.skip("this kernel has none")
    assert lines == ["restricted", f"{1 << 24} 499500"]


def test_an_unrestricted_process_is_told_of_once(caplog: pytest.LogCaptureFixture):
    verdicts = Verdicts[str](1000)
    with caplog.at_level(logging.WARNING):
        for name in ("a", "b"):
            assert verdicts.take(name, ONLY_LIMITED + DONE + b"pixels", 0) == b"pixels"
        with pytest.raises(FileRefused, match="is damaged"):
            verdicts.take("c", ONLY_LIMITED + REFUSED + b"is damaged", 0)
        verdicts.take("d", DONE + b"pixels", 0)
    assert [record.message for record in caplog.records if "seccomp" in record.message] != []
    assert len(caplog.records) == 1

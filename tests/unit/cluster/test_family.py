"""Processes that a command has started end with it, also those whose parents have died before."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
from psutil import Process, pid_exists

from stoker.cluster import family

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Ray clusters are for Linux")

GRANDCHILD = "import time; print('ready', flush=True); time.sleep(600)"
DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + GRANDCHILD
PARENT = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])"


def two_generations(code: str) -> tuple[subprocess.Popen[bytes], int]:
    """A process whose child runs the code, and the child's number."""
    parent = subprocess.Popen([sys.executable, "-c", PARENT, code], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    assert parent.stdout.readline() == b"ready\n"
    (child,) = Process(parent.pid).children()
    return parent, child.pid


@pytest.mark.parametrize("code", [GRANDCHILD, DEAF])
def test_processes_that_have_lost_their_parent_are_ended(code: str) -> None:
    parent, pid = two_generations(code)
    members = [member for member in family.descendants() if member.pid in (parent.pid, pid)]
    assert len(members) == 2
    with parent:
        parent.kill()
        parent.wait(60)
        assert pid_exists(pid)
        family.end(members, wait_s=0.3)
        assert not pid_exists(pid) or Process(pid).status() == "zombie"


def test_process_that_has_got_the_number_of_one_that_ended_is_left_alone() -> None:
    parent, pid = two_generations(GRANDCHILD)
    with parent:
        started = {member.pid: member.started for member in family.descendants()}
        family.end([family.Member(pid, started[pid] - 1)], wait_s=0.1)
        assert Process(pid).is_running()
        Process(pid).send_signal(signal.SIGKILL)
        parent.wait(60)

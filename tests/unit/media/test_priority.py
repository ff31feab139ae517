"""Programs that decode files leave the cores to the engines."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

AUTOGROUP = Path("/proc/self/autogroup")
PROGRAM = """
import os, sys
from pathlib import Path
from stoker.media.frames import begin_program
before = os.nice(0)
begin_program()
group = Path("/proc/self/autogroup")
print(os.nice(0) - before, os.getsid(0) == os.getpid(), group.read_text() if group.exists() else "", file=sys.stderr)
"""


def test_a_program_has_a_session_of_its_own_and_the_session_is_nice() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=True)
    niceness, leads, *autogroup = done.stderr.split()
    assert (niceness, leads) == ("5", "True")
    if not AUTOGROUP.exists():
        pytest.skip("this kernel does not share cores out among sessions")
    assert autogroup[-2:] == ["nice", "5"]

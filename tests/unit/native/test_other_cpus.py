"""The extension on CPUs that have less than this one, played by `qemu-x86_64` where it is installed."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys

import pytest

_EMULATOR = shutil.which("qemu-x86_64")
_QUESTION = "from stoker import _native; print(_native.best_kernels())"


@pytest.mark.skipif(_EMULATOR is None or platform.machine() != "x86_64", reason="needs qemu-x86_64")
@pytest.mark.parametrize(("cpu", "table"), [("Nehalem", "scalar"), ("Haswell", "avx2")])
def test_nothing_runs_that_a_cpu_does_not_have(cpu: str, table: str) -> None:
    assert _EMULATOR is not None
    environment = {name: value for name, value in os.environ.items() if name != "STOKER_NATIVE_KERNELS"}
    asked = subprocess.run(
        [_EMULATOR, "-cpu", cpu, sys.executable, "-c", _QUESTION],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=environment,
    )
    assert (asked.returncode, asked.stdout.strip()) == (0, table), asked.stderr

"""The extension on CPUs that have less than this one, played by `qemu-x86_64` where it is installed."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.native.golden import INPUTS, LOGITS

_EMULATOR = shutil.which("qemu-x86_64")
_ROOT = Path(__file__).parents[3]
_MODEL = "features"
_NOT_THERE = ("STOKER_NATIVE_KERNELS", "LD_PRELOAD")
_QUESTIONS = f"""
from stoker import _native
print(_native.best_kernels())
from tests.unit.native.golden import inputs, logits
print(inputs("{_MODEL}"), *(logits("{_MODEL}", kv_type) for kv_type in ("f16", "q16", "i16")))
"""


@pytest.mark.skipif(_EMULATOR is None or platform.machine() != "x86_64", reason="needs qemu-x86_64")
@pytest.mark.parametrize(("cpu", "table"), [("Nehalem", "scalar"), ("Haswell", "avx2")])
def test_nothing_runs_that_a_cpu_does_not_have(cpu: str, table: str) -> None:
    """And what runs has the bits of all others."""
    assert _EMULATOR is not None
    # A sanitizer's runtime cannot be emulated.
    environment = {name: value for name, value in os.environ.items() if name not in _NOT_THERE}
    asked = subprocess.run(
        [_EMULATOR, "-cpu", cpu, sys.executable, "-c", _QUESTIONS],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env=environment,
        cwd=_ROOT,
    )
    answers = [table, INPUTS[_MODEL], LOGITS[_MODEL, "f16"], LOGITS[_MODEL, "q16"], LOGITS[_MODEL, "i16"]]
    assert (asked.returncode, asked.stdout.split()) == (0, answers), asked.stderr

"""`litellm` and `llama-index`, in an environment of their own: they want other versions of what the dev group has.

What they need is listed in `heavy_clients.txt`, and downloaded once into the platform's cache directory. With
`STOKER_URL` set to a running server of smollm2, the same by hand:
`PYTHONPATH=FOLDER python -m pytest --noconftest tests/e2e/heavy_clients.py`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from shutil import rmtree

import pytest
from filelock import FileLock

from stoker.models.cache import cache_dir

TESTS = Path(__file__).with_name("heavy_clients.py")
PACKAGES = Path(__file__).with_name("heavy_clients.txt")
INSTALL_S = 600
RUN_S = 300


@pytest.fixture(scope="session")
def heavy_clients() -> Path:
    """A folder with both packages, for `PYTHONPATH`."""
    kind = sha256(PACKAGES.read_bytes() + sys.version.encode()).hexdigest()[:16]
    folder = cache_dir() / "tests" / f"clients-{kind}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_suffix(".lock")):  # 60 MB need not be downloaded by two workers
        if not folder.is_dir():
            _install(folder)
    return folder


def _install(folder: Path) -> None:
    """Into another folder first: one that is there is complete."""
    part = folder.with_suffix(f".{os.getpid()}")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile", "--target", str(part)]
    try:
        done = subprocess.run(
            [*command, "-r", str(PACKAGES)], capture_output=True, text=True, timeout=INSTALL_S, check=False
        )
        if done.returncode:
            pytest.skip(f"litellm and llama-index cannot be downloaded: {done.stderr.strip().splitlines()[-1]}")
        part.rename(folder)
    except OSError:  # another run was faster
        if not folder.is_dir():
            raise
    finally:
        rmtree(part, ignore_errors=True)


@pytest.mark.slow
@pytest.mark.timeout(INSTALL_S + RUN_S)
@pytest.mark.parametrize("client", ["litellm", "llama_index"])
def test_each_verb_of(client: str, heavy_clients: Path, served_smollm2: str) -> None:
    command = [sys.executable, "-W", "ignore", "-m", "pytest", str(TESTS), "-k", client, "-q", "-c", os.devnull]
    command += ["--noconftest", "--import-mode=importlib", "-p", "no:cacheprovider", "-p", "no:unraisableexception"]
    environment = {**os.environ, "PYTHONPATH": str(heavy_clients), "STOKER_URL": served_smollm2}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=RUN_S, check=False)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-1000:]

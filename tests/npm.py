"""Packages of npm's registry that tests run, each fetched once into Stoker's cache folder."""

from __future__ import annotations

import shutil
import subprocess
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from stoker.models.cache import cache_dir

_DOWNLOAD_S = 180


def npm_package(spec: str, digest: str) -> Path:
    """The archive of a package; skips the test where it cannot be had.

    Args:
        spec: name and version, such as `axe-core@4.14.1`.
        digest: SHA-256 of the archive.
    """
    name, _, version = spec.rpartition("@")
    kept = cache_dir() / "tests" / f"{name.removeprefix('@').replace('/', '-')}-{version}.tgz"  # as npm calls it
    if not kept.exists():
        if shutil.which("npm") is None:
            pytest.skip(f"npm is not installed: {spec} cannot be had")
        kept.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=kept.parent) as folder:
            command = ["npm", "pack", spec, "--pack-destination", folder]
            try:
                subprocess.run(command, capture_output=True, check=True, timeout=_DOWNLOAD_S)
            except subprocess.SubprocessError:
                pytest.skip(f"npm's registry is out of reach, or too slow: {spec} cannot be had")
            Path(folder, kept.name).replace(kept)
    assert sha256(kept.read_bytes()).hexdigest() == digest, f"this is not the {spec} that is asked for"
    return kept

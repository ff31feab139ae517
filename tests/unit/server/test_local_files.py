"""Clients read files of the folder that `--media-path` names, and no others."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from stoker.errors import ConfigError, InvalidInput, UnsupportedParameter
from stoker.runtime.registry import Registry
from stoker.server.config import ServerConfig
from stoker.server.remote_files.local import check_folder, read_file
from stoker.server.remote_files.messages import fetch_files
from stoker.server.transport.app import create_app
from stoker.text.messages import message_from_dict
from tests.projector_files import picture


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a file, and a secret beside it."""
    (tmp_path / "secret").write_bytes(b"secret")
    (tmp_path / "media-2").mkdir()
    (tmp_path / "media-2" / "a").write_bytes(b"secret")
    below = tmp_path / "media" / "cats"
    below.mkdir(parents=True)
    (below / "red cat.png").write_bytes(picture("red"))
    return tmp_path / "media"


def read(url: str, folder: Path, max_bytes: int = 1 << 20) -> bytes:
    return read_file(url, str(folder), max_bytes, "url")


def test_a_file_is_read_by_a_relative_and_by_an_absolute_path(folder: Path):
    for url in ("file://cats/red cat.png", "FILE://./cats/red%20cat.png", (folder / "cats" / "red cat.png").as_uri()):
        assert read(url, folder) == picture("red")


def test_the_folder_itself_may_be_a_link(folder: Path):
    link = folder.with_name("link")
    link.symlink_to(folder)
    assert read("file://cats/red cat.png", link) == picture("red")


def test_nothing_beside_the_folder_is_read(folder: Path):
    (folder / "cats" / "link").symlink_to(folder.parent / "secret")
    (folder / "up").symlink_to(folder.parent)
    secret = folder.parent / "secret"
    beside = folder.parent / "media-2" / "a"
    urls = [
        "file://../secret",
        "file://cats/../../secret",
        "file://..%2Fsecret",
        f"file://{secret}",
        f"file://{beside}",
    ]
    urls += [
        f"file://{folder}/../secret",
        "file://cats/link",
        "file://up/secret",
        "file:///secret",
        "file://up/media-2/a",
    ]
    for url in urls:
        with pytest.raises(InvalidInput, match="has no such file"):
            read(url, folder)


def test_what_is_no_file_or_too_large_is_refused_in_the_same_words(folder: Path):
    os.mkfifo(folder / "pipe")
    messages: set[str] = set()
    for url in ("file://", "file://cats", "file://pipe", "file://no", "file://a%00b", "file://" + "a/" * 9999):
        with pytest.raises(InvalidInput) as refused:
            read(url, folder, 5)
        messages.add(str(refused.value))
    with pytest.raises(InvalidInput) as refused:
        read("file://cats/red cat.png", folder, 5)
    assert messages == {str(refused.value)}
    assert str(folder) not in messages.pop()
    size = len(picture("red"))
    assert len(read("file://cats/red cat.png", folder, size)) == size


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="open files are listed on Linux only")
def test_refused_files_are_closed(folder: Path):
    os.mkfifo(folder / "pipe")
    before = len(os.listdir("/proc/self/fd"))
    for url in ("file://cats", "file://pipe", "file://cats/no", "file://no/cats"):
        with pytest.raises(InvalidInput):
            read(url, folder)
    assert len(os.listdir("/proc/self/fd")) == before


def fetched(part: dict[str, Any], config: ServerConfig) -> Any:
    messages = [{"role": "user", "content": [part]}]
    asyncio.run(fetch_files(messages, ("image",), config, "messages"))
    return message_from_dict(messages[0], "messages[0]")


def test_requests_name_local_files_only_if_the_server_has_a_folder_for_them(folder: Path):
    def part() -> dict[str, Any]:
        return {"type": "image_url", "image_url": {"url": "file://cats/red cat.png"}}

    for config in (ServerConfig(media_path=str(folder)), ServerConfig(media_path=str(folder), media_urls="off")):
        assert fetched(part(), config).content[0].media.data == picture("red")
    with pytest.raises(UnsupportedParameter, match="not fetched here"):
        fetched(part(), ServerConfig())
    remote: dict[str, Any] = {"type": "image_url", "image_url": {"url": "http://example.com/"}}
    with pytest.raises(UnsupportedParameter, match="not fetched here"):
        fetched(remote, ServerConfig(media_path=str(folder), media_urls="off"))


def test_a_server_does_not_start_with_a_folder_that_is_none(folder: Path):
    check_folder(str(folder))
    with pytest.raises(ConfigError, match=r"--media-path: .*red cat\.png is not a directory"):
        create_app(Registry(), ServerConfig(media_path=str(folder / "cats" / "red cat.png")))

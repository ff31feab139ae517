"""The documentation tells the truth: each example runs, with the real model, and each link leads somewhere."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path

import httpx
import pytest

from tests.docs.pages import ROOT, Block, all_pages, blocks, links, section_links, sections
from tests.ports import free_port

RUNNABLE = {"python", "sh"}
INERT = {"", "text", "toml", "json"}
SERVED_AT = "127.0.0.1:8080"
"""Where the examples expect the server that an earlier `stoker serve` of the same page started."""
STEP_LIMIT_S = 120.0
OTHER_CPU = "was built for another CPU"
"""What is said of a llama-server that this CPU cannot run: not the page's fault."""


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", all_pages(), ids=name_of)
def test_every_block_is_of_a_kind_we_know(page: Path) -> None:
    for block in blocks(page):
        assert block.language in RUNNABLE | INERT, f"{block.where}: use one of {sorted(RUNNABLE | INERT)}"


@pytest.mark.parametrize("page", all_pages(), ids=name_of)
def test_every_relative_link_leads_to_a_file(page: Path) -> None:
    for target in links(page):
        assert (page.parent / target).exists(), f"{name_of(page)} links to {target}"


@pytest.mark.parametrize("page", all_pages(), ids=name_of)
def test_every_link_to_a_section_leads_to_its_heading(page: Path) -> None:
    for target, section in section_links(page):
        assert section in sections(page.parent / target if target else page), f"{target}#{section}"


def pages_with_examples() -> list[Path]:
    return [page for page in all_pages() if any(map(is_run, blocks(page)))]


def is_run(block: Block) -> bool:
    return block.language in RUNNABLE and block.not_run_because is None


@pytest.mark.slow
@pytest.mark.parametrize("page", pages_with_examples(), ids=name_of)
def test_every_example_runs(page: Path, smollm2_path: Path, tmp_path: Path) -> None:
    """In the order of the page. A `stoker serve` stays up, on a free port, for what follows on its page."""
    port = free_port()
    with contextlib.ExitStack() as servers:
        for block in filter(is_run, blocks(page)):
            if block.code.startswith("stoker serve"):
                servers.enter_context(server(block, port, tmp_path))
            else:
                run_example(block, port, tmp_path)


def run_example(block: Block, port: int, folder: Path) -> None:
    code = block.code.replace(SERVED_AT, f"127.0.0.1:{port}")
    interpreter = (
        [sys.executable, "-W", "error", "-c"] if block.language == "python" else ["bash", "-euo", "pipefail", "-c"]
    )
    done = subprocess.run(
        [*interpreter, code],
        cwd=folder,
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=STEP_LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, f"{block.where} failed:\n{done.stdout}\n{done.stderr}"
    assert done.stdout.strip(), f"{block.where} printed nothing"


@contextlib.contextmanager
def server(block: Block, port: int, folder: Path) -> Generator[None]:
    command = f"exec {block.code.strip()} --port {port}"
    log = folder / "server.log"
    with log.open("wb") as output:
        process = subprocess.Popen(["bash", "-c", command], cwd=folder, env=environment(), stdout=output, stderr=output)
    try:
        wait_until_healthy(process, port, log)
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        code, said = process.wait(STEP_LIMIT_S), log.read_text(encoding="utf-8")
        assert code in (0, 130, -signal.SIGTERM) or OTHER_CPU in said, said


def wait_until_healthy(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + STEP_LIMIT_S
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(f"http://127.0.0.1:{port}/health", timeout=2).status_code == 200:
                return
        time.sleep(0.05)
    said = log.read_text(encoding="utf-8")
    if OTHER_CPU in said:
        pytest.skip(said)
    raise AssertionError(f"the server of the examples did not come up:\n{said}")


def environment() -> dict[str, str]:
    """Ours, with the commands of this virtual environment in front."""
    scripts = str(Path(sys.executable).parent)
    return {**os.environ, "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}"}

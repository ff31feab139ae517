"""What llama-server's own tests send is sent to Stoker too, and what only llama-server serves is listed.

    python -m tests.e2e.llama_server_own_tests /path/to/llama-server [test_completion.py …]

Its tests run as they are, from the sources that come with llama-cpp-python, against a llama-server with the options
that each test wants, and a `stoker serve` with the same options. The models are those that Stoker's tests download.
Assertions are left out, so that every request of a test is sent whatever the models say:

- The program starts itself again with `python -O`, and pytest leaves the asserts as they are.
- Answers are short in both servers, whatever a test asks for: only the status is compared.

The exit code is 1 if llama-server serves something that Stoker does not, and `llama_server_refusals` has no cause.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest
import requests
from gguf import PoolingType

from stoker.models.cache import cache_dir
from stoker.models.store import resolve
from tests.bert_models import tiny_bert, write_bert
from tests.e2e.conftest import serving
from tests.e2e.llama_server_refusals import cause_of
from tests.llama_cpp_sources import sources
from tests.ports import free_port

_FOLDERS = ("/llama.cpp/tools/server/tests/", "/llama.cpp/models/templates/")
_OTHER_THINGS = ("test_mcp_servers.py", "test_proxy.py", "test_router.py", "test_stream.py", "test_tools_builtin.py")
"""Tests of what is beside one model: programs that llama-server starts, a proxy, and models that a hub has."""
_LIMITS = ("n_predict", "max_tokens", "max_completion_tokens", "max_output_tokens")
_HEADERS = ("authorization", "content-type", "origin", "x-api-key")
_MAX_TOKENS = 12
_WAIT_S = 120
_TEST_S = 120


@dataclass(frozen=True, slots=True)
class Sent:
    """A request of a test, and what both servers said."""

    test: str
    request: str
    body: str
    theirs: int
    ours: int
    reply: str
    """What Stoker said."""

    @property
    def is_only_theirs(self) -> bool:
        return self.theirs < 400 <= self.ours or (self.theirs < 400 and '"error":{' in self.reply.replace(" ", ""))

    @property
    def cause(self) -> str | None:
        return cause_of(self.reply)

    def told(self) -> str:
        cause = self.cause or "NO CAUSE"
        head = f"\n{self.request} {self.theirs}/{self.ours} in {self.test}: {cause}"
        return f"{head}\n   {self.reply[:240]}\n   {self.body[:400]}"


@dataclass
class Pair:
    """The two servers of the test that runs, and everything that was sent to them."""

    program: str
    folder: Path
    utils: Any = None
    test: str = ""
    sent: list[Sent] = field(default_factory=list[Sent])
    _options: dict[str, Any] = field(default_factory=dict[str, Any])
    _theirs: Any = None
    _ours_options: tuple[str, ...] = ()
    _ours: str = ""
    _stack: ExitStack = field(default_factory=ExitStack)
    _port: int = field(default_factory=free_port)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def start(self, server: Any, begin: Callable[..., None]) -> None:
        """Starts both with the options of a test, unless they run with these options already."""
        self._adapt(server)
        options = {
            name: value for name, value in vars(server).items() if name not in ("server_port", "process", "ready")
        }
        server.server_port = self._port
        if options == self._options and self._theirs is not None and self._theirs.process.poll() is None:
            server.process = self._theirs.process
            return
        self.stop_theirs()
        begin(server, timeout_seconds=_WAIT_S)
        self._options, self._theirs = options, server
        wanted = self._options_of_ours(server)
        if wanted != self._ours_options:
            self._stack.close()
            log = self.folder / "stoker.log"
            self._ours = self._stack.enter_context(serving(*wanted, log=log)).url
            self._ours_options = wanted

    def stop_theirs(self) -> None:
        if self._theirs is not None:
            process, self._theirs = self._theirs.process, None
            process.kill()
            process.wait(_WAIT_S)

    def close(self) -> None:
        self.stop_theirs()
        self._stack.close()

    def _adapt(self, server: Any) -> None:
        """A model that is here for one of a hub, and answers that are short."""
        if server.models_dir or server.models_preset or server.model_alias is None:
            pytest.skip("there is no hub")
        server.model_file, server.model_hf_repo, server.model_hf_file, server.offline = (
            self._model(server),
            None,
            None,
            False,
        )
        server.server_path, server.n_threads, server.log_path = self.program, 1, str(self.folder / "theirs.log")
        server.n_predict = min(server.n_predict or _MAX_TOKENS, _MAX_TOKENS)
        if server.chat_template is None and server.chat_template_file is None:
            server.jinja = True

    def _model(self, server: Any) -> str:
        if server.server_reranking:
            path = self.folder / "ranker.gguf"
            return str(path if path.exists() else write_bert(path, tiny_bert(has_classifier=True), PoolingType.RANK))
        if server.server_embeddings and "bge" in server.model_alias:
            return str(cache_dir() / "tests" / "all-minilm-l6-v2.gguf")
        return str(resolve("smollm2"))

    def _options_of_ours(self, server: Any) -> tuple[str, ...]:
        size = server.n_ctx or 4096
        num_slots = server.n_slots or 2
        size = size if server.kv_unified else size // num_slots
        options = [server.model_file, "--ctx-size", str(size), "--parallel", str(num_slots)]
        options += ["--name", server.model_alias, "--threads", "1", "--max-tokens", str(_MAX_TOKENS)]
        for name, value in (
            ("--chat-template-file", server.chat_template_file),
            ("--api-key", server.api_key),
            ("--slot-save-path", server.slot_save_path),
            ("--cors-origins", server.cors_origins or "*"),
            ("--pooling", server.pooling if server.pooling in ("mean", "cls", "last") else None),
        ):
            options += [name, str(value)] if value else []
        return (*options, *(("--no-ui",) if server.no_ui else ()))

    def concerns(self, url: str) -> bool:
        return self._theirs is not None and f":{self._theirs.server_port}/" in url + "/"

    def record(self, method: str, url: str, body: bytes, headers: Mapping[str, str], status: int) -> None:
        """Sends to Stoker what llama-server has answered."""
        path = "/" + url.split("/", 3)[3] if url.count("/") > 2 else "/"
        kept = {
            name: value
            for name, value in headers.items()
            if name.lower() in _HEADERS or name.lower().startswith("access-control-")
        }
        with self._lock:
            reply = httpx.request(
                method, self._ours + path, content=body, headers=kept, trust_env=False, timeout=_WAIT_S
            )
            text = body.decode(errors="replace")
            sent = Sent(self.test, f"{method} {path}", text, status, reply.status_code, reply.text)
            self.sent.append(sent)
        if sent.is_only_theirs:
            print(sent.told(), file=sys.__stderr__, flush=True)


class Names:
    """Tells the pair which test runs."""

    def __init__(self, pair: Pair) -> None:
        self._pair = pair

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._pair.test = nodeid.rpartition("/")[2]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            last = str(report.longrepr).strip().splitlines()[-1][:160]
            print(f"ended early: {report.nodeid} ({report.when}): {last}", file=sys.__stderr__, flush=True)


def shortened(body: bytes) -> bytes:
    """The same request for a short answer."""
    try:
        value = json.loads(body)
    except ValueError:
        return body
    if not isinstance(value, dict):
        return body
    found = [name for name in _LIMITS if isinstance(value.get(name), int) and value[name] > _MAX_TOKENS]
    return json.dumps(value | dict.fromkeys(found, _MAX_TOKENS)).encode() if found else body


def watch_requests(pair: Pair) -> None:
    """What tests send with `requests` and with clients on httpx."""
    send = requests.Session.send

    def send_both(self: requests.Session, request: requests.PreparedRequest, **options: Any) -> requests.Response:
        if not pair.concerns(request.url or ""):
            return send(self, request, **options)
        body = request.body.encode() if isinstance(request.body, str) else request.body
        assert isinstance(body, bytes | None), "no test sends a file"
        body = shortened(body or b"")
        if body:
            request.prepare_body(body, None)
        reply = send(self, request, **{**options, "stream": False})
        if not (request.url or "").endswith("/health") or pair.test:
            pair.record(
                request.method or "GET",
                request.url or "",
                body,
                {name: str(value) for name, value in request.headers.items()},
                reply.status_code,
            )
        return reply

    send_with_httpx = httpx.Client.send

    def send_both_with_httpx(self: httpx.Client, request: httpx.Request, **options: Any) -> httpx.Response:
        reply = send_with_httpx(self, request, **options)
        if pair.concerns(str(request.url)):
            pair.record(
                request.method,
                str(request.url),
                request.content,
                {name: str(value) for name, value in request.headers.items()},
                reply.status_code,
            )
        return reply

    requests.Session.send = send_both  # pyright: ignore[reportAttributeAccessIssue]
    httpx.Client.send = send_both_with_httpx


def unpack(folder: Path) -> Path:
    """llama-server's tests and the templates that they name; returns the folder of the tests."""
    with tarfile.open(sources()) as files:
        for member in files.getmembers():
            _, found, rest = member.name.partition("/llama.cpp/")
            if member.isfile() and any(f"{found}{rest}".startswith(name) for name in _FOLDERS):
                path = folder / rest
                path.parent.mkdir(parents=True, exist_ok=True)
                content = files.extractfile(member)
                assert content is not None
                path.write_bytes(content.read())
    return folder / "tools/server/tests"


def use_utils(pair: Pair, tests: Path) -> None:
    """The tests' own module of helpers starts both servers, and downloads nothing."""

    def refuse(url: str, out: str) -> None:
        pytest.skip(f"{url} is not downloaded")

    wget = ModuleType("wget")
    wget.download = refuse  # pyright: ignore[reportAttributeAccessIssue]
    sys.modules["wget"] = wget
    sys.path.insert(0, str(tests))
    utils: Any = importlib.import_module("utils")
    begin = utils.ServerProcess.start
    utils.ServerProcess.start = lambda server, timeout_seconds=0: pair.start(server, begin)
    utils.ServerProcess.stop = lambda server: None
    utils.ServerPreset.load_all = staticmethod(lambda: None)


def run_tests(pair: Pair, names: list[str]) -> None:
    """Runs llama-server's tests in this process, from their folder."""
    tests = unpack(pair.folder)
    use_utils(pair, tests)
    watch_requests(pair)
    os.chdir(tests)
    chosen = names or [
        path.name for path in sorted((tests / "unit").glob("test_*.py")) if path.name not in _OTHER_THINGS
    ]
    os.environ["LLAMA_ARG_WARMUP"] = "0"
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    options = [
        "-q",
        "--capture=sys",  # what is written to the real stderr is seen
        "--no-header",
        "--tb=line",
        "--assert=plain",
        "-p",
        "no:cacheprovider",
        "-p",
        "pytest_timeout",
        f"--timeout={_TEST_S}",
        "-W",
        "ignore",
    ]
    try:
        pytest.main([*options, *(f"unit/{name}" for name in chosen)], plugins=[Names(pair)])
    finally:
        pair.close()


def report(pair: Pair) -> int:
    """Prints how much was sent; returns the number of requests that only llama-server serves, without a cause."""
    only_theirs = [sent for sent in pair.sent if sent.is_only_theirs]
    num_open = sum(sent.cause is None for sent in only_theirs)
    print(f"\n{len(pair.sent)} requests of {len({sent.test for sent in pair.sent})} tests")
    print("status of both:", dict(Counter((sent.theirs, sent.ours) for sent in pair.sent)))
    print(f"only llama-server serves {len(only_theirs)}, {num_open} of them without a cause")
    return num_open


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("names", nargs="*")
    args = parser.parse_args()
    if __debug__:
        command = [sys.executable, "-O", "-m", "tests.e2e.llama_server_own_tests", *sys.argv[1:]]
        return subprocess.run(command, check=False).returncode
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # who has no time left gets the report
    with tempfile.TemporaryDirectory() as folder:
        pair = Pair(str(Path(args.program).resolve()), Path(folder))
        run_tests(pair, args.names)
        return 1 if report(pair) else 0


if __name__ == "__main__":
    raise SystemExit(main())

"""What llama-server serves of tools, reasoning and structured output, Stoker serves, too.

    python -m tests.e2e.test_beside_llama_server MODEL.gguf /path/to/llama-server

prints what both say to each of the cases, and which fields of llama-server's answers Stoker's have not. What is refused
on purpose is in `llama_server_refusals`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest

from tests.e2e.conftest import serving
from tests.e2e.llama_server_cases import CASES, Case
from tests.e2e.llama_server_field_cases import FIELD_CASES
from tests.e2e.llama_server_refusals import cause_of
from tests.ports import free_port

pytestmark = pytest.mark.slow

TEMPLATE = Path("tests/golden/chat_templates/qwen3.jinja").resolve()
WAIT_S = 300


def ask(url: str, case: Case) -> httpx.Response:
    if case.body is None:
        return httpx.get(url + case.path, trust_env=False, timeout=WAIT_S)
    return httpx.post(url + case.path, json=case.body, trust_env=False, timeout=WAIT_S)


def problem(reply: httpx.Response, case: Case) -> str | None:
    """What is wrong with the answer to a case; None = it is served."""
    if reply.status_code != 200:
        return f"{reply.status_code} {reply.text[:200]}"
    if case.is_stream or not reply.headers["content-type"].startswith("application/json"):
        return reply.text[-200:] if '"error":{' in reply.text.replace(" ", "") else None
    try:
        return None if case.check(reply.json()) else reply.text[:200]
    except (KeyError, ValueError, jsonschema.ValidationError) as error:
        return f"{error!r}: {reply.text}"[:200]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    log = tmp_path_factory.mktemp("beside") / "log"
    with serving("scripted", "--chat-template-file", str(TEMPLATE), "--ctx-size", "8192", log=log) as server:
        yield server.url


@pytest.mark.parametrize("case", [*CASES, *FIELD_CASES], ids=lambda case: case.name)
def test_a_case_that_llama_server_serves_is_served_or_refused_with_a_cause(url: str, case: Case) -> None:
    found = problem(ask(url, case), case)
    assert found is None or cause_of(found)


@pytest.mark.parametrize(
    "body", [{"action": "reasoning_end"}, {"id": "chatcmpl-1"}, {"id": "chatcmpl-1", "action": "reasoning_begin"}]
)
def test_a_control_that_makes_no_sense_is_refused(url: str, body: dict[str, Any]) -> None:
    reply = httpx.post(f"{url}/v1/chat/completions/control", json=body, trust_env=False, timeout=WAIT_S)
    assert reply.status_code == 400


def test_a_client_ends_the_reasoning_of_a_stream(tmp_path: Path) -> None:
    """The thought is longer than what fits between a server and a client that does not read."""
    script = tmp_path / "script.json"
    script.write_text(json.dumps(["<think>\n" + "I wonder. " * 30_000]))
    options = ("--script", str(script), "--chat-template-file", str(TEMPLATE), "--ctx-size", "400000")
    body = {"messages": [{"role": "user", "content": "Hi."}], "stream": True, "reasoning_control": True}
    with (
        serving("scripted", *options, log=tmp_path / "log") as server,
        httpx.Client(base_url=server.url, trust_env=False, timeout=WAIT_S) as client,
        client.stream("POST", "/v1/chat/completions", json=body) as reply,
    ):
        chunks = (json.loads(line.removeprefix("data: ")) for line in reply.iter_lines() if line)
        reasoning = next(chunk for chunk in chunks if chunk["choices"][0]["delta"].get("reasoning_content"))
        control = {"id": reasoning["id"], "action": "reasoning_end"}
        assert client.post("/v1/chat/completions/control", json=control).json() == {"success": True}
        assert any(chunk["choices"][0]["delta"].get("content") for chunk in chunks)
        again = client.post("/v1/chat/completions/control", json=control).json()
        assert not again["success"]


@contextmanager
def llama_server(model: str, program: str, log: Path) -> Generator[str]:
    """A llama-server, ready to answer; it ends with the block."""
    port = free_port()
    command = [program, "-m", model, "--host", "127.0.0.1", "--port", str(port), "--jinja"]
    command += ["-c", "8192", "-np", "2", "-t", "1", "--metrics", "--slots"]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, "--chat-template-file", str(TEMPLATE)], stdout=output, stderr=subprocess.STDOUT
        )
    try:
        deadline = time.monotonic() + WAIT_S
        while not _is_healthy(f"http://127.0.0.1:{port}"):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait(WAIT_S)


def _is_healthy(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", trust_env=False, timeout=5).status_code == 200
    except httpx.TransportError:
        return False


def as_json(reply: httpx.Response) -> Any:
    return reply.json() if reply.headers["content-type"].startswith("application/json") else None


def missing_names(theirs: Any, ours: Any, place: str = "") -> set[str]:
    """The members of their answer that ours has not. Of lists the first items are compared."""
    if isinstance(theirs, list) and isinstance(ours, list):
        return missing_names(theirs[0], ours[0], f"{place}[]") if theirs and ours else set()
    if not isinstance(theirs, dict) or not isinstance(ours, dict):
        return set()
    return {f"{place}.{name}" for name in theirs.keys() - ours.keys()}.union(
        *(missing_names(theirs[name], ours[name], f"{place}.{name}") for name in theirs.keys() & ours.keys())
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("program")
    parser.add_argument("names", nargs="*", help="beginnings of the names of cases; not given: all")
    args = parser.parse_args()
    cases = [case for case in (*CASES, *FIELD_CASES) if case.name.startswith(tuple(args.names or [""]))]
    num_missing, missing_fields = 0, Counter[tuple[str, str]]()
    with tempfile.TemporaryDirectory() as folder:
        options = ("--parallel", "2", "--chat-template-file", str(TEMPLATE))
        with (
            serving(args.model, *options, log=Path(folder, "stoker")) as server,
            llama_server(args.model, args.program, Path(folder, "llama-server")) as theirs,
        ):
            print("| case | llama-server | Stoker |\n| --- | --- | --- |")
            for case in cases:
                their_reply, our_reply = ask(theirs, case), ask(server.url, case)
                their_problem, our_problem = problem(their_reply, case), problem(our_reply, case)
                cause = cause_of(our_problem or "")
                num_missing += their_problem is None and our_problem is not None and cause is None
                ours = f"{our_problem} ({cause})" if our_problem and cause else our_problem or "served"
                print(f"| {case.name} | {their_problem or 'served'} | {ours} |", flush=True)
                if their_problem is our_problem is None and not case.is_stream:
                    missing = missing_names(as_json(their_reply), as_json(our_reply))
                    missing_fields.update((case.path, name) for name in missing)
    for (path, name), count in sorted(missing_fields.items()):
        print(f"{path}: {name} is not there ({count} x)")
    print(f"{len(cases)} cases; {num_missing} that only llama-server serves, without a cause")
    return 1 if num_missing else 0


if __name__ == "__main__":
    raise SystemExit(main())

"""What an answer looks like (`--schema`, `--think`), and tools of a real MCP server in `stoker chat`."""

from __future__ import annotations

import io
import json
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import stoker.cli.mcp_servers as mcp_servers
from stoker import LLM, EngineConfig
from stoker.cli.mcp_servers import Toolbox, server_specs
from stoker.cli.thoughts import spoken
from stoker.cli.tool_rounds import MAX_ROUNDS
from stoker.errors import ConfigError
from tests.ports import free_port
from tests.unit.cli.conftest import Stoker

WAIT_S = 120
SERVER = f"{sys.executable} -m tests.unit.cli.mcp_server"
PLAIN_SERVER = f"{sys.executable} -m tests.unit.cli.plain_mcp_server"
TEMPLATE = "tests/golden/chat_templates/qwen3.jinja"
SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}},
    "required": ["ok"],
    "additionalProperties": False,
}

Script = Callable[..., list[str]]


def call(name: str, **arguments: object) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


@pytest.fixture
def script(tmp_path: Path) -> Script:
    """The options of a model that gives these answers."""

    def make(*answers: Any) -> list[str]:
        (tmp_path / "script.json").write_text(json.dumps(answers))
        return ["scripted", "--script", str(tmp_path / "script.json"), "--chat-template-file", TEMPLATE]

    return make


def test_a_schema_binds_the_answer(stoker: Stoker, tmp_path: Path) -> None:
    (tmp_path / "schema.json").write_text(json.dumps(SCHEMA))
    for schema in (json.dumps(SCHEMA), str(tmp_path / "schema.json")):
        for raw in ([], ["--raw"]):
            done = stoker("run", "scripted", "Hi", "--schema", schema, *raw)
            assert done.code == 0
            assert json.loads(done.out)["ok"] in (True, False)


def test_any_json_object_can_be_asked_for(stoker: Stoker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for raw in ([], ["--raw"]):
        free = stoker("run", "scripted", "Hi", *raw)
        bound = stoker("run", "scripted", "Hi", "--schema", "json", *raw)
        assert (free.code, free.out.lstrip().startswith("{")) == (0, False)
        assert (bound.code, bound.out.lstrip().startswith("{")) == (0, True)
    (tmp_path / "json").write_text(json.dumps(SCHEMA))
    assert "ok" in json.loads(stoker("run", "scripted", "Hi", "--schema", "./json").out)


@pytest.mark.parametrize(
    ("schema", "complaint"),
    [("{", "is not valid JSON"), ("none.json", "No such file or directory; give a file"), ('{"type": 5}', "schema")],
)
def test_a_schema_that_cannot_be_used(stoker: Stoker, schema: str, complaint: str) -> None:
    done = stoker("run", "scripted", "Hi", "--schema", schema)
    assert (done.code, done.out) == (2, "")
    assert complaint in done.err


def test_thoughts_are_no_part_of_the_answer(stoker: Stoker, script: Script) -> None:
    model = script({"when": "<think>\n\n</think>", "text": "Quick."}, "<think>\nHm.\n</think>\n\nSlow.")
    assert stoker("run", *model, "Is it?") == stoker("run", *model, "Is it?", "--think")
    assert stoker("run", *model, "Is it?").out == "Slow.\n"
    assert stoker("run", *model, "Is it?").err == ""
    assert stoker("run", *model, "Is it?", "--no-think").out == "Quick.\n"
    refused = stoker("run", "An answer", "Is it?", "--think")
    assert (refused.code, "An answer has none" in refused.err) == (2, True)


@pytest.mark.parametrize(("no_color", "shown"), [("", "\x1b[2mHm.\x1b[0m\n"), ("1", "Hm.\n")])
def test_thoughts_are_dimmed_on_a_terminal(
    script: Script, monkeypatch: pytest.MonkeyPatch, no_color: str, shown: str
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    options = script("<think>\nHm.\n</think>\n\nSlow.")
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    monkeypatch.setenv("NO_COLOR", no_color)
    with LLM(EngineConfig(model="scripted", script=options[2], chat_template_file=TEMPLATE)) as llm:
        assert "".join(spoken(llm.stream_chat("Is it?"))) == "Slow."
    assert terminal.getvalue() == shown


def test_a_model_calls_tools_of_a_server(stoker: Stoker, script: Script) -> None:
    model = script({"when": "<tool_response>\n3", "text": "It is 3."}, call("add", first=1, second=2), "Bye.")
    done = stoker("chat", *model, "--mcp", SERVER, "--yes", stdin=b"1 + 2?\nThanks.\n")
    assert done.code == 0
    assert done.out == "It is 3.\nIt is 3.\n", "the second prompt has the result in it, too"
    assert f'[{SERVER}] add({{"first": 1, "second": 2}})' in done.err
    assert "=> 3" in done.err


@pytest.fixture
def web_server(tmp_path: Path) -> Iterator[str]:
    """The same server over HTTP."""
    port = free_port()
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen([*shlex.split(SERVER), str(port)], stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + WAIT_S
        while not _listens(port):
            assert process.poll() is None, (tmp_path / "log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.kill()
        process.wait(WAIT_S)


def _listens(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5):
            return True
    except OSError:
        return False


def test_a_model_calls_tools_of_a_server_over_http(stoker: Stoker, script: Script, web_server: str) -> None:
    model = script({"when": "<tool_response>\n3", "text": "It is 3."}, call("add", first=1, second=2))
    done = stoker("chat", *model, "--mcp", web_server, "--yes", stdin=b"1 + 2?\n")
    assert (done.code, done.out) == (0, "It is 3.\n"), done.err
    assert f'[{web_server}] add({{"first": 1, "second": 2}})' in done.err
    assert "=> 3" in done.err


def test_the_user_is_asked_before_each_call(
    stoker: Stoker, script: Script, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    two = call("add", first=1, second=2) + "\n" + call("add", first=10, second=20)
    answers = [{"when": "user declined", "text": "Refused."}, {"when": "30", "text": "Both."}, two]
    (tmp_path / "servers.json").write_text(
        json.dumps({"mcpServers": {"tested": dict(zip(("command", "args"), _split(PLAIN_SERVER), strict=True))}})
    )
    monkeypatch.setattr("stoker.cli.tool_rounds._has_terminal", lambda: True)
    for replies, said in ((b"n\nn\n", "Refused."), (b"y\ny\n", "Both."), (b"a\n", "Both.")):
        done = stoker("chat", *script(*answers), "--mcp", str(tmp_path / "servers.json"), stdin=b"Add!\n" + replies)
        assert (done.code, done.out.strip()) == (0, said)
        assert done.err.count("call it?") == replies.count(b"\n")


def _split(command: str) -> tuple[str, list[str]]:
    program, *arguments = shlex.split(command)
    return program, arguments


def test_without_a_terminal_consent_is_needed(stoker: Stoker) -> None:
    done = stoker("chat", "scripted", "--mcp", SERVER)
    assert (done.code, "--yes calls tools without asking" in done.err) == (2, True)


def test_a_model_that_only_calls_tools_is_stopped(stoker: Stoker, script: Script) -> None:
    model = script(*(call("add", first=1, second=number) for number in range(MAX_ROUNDS + 5)))
    done = stoker("chat", *model, "--mcp", PLAIN_SERVER, "--yes", stdin=b"Go!\n")
    assert (done.code, done.out) == (0, "")
    assert done.err.count("=> ") == MAX_ROUNDS
    assert f"stopped after {MAX_ROUNDS} rounds" in done.err


def test_what_goes_wrong_with_a_call_is_told_to_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    with Toolbox(server_specs([SERVER])) as tools:
        assert tools.definitions[0]["function"]["name"] == "add"
        assert tools.call("add", {"first": 1, "second": 2}) == "3"
        assert tools.call("add", {"first": "x"}).startswith("error: ")
        assert tools.call("fail", {}).startswith("error: ")
        assert "cut off after 16384 of 50000 characters" in tools.call("long", {})
        monkeypatch.setattr(mcp_servers, "_CALL_S", 0.01)
        assert "did not answer within" in tools.call("hang", {})
        monkeypatch.undo()
        monkeypatch.setattr("mcp.client.stdio.PROCESS_TERMINATION_TIMEOUT", 0.01)  # it sleeps, and has to be killed
    with Toolbox(server_specs([SERVER])) as tools:
        assert "failed: Connection closed" in tools.call("die", {})
        assert "failed: Connection closed" in tools.call("add", {"first": 1, "second": 2})


@pytest.mark.parametrize(
    ("server", "complaint"),
    [
        ("/nowhere/server --x", "does not start: .*No such file"),
        ("false", "does not start: Connection closed"),
        ("http://127.0.0.1:9/mcp", "does not start"),
        ("unclosed 'quote", "is not a command"),
    ],
)
def test_a_server_that_does_not_start_is_named(server: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint), Toolbox(server_specs([server])):
        pass


def test_a_server_that_hangs_at_its_start_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_servers, "_START_S", 0.2)
    monkeypatch.setattr("mcp.client.stdio.PROCESS_TERMINATION_TIMEOUT", 0.01)  # it has to be killed
    with pytest.raises(ConfigError, match=r"did not answer within 0\.2 s"), Toolbox(server_specs(["sleep 600"])):
        pass


def test_a_file_of_servers(tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    path.write_text('{"mcpServers": {"web": {"url": "http://x/mcp", "headers": {"A": "b"}}, "p": {"command": "p"}}}')
    specs = server_specs([str(path), "q --z 'a b'"])
    assert [*specs] == ["web", "p", "q --z 'a b'"]
    assert (specs["web"].url, specs["web"].headers) == ("http://x/mcp", {"A": "b"})
    assert specs["q --z 'a b'"].args == ["--z", "a b"]
    for wrong in ("[]", "{", '{"mcpServers": {"x": {}}}'):
        path.write_text(wrong)
        with pytest.raises(ConfigError, match=r"mcp\.json"):
            server_specs([str(path)])

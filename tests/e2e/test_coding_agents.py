"""Real agents for the command line: each writes a file and runs a command, as a scripted model tells it to.

They are native programs from npm's registry (400 MB, downloaded once into the platform's cache directory), and talk to
nothing but the server: what else they would ask for is switched off.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree
from typing import Any

import pytest

from tests.e2e.conftest import serving
from tests.npm import npm_package

TEMPLATE = Path("tests/golden/chat_templates/qwen3.jinja").resolve()
INSTALL_S, RUN_S = 240, 240
TASK = "Please write the poem for {agent} into poem.txt, and number it."
POEM = "O fish!\n"
NUMBERED = "echo $((6*7))-{agent}; cat poem.txt"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(INSTALL_S + RUN_S),
    pytest.mark.skipif(
        sys.platform != "linux" or platform.machine() != "x86_64", reason="the agents are programs for Linux on x86-64"
    ),
]


@dataclass(frozen=True)
class Agent:
    """A program, and the tools that its model calls."""

    name: str
    spec: str
    digest: str
    member: str
    """The program in its archive."""
    written: str
    """Beginning of the result of its tool that writes a file."""
    write: tuple[str, dict[str, Any]]
    run: tuple[str, str]
    """The tool that runs a command, and the argument that is the command."""


def agents(folder: Path) -> dict[str, Agent]:
    """`folder` has a workspace for each."""
    claude = Agent(
        "claude",
        "@anthropic-ai/claude-code-linux-x64@2.1.332",
        "1c89f2f1e0bee93742cff8de9181fc07c702ce0651f1492bb3b97487d3a84af1",
        "package/claude",
        "File created successfully",
        ("Write", {"file_path": str(folder / "claude/poem.txt"), "content": POEM}),
        ("Bash", "command"),
    )
    codex = Agent(
        "codex",
        "@openai/codex@0.171.0-linux-x64",
        "e13d67afb0533cc6160b5f4140e4ad07e2acd87adbaa081bbf69b82e90cf4e55",
        "package/vendor/x86_64-unknown-linux-musl/bin/codex",
        "43-written",
        ("exec_command", {"cmd": f"echo '{POEM.strip()}' > poem.txt; echo $((6*7+1))-written"}),
        ("exec_command", "cmd"),
    )
    opencode = Agent(
        "opencode",
        "opencode-linux-x64@1.18.33",
        "149a676b59224b196626abda2fdbd34c8329ac326b57c4891ba3de446f3ca3c1",
        "package/bin/opencode",
        "Wrote file successfully",
        ("write", {"content": POEM, "filePath": str(folder / "opencode/poem.txt")}),
        ("bash", "command"),
    )
    return {agent.name: agent for agent in (claude, codex, opencode)}


@pytest.fixture(scope="module")
def workspaces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("workspaces")
    for name in agents(folder):
        (folder / name).mkdir()
        (folder / f"home-{name}").mkdir()
    return folder


@pytest.fixture(scope="module")
def url(workspaces: Path) -> Iterator[str]:
    """A server whose model knows what to do next from what the last tool has said."""
    script: list[Any] = [{"when": "title generator", "text": "A poem"}]
    for agent in agents(workspaces).values():
        task = TASK.format(agent=agent.name)
        tool, argument = agent.run
        steps = [
            (f"42-{agent.name}\n", f"The poem of {agent.name} has the number 42."),
            (agent.written, call(tool, {argument: NUMBERED.format(agent=agent.name)})),
            (task, f"I write it.\n{call(*agent.write)}"),
        ]
        script += [{"when": when, "text": text} for when, text in steps]
    (workspaces / "script.json").write_text(json.dumps([*script, "Hello."]))
    options = ("--script", str(workspaces / "script.json"), "--chat-template-file", str(TEMPLATE))
    with serving("scripted", *options, "--ctx-size", "200000", log=workspaces / "log") as server:
        yield server.url


def call(tool: str, arguments: dict[str, Any]) -> str:
    return f"<tool_call>\n{json.dumps({'name': tool, 'arguments': arguments})}\n</tool_call>"


def run(name: str, workspaces: Path, *arguments: str, **environ: str) -> str:
    """Runs an agent in its workspace on its task; what it has printed."""
    agent = agents(workspaces)[name]
    unpacked = workspaces / "unpacked"
    with tarfile.open(npm_package(agent.spec, agent.digest)) as archive:
        archive.extract(agent.member, unpacked, filter="data")
    environment = {"PATH": os.environ["PATH"], "HOME": str(workspaces / f"home-{name}"), **environ}
    command = [str(unpacked / agent.member), *arguments, TASK.format(agent=name)]
    try:
        done = subprocess.run(
            command,
            cwd=workspaces / name,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=RUN_S,
            check=False,
        )
    finally:
        rmtree(unpacked)  # hundreds of MB
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert (workspaces / name / "poem.txt").read_text() == POEM
    assert f"The poem of {name} has the number 42." in done.stdout
    return done.stdout


def test_claude_code(url: str, workspaces: Path) -> None:
    options = ("--model", "scripted", "--dangerously-skip-permissions", "--output-format", "json", "-p")
    settings = {
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_AUTH_TOKEN": "none",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
        "IS_SANDBOX": "1",
    }
    usage = json.loads(run("claude", workspaces, *options, **settings))["usage"]
    assert usage["cache_read_input_tokens"] > 1.9 * usage["input_tokens"], (
        "the second and the third turn are in the cache"
    )


def test_codex(url: str, workspaces: Path) -> None:
    home = workspaces / "home-codex"
    provider = f'[model_providers.stoker]\nname = "Stoker"\nbase_url = "{url}/v1"\nwire_api = "responses"\n'
    settings = 'model = "scripted"\nmodel_provider = "stoker"\ncheck_for_update_on_startup = false\n'
    (home / "config.toml").write_text(f"{settings}[analytics]\nenabled = false\n{provider}")
    options = ("exec", "--json", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox")
    events = [json.loads(line) for line in run("codex", workspaces, *options, CODEX_HOME=str(home)).splitlines()]
    (usage,) = [event["usage"] for event in events if event["type"] == "turn.completed"]
    assert usage["cached_input_tokens"] > 0.6 * usage["input_tokens"], "the second and the third turn are in the cache"


def test_opencode(url: str, workspaces: Path) -> None:
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": f"{url}/v1", "apiKey": "none"},
        "models": {"scripted": {"tool_call": True, "limit": {"context": 131072, "output": 8192}}},
    }
    settings = {"model": "stoker/scripted", "autoupdate": False, "share": "disabled", "provider": {"stoker": provider}}
    (workspaces / "opencode" / "opencode.json").write_text(json.dumps(settings))
    switches = ("AUTOUPDATE", "MODELS_FETCH", "LSP_DOWNLOAD", "DEFAULT_PLUGINS")
    run("opencode", workspaces, "run", **{f"OPENCODE_DISABLE_{switch}": "1" for switch in switches})

"""What the command line begins early, what it does not import, and that nothing of it is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from stoker.cli.app import main, will_need_engine
from stoker.cli.commands import COMMANDS, command_line
from stoker.cli.report import INTERRUPTED
from tests.brief import every
from tests.spawns import record_spawns
from tests.unit.cli.conftest import Stoker

BOUND_S = 60.0
HEAVY = ("numpy", "tokenizers", "jinja2", "zmq", "starlette", "uvicorn", "onnxruntime", "llama_cpp", "huggingface_hub")


@pytest.mark.parametrize(
    ("line", "is_needed"),
    [
        ("serve smollm2", True),
        ("serve --port 1 smollm2", True),
        ("serve", False),
        ("serve --help", False),
        ("serve smollm2 --runtime llama-server", False),
        ("serve smollm2 --runtime=llama-server", False),
        ("serve folder --runtime vllm", False),
        ("run smollm2", False),
        ("run serve", False),
        ("--version", False),
        ("", False),
    ],
)
def test_an_engine_is_started_early_for_serve_alone(line: str, is_needed: bool) -> None:
    assert will_need_engine(line.split()) is is_needed


def test_the_environment_may_say_that_another_program_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_RUNTIME", "llama-server")
    assert not will_need_engine(["serve", "smollm2"])


@pytest.mark.parametrize(("option", "code"), [("--ctx-size=none", 2), ("--ctx-size=64", 3)])
def test_an_engine_that_was_started_early_ends_with_an_error(
    stoker: Stoker, monkeypatch: pytest.MonkeyPatch, option: str, code: int
) -> None:
    started = record_spawns(monkeypatch)
    monkeypatch.setenv("STOKER_BACKEND", "native")
    done = stoker("serve", "missing.gguf", option)
    assert done.code == code
    assert [process.returncode is None for process in started] == [False]


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="nobody says here which files are open")
def test_no_file_gets_the_number_of_a_standard_file_that_was_closed() -> None:
    code = """
import os, sys
os.close(0), os.close(2)
sys.argv = ["stoker", "--version"]
from stoker.cli.app import main
try:
    main()
except SystemExit:
    opened = os.open("/proc", os.O_RDONLY)
    print([os.readlink(f"/proc/self/fd/{n}") for n in (0, 2)], os.get_inheritable(2), opened > 2)
"""
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, timeout=BOUND_S, check=True)
    assert done.stdout.splitlines()[-1] == "['/dev/null', '/dev/null'] True True"


def test_one_command_alone_is_made_as_all_of_them_are() -> None:
    def names(*arguments: str) -> list[str | None]:
        made = command_line(arguments)
        commands = [command.name or getattr(command.callback, "__name__", None) for command in made.registered_commands]
        return [*commands, *(group.name for group in made.registered_groups)]

    assert names() == names("nothing")
    assert set(names()) == set(COMMANDS)
    for command in COMMANDS:
        assert names(command, "--help") == [command]


@pytest.mark.parametrize("number", every(2, [signal.SIGINT, signal.SIGTERM, signal.SIGKILL]))
def test_a_signal_in_the_first_moments_leaves_no_engine_behind(number: signal.Signals, tmp_path: Path) -> None:
    environment = {**os.environ, "STOKER_BACKEND": "scripted", "STOKER_CACHE_DIR": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-m", "stoker", "serve", "x", "--port=0"], env=environment) as process:
        children: list[psutil.Process] = []
        while not children and process.poll() is None:
            children = psutil.Process(process.pid).children()
        process.send_signal(number)
        assert process.wait(BOUND_S) in {-number, INTERRUPTED}
    assert children
    assert not psutil.wait_procs(children, BOUND_S)[1]


def imported(code: str, modules: tuple[str, ...]) -> list[str]:
    """Which of `modules` are there after `code` in a process of its own."""
    told = f"\nimport sys\nprint([m for m in {modules!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code + told], capture_output=True, text=True, check=True, timeout=60)
    return eval(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("option", ["--version", "--help"])
def test_version_and_help_import_nothing_heavy(option: str) -> None:
    code = f"""
import sys
from stoker.cli.app import main
sys.argv = ["stoker", "{option}"]
try:
    main()
except SystemExit as end:
    assert not end.code
"""
    assert imported(code, (*HEAVY, "asyncio", "stoker.engine.protocol")) == []


def test_next_to_nothing_is_imported_before_the_engine_is_started() -> None:
    assert imported("import stoker.cli.app", (*HEAVY, "typer", "msgspec", "logging", "asyncio", "inspect")) == []


def test_next_to_nothing_is_imported_before_an_interrupt_is_understood() -> None:
    assert imported("import stoker.cli.app", ("stoker.engine", "pathlib", "subprocess")) == []


def test_an_interrupt_before_any_command_has_its_own_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("sys.argv", ["stoker", "serve", "x"])
    monkeypatch.setattr("stoker.engine.spare.start", interrupted)
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == INTERRUPTED


def test_a_server_imports_neither_what_computes_nor_what_downloads() -> None:
    code = (
        "import stoker.cli.serve, stoker.serving, stoker.server.transport.app, stoker.engine.client, "
        "stoker.runtime.replicas"
    )
    heavy = ("numpy", "tokenizers", "onnxruntime", "llama_cpp", "huggingface_hub", "stoker.engine.engine")
    assert imported(code, heavy) == []


def test_little_is_imported_before_engines_are_told_what_to_load() -> None:
    code = "import stoker.cli.serve, stoker.serving, stoker.server.transport.run, stoker.engine.client"
    later = (
        *("uvicorn", "starlette.applications", "prometheus_client", "jinja2", "filelock", "numpy", "PIL"),
        *("stoker.server.endpoints", "stoker.server.api", "stoker.server.transport.app", "stoker.chat.planning"),
        *("stoker.text.chat_template", "stoker.text.chat_formats.table", "stoker.media.encoder", "stoker.grammars"),
        *("stoker.core.scheduler", "stoker.core.kv_cache"),
    )
    assert imported(code, later) == []


def test_a_server_computes_nothing_and_parses_no_grammar() -> None:
    code = "import stoker.serving, stoker.server.transport.app"
    assert imported(code, ("stoker.core.scheduler", "stoker.core.kv_cache", "stoker.grammars.lark", "PIL")) == []


def test_an_engine_imports_neither_a_server_nor_other_backends() -> None:
    code = "import stoker.assembly, stoker.engine.process\nfor m in stoker.assembly._USUAL: __import__(m)"
    heavy = ("starlette", "uvicorn", "typer", "jinja2", "asyncio", "onnxruntime", "llama_cpp", "huggingface_hub")
    assert imported(code, (*heavy, "stoker.backends.native.architectures.qwens")) == []

"""The small commands, and what all of them share."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest
from typer.main import get_command

from stoker import __version__
from stoker.cli import commands
from stoker.cli.commands import command_line
from stoker.cli.report import exit_code, painted
from stoker.engine.config import EngineConfig
from stoker.errors import (
    BackendError,
    ConfigError,
    ContextLengthExceeded,
    DownloadFailed,
    EngineCrashed,
    ModelFileInvalid,
    ModelNotLoaded,
    Overloaded,
    ResourceExhausted,
    StokerError,
)
from stoker.server.config import ServerConfig
from tests.brief import mostly_slow, slow_are
from tests.tiny_models import TinyModel, write_tiny_model
from tests.unit.backends.test_native_weights import load
from tests.unit.cli.conftest import Stoker

COMMANDS = ["run", "chat", "serve", "batch", "pull", "models", "export", "bench", "config"]


def in_shell(
    script: str, *arguments: str, stderr: int = subprocess.PIPE, **environment: str
) -> subprocess.CompletedProcess[str]:
    """A script in which `$0` is Python."""
    return subprocess.run(
        ["sh", "-c", script, sys.executable, *arguments],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        timeout=60,
        check=False,
    )


def test_help_lists_every_command_and_the_exit_codes(stoker: Stoker) -> None:
    done = stoker("--help")
    assert done.code == 0
    for word in [*COMMANDS, "130 ^C"]:
        assert word in done.out


def test_the_list_says_of_each_command_what_its_own_help_begins_with(stoker: Stoker) -> None:
    made = cast(Any, get_command(command_line())).commands
    listed = dict(line.split(maxsplit=1) for line in stoker("--help").out.splitlines() if re.match("  [a-z]+  ", line))
    assert listed == {name: re.split(r"(?<=\.)\s", made[name].help)[0] for name in listed}
    assert len(listed) > 12
    assert set(commands.COMMANDS) == set(made)


@pytest.mark.parametrize("command", ["run", "chat", "serve"])
def test_help_of_a_command_is_complete(stoker: Stoker, command: str) -> None:
    done = stoker(command, "--help-all")
    options = "backend ctx-size kv-tokens parallel threads temperature top-p top-k min-p seed max-tokens stop config"
    for option in options.split():
        assert f"--{option} " in done.out
    assert "scripted" not in done.out
    assert "130 interrupted" in done.out


def test_help_states_the_defaults_that_hold(stoker: Stoker) -> None:
    shown = " ".join(stoker("serve", "--help-all").out.split())
    for owner, keys in ((EngineConfig(), ("backend", "parallel", "max_queue")), (ServerConfig(), ("host", "port"))):
        for key in keys:
            _, _, description = shown.partition(f"--{key.replace('_', '-')} ")
            assert re.search(r"\[default: (.*?)[;\]]", description)[1] == str(getattr(owner, key))  # type: ignore[index]


@pytest.mark.parametrize("command", ["pull smollm2", "models"])
def test_a_command_without_settings_takes_no_config_file(stoker: Stoker, command: str) -> None:
    assert stoker(*command.split(), "--config", "/no/such/file.toml").code == 2


def test_help_of_config_tells_the_exit_codes(stoker: Stoker) -> None:
    for args in (["config"], ["config", "show"]):
        assert "130 interrupted" in stoker(*args, "--help").out


WRITING = ["run model Hi", "models", "config show", "--version", "cache check --cache-dir .", "pull pyproject.toml"]


@pytest.mark.parametrize("command", slow_are(["models", "--version", "pull pyproject.toml"], WRITING))
@pytest.mark.parametrize(("stdout", "said"), [(">&-", "it is closed"), (">/dev/full", "No space left")])
def test_a_stdout_that_takes_nothing_is_a_clear_error(command: str, stdout: str, said: str) -> None:
    shell = f'exec "$0" -m stoker {command} {stdout}'
    done = in_shell(shell, STOKER_BACKEND="scripted")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("error: cannot write to standard output: ")
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_table_that_nobody_reads_is_no_error() -> None:
    done = in_shell('{ "$0" -m stoker models; echo $? >&2; } | :')
    assert done.stderr == "0\n"


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("command", ["--help", "serve --help"])
def test_help_for_a_full_disk_is_no_traceback(command: str, unbuffered: str) -> None:
    done = in_shell(f'exec "$0" -m stoker {command} >/dev/full', PYTHONUNBUFFERED=unbuffered)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert done.stderr.startswith("error: ")
    assert "No space left" in done.stderr


@pytest.mark.parametrize("stderr", mostly_slow(["closed", "full", "left"], ["closed", "left"]))
@pytest.mark.parametrize(("prompt", "code", "answer"), [("Hi", 0, "fine\n"), ("", 2, "")])
def test_nobody_need_read_what_is_said_beside_the_answer(stderr: str, prompt: str, code: int, answer: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)  # as behind `2>&1 | head -1`
    full = os.open("/dev/full", os.O_WRONLY)
    shell = f'exec "$0" -m stoker run fine "$1" {"2>&-" if stderr == "closed" else ""}'
    try:
        done = in_shell(shell, prompt, stderr=full if stderr == "full" else writer, STOKER_BACKEND="scripted")
    finally:
        os.close(writer)
        os.close(full)
    assert (done.returncode, done.stdout) == (code, answer)


def test_what_the_system_refuses_is_said_in_a_line(stoker: Stoker, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused() -> None:
        raise PermissionError(13, "Permission denied", "/a/folder")

    monkeypatch.setattr("stoker.models.store.list_models", refused)
    done = stoker("models")
    assert (done.code, done.err.count("\n")) == (1, 1)
    assert "/a/folder: Permission denied" in done.err
    assert "Traceback" in stoker("models", "-v").err


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("run", "missing argument MODEL (see `stoker run -h`)"),
        ("run x y --kv-type q5", "--kv-type must be one of f16, f32, q8, q4, q16, i16, not 'q5' (see `stoker run -h`)"),
        ("run x y --top-k many", "--top-k must be a whole number (see `stoker run -h`)"),
        ("run x y --top-p many", "--top-p must be a number (see `stoker run -h`)"),
        ("nothing", "no such command 'nothing' (see `stoker -h`)"),
        ("config nothing", "no such command 'nothing' (see `stoker config -h`)"),
    ],
)
def test_a_wrong_command_line_is_told_as_every_other_error(stoker: Stoker, line: str, said: str) -> None:
    done = stoker(*line.split())
    assert (done.code, done.out, done.err) == (2, "", f"error: {said}\n")


def test_errors_are_red_on_a_terminal_unless_the_user_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert painted("error:", "31") == "\x1b[31merror:\x1b[0m"
    monkeypatch.setenv("NO_COLOR", "1")
    assert painted("error:", "31") == "error:"


def test_version(stoker: Stoker) -> None:
    assert stoker("--version").out == f"stoker {__version__}\n"


def test_no_command_shows_help(stoker: Stoker) -> None:
    assert "Run and serve:" in (done := stoker()).out + done.err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ContextLengthExceeded, 2),
        (ConfigError, 2),
        (ModelFileInvalid, 3),
        (DownloadFailed, 3),
        (ModelNotLoaded, 3),
        (Overloaded, 1),
        (ResourceExhausted, 1),
        (BackendError, 1),
        (EngineCrashed, 1),
        (StokerError, 1),
    ],
)
def test_exit_codes_by_kind_of_error(error: type[StokerError], code: int) -> None:
    assert exit_code(error("x")) == code


def test_models_lists_the_catalog(stoker: Stoker) -> None:
    done = stoker("models")
    assert done.code == 0
    assert done.out.splitlines()[0].split() == ["MODEL", "SIZE", "DESCRIPTION", "PATH"]
    assert any(
        line.startswith("smollm2 ") and "98 MB" in line and "not downloaded" in line for line in done.out.splitlines()
    )


def test_pull_prints_where_a_file_is(stoker: Stoker, tmp_path: Path) -> None:
    file = tmp_path / "a.gguf"
    file.touch()
    assert stoker("pull", str(file)).out == f"{file}\n"
    assert stoker("pull", str(tmp_path / "b.gguf")).code == 3


def test_pull_packs_what_the_native_backend_will_run(
    stoker: Stoker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stoker.backends.llama.gpu_name_by_child", lambda: None)
    file = write_tiny_model(tmp_path / "a.gguf", TinyModel(type="Q8_0"))
    folder = tmp_path / "cache" / "packed"
    assert stoker("pull", str(file), "--no-pack").out == f"{file}\n"
    assert not list(folder.glob("*.stoker"))
    assert stoker("pull", str(file)).out == f"{file}\n"
    (packed,) = folder.glob("*.stoker")
    made = packed.stat().st_ino
    assert load(file, folder).is_shared, "what an engine looks for"
    assert packed.stat().st_ino == made
    unknown = write_tiny_model(tmp_path / "b.gguf", TinyModel(keys={"rope.scaling.type": "nobody"}))
    assert stoker("pull", str(unknown)).out == f"{unknown}\n"
    assert len(list(folder.glob("*.stoker"))) == 1


def test_config_show_prints_each_value_with_its_origin(
    stoker: Stoker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "a.toml"
    file.write_text("[server]\nport = 9\n")
    monkeypatch.setenv("STOKER_CTXSIZE", "1")
    done = stoker("config", "show", "--all", "--config", str(file), "--temperature", "0.5")
    rows = {line.split()[0]: line.split(maxsplit=1)[1] for line in done.out.splitlines()}
    assert done.code == 0
    assert rows["server.port"].split(maxsplit=1) == ["9", f"file {file}"]
    assert rows["engine.backend"].split(maxsplit=1) == ["scripted", "environment STOKER_BACKEND"]
    assert rows["sampling.temperature"].split(maxsplit=1) == ["0.5", "flag --temperature"]
    assert rows["engine.parallel"].split(maxsplit=1) == ["8", "default"]
    assert rows["engine.lora"].split(maxsplit=1) == ["[]", "default"]
    assert "the model's own, else 40" in rows["sampling.top_k"]
    assert "STOKER_CTXSIZE is set, but is not a setting" in done.err


def test_misspelled_variable_is_noted_where_a_model_is_run(stoker: Stoker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_CTXSIZE", "1")
    monkeypatch.setenv("STOKER_SERVICE_HOST", "10.0.0.1")
    said = "note: the environment variable STOKER_CTXSIZE is set, but is not a setting of stoker; did you mean STOKER_"
    done = stoker("run", "fine", "Hi", "--raw")
    assert (done.out, done.err) == ("fine\n", f"{said}CTX_SIZE?\n")


def test_config_show_has_what_was_changed_and_where_it_was_looked_for(stoker: Stoker, tmp_path: Path) -> None:
    done = stoker("config", "show", "--temperature", "0.5", "--api-key", "hidden")
    assert [line.split()[0] for line in done.out.splitlines()] == [
        *("SETTING", "engine.backend", "sampling.temperature", "server.api_key")
    ]
    assert "hidden" not in done.out
    usual = tmp_path / "config_home" / "stoker" / "stoker.toml"
    assert f"file: {usual} (does not exist)" in done.err
    assert stoker("config", "path").out == f"{usual}\n"
    usual.parent.mkdir(parents=True)
    usual.write_text("[server]\nport = 9\n")
    assert f"file: {usual}\n" in stoker("config", "show").err


def test_config_show_for_programs(stoker: Stoker) -> None:
    told = json.loads(stoker("config", "show", "--json", "--api-key", "hidden").out)
    settings = {setting["key"]: setting for setting in told["settings"]}
    assert told["file"] is None
    assert settings["server.port"] == {"key": "server.port", "value": 8080, "origin": "default"}
    assert settings["engine.lora"]["value"] == []
    assert settings["server.api_key"]["value"] == "(set, not shown)"


def test_a_broken_config_file_is_a_usage_error(stoker: Stoker, tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text("[engine]\nctx_sice = 1\n")
    done = stoker("config", "show", "--config", str(file))
    assert (done.code, done.out) == (2, "")
    assert "did you mean `ctx_size`?" in done.err
    assert len(done.err.splitlines()) == 1


def test_python_dash_m_is_the_same_program() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "stoker", "--version"], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == f"stoker {__version__}\n"


def test_an_interrupt_has_its_own_code(stoker: Stoker, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("stoker.models.store.list_models", interrupted)
    assert stoker("models").code == 130

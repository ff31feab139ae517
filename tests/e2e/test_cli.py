"""The `stoker` program as a user meets it: processes, pipes, a terminal, real weights."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path

import pytest

STOKER = (sys.executable, "-m", "stoker")
LIMIT_S = 120
QUESTION = "What is the capital of France?"
SHORT = ("--temperature", "0", "--max-tokens", "12", "--ctx-size", "1024")


@pytest.fixture(autouse=True)
def _own_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("STOKER_") and name != "STOKER_CACHE_DIR"]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("STOKER_THREADS", "1")  # the only number that is fast on a busy machine


def stoker(*args: str | Path, stdin: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
    command = [*STOKER, *(str(arg) for arg in args)]
    return subprocess.run(command, input=stdin or b"", capture_output=True, timeout=LIMIT_S, check=False)


def test_run_answers_on_stdout_and_nothing_else(smollm2_path: Path) -> None:
    done = stoker("run", smollm2_path, QUESTION, *SHORT)
    assert (done.returncode, done.stderr) == (0, b"")
    assert len(done.stdout.decode().strip()) > 10
    assert done.stdout.endswith(b"\n")


@pytest.mark.slow
def test_the_same_question_from_a_pipe_gets_the_same_answer(smollm2_path: Path) -> None:
    by_argument = stoker("run", smollm2_path, QUESTION, *SHORT)
    by_pipe = stoker("run", smollm2_path, *SHORT, stdin=QUESTION.encode() + b"\n")
    assert by_pipe.returncode == 0
    assert by_pipe.stdout == by_argument.stdout


@pytest.mark.slow
def test_raw_continues_the_text(smollm2_path: Path) -> None:
    done = stoker("run", smollm2_path, "--raw", "1, 2, 3, 4, 5,", *SHORT)
    assert done.returncode == 0
    assert b"6, 7" in done.stdout


@pytest.mark.slow
def test_a_base_model_continues_the_text_and_says_so(gemma3_path: Path) -> None:
    done = stoker("run", gemma3_path, "1, 2, 3, 4, 5,", *SHORT)
    assert done.returncode == 0
    assert b"6, 7" in done.stdout
    assert b"no chat template" in done.stderr


def test_a_catalog_name_works_like_a_path(smollm2_path: Path) -> None:
    assert smollm2_path.is_file()
    assert stoker("pull", "smollm2").stdout.decode().strip() == str(smollm2_path)
    assert str(smollm2_path) in stoker("list", "--json").stdout.decode()


@pytest.mark.slow
def test_bad_model_files_are_named(smollm2_path: Path, tmp_path: Path) -> None:
    truncated, text = tmp_path / "truncated.gguf", tmp_path / "text.gguf"
    with smollm2_path.open("rb") as whole:
        truncated.write_bytes(whole.read(20_000_000))
    text.write_text("I am no model.\n")
    for path in (tmp_path / "missing.gguf", truncated, text):
        done = stoker("run", path, "Hi")
        assert (done.returncode, done.stdout) == (3, b"")
        assert str(path) in done.stderr.decode()
        assert done.stderr.count(b"\n") == 1


@pytest.mark.parametrize(
    ("args", "stdin", "code", "said"),
    [
        (["--max-tokens", "-2", "Hi"], b"", 2, "`max_tokens` must be"),
        (["--ctx-size", "64"], b"word " * 300, 2, "maximum context length is 64 tokens"),
        ([], b"\xff\xfe", 2, "not valid UTF-8"),
        pytest.param(
            ["--backend", "onnx", "Hi"],
            b"",
            3,
            "is a GGUF file, and the backend `onnx` runs ONNX folders",
            marks=pytest.mark.slow,
        ),
        pytest.param(["--no-such-option", "Hi"], b"", 2, "--no-such-option", marks=pytest.mark.slow),
        pytest.param(["--parallel", "300", "Hi"], b"", 2, "--parallel 300 is too high", marks=pytest.mark.slow),
    ],
)
def test_bad_input_has_a_clear_error_and_a_code(
    smollm2_path: Path, args: list[str], stdin: bytes, code: int, said: str
) -> None:
    done = stoker("run", smollm2_path, *args, stdin=stdin)
    assert (done.returncode, done.stdout) == (code, b"")
    assert said in done.stderr.decode()
    assert b"Traceback" not in done.stderr


def test_a_reader_that_leaves_ends_the_program_quietly(smollm2_path: Path) -> None:
    command = [*STOKER, "run", str(smollm2_path), "--raw", "1, 2, 3, 4, 5,", "--max-tokens", "400"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.read(1)
        process.stdout.close()
        assert process.wait(LIMIT_S) == 0
        assert process.stderr.read() == b""


def test_an_interrupt_ends_run_with_130(smollm2_path: Path) -> None:
    """At temperature 0 the answer does not end by itself, as it may where tokens are drawn."""
    command = [*STOKER, "run", str(smollm2_path), "--raw", "1, 2, 3, 4, 5,", "--max-tokens", "4000"]
    command += ["--temperature", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        process.stdout.read()
        assert process.wait(LIMIT_S) == 130
        assert b"Traceback" not in process.stderr.read()


def test_ctrl_c_in_chat_stops_the_answer_and_not_the_program(smollm2_path: Path) -> None:
    with Terminal("chat", smollm2_path, "--ctx-size", "4096") as terminal:
        terminal.wait_for("/exit leaves")
        terminal.wait_for("> ")
        terminal.type("Tell me a very long story about a dragon and a knight.\n")
        terminal.wait_for("knight.\r\n")
        terminal.wait_for(" ")
        terminal.type("\x03")
        terminal.wait_for("(stopped)")
        terminal.wait_for("> ")
        terminal.press_until("\x03", "/exit leaves")
        terminal.wait_for("> ")
        terminal.type("/exit\n")
        assert terminal.exit_code() == 0


@pytest.mark.slow
def test_ctrl_d_leaves_chat(smollm2_path: Path) -> None:
    with Terminal("chat", smollm2_path, "--ctx-size", "1024") as terminal:
        terminal.wait_for("/exit leaves")
        terminal.wait_for("> ")
        terminal.type("\x04")
        assert terminal.exit_code() == 0


def test_config_show(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text("[engine]\nctx_size = 77\n")
    done = stoker("config", "show", "--config", file)
    row = next(line for line in done.stdout.decode().splitlines() if line.startswith("engine.ctx_size"))
    assert row.split(maxsplit=2)[1:] == ["77", f"file {file}"]


def test_serve_says_when_it_is_ready_and_stops_when_asked(smollm2_path: Path) -> None:
    command = [*STOKER, "serve", str(smollm2_path), "--port", "0", "--name", "small", "--ctx-size", "1024"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        assert process.stdout is not None
        with _killed_in_the_end(process):
            assert process.stderr.readline().decode().startswith("loading small: takes ")
            line = process.stderr.readline().decode()
            assert line.startswith("ready: small is served at http://127.0.0.1:")
            process.send_signal(signal.SIGINT)
            assert process.wait(LIMIT_S) == 130
            assert (process.stdout.read(), process.stderr.read()) == (b"", b"stopped\n")


@pytest.mark.slow
def test_serve_refuses_a_model_before_it_is_ready(tmp_path: Path) -> None:
    text = tmp_path / "text.gguf"
    text.write_text("I am no model.\n")
    done = stoker("serve", text, "--port", "0")
    assert done.returncode == 3
    assert b"ready" not in done.stderr
    assert b"not a GGUF file" in done.stderr


@contextlib.contextmanager
def _killed_in_the_end(process: subprocess.Popen[bytes]) -> Generator[None]:
    try:
        yield
    finally:
        process.kill()


class Terminal:
    """The program on a pseudo-terminal, as if somebody sat there."""

    def __init__(self, *args: str | Path) -> None:
        self._master, slave = pty.openpty()
        command = [*STOKER, *(str(arg) for arg in args)]
        env = {**os.environ, "TERM": "dumb", "PYTHON_BASIC_REPL": "1"}
        self._process = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, env=env, preexec_fn=_take_terminal
        )
        os.close(slave)
        self._shown = ""

    def type(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def wait_for(self, text: str, limit_s: float = LIMIT_S) -> None:
        """Reads on until `text` has been shown, and forgets everything up to its end."""
        assert self._appears(text, limit_s), f"{text!r} did not appear after {self._shown!r}"
        self._shown = self._shown.partition(text)[2]

    def press_until(self, key: str, text: str) -> None:
        """Presses a key until `text` is shown.

        Python's `input` misses a Ctrl-C that arrives between its printing the prompt and its waiting for a key: it
        takes effect with the next key only.
        """
        for _ in range(LIMIT_S):
            self.type(key)
            if self._appears(text, 1):
                break
        self.wait_for(text)

    def _appears(self, text: str, limit_s: float) -> bool:
        deadline = time.monotonic() + limit_s
        while text not in self._shown:
            if not select.select([self._master], [], [], max(deadline - time.monotonic(), 0))[0]:
                return False
            self._shown += os.read(self._master, 4096).decode("utf-8", "replace")
        return True

    def exit_code(self) -> int:
        return self._process.wait(LIMIT_S)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait(LIMIT_S)
        os.close(self._master)


def _take_terminal() -> None:
    """In the child: a session of its own whose terminal is the pseudo-terminal, so that Ctrl-C reaches it."""
    import fcntl
    import termios

    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)

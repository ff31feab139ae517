"""`stoker run`: the answer on stdout, everything else on stderr, and a code for every way to fail."""

from __future__ import annotations

import json
import os
import re
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from stoker.cli import prompt as prompt_module
from stoker.cli.speed import Stopwatch
from stoker.engine.protocol import Usage
from stoker.llm import LLM, TextStream
from tests.unit.cli.conftest import Stoker

REPLY = "Fine, thanks."


def test_the_answer_goes_to_stdout(stoker: Stoker) -> None:
    done = stoker("run", REPLY, "How are you?")
    assert (done.code, done.out) == (0, REPLY + "\n")
    assert "no chat template" in done.err


def test_raw_needs_no_notice(stoker: Stoker) -> None:
    done = stoker("run", "--raw", REPLY, "How are you?")
    assert (done.code, done.out, done.err) == (0, REPLY + "\n", "")


def test_a_system_prompt_uses_the_template(stoker: Stoker) -> None:
    assert stoker("run", REPLY, "Hi", "--system", "Be brief.").err == ""
    done = stoker("run", "--raw", REPLY, "Hi", "--system", "Be brief.")
    assert done.code == 2
    assert "--system" in done.err


@pytest.mark.parametrize("args", [[], ["-"]])
def test_a_missing_prompt_comes_from_the_pipe(stoker: Stoker, args: list[str]) -> None:
    assert stoker("run", REPLY, *args, stdin="Grüße\n".encode()).out == REPLY + "\n"


@pytest.mark.parametrize(
    ("stdin", "said"),
    [
        (b"ab\xffcd", "standard input is not valid UTF-8: byte 0xff at offset 2"),
        (b"", "the prompt is empty"),
        (b"\n", "the prompt is empty"),
        (b"x" * 101, "more than 100 bytes"),
    ],
)
def test_a_pipe_that_holds_no_prompt_is_a_usage_error(
    stoker: Stoker, monkeypatch: pytest.MonkeyPatch, stdin: bytes, said: str
) -> None:
    monkeypatch.setattr(prompt_module, "MAX_PROMPT_BYTES", 100)
    done = stoker("run", REPLY, stdin=stdin)
    assert (done.code, done.out) == (2, "")
    assert said in done.err


def test_what_is_piped_in_stands_below_the_prompt(stoker: Stoker, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    original = LLM.stream

    def stream(self: LLM, prompt: str, *args: Any, **kwargs: Any) -> TextStream:
        asked.append(prompt)
        return original(self, prompt, *args, **kwargs)

    monkeypatch.setattr(LLM, "stream", stream)
    assert stoker("run", "--raw", REPLY, "Summarize:", stdin="Grüße\n".encode()).out == REPLY + "\n"
    assert stoker("run", "--raw", REPLY, "-p", "Alone", stdin=b"").code == 0
    assert asked == ["Summarize:\n\nGrüße", "Alone"]


def test_a_pipe_that_is_no_text_is_refused_beside_a_prompt_too(stoker: Stoker) -> None:
    done = stoker("run", REPLY, "Summarize:", stdin=b"ab\xff")
    assert (done.code, done.out) == (2, "")
    assert "not valid UTF-8" in done.err


def test_a_prompt_is_given_once(stoker: Stoker) -> None:
    assert "given twice" in stoker("run", REPLY, "Hi", "-p", "Ho").err


def test_a_quiet_pipe_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(prompt_module, "_QUIET_S", 0.0)
    reader, writer = os.pipe()
    late = threading.Timer(0.0, lambda: (selected.wait(60), os.write(writer, b"late"), os.close(writer)))
    selected = threading.Event()
    monkeypatch.setattr(prompt_module, "say", lambda text: (print(text, file=sys.stderr), selected.set()))
    with os.fdopen(reader, encoding="utf-8") as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        late.start()
        assert prompt_module.given_prompt("Hi") == "Hi\n\nlate"
    late.join(60)
    assert "</dev/null" in capsys.readouterr().err


def test_markdown_is_rendered_on_a_terminal_only(stoker: Stoker, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = "**bold**"
    assert stoker("run", answer, "Hi", "--system", "x").out == answer + "\n"
    monkeypatch.setattr("stoker.cli.run.is_screen", lambda: True)
    shown = stoker("run", answer, "Hi", "--system", "x").out
    assert ("bold" in shown, "**" in shown.splitlines()[-1]) == (True, False)
    for options in (["--plain"], ["--raw"]):
        system = [] if "--raw" in options else ["--system", "x"]
        assert stoker("run", answer, "Hi", *system, *options).out == answer + "\n"


def test_a_terminal_and_no_prompt_is_a_conversation(stoker: Stoker) -> None:
    done = stoker("run", REPLY, stdin=b"Hi\n/exit\n", is_terminal=True)
    assert (done.code, done.out) == (0, f"{REPLY}\n")
    done = stoker("run", "--raw", REPLY, stdin=b"Hi\n", is_terminal=True)
    assert done.code == 2
    assert "--raw needs a text to continue" in done.err


def test_the_speed_is_shown_when_it_is_asked_for(stoker: Stoker) -> None:
    done = stoker("run", "--raw", "--stats", REPLY, "Hi")
    assert done.out == REPLY + "\n"
    assert re.fullmatch(r"\(prompt: 3 tokens \(0 cached\) in .* s; answer: 14 tokens.*\)\n", done.err)


def test_the_speed_is_that_of_the_tokens_after_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([10.0, 10.5, 12.5])
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))
    stopwatch = Stopwatch()
    assert "".join(stopwatch.watch(["a", "b"])) == "ab"
    shown = stopwatch.described(Usage(7, 5, 4))
    assert shown == "(prompt: 7 tokens (4 cached) in 0.50 s; answer: 5 tokens in 2.00 s, 2.0 tokens/s)"
    assert stopwatch.described(Usage(7, 1, 4)).endswith("answer: 1 tokens)")


def test_a_closed_stdin_holds_no_prompt(stoker: Stoker) -> None:
    done = stoker("run", REPLY, stdin=None)
    assert done.code == 2
    assert "no prompt" in done.err


def test_an_argument_that_is_no_unicode_is_a_usage_error(stoker: Stoker) -> None:
    done = stoker("run", REPLY, "ab\udcff")
    assert done.code == 2
    assert "PROMPT is not valid UTF-8 at character 2" in done.err


def test_sampling_options_reach_the_model(stoker: Stoker) -> None:
    assert stoker("run", "--raw", REPLY, "Hi", "--max-tokens", "4").out == REPLY[:4] + "\n"
    assert stoker("run", "--raw", REPLY, "Hi", "--stop", "th", "--stop", "zz").out == "Fine, \n"


def test_settings_of_the_environment_reach_the_model(stoker: Stoker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_MAX_TOKENS", "4")
    assert stoker("run", "--raw", REPLY, "Hi").out == REPLY[:4] + "\n"


def test_a_cut_off_answer_is_noted(stoker: Stoker) -> None:
    done = stoker("run", "--raw", REPLY, "Hi", "--ctx-size", "14")
    assert done.code == 0
    assert "cut off after 10 tokens, the default length: --max-tokens N sets another one, -1 none" in done.err
    done = stoker("run", "--raw", REPLY, "Hi", "--ctx-size", "14", "--max-tokens", "-1")
    assert "cut off: the context of 14 tokens is full" in done.err
    assert "cut off" not in stoker("run", "--raw", REPLY, "Hi", "--max-tokens", "4").err


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (["--max-tokens", "-2"], 2, "`max_tokens` must be between -1"),
        (["--temperature", "-1"], 2, "`temperature` must be between 0 and 100"),
        (["--top-k", "many"], 2, "--top-k"),
        (["--no-such-option"], 2, "no-such-option"),
        (["--backend", "magic"], 2, "magic"),
        (["--backend", "native"], 3, "no model 'Fine, thanks.'"),
        (["--backend", "onnx"], 3, "no model 'Fine, thanks.'"),
        (["--backend", "llama"], 3, "no model 'Fine, thanks.'"),
        (["--parallel", "0"], 2, "flag --parallel: `parallel` must be between 1 and 1024"),
        (["--ctx-size", "4"], 2, "maximum context length is 4 tokens"),
        (["--config", "/no/such/file.toml"], 2, "config file /no/such/file.toml does not exist"),
    ],
)
def test_each_failure_has_one_clear_line_and_its_code(stoker: Stoker, args: list[str], code: int, said: str) -> None:
    done = stoker("run", "--raw", REPLY, "Hello there", *args)
    assert (done.code, done.out) == (code, "")
    assert said in done.err
    assert "Traceback" not in done.err


def test_a_traceback_is_for_who_asks_for_it(stoker: Stoker) -> None:
    done = stoker("run", "smollm2", "Hi", "--backend", "onnx", "-v")
    assert done.code == 3
    assert "Traceback" in done.err
    assert done.err.rstrip().endswith("write one with `stoker export smollm2 FOLDER`")


def test_a_config_file_is_read(stoker: Stoker, tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text("[sampling]\nmax_tokens = 2\n")
    assert stoker("run", "--raw", REPLY, "Hi", "--config", str(file)).out == REPLY[:2] + "\n"


def test_an_unknown_log_level_in_the_environment_is_refused(stoker: Stoker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_LOG_LEVEL", "loud")
    done = stoker("run", REPLY, "Hi")
    assert done.code == 2
    assert "STOKER_LOG_LEVEL must be one of debug, info, warning, error" in done.err


def test_a_prompt_may_be_about_files(stoker: Stoker, tmp_path: Path) -> None:
    note, damaged = tmp_path / "note.txt", tmp_path / "damaged.pdf"
    note.write_text("Cats.")
    damaged.write_bytes(b"%PDF-1.4")
    done = stoker("run", REPLY, "What is it?", "--file", str(note))
    assert (done.code, done.out) == (0, REPLY + "\n")
    for file, words in ((damaged, "is damaged"), (tmp_path / "none", "cannot be read")):
        done = stoker("run", REPLY, "What is it?", "--file", str(file))
        assert (done.code, done.out, words in done.err) == (2, "", True), done.err
    assert "--file cannot be combined with --raw" in stoker("run", "--raw", REPLY, "What?", "--file", str(note)).err


def test_json_has_the_answer_and_its_numbers(stoker: Stoker) -> None:
    answer = json.loads(stoker("run", "fine", "Hi", "--json", "-n", "3").out)
    assert (answer["model"], answer["text"], answer["finish_reason"]) == ("fine", "fin", "length")
    assert answer["usage"]["completion_tokens"] == 3
    assert answer["timings"]["tokens_per_s"] > 0
    assert "reasoning" not in answer


def test_json_is_of_one_answer(stoker: Stoker) -> None:
    done = stoker("run", "fine", "--json", is_terminal=True)
    assert (done.code, done.out) == (2, "")
    assert "no prompt: --json needs one, as PROMPT" in done.err

"""`stoker batch`: every request has one line of answer, whatever ended the process before."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from stoker.server.batches import run as run_module
from stoker.server.batches.lines import BatchLine, body_of, read_lines
from tests.unit.cli.conftest import Stoker
from tests.waiting import BOUND_S, wait_until

REPLY = "Fine, thanks."


def line(custom_id: str, url: str = "/v1/completions", **body: Any) -> dict[str, Any]:
    body = {"model": REPLY, "prompt": "x", "max_tokens": 4} | body
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": body}


def write(path: Path, *lines: object) -> str:
    path.write_text("".join((text if isinstance(text, str) else json.dumps(text)) + "\n" for text in lines))
    return str(path)


def answers(path: Path) -> dict[str, Any]:
    found = [json.loads(text) for text in path.read_text().splitlines()]
    by_id = {result["custom_id"]: result for result in found}
    assert len(by_id) == len(found), "no request is answered twice"
    return by_id


def test_every_endpoint_is_answered_as_over_http(stoker: Stoker, tmp_path: Path) -> None:
    hello = [{"role": "user", "content": "hi"}]
    source = write(
        tmp_path / "in.jsonl",
        line("text"),
        line("chat", "/v1/chat/completions", messages=hello, max_tokens=100, prompt=None),
        line("response", "/v1/responses", input="hi", prompt=None, max_tokens=None),
        "",
        line("wrong", max_tokens=-7),
    )
    done = stoker("batch", source, "-o", str(tmp_path / "out.jsonl"))
    assert (done.code, done.out) == (1, "")
    assert "4 answers are in" in done.err
    assert "1 FAILED" in done.err
    found = answers(tmp_path / "out.jsonl")
    assert list(found["text"]) == ["id", "custom_id", "response", "error"]
    assert found["text"]["response"]["body"]["choices"][0]["text"] == REPLY[:4]
    assert found["chat"]["response"]["body"]["choices"][0]["message"]["content"] == REPLY
    assert found["response"]["response"]["body"]["status"] == "completed"
    assert found["wrong"]["response"]["status_code"] == 400
    assert found["wrong"]["response"]["body"]["error"]["param"] == "max_tokens"


def test_what_has_its_answer_is_not_computed_again(stoker: Stoker, tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    source = write(tmp_path / "in.jsonl", *(line(f"r{i}") for i in range(6)))
    assert stoker("batch", source, "-o", str(output)).code == 0
    whole = output.read_text().splitlines(keepends=True)
    output.write_text("".join(whole[:2]) + whole[2][:40])
    done = stoker("batch", source, "-o", str(output))
    assert done.code == 0
    assert "2 of 6 requests have their answers" in done.err
    assert output.read_text().splitlines(keepends=True)[:2] == whole[:2]
    assert set(answers(output)) == {f"r{i}" for i in range(6)}
    assert stoker("batch", source, "-o", str(output)).code == 0
    assert len(answers(output)) == 6


def test_a_batch_that_breaks_off_keeps_what_it_has(
    stoker: Stoker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "out.jsonl"
    source = write(tmp_path / "in.jsonl", *(line(f"r{i}") for i in range(40)))

    def interrupt(path: Path, asked: BatchLine) -> bytes:
        if asked.custom_id == "r25":
            signal.raise_signal(signal.SIGINT)
        return body_of(path, asked)

    with monkeypatch.context() as patch:
        patch.setattr(run_module, "body_of", interrupt)
        assert stoker("batch", source, "-o", str(output)).code == 130
    assert 0 < len(answers(output)) < 40
    assert stoker("batch", source, "-o", str(output)).code == 0
    assert len(answers(output)) == 40


@pytest.mark.usefixtures("_clean_environment")
def test_after_a_kill_the_same_command_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a process of its own, in the middle: nothing is lost, and nothing is computed twice."""
    script, output = tmp_path / "script.json", tmp_path / "out.jsonl"
    script.write_text(json.dumps([{"when": "x", "text": "Fine.", "token_ms": 20}]))
    source = write(tmp_path / "in.jsonl", *(line(f"r{i}", model="scripted") for i in range(60)))
    monkeypatch.setenv("STOKER_SCRIPT", str(script))
    command = [sys.executable, "-m", "stoker", "batch", source, "-o", str(output)]
    with subprocess.Popen([*command, "--parallel", "1"], stderr=subprocess.DEVNULL) as process:
        wait_until(lambda: output.exists() and output.read_bytes().count(b"\n") >= 3)
        process.kill()
    before = output.read_bytes()
    whole = before[: before.rindex(b"\n") + 1]
    assert whole.count(b"\n") < 60, "the batch is too short for this test"
    script.write_text(json.dumps([{"when": "x", "text": "Fine."}]))
    done = subprocess.run(command, capture_output=True, text=True, timeout=BOUND_S)
    assert done.returncode == 0, done.stderr
    assert output.read_bytes().startswith(whole)
    assert set(answers(output)) == {f"r{i}" for i in range(60)}


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([], "holds no request"),
        (["{"], "line 1: "),
        ([line("a"), {"custom_id": "b"}], "line 2: Object missing required field `url`"),
        ([line("a"), line("b"), line("a")], "line 3: `custom_id` 'a' is that of line 1 already"),
        ([line("a", "/v1/models")], "line 1: POST /v1/models is none of"),
        ([line("a", stream=True)], "line 1: `stream` must be left out"),
    ],
)
def test_a_file_that_is_no_batch_is_refused_as_a_whole(
    stoker: Stoker, tmp_path: Path, lines: list[object], said: str
) -> None:
    done = stoker("batch", write(tmp_path / "in.jsonl", *lines), "-o", str(tmp_path / "out.jsonl"))
    assert done.code == 2
    assert said in done.err
    assert not (tmp_path / "out.jsonl").exists()


def test_files_that_cannot_be_used(stoker: Stoker, tmp_path: Path) -> None:
    source, output = write(tmp_path / "in.jsonl", line("a", stream=False)), tmp_path / "out.jsonl"
    assert "cannot be read" in stoker("batch", str(tmp_path / "none"), "-o", str(output)).err
    assert "are the same file" in stoker("batch", source, "-o", source).err
    assert "cannot be written" in stoker("batch", source, "-o", str(tmp_path)).err
    with FileLock(f"{output}.lock"):
        assert "another process writes" in stoker("batch", source, "-o", str(output)).err
    write(output, "a note of mine")
    done = stoker("batch", source, "-o", str(output))
    assert (done.code, output.read_text()) == (2, "a note of mine\n")
    assert "line 1 is not a line of a batch" in done.err
    output.unlink()
    assert stoker("batch", write(tmp_path / "other.jsonl", line("z")), "-o", str(output)).code == 0
    assert "'z' is not of this batch" in stoker("batch", source, "-o", str(output)).err


def test_common_prefixes_stand_behind_one_another(tmp_path: Path) -> None:
    prompts = ["long text A 1", "other B 1", "long text A 2", "other B 2"]
    source = tmp_path / "in.jsonl"
    write(source, *(line(prompt, prompt=prompt) for prompt in prompts))
    assert [asked.custom_id for asked in read_lines(source)] == sorted(prompts)

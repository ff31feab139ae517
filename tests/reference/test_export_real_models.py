"""Real models as `stoker export` writes them: ONNX Runtime and onnxruntime-genai compute what our executor does."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import numpy as np
import pytest

from stoker.text.tokenizer import encode_prompt
from tests.reference.export_runs import ExportedModel, Rows, divergence, exported, unrounded
from tests.reference.native_runs import all_rows, open_native
from tests.reference.vocabulary_files import our_tokenizer

pytestmark = pytest.mark.slow

MAX_DIVERGENCE = 0.005
"""In nats, the mean over a text. About as far apart are the native executor and libllama: all round activations."""
CHUNKS = (150, 1, 1, 1)


@pytest.fixture(scope="module")
def text() -> str:
    """English prose: Python's own help pages."""
    return "\n".join(topics[name] for name in sorted(topics))[20_000:]


def tokens(path: Path, text: str, count: int = 160) -> list[int]:
    return encode_prompt(our_tokenizer(path), text[: 8 * count])[:count]


@pytest.fixture(scope="module")
def expected(smollm2_path: Path, text: str) -> Rows:
    return native_rows(smollm2_path, text)


def native_rows(path: Path, text: str) -> Rows:
    """With keys and values as exact as the graph keeps them: only the rounding of activations is compared."""
    with open_native(path, kv_type="f32") as backend:
        return all_rows(backend, tokens(path, text))


@pytest.mark.parametrize("options", [{}, {"attention": "plain"}, {"kv_type": "f16"}], ids=["gqa", "plain", "f16"])
def test_logits_are_those_of_the_native_executor(
    options: dict[str, Any], smollm2_path: Path, smollm2_folder: Path, expected: Rows, text: str, tmp_path: Path
) -> None:
    folder = smollm2_folder
    if options:
        folder = exported(smollm2_path, tmp_path / "onnx", context_size=512, **options)
    check(ExportedModel(folder).rows(tokens(smollm2_path, text), CHUNKS), expected)


@pytest.mark.slow
def test_logits_of_a_model_with_windows(gemma3_path: Path, gemma3_folder: Path, text: str) -> None:
    check(ExportedModel(gemma3_folder).rows(tokens(gemma3_path, text), CHUNKS), native_rows(gemma3_path, text))


def check(found: Rows, expected: Rows) -> None:
    assert divergence(expected, found) <= MAX_DIVERGENCE
    assert np.mean(expected.argmax(-1) == found.argmax(-1)) > 0.9


_GENAI = """
import json, sys
import onnxruntime_genai as genai
folder, prompt, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
model = genai.Model(folder)
tokenizer = genai.Tokenizer(model)
tokenizer.update_options(add_special_tokens="true")
prompt_ids = [int(i) for i in tokenizer.encode(prompt)]
params = genai.GeneratorParams(model)
params.set_search_options(max_length=len(prompt_ids) + count)
generator = genai.Generator(model, params)
generator.append_tokens(prompt_ids)
found = []
while not generator.is_done():
    generator.generate_next_token()
    found.append(int(generator.get_next_tokens()[0]))
print(json.dumps({"prompt": prompt_ids, "answer": found, "text": tokenizer.decode(found)}))
"""


def test_logits_are_as_near_to_exact_ones_as_the_native_executors(
    smollm2_path: Path, smollm2_folder: Path, expected: Rows, text: str
) -> None:
    """Both round activations to 8 bits, each in its own way: between them lie the errors of both."""
    token_ids = tokens(smollm2_path, text)
    exact = unrounded(smollm2_folder).rows(token_ids)
    found = divergence(exact, ExportedModel(smollm2_folder).rows(token_ids, CHUNKS))
    assert found <= MAX_DIVERGENCE
    assert found <= 1.4 * divergence(exact, expected)


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("onnxruntime_genai") is None, reason="onnxruntime-genai has no wheel for this machine"
)
@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("smollm2", {}),
        ("smollm2", {"attention": "plain"}),
        ("smollm2", {"kv_type": "f16"}),
        ("gemma3", {}),
    ],
    ids=["smollm2-gqa", "smollm2-plain", "smollm2-f16", "gemma3-gqa"],
)
def test_onnxruntime_genai_says_the_same(
    model: str, options: dict[str, Any], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Greedily: what ONNX Runtime alone says, step by step, with our own tokenizer."""
    path: Path = request.getfixturevalue(f"{model}_path")
    folder: Path = request.getfixturevalue(f"{model}_folder")
    if options:
        folder = exported(path, tmp_path / "onnx", **options)
    prompt, count = "The three primary colours are red, green and", 16
    command = (sys.executable, "-c", _GENAI, str(folder), prompt, str(count))
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    said = json.loads(done.stdout.splitlines()[-1])
    tokenizer = our_tokenizer(path)
    assert said["prompt"] == encode_prompt(tokenizer, prompt)
    expected = greedy(ExportedModel(folder), said["prompt"], count)
    assert said["answer"] == expected
    assert said["text"] == b"".join(map(tokenizer.token_bytes, expected)).decode(errors="replace")


def greedy(model: ExportedModel, prompt: list[int], count: int) -> list[int]:
    cache, chunk, found, at = model.empty_cache(), prompt, list[int](), 0
    for _ in range(count):
        at += len(chunk)
        logits, cache = model.step(np.array([chunk], np.int64), np.ones((1, at), np.int64), cache)
        chunk = [int(logits[0, -1].argmax())]
        found += chunk
    return found

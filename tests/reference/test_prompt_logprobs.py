"""Log-probabilities of a prompt on real weights: exactly those of the rows that libllama gives for its tokens."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from stoker.core.batch import Truncate
from stoker.core.params import SamplingParams
from stoker.core.scheduler import SchedulerConfig
from stoker.engine.engine import Engine
from stoker.engine.protocol import Output, PromptToken, Submit
from tests.harness import loaded
from tests.reference.libllama_reference import LibllamaReference
from tests.reference.llama_runs import MEAN_TOLERANCE, compute, open_backend, step

PROMPT = "The old lighthouse keeper climbed the spiral stairs every evening, and"
NUM_TOKENS = 24
TOP_3 = SamplingParams(temperature=0, max_tokens=0, logprobs=3)


def log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    rows = logits.astype(np.float64)
    shifted = rows - rows.max(1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(1, keepdims=True))


def scored(engine: Engine, prompt: list[int]) -> Sequence[PromptToken]:
    engine.add(engine.admit(Submit("scored", prompt, TOP_3, echo=True)))
    echoes: list[Sequence[PromptToken]] = []
    while engine.has_work:
        echoes += [e.prompt for e in engine.step() if isinstance(e, Output) and e.prompt is not None]
    (echo,) = echoes
    return echo


def test_prompt_logprobs_are_those_of_libllama(smollm2_path: Path) -> None:
    reference = LibllamaReference(smollm2_path)
    answer = reference.answer(PROMPT, NUM_TOKENS)
    prompt = [*reference.tokenize(PROMPT), *answer.token_ids]
    reference.close()
    with open_backend(smollm2_path) as backend:
        expected = log_softmax(compute(backend, 0, prompt))
        step(backend, ops=[Truncate(0, 0)])
        engine = Engine(loaded(backend, backend.tokenizer), SchedulerConfig(max_running=4, max_waiting=4))
        tokens: Sequence[PromptToken] = ()
        for _ in range(2):  # the second time all of it is cached, and none of that may be used
            tokens = scored(engine, prompt)
            for row, token_id, token in zip(expected, prompt[1:], tokens[1:], strict=False):
                assert token.token_id == token_id
                assert token.logprob == pytest.approx(row[token_id], abs=1e-5)
                assert [top.token_id for top in token.top] == np.argsort(-row, kind="stable")[:3].tolist()
    alone = log_softmax(answer.logits)[range(NUM_TOKENS), answer.token_ids]
    together = [token.logprob for token in tokens[-NUM_TOKENS:]]
    assert np.abs(np.array(together) - alone).mean() < MEAN_TOLERANCE / 2, "token by token it is the same"

"""What constrains an answer with reasoning says the same about all tokens at once as about each of them."""

from __future__ import annotations

import random
from functools import partial

import numpy as np
import pytest

from stoker.backends.scripted import EOS, IM_END, IM_START, VOCAB_SIZE, ScriptedTokenizer
from stoker.core.outline import GrammarText, ReasoningSpan
from stoker.engine.spans import SpannedConstraint
from tests.grammars import Answers

Thinking = partial(ReasoningSpan, start_text="<think>", end_text="</think>")
SPANS = [
    Thinking(),
    Thinking(starts_open=True),
    Thinking(starts_open=True, budget=3, closing_text="so\n"),
    Thinking(budget=0),
    ReasoningSpan(start_text="<|im_start|>", end_text="<|im_end|>", implicit_ends=("{",), can_be_ended=True),
]


@pytest.mark.parametrize("span", SPANS)
@pytest.mark.parametrize("regex", [None, "[a-c]{1,4}", "\n?(<t|x)y*"])
def test_the_mask_has_the_tokens_that_are_allowed(answers: Answers, span: ReasoningSpan, regex: str | None) -> None:
    tokenizer, rng = ScriptedTokenizer(), random.Random(1)
    ends = frozenset({EOS, IM_END})
    for _ in range(12):
        content = None if regex is None else answers.open(GrammarText(kind="regex", text=regex))
        constraint = SpannedConstraint(span, content, tokenizer.encode, tokenizer.token_bytes, VOCAB_SIZE, ends)
        for _ in range(16):
            forced, words = constraint.forced(), constraint.mask()
            allowed = [token_id for token_id in range(VOCAB_SIZE) if constraint.allows(token_id)]
            if words is not None:
                bits = np.unpackbits(words.view(np.uint8), bitorder="little")
                assert np.flatnonzero(bits[:VOCAB_SIZE]).tolist() == allowed
            else:
                assert len(allowed) == VOCAB_SIZE
            likely = (
                [forced] if forced is not None else [i for i in (*b"<think>/abxy\n{", IM_START, IM_END) if i in allowed]
            )
            if not likely or constraint.is_complete:
                break
            constraint.push(rng.choice(likely))
            assert constraint.error is None

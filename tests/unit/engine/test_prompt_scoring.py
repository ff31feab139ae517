"""Prompts that are echoed, scored, mixed of texts and ids, and shared by several answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from stoker.backends.scripted import BOS, IM_START, ScriptedBackend, ScriptedTokenizer, reply_with, scripted_info
from stoker.core import step_plan as step_plan_module
from stoker.core.batch import Batch, Chunk
from stoker.core.model_info import CacheTraits
from stoker.core.params import SamplingParams
from stoker.core.scheduler import SchedulerConfig
from stoker.engine.cards import FillTokens
from stoker.engine.engine import Engine
from stoker.engine.prompt import echo, find_fill_tokens
from stoker.engine.protocol import Event, Failed, Output, PromptToken, Submit
from stoker.errors import InvalidInput
from tests.harness import ALL_TRAITS, loaded

LONG = list(b"the quick brown fox jumps over the lazy dog, and then it sleeps for a while in the sun")


def make_engine(backend: ScriptedBackend | None = None, max_running: int = 4) -> Engine:
    backend = backend or ScriptedBackend(scripted_info())
    config = SchedulerConfig(max_running=max_running, max_waiting=16)
    return Engine(loaded(backend, defaults=SamplingParams(temperature=0, max_tokens=4)), config)


def add(engine: Engine, request_id: str, prompt: str | Sequence[int | str], **fields: Any) -> None:
    params = {name: fields.pop(name) for name in ("logprobs", "max_tokens", "seed", "temperature") if name in fields}
    engine.add(engine.admit(Submit(request_id, prompt, SamplingParams(**params), **fields)))


def run(engine: Engine) -> dict[str, list[Event]]:
    events: dict[str, list[Event]] = {}
    while engine.has_work:
        for event in engine.step():
            assert isinstance(event, Output | Failed)
            events.setdefault(event.request_id, []).append(event)
        engine.check_integrity()
    return events


def prompt_of(events: Sequence[Event]) -> list[PromptToken]:
    first, *others = [event for event in events if isinstance(event, Output)]
    assert all(other.prompt is None for other in others), "the prompt comes once"
    assert first.prompt is not None
    return first.prompt


def expected_logprobs(prompt: Sequence[int]) -> NDArray[np.float64]:
    """The slow, obvious reference: one pass over the prompt, softmax of every row."""
    backend = ScriptedBackend(scripted_info(max_batch_tokens=512))
    rows = backend.forward(Batch(0, (Chunk(0, 0, tuple(prompt), len(prompt)),))).astype(np.float64)
    shifted = rows - rows.max(1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(1, keepdims=True))


def check_scores(prompt: Sequence[int], tokens: Sequence[PromptToken], num_top: int) -> None:
    expected = expected_logprobs(prompt)
    assert [token.token_id for token in tokens] == list(prompt)
    assert tokens[0].logprob is None
    for position, token in enumerate(tokens[1:], start=1):
        row = expected[position - 1]
        assert token.logprob == pytest.approx(row[prompt[position]], abs=1e-5)
        assert [top.token_id for top in token.top] == np.argsort(-row, kind="stable")[:num_top].tolist()


@pytest.mark.parametrize("traits", ALL_TRAITS)
@pytest.mark.parametrize("max_batch_tokens", [7, 256])
def test_prompt_logprobs_are_those_of_one_pass_over_the_prompt(traits: CacheTraits, max_batch_tokens: int):
    engine = make_engine(ScriptedBackend(scripted_info(traits=traits, max_batch_tokens=max_batch_tokens)))
    add(engine, "warm", LONG)
    run(engine)  # a cached prompt has no logits: it must be computed again
    add(engine, "a", LONG, echo=True, logprobs=2)
    add(engine, "other", LONG[:30])
    events = run(engine)
    check_scores(LONG, prompt_of(events["a"]), num_top=2)
    plain = [o.token_ids for o in events["a"] if isinstance(o, Output)]
    add(engine, "b", LONG)
    assert [o.token_ids for o in run(engine)["b"] if isinstance(o, Output)] == plain, "scoring changes no answer"


def test_rows_of_one_step_are_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(step_plan_module, "MAX_SCORED_LOGITS", 10 * 260)
    sizes: list[int] = []
    engine = make_engine(ScriptedBackend(scripted_info(), before_forward=lambda batch: sizes.append(batch.num_rows)))
    add(engine, "a", LONG, echo=True, logprobs=0)
    add(engine, "b", LONG[::-1], echo=True, logprobs=0)
    events = run(engine)
    assert max(sizes) <= 10 + 2
    check_scores(LONG, prompt_of(events["a"]), num_top=0)
    check_scores(LONG[::-1], prompt_of(events["b"]), num_top=0)


def test_preempted_while_it_is_scored_every_token_is_scored_once():
    info = scripted_info(kv_tokens=120, context_size=120, max_batch_tokens=16)
    engine = make_engine(ScriptedBackend(info), max_running=4)
    add(engine, "scored", LONG, echo=True, logprobs=0)
    engine.step()
    add(engine, "urgent", LONG[::-1], priority=1)
    events = run(engine)
    check_scores(LONG, prompt_of(events["scored"]), num_top=0)
    assert isinstance(events["urgent"][-1], Output)


def test_prompt_without_probabilities_fails_that_request_only():
    class Broken(ScriptedBackend):
        def forward(self, batch: Batch) -> NDArray[np.float32]:
            rows = super().forward(batch)
            if batch.num_rows > 2:
                rows[1] = np.nan
            return rows

    engine = make_engine(Broken(scripted_info(), next_token=reply_with("yes")))
    add(engine, "bad", LONG, echo=True, logprobs=0)
    add(engine, "good", "Q")
    events = run(engine)
    assert isinstance(events["bad"][-1], Failed)
    assert events["bad"][-1].code == "backend_error"
    assert "".join(event.text for event in events["good"] if isinstance(event, Output)) == "yes"


def test_no_tokens_at_all_is_an_answer():
    engine = make_engine()
    add(engine, "a", "abc", max_tokens=0, echo=True, logprobs=0)
    (output,) = run(engine)["a"]
    assert isinstance(output, Output)
    assert (output.text, output.token_ids, output.finish_reason, output.logprobs) == ("", [], "length", [])
    assert output.usage.completion_tokens == 0
    check_scores([BOS, *b"abc"], output.prompt or [], num_top=0)


@pytest.mark.parametrize("cache_prompt", [True, False])
@pytest.mark.parametrize("length", [5, len(LONG)])
def test_answers_of_one_group_compute_their_prompt_once(length: int, cache_prompt: bool):
    prompt = LONG[:length]
    backend = ScriptedBackend(scripted_info())
    engine = make_engine(backend)
    for index in range(4):
        add(engine, f"g-{index}", prompt, group="g", cache_prompt=cache_prompt, max_tokens=3)
    events = run(engine)
    num_prompt = backend.num_computed - 4 * 2  # the last token of an answer is never computed
    assert num_prompt == length + 3, "every later answer computes the last entry again, for its logits"
    usages = [events[f"g-{index}"][-1] for index in range(4)]
    assert [u.usage.cached_tokens for u in usages if isinstance(u, Output)] == [0, *[length - 1] * 3]


def test_a_group_without_cache_is_not_read_by_others():
    backend = ScriptedBackend(scripted_info())
    engine = make_engine(backend)
    add(engine, "g-0", LONG, group="g", cache_prompt=False)
    add(engine, "stranger", LONG, cache_prompt=False, max_tokens=1)
    usage = run(engine)["stranger"][-1]
    assert isinstance(usage, Output)
    assert usage.usage.cached_tokens == 0


@pytest.mark.parametrize(
    ("prompt", "parse_special", "token_ids"),
    [
        ([1, "ab", 2], True, [BOS, 1, *b"ab", 2]),
        ([BOS, "ab"], True, [BOS, *b"ab"]),
        (["a<|im_start|>"], True, [BOS, *b"a", IM_START]),
        (["<s>"], False, [BOS, *b"<s>"]),
        ("<s>a", False, [BOS, *b"<s>a"]),
        ([1, 2], True, [1, 2]),
    ],
)
def test_prompts_of_texts_and_ids(prompt: Any, parse_special: bool, token_ids: list[int]):
    engine = make_engine()
    stream = engine.admit(Submit("a", prompt, SamplingParams(), parse_special=parse_special))
    assert list(stream.request.prompt) == token_ids


def test_lone_surrogate_in_a_mixed_prompt_is_refused():
    with pytest.raises(InvalidInput) as refused:
        make_engine().admit(Submit("a", [1, "\ud800"], SamplingParams()))
    assert refused.value.fields["parameter"] == "prompt"


def test_bias_of_a_text_is_that_of_its_tokens():
    engine = make_engine()
    params = SamplingParams(logit_bias={ord("a"): 2.0})
    request = engine.admit(Submit("a", "Q", params, text_bias={"ab": -1.0, "<s>": 0.5})).request
    assert request.sampling.logit_bias == {97: 2.0, 98: -1.0, **dict.fromkeys(b"<s>", 0.5)}


class SpacingTokenizer(ScriptedTokenizer):
    """Puts a space in front of a text, as SentencePiece models do."""

    def encode(self, text: str, *, parse_special: bool = True) -> list[int]:
        return super().encode(" " + text, parse_special=parse_special)


@pytest.mark.parametrize("prompt", ["abc", " abc", "<s>abc", "é<|im_end|>", ""])
@pytest.mark.parametrize("tokenizer", [ScriptedTokenizer(), SpacingTokenizer()])
def test_echo_of_a_text_is_the_text_as_it_was_sent(prompt: str, tokenizer: ScriptedTokenizer):
    stream = tokenizer.encode(prompt)
    token_ids = stream if stream[:1] == [BOS] else [BOS, *stream]
    if isinstance(tokenizer, SpacingTokenizer) and prompt.startswith("<s>"):
        return  # the text's own BOS is then no BOS in front
    assert b"".join(token.token for token in echo(tokenizer, prompt, token_ids)) == prompt.encode()


def test_echo_of_ids_writes_everything_out():
    pieces = [token.token for token in echo(ScriptedTokenizer(), [BOS, 97, IM_START], [BOS, 97, IM_START])]
    assert pieces == [b"<s>", b"a", b"<|im_start|>"]


class FillingTokenizer(ScriptedTokenizer):
    """Knows these spellings as control tokens 300, 301, …"""

    def __init__(self, *spellings: str) -> None:
        self._ids = {spelling: 300 + index for index, spelling in enumerate(spellings)}

    def encode(self, text: str, *, parse_special: bool = True) -> list[int]:
        return [self._ids[text]] if parse_special and text in self._ids else super().encode(text)

    def token_bytes(self, token_id: int, *, render_special: bool = False) -> bytes:
        return b"" if token_id >= 300 else super().token_bytes(token_id, render_special=render_special)


@pytest.mark.parametrize(
    ("spellings", "tokens"),
    [
        (("<fim_prefix>", "<fim_suffix>", "<fim_middle>"), FillTokens(prefix=300, suffix=301, middle=302)),
        (
            ("<|file_sep|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_prefix|>", "<|repo_name|>"),
            FillTokens(prefix=303, suffix=302, middle=301, repository=304, separator=300),
        ),
        (("<fim_prefix>", "<fim_suffix>"), None),
        ((), None),
    ],
)
def test_tokens_for_filling_in_are_told_by_their_spelling(spellings: tuple[str, ...], tokens: FillTokens | None):
    assert find_fill_tokens(FillingTokenizer(*spellings)) == tokens


def test_one_letter_of_text_is_no_control_token():
    assert find_fill_tokens(ScriptedTokenizer()) is None

"""Embeddings and ranks against an independent forward pass in float64, and of one backend against the other."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import PoolingType
from tokenizers import Tokenizer

from stoker import LLM, SamplingParams
from stoker.backends.llama import LlamaBackend, LlamaOptions
from stoker.backends.native import NativeBackend, NativeOptions
from stoker.core.embedding import Piece, Pooling
from stoker.errors import InvalidInput
from stoker.models.gguf import read_gguf
from tests.bert_models import Bert, minilm_tokenizer_json, normalised, tiny_bert, write_bert
from tests.recurrent_models import write_mamba
from tests.tiny_models import TinyModel, write_tiny_model

pytestmark = pytest.mark.slow

TEXTS = [
    "Hello world!",
    "Schöne Grüße aus 東京: naïve co-operation, 3.14 unbelievably…",
    "The quick brown fox jumps over the lazy dog. " * 12,
    "x",
]
CLOSE = 0.9999


@pytest.fixture(scope="module")
def llm(minilm_path: Path) -> Iterator[LLM]:
    with LLM(minilm_path) as llm:
        yield llm


@pytest.fixture(scope="module")
def tokenizer(minilm_wheel: Path) -> Any:
    tokenizer = Tokenizer.from_str(minilm_tokenizer_json(minilm_wheel))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def expected(model: Bert, token_ids: Sequence[int], pooling: Pooling = Pooling.MEAN) -> Any:
    hidden = model.hidden(token_ids)
    pooled = {Pooling.MEAN: hidden.mean(axis=0), Pooling.CLS: hidden[0], Pooling.LAST: hidden[-1]}
    return normalised(pooled[pooling])


def least_cosine(found: Any, wanted: Any) -> float:
    """Of rows of length 1."""
    return float((np.asarray(found, dtype=np.float64) * np.asarray(wanted)).sum(axis=-1).min())


def test_real_model_equals_its_reference(llm: LLM, minilm: Bert, tokenizer: Any):
    wanted = [expected(minilm, tokenizer.encode(text).ids) for text in TEXTS]
    found = llm.embed(TEXTS)
    assert found.shape == (4, 384)
    assert least_cosine(found, wanted) > CLOSE
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, rtol=1e-5)


def test_as_long_as_the_model_takes_and_not_longer(llm: LLM, minilm: Bert, tokenizer: Any):
    text = "lorem ipsum dolor sit amet " * 100
    with pytest.raises(InvalidInput, match="at most 512"):
        llm.embed(text)
    ids = tokenizer.encode(text).ids
    cut = llm.embed(text, truncate=True)
    assert least_cosine(cut, expected(minilm, [*ids[:511], ids[-1]])) > CLOSE


def test_order_of_a_thousand_inputs(llm: LLM):
    texts = [f"{index} is a number" if index % 3 else f"text {index}" for index in range(1000)]
    found = llm.embed(texts)
    some = range(0, 1000, 111)
    alone = np.stack([llm.embed(texts[index]) for index in some])
    likeness = alone @ found.T
    assert likeness.argmax(axis=1).tolist() == list(some)
    assert likeness.max(axis=1).min() > CLOSE


def test_meaning(llm: LLM):
    cat, kitten, stocks = llm.embed(["A cat sits.", "A kitten is sitting.", "Stock markets fell."])
    assert cat @ kitten > 0.7 > 0.3 > cat @ stocks


@pytest.mark.parametrize("pooling", [Pooling.MEAN, Pooling.CLS, Pooling.LAST])
def test_pooling_is_what_the_file_or_the_user_says(tmp_path: Path, pooling: Pooling):
    model = tiny_bert()
    ids = [[2, 7, 33, 9, 40, 3], [2, 5, 3]]
    own = {Pooling.MEAN: PoolingType.MEAN, Pooling.CLS: PoolingType.CLS, Pooling.LAST: PoolingType.LAST}[pooling]
    wanted = [expected(model, one, pooling) for one in ids]
    with LLM(write_bert(tmp_path / "own.gguf", model, own)) as llm:
        assert llm.card.embedding is not None
        assert (llm.card.embedding.pooling, llm.card.can_generate) == (pooling.value, False)
        assert least_cosine(llm.embed(ids), wanted) > CLOSE
    other: Any = pooling.value
    with LLM(write_bert(tmp_path / "other.gguf", model, PoolingType.CLS), pooling=other) as llm:
        assert least_cosine(llm.embed(ids), wanted) > CLOSE


def test_ranks_equal_their_reference(tmp_path: Path):
    model = tiny_bert(has_classifier=True)
    documents = ["ab c", "xyz", "hello there", "q"]
    ids = {text: [model.vocabulary.index(piece) for piece in pieces(text)] for text in ["what is", *documents]}
    wanted = [model.score([2, *ids["what is"], 3, *ids[text], 3]) for text in documents]
    with LLM(write_bert(tmp_path / "rank.gguf", model, PoolingType.RANK)) as llm:
        found = llm.rank("what is", documents)
        with pytest.raises(InvalidInput, match="without embeddings"):
            llm.embed("a")
        with pytest.raises(InvalidInput, match="does not generate text"):
            llm.generate("a")
    np.testing.assert_allclose(found, 1 / (1 + np.exp(-np.array(wanted))), atol=0.01)


def pieces(text: str) -> list[str]:
    return [letter if first else f"##{letter}" for word in text.split() for first, letter in marked(word)]


def marked(word: str) -> list[tuple[bool, str]]:
    return [(index == 0, letter) for index, letter in enumerate(word)]


def test_classifier_of_two_labels_behind_a_decoder(tmp_path: Path):
    """As Qwen3's rerankers have it: the probability of yes against no, at the last token."""
    rng = np.random.default_rng(2)
    head = {"cls.output.weight": rng.normal(size=(2, 64)).astype(np.float32)}
    keys = {"pooling_type": 4, "classifier.output_labels": ["yes", "no"]}
    path = write_tiny_model(tmp_path / "m.gguf", TinyModel(architecture="qwen3", keys=keys, vectors=head))
    plain = write_tiny_model(tmp_path / "plain.gguf", TinyModel(architecture="qwen3"))
    ids = list(range(40, 60))
    with LLM(plain, backend="llama", pooling="last") as llm:
        hidden = llm._asked(embed_of(ids, norm=-1)).rows()[0].astype(np.float64)
    yes, no = head["cls.output.weight"].astype(np.float64) @ hidden
    for backend in ("native", "llama"):
        with LLM(path, backend=backend) as llm:
            assert llm.card.can_generate
            (found,) = llm._asked(embed_of(ids, query="")).relevance()
        assert found == pytest.approx(1 / (1 + np.exp(no - yes)), abs=0.01)


def embed_of(ids: list[int], **fields: Any) -> Any:
    from stoker.engine.question_messages import Embed

    return Embed([ids], **fields)


@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_both_backends_agree_also_in_pieces(tmp_path: Path, architecture: str):
    keys = {"attention.sliding_window": 1024} if architecture == "gemma3" else {}
    path = write_tiny_model(tmp_path / "m.gguf", TinyModel(architecture=architecture, keys=keys))
    ids = tuple(int(token) for token in np.random.default_rng(3).integers(0, 250, 300))
    whole = [Piece(1, 0, ids, is_last=True), Piece(2, 0, ids[:7], is_last=True)]
    found: list[Any] = []
    with (
        read_gguf(path) as gguf,
        LlamaBackend(path, LlamaOptions(context_size=512, kv_tokens=512)) as llama,
        NativeBackend([gguf], NativeOptions(context_size=512, kv_tokens=512, kv_type="f32")) as native,
    ):
        for embedder in (native.embedder, llama.embedder):
            rows: Any = None
            found.append(embedder.embed(whole))
            for start in range(0, 300, 100):
                beside = Piece(1, 0, ids[:7], is_last=True)
                part = Piece(0, start, ids[start : start + 100], is_last=start == 200)
                rows = embedder.embed([part, beside])
            np.testing.assert_allclose(rows, found[-1], rtol=0.02, atol=0.02)
    assert least_cosine(normalised(found[0].astype(np.float64)), normalised(found[1].astype(np.float64))) > CLOSE


@pytest.mark.parametrize("backend", ["native", "llama"])
def test_chat_model_embeds_beside_its_answers_and_does_not_change_them(smollm2_path: Path, backend: Any):
    """Native: to the bit. libllama: one stream alone is always computed alike."""
    greedy = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, logprobs=0)
    prompt = "The history of the city of Rome begins"
    with LLM(smollm2_path, backend=backend, ctx_size=1024, parallel=2) as llm:
        alone = llm.generate(prompt, greedy)
        embeddings: list[Any] = []
        texts = ["A cat sits.", "A kitten is sitting.", "Rome " * 200]
        thread = threading.Thread(target=lambda: embeddings.append(llm.embed(texts)))
        with llm.stream(prompt, greedy) as stream:
            first = next(stream)
            thread.start()
            text = first + "".join(stream)
        thread.join(60)
        beside = stream.completion
        assert (text, beside.token_ids, beside.logprobs) == (alone.text, alone.token_ids, alone.logprobs)
        assert beside.usage.cached_tokens >= alone.usage.prompt_tokens - 1, "what was cached still is"
        (found,) = embeddings
        np.testing.assert_allclose(llm.embed(texts), found, atol=0.01)
        assert found[0] @ found[1] > found[0] @ found[2]


def test_recurrent_model_embeds_in_pieces(tmp_path: Path):
    path = write_mamba(tmp_path / "mamba.gguf")
    ids = tuple(range(60, 180))
    with LlamaBackend(path, LlamaOptions(context_size=256, kv_tokens=256, num_slots=4)) as backend:
        whole = backend.embedder.embed([Piece(1, 0, ids, is_last=True)])
        backend.embedder.embed([Piece(0, 0, ids[:50], is_last=False)])
        both = [Piece(0, 50, ids[50:], is_last=True), Piece(1, 0, ids[:9], is_last=True)]
        cut, _ = backend.embedder.embed(both)
    assert least_cosine(normalised(cut.astype(np.float64)), normalised(whole[0].astype(np.float64))) > CLOSE

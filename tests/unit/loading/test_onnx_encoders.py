"""Encoders as ONNX folders, from the file to the embedding, against the same model in plain numpy."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker import LLM
from stoker.engine.config import EngineConfig
from stoker.errors import ContextLengthExceeded, InvalidInput, ModelUnsupported
from stoker.loading.choosing import measure
from tests.bert_models import Bert, normalised, tiny_bert
from tests.onnx_encoders import write_encoder_folder

TEXTS = ["a b c", "hello stoker", "x", "a much longer text of many letters and words"]


@pytest.fixture(scope="module")
def bert() -> Bert:
    return tiny_bert(has_classifier=True)


def ids_of(bert: Bert, *texts: str) -> list[int]:
    """[CLS] text [SEP] text [SEP], a letter a token, as the vocabulary has no longer words."""
    index = {word: number for number, word in enumerate(bert.vocabulary)}
    found = [index["[CLS]"]]
    for text in texts:
        for word in text.split():
            found += [index[word[0]], *(index[f"##{letter}"] for letter in word[1:])]
        found.append(index["[SEP]"])
    return found


@pytest.mark.parametrize(
    ("pooling", "take"),
    [
        ("mean_tokens", lambda states: states.mean(axis=0)),
        ("cls_token", lambda states: states[0]),
        ("lasttoken", lambda states: states[-1]),
        ("", lambda states: states.mean(axis=0)),
    ],
)
def test_texts_are_embedded_as_the_folder_says(tmp_path: Path, bert: Bert, pooling: str, take: Any) -> None:
    folder = write_encoder_folder(tmp_path / "m", bert, pooling=pooling)
    expected = normalised(np.stack([take(bert.hidden(ids_of(bert, text))) for text in TEXTS]))
    with LLM(str(folder), threads=1) as llm:
        assert llm.card.backend == "onnx"
        found = np.array(llm.embed(TEXTS))
        alone = np.array([llm.embed(text) for text in TEXTS])
    assert np.abs(found - expected).max() < 1e-5
    assert np.abs(alone - expected).max() < 1e-5


def test_a_graph_that_pools_is_taken_at_its_word_unless_told_otherwise(tmp_path: Path, bert: Bert) -> None:
    folder = write_encoder_folder(tmp_path / "m", bert, "sentence_embedding", pooling="cls_token")
    expected = normalised(bert.hidden(ids_of(bert, "hello"))[0])
    with LLM(str(folder), threads=1) as llm:
        assert np.abs(np.array(llm.embed("hello")) - expected).max() < 1e-5


def test_pairs_are_ranked_and_the_second_text_is_told_from_the_first(tmp_path: Path, bert: Bert) -> None:
    folder = write_encoder_folder(tmp_path / "m", bert, "logits")
    documents = ["a b", "quite something else"]
    with LLM(str(folder), threads=1) as llm:
        found = llm.rank("who is it", documents)
    for index, document in enumerate(documents):
        expected = 1 / (1 + np.exp(-_score(bert, "who is it", document)))
        assert abs(found[index] - expected) < 1e-4


def _score(bert: Bert, query: str, document: str) -> float:
    """With token types, which `Bert.score` has not: the second text's are added to its words."""
    ids = ids_of(bert, query, document)
    first = len(ids_of(bert, query))
    types = bert.weights["embeddings.token_type_embeddings.weight"]
    words = bert.weights["embeddings.word_embeddings.weight"]
    # A vocabulary twice as large: the same words, of the second text.
    second = words + (types[1] - types[0])
    weights = {**bert.weights, "embeddings.word_embeddings.weight": np.concatenate([words, second])}
    both = dataclasses.replace(bert, weights=weights)
    return both.score([*ids[:first], *(id_ + len(words) for id_ in ids[first:])])


def test_a_text_that_is_too_long_is_refused_and_never_cut_in_silence(tmp_path: Path, bert: Bert) -> None:
    folder = write_encoder_folder(tmp_path / "m", bert)
    (folder / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 40}))
    with LLM(str(folder), threads=1) as llm:
        assert llm.card.context_size == 40
        expected = normalised(bert.hidden(ids_of(bert, "abcdefghij" * 3)).mean(axis=0))
        assert np.abs(np.array(llm.embed("abcdefghij" * 3)) - expected).max() < 1e-5  # tokenizer.json would cut at 8
        with pytest.raises(ContextLengthExceeded, match="at most 40"):
            llm.embed("abcdefghij" * 4)


def test_an_encoder_writes_nothing_and_says_so(tmp_path: Path, bert: Bert) -> None:
    folder = write_encoder_folder(tmp_path / "m", bert)
    with LLM(str(folder), threads=1) as llm, pytest.raises(InvalidInput, match=r"encoder|embed"):
        llm.generate("a")


def test_it_is_measured_before_it_is_loaded(tmp_path: Path, bert: Bert) -> None:
    folder = write_encoder_folder(tmp_path / "m", bert)
    needs = measure(EngineConfig(model="m", model_path=str(folder)))
    assert needs is not None
    assert needs.weights_bytes > sum(weight.nbytes for weight in bert.weights.values()) * 0.9


def test_scores_of_several_classes_are_no_ranks(tmp_path: Path, bert: Bert) -> None:
    three = {
        "classifier.weight": np.zeros((3, bert.hidden_size), np.float32),
        "classifier.bias": np.zeros(3, np.float32),
    }
    folder = write_encoder_folder(
        tmp_path / "m", dataclasses.replace(bert, weights={**bert.weights, **three}), "logits"
    )
    import onnx

    proto = onnx.load(str(folder / "model.onnx"))
    proto.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 3
    onnx.save(proto, str(folder / "model.onnx"))
    with pytest.raises(ModelUnsupported, match="`logits` is float32"):
        LLM(str(folder), threads=1)

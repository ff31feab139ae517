"""ONNX folders of models that see: a decoder on rows, and the graphs that make rows of tokens and of images."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker import LLM
from stoker.core.params import SamplingParams
from stoker.errors import ModelFileNotFound, ModelUnsupported
from stoker.models.onnx_folder import TABLE, graph_beside
from stoker.models.onnx_hub import onnx_parts
from tests.onnx_models import TinyOnnx, write_graph, write_onnx_folder

GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, logprobs=2)
SEES = TinyOnnx(takes_rows=True)


def test_a_decoder_on_rows_writes_what_one_on_token_ids_does(tmp_path: Path) -> None:
    answers = []
    for model in (SEES, TinyOnnx()):
        with LLM(str(write_onnx_folder(tmp_path / str(model.takes_rows), model)), threads=1) as llm:
            answers.append(llm.generate("Hello, what is it?", GREEDY))
    assert answers[0].token_ids == answers[1].token_ids
    assert answers[0].logprobs is not None
    assert answers[1].logprobs is not None
    for one, other in zip(answers[0].logprobs, answers[1].logprobs, strict=True):
        assert one.chosen.logprob == pytest.approx(other.chosen.logprob, abs=1e-4)


def test_the_table_of_tokens_must_be_beside_the_decoder_and_fit_it(tmp_path: Path) -> None:
    folder = write_onnx_folder(tmp_path / "tiny", SEES)
    table = folder / "onnx" / "embed_tokens.onnx"
    write_graph(tmp_path / "model.onnx", TinyOnnx(takes_rows=True, num_heads=2))
    table.write_bytes((tmp_path / "embed_tokens.onnx").read_bytes())
    with pytest.raises(
        ModelUnsupported, match=r"its output `inputs_embeds` is .* 32\], and the decoder takes rows of 64"
    ):
        LLM(str(folder))
    table.unlink()
    with pytest.raises(ModelFileNotFound, match=r"takes `inputs_embeds`, and there is no embed_tokens\.onnx beside it"):
        LLM(str(folder))


FILES = [
    "onnx/embed_tokens.onnx",
    "onnx/embed_tokens_fp16.onnx",
    "onnx/embed_tokens_fp16.onnx_data",
    "onnx/embed_tokens_q4.onnx",
    "onnx/vision_encoder.onnx",
    "onnx/vision_encoder_q4.onnx",
    "onnx/vision_encoder_q4.onnx_data",
    "onnx/decoder_model_merged_q4.onnx",
    "embed_tokens_q4.onnx",
    "config.json",
    "preprocessor_config.json",
]


@pytest.mark.parametrize(
    ("decoder", "table"),
    [("_q4", "_q4"), ("", ""), ("_fp16", "_fp16"), ("_q4f16", "_q4"), ("_odd", "_q4")],
)
def test_a_table_of_the_same_variant_is_taken_else_the_one_that_suits_a_cpu(decoder: str, table: str) -> None:
    found = graph_beside(f"onnx/decoder_model_merged{decoder}.onnx", FILES, TABLE)
    assert found == f"onnx/embed_tokens{table}.onnx"


def test_all_graphs_of_a_model_are_brought_from_the_hub() -> None:
    assert onnx_parts(FILES, "onnx/decoder_model_merged_q4.onnx") == [
        "onnx/decoder_model_merged_q4.onnx",
        "onnx/embed_tokens_q4.onnx",
        "onnx/vision_encoder_q4.onnx",
        "onnx/vision_encoder_q4.onnx_data",
        "config.json",
        "preprocessor_config.json",
    ]

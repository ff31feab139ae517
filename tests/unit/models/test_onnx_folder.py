"""Folders as optimum, onnx-community and the GenAI builder write them, and what their JSON files say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stoker.core.params import SamplingParams
from stoker.errors import ModelFileNotFound
from stoker.models.onnx_description import Hardware, Hints, OnnxDescription, describe_onnx
from stoker.models.onnx_folder import is_onnx_model, open_onnx_folder
from stoker.models.store import resolve


def write(folder: Path, **files: Any) -> Path:
    """`a__b_json={…}` becomes `a/b.json`; a string is written as it is."""
    for name, content in files.items():
        path = folder / name.replace("__", "/").replace("_json", ".json").replace("_onnx", ".onnx")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    return folder


def describe(folder: Path, **files: Any) -> OnnxDescription:
    return describe_onnx(open_onnx_folder(write(folder, model_onnx="", **files)))


def touch(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    return folder


COMMUNITY = tuple(f"onnx/model{v}.onnx" for v in ("", "_fp16", "_q4", "_q4f16", "_quantized", "_bnb4"))


@pytest.mark.parametrize(
    ("files", "variant", "expected"),
    [
        (["model.onnx"], "", "model.onnx"),
        (["some.onnx"], "", "some.onnx"),
        (["onnx-export/model.onnx"], "", "onnx-export/model.onnx"),
        (["model.onnx", "model_q4.onnx"], "", "model_q4.onnx"),
        (
            ["decoder_model.onnx", "decoder_model_merged.onnx", "decoder_with_past_model.onnx"],
            "",
            "decoder_with_past_model.onnx",
        ),
        (COMMUNITY, "", "onnx/model_q4.onnx"),
        (COMMUNITY, "q4f16", "onnx/model_q4f16.onnx"),
        (COMMUNITY, "fp32", "onnx/model.onnx"),
        (COMMUNITY, "model_fp16.onnx", "onnx/model_fp16.onnx"),
        (COMMUNITY, "quantized", "onnx/model_quantized.onnx"),
    ],
)
def test_which_graph_is_meant(tmp_path: Path, files: list[str], variant: str, expected: str) -> None:
    touch(tmp_path, *files)
    assert is_onnx_model(tmp_path)
    assert resolve(str(tmp_path)) == tmp_path
    assert open_onnx_folder(tmp_path, variant).graph == tmp_path / expected


def test_genai_names_its_graph(tmp_path: Path) -> None:
    touch(tmp_path, "model.onnx", "other.onnx")
    write(tmp_path, genai_config_json={"model": {"decoder": {"filename": "other.onnx"}}})
    assert open_onnx_folder(tmp_path).graph.name == "other.onnx"


@pytest.mark.parametrize("variant", ["", "q8"])
def test_what_cannot_be_chosen_is_listed(tmp_path: Path, variant: str) -> None:
    touch(tmp_path, "one.onnx", "onnx/two.onnx")
    with pytest.raises(ModelFileNotFound, match=r"no .*graph.*\n  one\.onnx\n  onnx/two\.onnx"):
        open_onnx_folder(tmp_path, variant)


def test_files_are_looked_for_in_the_order_of_s1_5(tmp_path: Path) -> None:
    """S1-5: the graph's folder, its `onnx-export`, the root, its `onnx-export`; the root is where metadata.json is."""
    graph = touch(tmp_path, "onnx/model_q4.onnx", "metadata.json") / "onnx" / "model_q4.onnx"
    folders = ["onnx", "onnx/onnx-export", ".", "onnx-export"]
    for name in reversed(folders):
        touch(tmp_path, f"{name}/config.json")
        found = open_onnx_folder(graph).find("config.json")
        assert found == tmp_path / name / "config.json"


def test_a_package_may_begin_any_number_of_folders_above(tmp_path: Path) -> None:
    graph = touch(tmp_path, "a/b/c/d/model.onnx", "metadata.json", "config.json") / "a/b/c/d/model.onnx"
    assert open_onnx_folder(graph).find("metadata.json") == tmp_path / "metadata.json"
    assert open_onnx_folder(graph).find("config.json") == tmp_path / "config.json"
    touch(tmp_path, "a/metadata.json")
    assert open_onnx_folder(graph).find("metadata.json") == tmp_path / "a/metadata.json"
    touch(tmp_path, "e/f/g/h/model.onnx", "e/config.json")
    (tmp_path / "metadata.json").unlink()
    assert open_onnx_folder(tmp_path / "e/f/g/h/model.onnx").find("config.json") is None


def test_unreadable_json_counts_as_absent(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    found = describe(tmp_path, config_json="{", generation_config_json="[1]", metadata_json="\x00")
    assert (found.trained_context, found.defaults, found.hints) == (None, SamplingParams(), Hints())
    assert [
        name for name in ("config", "generation_config", "metadata") if f"{name}.json is ignored" in caplog.text
    ] == [
        "config",
        "generation_config",
        "metadata",
    ]


def test_recommendations(tmp_path: Path) -> None:
    """S1-6, without taking `max_length`, which counts the prompt, for the length of an answer."""
    numbers = {"temperature": 0.5, "max_new_tokens": 128, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.2}
    found = describe(tmp_path, generation_config_json={**numbers, "max_length": 20, "do_sample": True})
    assert found.defaults == SamplingParams(
        temperature=0.5, max_tokens=128, top_p=0.8, top_k=20, repetition_penalty=1.2
    )
    only_length = describe(tmp_path, generation_config_json={"max_length": 20, "top_k": "many"})
    assert only_length.defaults == SamplingParams()


def test_no_sampling_means_greedy(tmp_path: Path) -> None:
    found = describe(tmp_path, generation_config_json={"do_sample": False, "temperature": 0.9})
    assert found.defaults.temperature == 0


def test_a_recommendation_out_of_range_is_named_and_the_others_hold(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    found = describe(tmp_path, generation_config_json={"top_p": 7.0, "repetition_penalty": 0, "top_k": 5})
    assert found.defaults == SamplingParams(top_k=5)
    for name in ("top_p = 7", "repetition_penalty = 0"):
        assert f"generation_config.json recommends {name}, which is ignored" in caplog.text


@pytest.mark.parametrize("bad", ["0.5", True, [1], {"a": 1}])
def test_a_recommendation_that_is_no_number_is_named(
    tmp_path: Path, bad: object, caplog: pytest.LogCaptureFixture
) -> None:
    found = describe(tmp_path, generation_config_json={"temperature": bad, "top_k": 5})
    assert found.defaults == SamplingParams(top_k=5)
    assert f"generation_config.json recommends temperature = {bad!r}, which is ignored" in caplog.text


@pytest.mark.parametrize(
    ("generation", "config", "expected"),
    [
        ({"eos_token_id": 2, "bos_token_id": 1}, {}, {2}),
        ({"eos_token_id": [1, 106], "bos_token_id": 2}, {}, {1, 106}),
        ({"eos_token_ids": [5], "eos_token_id": 6}, {"eos_token_id": 7}, {5, 6}),
        ({"bos_token_id": 1}, {"eos_token_id": 7, "bos_token_id": 1}, {7}),
        ({"bos_token_id": 1}, {"bos_token_id": 1}, set()),
    ],
)
def test_bos_is_never_an_end(tmp_path: Path, generation: Any, config: Any, expected: set[int]) -> None:
    """S1-7 and S1-8, without their BOS."""
    assert describe(tmp_path, generation_config_json=generation, config_json=config).eos_token_ids == expected


def test_where_templates_are(tmp_path: Path) -> None:
    assert describe(tmp_path).chat_template is None
    assert describe(tmp_path, chat_template_json={"chat_template": "A"}).chat_template == "A"
    assert describe(tmp_path, tokenizer_config_json={"chat_template": "B"}).chat_template == "B"
    named = [{"name": "tool_use", "template": "C"}, {"name": "default", "template": "D"}]
    assert describe(tmp_path, tokenizer_config_json={"chat_template": named}).chat_template == "D"
    (tmp_path / "chat_template.jinja").write_text("E")
    assert describe(tmp_path).chat_template == "E"


def test_hints(tmp_path: Path) -> None:
    """S1-15: only positive whole numbers count; what the section leaves out has its defaults."""
    llm = {
        "max_seq_len": 1000,
        "scheduler": {"max_num_seqs": 3, "max_paddings": 7},
        "kv_cache": {"block_size": 8, "total_blocks": 50},
    }
    limits = Hints(max_sequence_tokens=1000, max_sequences=3, max_paddings=7, kv_tokens=400)
    assert describe(tmp_path, metadata_json={"metadata": {"llm": llm}}).hints == limits
    assert describe(tmp_path, metadata_json={"metadata": {"author": "x"}, "llm": llm}).hints == limits
    odd = {
        "max_sequence_length": -1,
        "max_seq_len": True,
        "scheduler": {"max_num_seqs": "4"},
        "kv_cache": {"block_size": 4},
    }
    assert describe(tmp_path, metadata_json={"llm": odd}).hints == Hints(
        max_sequence_tokens=2048, max_sequences=16, kv_tokens=512
    )
    assert describe(tmp_path, metadata_json={"llm": []}).hints == Hints()


def test_what_a_package_says_about_the_machine(tmp_path: Path) -> None:
    """S1-42: as kapsl packages have it; what is not of its kind counts as not said."""
    asked = {"preferred_provider": "CUDA", "fallback_providers": ["openvino", "cuda", 5], "device_id": 1}
    found = describe(tmp_path, metadata_json={"hardware_requirements": {**asked, "intra_op_threads": 3}}).hardware
    assert found == Hardware(providers=("cuda", "openvino"), device_id=1, threads=3)
    odd = {"preferred_provider": 1, "fallback_providers": "cuda", "device_id": -1, "intra_op_threads": 10**6}
    assert describe(tmp_path, metadata_json={"hardware_requirements": odd}).hardware == Hardware()
    assert describe(tmp_path, metadata_json={"hardware_requirements": []}).hardware == Hardware()


def test_facts_of_a_model_for_more_than_text(tmp_path: Path) -> None:
    text = {"max_position_embeddings": 4096, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
    found = describe(tmp_path, config_json={"model_type": "big", "hidden_size": 9, "text_config": text})
    assert (found.architecture, found.trained_context, found.num_kv_heads, found.head_size) == ("big", 4096, 2, 16)


def test_facts_of_a_genai_folder(tmp_path: Path) -> None:
    model = {"type": "phi3", "context_length": 4096, "eos_token_id": [3, 4], "bos_token_id": 1}
    found = describe(tmp_path, genai_config_json={"model": model})
    assert (found.architecture, found.trained_context, found.eos_token_ids, found.bos_token_id) == (
        "phi3",
        4096,
        {3, 4},
        1,
    )

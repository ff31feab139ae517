"""The small files beside the graph say what the graph and the vocabulary are like."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stoker.export import ExportOptions, export_model
from tests.tiny_models import TinyModel, write_tiny_model
from tests.unit.export.written import Written


def export(tmp_path: Path, model: TinyModel, **options: Any) -> Path:
    path = write_tiny_model(tmp_path / "m.gguf", model)
    return export_model(path, tmp_path / "onnx", ExportOptions(**options)).folder


def read(folder: Path, name: str) -> dict[str, Any]:
    return json.loads((folder / name).read_text())


def test_config_names_the_class_and_the_sizes(tmp_path: Path) -> None:
    config = read(export(tmp_path, TinyModel(architecture="qwen3", has_head=False)), "config.json")
    expected: dict[str, Any] = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": 263,
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": True,
        "bos_token_id": 256,
        "eos_token_id": [257, 259],
    }
    assert expected.items() <= config.items()
    assert "sliding_window" not in config


def test_config_tells_windowed_layers_from_the_others(tmp_path: Path) -> None:
    model = TinyModel(architecture="gemma3", num_layers=7, keys={"attention.sliding_window": 24})
    config = read(export(tmp_path, model), "config.json")
    assert (config["sliding_window"], config["layer_types"].index("full_attention")) == (24, 5)
    assert config["layer_types"].count("sliding_attention") == 6


def test_generation_config_has_every_end_and_what_the_model_recommends(tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "m.gguf", TinyModel())
    (tmp_path / "generation_config.json").write_text('{"temperature": 0.5, "top_k": 7, "do_sample": true}')
    folder = export_model(path, tmp_path / "onnx").folder
    expected = {"bos_token_id": 256, "eos_token_id": [257, 259], "pad_token_id": 257}
    sampling = {"do_sample": True, "temperature": 0.5, "top_k": 7}
    assert read(folder, "generation_config.json") == expected | sampling
    search = read(folder, "genai_config.json")["search"]
    assert (search["do_sample"], search["temperature"], search["top_k"]) == (False, 0.5, 7)


@pytest.mark.parametrize("attention", ["gqa", "plain"])
def test_genai_config_names_the_inputs_and_outputs_that_there_are(tmp_path: Path, attention: str) -> None:
    folder = export(tmp_path, TinyModel(), attention=attention, context_size=100)
    config, written = read(folder, "genai_config.json"), Written(folder)
    decoder = config["model"]["decoder"]
    names = {name % i if "%" in name else name for name in decoder["inputs"].values() for i in range(2)}
    assert names == set(written.inputs)
    names = {name % i if "%" in name else name for name in decoder["outputs"].values() for i in range(2)}
    assert names == {value.name for value in written.model.graph.output}
    assert config["model"]["context_length"] == config["search"]["max_length"] == 100
    assert config["search"]["past_present_share_buffer"] == (attention == "gqa")
    assert (folder / decoder["filename"]).exists()


def test_inputs_and_outputs_have_the_usual_shapes(tmp_path: Path) -> None:
    written = Written(export(tmp_path, TinyModel(), kv_type="f16", attention="plain"))

    def shape(value: Any) -> list[Any]:
        return [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]

    assert shape(written.inputs["input_ids"]) == ["batch_size", "sequence_length"]
    assert shape(written.inputs["position_ids"]) == ["batch_size", "sequence_length"]
    assert shape(written.inputs["attention_mask"]) == ["batch_size", "total_sequence_length"]
    assert shape(written.inputs["past_key_values.1.value"]) == ["batch_size", 2, "past_sequence_length", 16]
    outputs = {value.name: value for value in written.model.graph.output}
    assert shape(outputs["logits"]) == ["batch_size", "sequence_length", 263]
    assert shape(outputs["present.0.key"]) == ["batch_size", 2, "total_sequence_length", 16]
    assert outputs["present.0.key"].type.tensor_type.elem_type == 10  # float16
    assert list(outputs) == ["logits", *(f"present.{i}.{part}" for i in range(2) for part in ("key", "value"))]


@pytest.mark.parametrize("architecture", ["llama", "gemma3", "qwen2"])
def test_a_plain_graph_has_nothing_but_onnx_in_it(tmp_path: Path, architecture: str) -> None:
    import onnx

    folder = export(tmp_path, TinyModel(architecture=architecture, has_head=False), attention="plain", weights="f16")
    assert Written(folder).domains == {""}
    onnx.checker.check_model(str(folder / "model.onnx"), full_check=True)


def test_roles_of_tokens_and_the_chat_template(tmp_path: Path, smollm2_folder: Path) -> None:
    folder = export(tmp_path, TinyModel())
    config = read(folder, "tokenizer_config.json")
    assert (config["bos_token"], config["eos_token"]) == ("<|bos|>", "<|end|>")
    assert "chat_template" not in config
    assert not (folder / "chat_template.jinja").exists()
    assert read(folder, "special_tokens_map.json") == {"bos_token": "<|bos|>", "eos_token": "<|end|>"}
    config = read(smollm2_folder, "tokenizer_config.json")
    assert config["chat_template"] == (smollm2_folder / "chat_template.jinja").read_text()
    assert "<|im_start|>" in config["chat_template"]
    assert config["added_tokens_decoder"]["2"]["content"] == "<|im_end|>"

"""The facts of a model card."""

from pathlib import Path
from typing import Any

import pytest
from gguf import LlamaFileType

from stoker.errors import ModelFileInvalid, ModelFileNotFound
from stoker.models.description import describe
from stoker.models.gguf import read_gguf
from tests.unit.models.tiny_gguf import SHAPE, write_tiny_gguf


def test_a_tiny_model(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "my-model.gguf", **SHAPE, tokenizer__chat_template="{{ messages }}")
    found = describe(read_gguf(path))
    assert (found.name, found.architecture, found.quantization) == ("my-model", "llama", "F32")
    assert (found.num_parameters, found.weights_bytes) == (64, 256)
    assert (found.trained_context, found.vocab_size) == (2048, 100)
    assert found.chat_template == "{{ messages }}"


@pytest.mark.parametrize("template", ["", " \n"])
def test_an_empty_template_is_none(template: str, tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "m.gguf", **SHAPE, tokenizer__chat_template=template)
    assert describe(read_gguf(path)).chat_template is None


def test_the_name_and_type_that_the_file_gives_win(tmp_path: Path) -> None:
    values: dict[str, Any] = SHAPE | {"general__name": "Tiny", "general__file_type": int(LlamaFileType.MOSTLY_Q4_K_M)}
    found = describe(read_gguf(write_tiny_gguf(tmp_path / "m.gguf", **values, tokenizer__ggml__tokens=["a", "b"])))
    assert (found.name, found.quantization, found.vocab_size) == ("Tiny", "Q4_K_M", 2)


def test_an_unknown_file_type_is_told_from_the_tensors(tmp_path: Path) -> None:
    found = describe(read_gguf(write_tiny_gguf(tmp_path / "m.gguf", **SHAPE, general__file_type=999)))
    assert found.quantization == "F32"


def test_all_parts_of_a_split_model_count(tmp_path: Path) -> None:
    first = write_tiny_gguf(tmp_path / "m-00001-of-00002.gguf", **SHAPE)
    with pytest.raises(ModelFileNotFound, match="00002-of-00002"):
        describe(read_gguf(first))
    write_tiny_gguf(tmp_path / "m-00002-of-00002.gguf", num_bytes=1024)
    assert describe(read_gguf(first)).weights_bytes == 256 + 1024


def test_a_model_without_a_context_length(tmp_path: Path) -> None:
    with pytest.raises(ModelFileInvalid, match="context_length"):
        describe(read_gguf(write_tiny_gguf(tmp_path / "m.gguf")))


def test_real_models(smollm2_path: Path, gemma3_path: Path) -> None:
    smollm2, gemma3 = describe(read_gguf(smollm2_path)), describe(read_gguf(gemma3_path))
    assert (smollm2.quantization, smollm2.num_parameters, smollm2.vocab_size) == ("Q4_1", 134_515_008, 49152)
    assert smollm2.chat_template is not None
    assert (gemma3.quantization, gemma3.num_parameters, gemma3.vocab_size) == ("Q4_K_M", 268_098_176, 262144)
    assert gemma3.chat_template is None

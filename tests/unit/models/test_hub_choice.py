"""Which file of a repository is taken."""

import pytest

from stoker.errors import ModelFileNotFound
from stoker.models.hub_choice import choose_file

MANY = ["README.md", "m-Q8_0.gguf", "m-Q4_K_M.gguf", "m-Q4_K_S.gguf", "m-Q4_K.gguf", "mmproj-m-f16.gguf"]


@pytest.mark.parametrize(
    ("files", "quantization", "chosen"),
    [
        (MANY, None, "m-Q4_K_M.gguf"),
        (MANY, "Q8_0", "m-Q8_0.gguf"),
        (MANY, "q4_k_s", "m-Q4_K_S.gguf"),
        (MANY, "Q4_K", "m-Q4_K.gguf"),
        (["only-f16.gguf", "mmproj.gguf", "config.json"], None, "only-f16.gguf"),
        (["a/m-q4_k_m-00001-of-00002.gguf", "a/m-q4_k_m-00002-of-00002.gguf"], None, "a/m-q4_k_m-00001-of-00002.gguf"),
        (["Q8_0/m-00002-of-00002.gguf", "Q8_0/m-00001-of-00002.gguf"], "Q8_0", "Q8_0/m-00001-of-00002.gguf"),
        (["imatrix.gguf", "mmproj-F16.gguf", "m.gguf"], None, "m.gguf"),
    ],
)
def test_the_file_that_fits(files: list[str], quantization: str | None, chosen: str) -> None:
    assert choose_file("org/repo", files, quantization) == chosen


@pytest.mark.parametrize(
    ("files", "quantization", "what"),
    [
        (["m-Q8_0.gguf", "m-F16.gguf"], None, "more than one model"),
        (["a-Q4_K_M.gguf", "b-Q4_K_M.gguf"], None, "more than one model"),
        (["m-Q8_0.gguf", "m-F16.gguf"], "Q5_0", "no model for Q5_0"),
        (["a-Q8_0.gguf", "b-Q8_0.gguf"], "Q8_0", "more than one model for Q8_0"),
    ],
)
def test_doubt_lists_the_models(files: list[str], quantization: str | None, what: str) -> None:
    with pytest.raises(ModelFileNotFound, match=what) as caught:
        choose_file("org/repo", files, quantization)
    for file in files:
        assert f"hf:org/repo:{file}" in caught.value.message


def test_a_repository_without_models() -> None:
    with pytest.raises(ModelFileNotFound, match=r"has no GGUF file\..*repo-GGUF"):
        choose_file("org/repo", ["model.safetensors", "mmproj.gguf"])


def test_a_long_list_is_cut() -> None:
    with pytest.raises(ModelFileNotFound, match="and 60 more"):
        choose_file("org/repo", [f"{number}.gguf" for number in range(100)])

"""What images become for each family of models that see. The numbers are those of Hugging Face transformers 4.57.6."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stoker.backends.onnx import Family, family_of
from stoker.backends.onnx.families import Image
from stoker.backends.row_maker import Rows
from stoker.errors import ModelFileInvalid, ModelUnsupported
from stoker.media.resizing import resized

SETTINGS: dict[str, dict[str, Any]] = {
    "idefics3": {"size": {"longest_edge": 96}, "max_image_size": {"longest_edge": 32}},
    "llava": {"size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32}},
    "gemma3": {"size": {"height": 32, "width": 32}},
    "qwen2_vl": {"min_pixels": 3136, "max_pixels": 5000},
}


def family(name: str, limits: tuple[int, int] = (0, 0), **changed: Any) -> Family:
    return family_of(name, {**SETTINGS[name], **changed}, limits, resized)


def image(width: int, height: int) -> Image:
    y, x = np.mgrid[0:height, 0:width]
    return np.stack([x * 255 // (width - 1), y * 255 // (height - 1), (x * 7 + y * 13) % 256], -1).astype(np.uint8)


@pytest.mark.parametrize(
    ("name", "size", "shape", "expected"),
    [
        ("idefics3", (90, 60), (7, 3, 32, 32), [-1.0, 0.325, 1.0, 0.49, 1.0, 0.341, -0.231]),
        ("llava", (90, 60), (1, 3, 32, 32), [-1.165, 1.288, 1.288, 0.094, 2.045, 0.198, 1.193]),
        ("gemma3", (90, 60), (1, 3, 32, 32), [-0.976, 0.969, 0.969, -0.035, 0.976, 0.71, -0.263]),
        ("qwen2_vl", (90, 60), (1, 24, 1176), [-1.792, -0.513, -1.21, 1.833, 1.378, 0.724, 0.07]),
        ("idefics3", (50, 121), (7, 3, 32, 32), [-0.992, 1.0, -0.027, -0.012, 1.0, -0.192, -0.255]),
        ("llava", (50, 121), (1, 3, 32, 32), [-1.763, 1.901, 1.901, 0.109, 0.904, -0.385, 0.61]),
        ("gemma3", (50, 121), (1, 3, 32, 32), [-0.984, 0.984, 0.984, -0.035, 0.969, -0.443, -0.333]),
        ("qwen2_vl", (50, 121), (1, 12, 1176), [-1.763, -0.428, -0.328, -0.243, -0.158, -0.072, 0.013]),
    ],
)
def test_an_encoder_gets_the_numbers_that_it_was_trained_with(
    name: str, size: tuple[int, int], shape: tuple[int, ...], expected: list[float]
) -> None:
    made = family(name)
    found = np.stack([made.inputs(part)["pixel_values"] for part in made.parts(image(*size), 4)])
    assert found.shape == shape
    flat = found.reshape(-1)
    places = np.linspace(0, flat.size - 1, len(expected)).astype(int)
    assert flat[places] == pytest.approx(expected, abs=0.02)


def test_patches_tell_their_grid() -> None:
    made = family("qwen2_vl")
    part = made.parts(image(90, 60), 0)[0]
    assert made.inputs(part)["image_grid_thw"].tolist() == [[1, 4, 6]]
    assert made.layout((90, 60), 0) == ["<|vision_start|>", Rows(6, (3, 2)), "<|vision_end|>"]


@pytest.mark.parametrize("name", list(SETTINGS))
@pytest.mark.parametrize("size", [(1, 1), (2, 1), (31, 33), (96, 96), (97, 200), (400, 7), (3, 500)])
def test_a_layout_has_a_span_for_each_part(name: str, size: tuple[int, int]) -> None:
    made = family(name)
    spans = [part for part in made.layout(size, 4) if isinstance(part, Rows)]
    pixels = np.zeros((size[1], size[0], 3), dtype=np.uint8)
    assert len(made.parts(pixels, 4)) == len(spans)


def num_spans(made: Family, size: tuple[int, int]) -> int:
    return sum(isinstance(part, Rows) for part in made.layout(size, 4))


def test_tiles_are_not_made_of_an_image_that_fits_into_one_or_if_they_are_too_many() -> None:
    assert num_spans(family("idefics3"), (32, 20)) == 1
    assert num_spans(family("idefics3"), (33, 20)) == 7
    assert num_spans(family("idefics3", do_image_splitting=False), (90, 60)) == 1
    assert num_spans(family("idefics3", (0, 27)), (90, 60)) == 5
    assert num_spans(family("idefics3", (0, 4)), (90, 60)) == 1


def test_limits_of_tokens_bound_the_rows_of_an_image() -> None:
    def rows(size: tuple[int, int], limits: tuple[int, int], **changed: Any) -> int:
        found = family("qwen2_vl", limits, **changed).layout(size, 0)[1]
        assert isinstance(found, Rows)
        return found.length

    wide: dict[str, Any] = {"max_pixels": 12_845_056}
    assert rows((4000, 3000), (0, 0), **wide) <= 1280 < rows((4000, 3000), (0, 2000), **wide) <= 2000
    assert rows((28, 28), (0, 0), **wide) == 4
    assert rows((28, 28), (16, 0), **wide) == 16


@pytest.mark.parametrize("name", ["llava", "gemma3", "qwen2_vl"])
def test_strips_are_refused(name: str) -> None:
    with pytest.raises(ModelFileInvalid, match="more than 200 times as long"):
        family(name).layout((201, 1), 4)


def test_what_is_not_understood_is_refused_by_name() -> None:
    with pytest.raises(ModelUnsupported, match=r"the family `mllama` are not supported .* qwen2_vl, qwen2_5_vl\)"):
        family_of("mllama", {"size": 1}, (0, 0), resized)
    with pytest.raises(ModelUnsupported, match=r"there is no preprocessor_config\.json"):
        family_of("gemma3", {}, (0, 0), resized)
    with pytest.raises(ModelUnsupported, match="does not scale and crop images"):
        family("llava", crop_size={"height": 64, "width": 64})

"""Image processors of vision model families: how an image is resized and cut, and the tokens it becomes in a prompt.

Each processor does what Hugging Face transformers does for the family: the same sizes, filters, normalization and
texts. The placeholder that a chat template writes for an image is expanded as transformers expands it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from stoker.backends.row_maker import Rows
from stoker.errors import ModelFileInvalid, ModelUnsupported

Image: TypeAlias = NDArray[np.uint8]
"""RGB pixels, `(height, width, 3)`."""
Size: TypeAlias = tuple[int, int]
"""Width and height of an image, in pixels."""
Resize: TypeAlias = Callable[[Image, Size, int], Image]
"""Resizes an image to a width and height, with the Pillow filter of this number."""
TokenLimits: TypeAlias = tuple[int, int]
"""Minimum and maximum number of tokens of an image; 0 = no limit."""
Inputs: TypeAlias = dict[str, NDArray[Any]]
"""Inputs of the encoder by name, for one part of an image. Leading dimensions of size 1 may be missing."""

_IMAGE, _AROUND, _GLOBAL = "<image>", "<fake_token_around_image>", "<global-img>"
_LANCZOS, _BILINEAR, _BICUBIC = 1, 2, 3
_HALF = (0.5, 0.5, 0.5)
_CLIP_MEAN, _CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
_MAX_SIDE = 4096
_MAX_RATIO = 200
_QWEN_TOKENS = 1280
"""Default limit of the tokens of an image. Memory grows with their square; the models' own limit of 16,384 would need
more than most machines have."""


class Family(Protocol):
    """The image processor of one family, with the settings of one model."""

    @property
    def text(self) -> str:
        """The placeholder that a chat template writes for an image."""
        ...

    @property
    def special(self) -> Sequence[str]:
        """Texts of the layout that must be single tokens of the vocabulary."""
        ...

    @property
    def has_axes(self) -> bool:
        """Whether the language model rotates rows by their places in the image (M-RoPE)."""
        ...

    def layout(self, size: Size, num_rows: int) -> list[str | Rows]:
        """The texts and rows that represent an image in the prompt.

        Args:
            size: size of the image.
            num_rows: number of rows that the encoder returns for a part, if it is the same for all parts.

        Raises:
            ModelFileInvalid: the model cannot process an image of this size.
        """
        ...

    def parts(self, image: Image, num_rows: int) -> list[Image]:
        """The images to encode, one for each `Rows` of the layout. For `num_rows` see `layout`."""
        ...

    def inputs(self, part: Image) -> Inputs:
        """The inputs of the encoder for one part."""
        ...


@dataclass(frozen=True, slots=True)
class Numbers:
    """Normalization of pixels to the range that an encoder was trained with: `(pixel * scale - mean) / std`."""

    scale: float
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def of(self, image: Image) -> NDArray[np.float32]:
        """The normalized pixels, `(3, height, width)`."""
        mean, std = (np.array(values, dtype=np.float32) for values in (self.mean, self.std))
        scaled = image.astype(np.float32) * np.float32(self.scale)
        return ((scaled - mean) / std).transpose(2, 0, 1)


class Settings:
    """The settings in `preprocessor_config.json`. A value of the wrong type counts as missing.

    Args:
        values: the content of the file.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def integer(self, key: str, usual: int) -> int:
        """A positive integer, or `usual` if it is missing."""
        found = self._values.get(key)
        return found if isinstance(found, int) and found > 0 else usual

    def is_on(self, key: str, *, usual: bool = True) -> bool:
        found = self._values.get(key)
        return found if isinstance(found, bool) else usual

    def sizes(self, key: str) -> Mapping[str, int]:
        """Lengths in pixels by name; a single number counts as `height` and `width`."""
        found = self._values.get(key)
        if isinstance(found, int):
            return {"height": found, "width": found}
        pairs = cast("Mapping[str, object]", found).items() if isinstance(found, dict) else ()
        return {name: value for name, value in pairs if isinstance(value, int) and value > 0}

    def numbers(self, mean: Sequence[float], std: Sequence[float]) -> Numbers:
        """The normalization of pixels; `mean` and `std` apply if the file does not state them."""
        scale = self._values.get("rescale_factor")
        scale = scale if isinstance(scale, float) else 1 / 255
        is_normalized = self.is_on("do_normalize")
        return Numbers(
            scale=scale if self.is_on("do_rescale") else 1.0,
            mean=self._three("image_mean", mean) if is_normalized else (0.0,) * 3,
            std=self._three("image_std", std) if is_normalized else (1.0,) * 3,
        )

    def _three(self, key: str, usual: Sequence[float]) -> tuple[float, ...]:
        found = self._values.get(key)
        given = cast("list[object]", found) if isinstance(found, list) else []
        values = [float(value) for value in given if isinstance(value, int | float)]
        return tuple(values) if len(values) == len(usual) else tuple(usual)


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """LLaVA and Gemma 3: an image is resized to one fixed size and number of rows. Satisfies `Family`."""

    text: str
    before: str = ""
    behind: str = ""
    """`before` and `behind` are the texts around the rows in the prompt."""
    special: tuple[str, ...] = ()
    size: Size
    shortest: int
    """Shorter side, in pixels, to which the image is resized before a center crop; 0 = the image is stretched to `size`
    without a crop, whatever its aspect ratio."""
    filter: int
    numbers: Numbers
    resize: Resize
    has_axes: bool = False

    def layout(self, size: Size, num_rows: int) -> list[str | Rows]:
        """See `Family.layout`."""
        _check_ratio(size)
        return [part for part in (self.before, Rows(num_rows), self.behind) if part]

    def parts(self, image: Image, num_rows: int) -> list[Image]:
        """See `Family.parts`."""
        if not self.shortest:
            return [self.resize(image, self.size, self.filter)]
        height, width = image.shape[:2]
        short, long = sorted((width, height))
        longer = int(self.shortest * long / short)
        scaled = (self.shortest, longer) if width <= height else (longer, self.shortest)
        return [_middle(self.resize(image, scaled, self.filter), self.size)]

    def inputs(self, part: Image) -> Inputs:
        """See `Family.inputs`."""
        return {"pixel_values": self.numbers.of(part)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiles:
    """Idefics 3 and SmolVLM: an image becomes tiles, line after line, then a tile of the whole. Satisfies `Family`.

    An image that is not larger than a tile becomes a single tile. Transformers enlarges it, which would give 17 times
    the rows.
    """

    side: int
    """Side of a tile, in pixels."""
    longest: int
    """Longer side, in pixels, to which an image is resized before it is cut into tiles."""
    is_cut: bool
    filter: int
    numbers: Numbers
    resize: Resize
    max_rows: int
    """Maximum number of rows of an image; 0 = any number."""
    text: str = _IMAGE
    has_axes: bool = False

    @property
    def special(self) -> Sequence[str]:
        """See `Family.special`."""
        return (_AROUND, _GLOBAL, "<row_1_col_1>") if self.is_cut else (_AROUND, _GLOBAL)

    def layout(self, size: Size, num_rows: int) -> list[str | Rows]:
        """See `Family.layout`."""
        columns, lines = self._grid(self._sizes(size, num_rows)[1])
        found: list[str | Rows] = []
        for line in range(1, lines + 1):
            for column in range(1, columns + 1):
                behind_line = "\n" if line > 1 and column == 1 else ""
                found += [f"{behind_line}{_AROUND}<row_{line}_col_{column}>", Rows(num_rows)]
        behind_tiles = "\n\n" if found else ""
        return [*found, f"{behind_tiles}{_AROUND}{_GLOBAL}", Rows(num_rows), _AROUND]

    def parts(self, image: Image, num_rows: int) -> list[Image]:
        """See `Family.parts`."""
        for size in self._sizes((image.shape[1], image.shape[0]), num_rows):
            image = self.resize(image, size, self.filter)
        columns, lines = self._grid((image.shape[1], image.shape[0]))
        side = self.side
        corners = [(line * side, column * side) for line in range(lines) for column in range(columns)]
        tiles = [image[top : top + side, left : left + side] for top, left in corners]
        return [*tiles, self.resize(image, (side, side), self.filter)]

    def inputs(self, part: Image) -> Inputs:
        """See `Family.inputs`."""
        return {"pixel_values": self.numbers.of(part), "pixel_attention_mask": np.ones(part.shape[:2], dtype=np.bool_)}

    def _sizes(self, size: Size, num_rows: int) -> tuple[Size, Size]:
        """The two sizes to which an image is resized in turn, within the limit of `max_rows`."""
        longest = self.side if max(size) <= self.side else self.longest
        while True:
            sizes = self._sizes_within(size, longest)
            columns, lines = self._grid(sizes[1])
            if longest <= self.side or not self.max_rows or (columns * lines + 1) * num_rows <= self.max_rows:
                return sizes
            longest = max(self.side, longest - self.side)

    def _sizes_within(self, size: Size, longest: int) -> tuple[Size, Size]:
        """Two sizes: the first keeps the aspect ratio; the second has multiples of a tile's side."""
        first = _with_longer_side(_with_longer_side(size, longest, is_even=True), min(longest, _MAX_SIDE))
        if not self.is_cut:
            return first, (self.side, self.side)
        ratio = first[0] / first[1]
        if first[0] >= first[1]:
            width = self._rounded_up(first[0])
            return first, (width, self._rounded_up(int(width / ratio)))
        height = self._rounded_up(first[1])
        return first, (self._rounded_up(int(height * ratio)), height)

    def _rounded_up(self, length: int) -> int:
        return max(1, -(-length // self.side)) * self.side

    def _grid(self, size: Size) -> tuple[int, int]:
        """Columns and lines of tiles, without the tile of the whole image."""
        columns, lines = size[0] // self.side, size[1] // self.side
        return (columns, lines) if self.is_cut and max(columns, lines) > 1 else (0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Patches:
    """Qwen 2 VL and 2.5 VL: a row for each square of patches; their number depends on the image. Satisfies `Family`."""

    patch: int
    merge: int
    """Side, in patches, of the square of patches that becomes one row."""
    frames: int
    """How often a still image is repeated along the time axis."""
    min_pixels: int
    max_pixels: int
    filter: int
    numbers: Numbers
    resize: Resize
    text: str = "<|vision_start|><|image_pad|><|vision_end|>"
    special: tuple[str, ...] = ("<|vision_start|>", "<|vision_end|>")
    has_axes: bool = True

    def layout(self, size: Size, num_rows: int) -> list[str | Rows]:
        """See `Family.layout`."""
        width, height = self._size(size)
        factor = self.patch * self.merge
        grid = width // factor, height // factor
        return [self.special[0], Rows(grid[0] * grid[1], grid), self.special[1]]

    def parts(self, image: Image, num_rows: int) -> list[Image]:
        """See `Family.parts`."""
        return [self.resize(image, self._size((image.shape[1], image.shape[0])), self.filter)]

    def inputs(self, part: Image) -> Inputs:
        """See `Family.inputs`."""
        values = self.numbers.of(part)
        lines, columns = values.shape[1] // self.patch, values.shape[2] // self.patch
        split = values.reshape(
            3, lines // self.merge, self.merge, self.patch, columns // self.merge, self.merge, self.patch
        ).transpose(1, 4, 2, 5, 0, 3, 6)
        patches = np.repeat(split[:, :, :, :, :, None], self.frames, axis=5).reshape(lines * columns, -1)
        return {"pixel_values": patches, "image_grid_thw": np.array([[1, lines, columns]])}

    def _size(self, size: Size) -> Size:
        _check_ratio(size)
        factor = self.patch * self.merge
        num_pixels = size[0] * size[1]
        width, height = (round(side / factor) * factor for side in size)
        if width * height > self.max_pixels:
            by = math.sqrt(num_pixels / self.max_pixels)
            width, height = (max(factor, math.floor(side / by / factor) * factor) for side in size)
        elif width * height < self.min_pixels:
            by = math.sqrt(self.min_pixels / num_pixels)
            width, height = (math.ceil(side * by / factor) * factor for side in size)
        return width, height


def _with_longer_side(size: Size, longest: int, *, is_even: bool = False) -> Size:
    """Scales a size to this longer side. With `is_even` the other side is even; without it, sizes only shrink."""
    if not is_even and max(size) <= longest:
        return size
    ratio = size[0] / size[1]
    other = int(longest / ratio) if ratio >= 1 else int(longest * ratio)
    other = max(1, other + other % 2 if is_even else other)
    return (longest, other) if ratio >= 1 else (other, longest)


def _middle(image: Image, size: Size) -> Image:
    top, left = (image.shape[0] - size[1]) // 2, (image.shape[1] - size[0]) // 2
    return image[top : top + size[1], left : left + size[0]]


def _check_ratio(size: Size) -> None:
    if max(size) > _MAX_RATIO * min(size):
        raise ModelFileInvalid(f"one side is more than {_MAX_RATIO} times as long as the other")


def _tiles(given: Settings, limits: TokenLimits, resize: Resize) -> Family:
    side = given.sizes("max_image_size").get("longest_edge", 364)
    return Tiles(
        side=side,
        longest=given.sizes("size").get("longest_edge", 4 * side),
        is_cut=given.is_on("do_image_splitting"),
        filter=given.integer("resample", _LANCZOS),
        numbers=given.numbers(_HALF, _HALF),
        resize=resize,
        max_rows=limits[1],
    )


def _llava(given: Settings, limits: TokenLimits, resize: Resize) -> Family:
    sizes, middle = given.sizes("size"), given.sizes("crop_size")
    shortest = sizes.get("shortest_edge", 0)
    square = middle if shortest and given.is_on("do_center_crop") else sizes
    if not {"height", "width"} <= square.keys() or (shortest and max(square.values()) > shortest):
        raise ModelUnsupported("its preprocessor_config.json does not scale and crop images to a fixed size")
    return Whole(
        text=_IMAGE,
        size=(square["width"], square["height"]),
        shortest=shortest,
        filter=given.integer("resample", _BICUBIC),
        numbers=given.numbers(_CLIP_MEAN, _CLIP_STD),
        resize=resize,
    )


def _gemma3(given: Settings, limits: TokenLimits, resize: Resize) -> Family:
    sizes = given.sizes("size")
    begin, end = "<start_of_image>", "<end_of_image>"
    return Whole(
        text=begin,
        before=f"\n\n{begin}",
        behind=f"{end}\n\n",
        special=(begin, end),
        size=(sizes.get("width", 896), sizes.get("height", 896)),
        shortest=0,
        filter=given.integer("resample", _BILINEAR),
        numbers=given.numbers(_HALF, _HALF),
        resize=resize,
    )


def _qwen(given: Settings, limits: TokenLimits, resize: Resize) -> Family:
    patch, merge, sizes = given.integer("patch_size", 14), given.integer("merge_size", 2), given.sizes("size")
    of_a_row = (patch * merge) ** 2
    least = given.integer("min_pixels", sizes.get("shortest_edge", 4 * of_a_row))
    most = given.integer("max_pixels", sizes.get("longest_edge", _QWEN_TOKENS * of_a_row))
    max_pixels = limits[1] * of_a_row or min(most, _QWEN_TOKENS * of_a_row)
    return Patches(
        patch=patch,
        merge=merge,
        frames=given.integer("temporal_patch_size", 2),
        min_pixels=min(limits[0] * of_a_row or least, max_pixels),
        max_pixels=max_pixels,
        filter=given.integer("resample", _BICUBIC),
        numbers=given.numbers(_CLIP_MEAN, _CLIP_STD),
        resize=resize,
    )


_FAMILIES: Mapping[str, Callable[[Settings, TokenLimits, Resize], Family]] = {
    "idefics3": _tiles,
    "smolvlm": _tiles,
    "llava": _llava,
    "gemma3": _gemma3,
    "qwen2_vl": _qwen,
    "qwen2_5_vl": _qwen,
}
"""Makes the image processor of each family, by the `model_type` in `config.json`."""


def family_of(name: str, pixels: Mapping[str, Any], limits: TokenLimits, resize: Resize) -> Family:
    """Returns the image processor of a model.

    Args:
        name: `model_type` of the model.
        pixels: the content of `preprocessor_config.json`.
        limits: minimum and maximum tokens of an image, where they depend on its size; 0 = the model's own limit.
        resize: resizes images.

    Raises:
        ModelUnsupported: the family is unknown, or the settings are missing or unsupported.
    """
    if name not in _FAMILIES:
        known = ", ".join(_FAMILIES)
        raise ModelUnsupported(f"images of the family `{name}` are not supported in ONNX folders (supported: {known})")
    if not pixels:
        raise ModelUnsupported("there is no preprocessor_config.json, which says how images are prepared")
    return _FAMILIES[name](Settings(pixels), limits, resize)

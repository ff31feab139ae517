"""Resizes decoded images with Pillow's filters, which the preprocessors of models are written for."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PIL import Image


def resized(pixels: NDArray[np.uint8], size: tuple[int, int], filter: int) -> NDArray[np.uint8]:
    """The image, resized.

    Args:
        pixels: array of shape `(height, width, 3)`.
        size: width and height of the result.
        filter: Pillow's number of the filter, as `resample` in a preprocessor's settings.

    Raises:
        ValueError: there is no such filter.
    """
    if (pixels.shape[1], pixels.shape[0]) == size:
        return pixels
    return np.asarray(Image.fromarray(pixels).resize(size, Image.Resampling(filter)))

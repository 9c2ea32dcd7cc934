"""Columns that are pixels, drawn as a picture."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from lossnet.report.draw import image
from lossnet.report.markup import Markup

__all__ = ["Places", "draw_pixels", "pixel_places"]

#: rows and columns of pixels
Places = Sequence[tuple[int, int]]

#: pixels along a side of a picture
_LARGEST = 512
_PIXEL = re.compile(r"pixel_(\d+)_(\d+)")


def pixel_places(names: Sequence[str]) -> Places | None:
    """Return the pixels that columns called ``pixel_ROW_COLUMN`` are; None if any is called otherwise.

    >>> pixel_places(["pixel_0_0", "pixel_0_1"]), pixel_places(["pixel_0_0", "age"])
    ([(0, 0), (0, 1)], None)
    """
    matches = [match for name in names if (match := _PIXEL.fullmatch(name))]
    if not names or len(matches) < len(names):
        return None
    places = [(int(match[1]), int(match[2])) for match in matches]
    return places if max(map(max, places)) < _LARGEST else None


def draw_pixels(places: Places, values: Sequence[float], clear: Places = ()) -> Markup:
    """Return a picture, dark on white as ink is, of values from 0 to 1.

    Pixels of no place are clear, and ``clear`` are others that the picture must be large enough for.
    """
    rows, columns = zip(*places, *clear, strict=True)
    pixels = np.zeros((max(rows) + 1, max(columns) + 1, 4))
    for place, value in zip(places, values, strict=True):
        pixels[place] = 1 - value, 1 - value, 1 - value, 1
    return image(pixels, "pixels")

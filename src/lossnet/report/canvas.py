"""Draw columns that are pixels as a picture."""

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
    """Return rows and columns of columns called ``pixel_ROW_COLUMN``; None if any has another name.

    >>> pixel_places(["pixel_0_0", "pixel_0_1"]), pixel_places(["pixel_0_0", "age"])
    ([(0, 0), (0, 1)], None)
    """
    matches = [match for name in names if (match := _PIXEL.fullmatch(name))]
    if not names or len(matches) < len(names):
        return None
    places = [(int(match[1]), int(match[2])) for match in matches]
    return places if max(map(max, places)) < _LARGEST else None


def draw_pixels(places: Places, values: Sequence[float], clear: Places = ()) -> Markup:
    """Return a picture, dark on white, of values from 0 to 1.

    All other pixels are transparent; ``clear`` are places of those that the picture must have room for.
    """
    rows, columns = zip(*places, *clear, strict=True)
    pixels = np.zeros((max(rows) + 1, max(columns) + 1, 4))
    for place, value in zip(places, values, strict=True):
        pixels[place] = 1 - value, 1 - value, 1 - value, 1
    return image(pixels, "pixels")

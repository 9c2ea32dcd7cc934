"""Charts as SVG, matrices and images as PNG.

Charts are as wide as a phone and scale with the page; colours are classes, so that the page decides them for
light and dark.  Signed values are painted with opacity, which suits any background.
"""

from __future__ import annotations

import base64
import math
import re
import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lossnet.analysis import estimate
from lossnet.report.markup import Markup, tag

#: rows and columns of pixels
Places = Sequence[tuple[int, int]]

WIDTH = 360
#: the number of colours, which repeat if there are more lines
COLOURS = 6
#: pixels along a side of a picture whose pixels are columns
_LARGEST = 512
_PIXEL = re.compile(r"pixel_(\d+)_(\d+)")
_BLUE, _ORANGE = (33, 102, 204), (224, 102, 16)


def png(pixels: NDArray[Any]) -> bytes:
    """Return the PNG file of bytes ``(height, width)`` of grey, or ``(height, width, 3 or 4)`` of RGB(A)."""
    pixels = np.ascontiguousarray(pixels, dtype=np.uint8)
    height, width = pixels.shape[:2]
    kind = {1: 0, 3: 2, 4: 6}[1 if pixels.ndim == 2 else pixels.shape[2]]
    # Every line starts with the number of its filter; 0 is none.
    raw = np.pad(pixels.reshape(height, -1), ((0, 0), (1, 0))).tobytes()
    header = struct.pack(">IIBBBBB", width, height, 8, kind, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(raw, 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in chunks
    )


def image(pixels: NDArray[Any], text: str) -> Markup:
    """Return an ``<img>`` of bytes, or floats from 0 to 1; ``text`` says what they show."""
    return tag("img", src=_data(pixels), alt=text, class_="pixels")


def _data(pixels: NDArray[Any]) -> str:
    if pixels.dtype.kind == "f":
        pixels = (np.clip(pixels, 0, 1) * 255).round().astype(np.uint8)
    return f"data:image/png;base64,{base64.b64encode(png(pixels)).decode()}"


def signed(values: NDArray[Any], largest: float | None = None) -> NDArray[np.uint8]:
    """Return RGBA of numbers ``(height, width)``: orange above 0, blue below, the larger the more opaque.

    >>> signed(np.array([[1.0, 0.0, -2.0]])).tolist()
    [[[224, 102, 16, 128], [33, 102, 204, 0], [33, 102, 204, 255]]]
    """
    values = np.nan_to_num(np.asarray(values, dtype=np.float64))
    largest = largest or float(np.abs(values).max()) or 1.0
    colours = np.where((values > 0)[..., None], np.array(_ORANGE), np.array(_BLUE))
    opacity = np.clip(np.abs(values) / largest, 0, 1)[..., None] * 255
    return np.concatenate([colours, opacity.round()], axis=-1).astype(np.uint8)


def heat_map(values: NDArray[Any], text: str, names: Sequence[str] = ()) -> Markup:
    """Draw a signed square matrix, with the names of its rows and columns if they are given."""
    names = [_short(name, 15) for name in names]
    margin = 8 + 7 * max(map(len, names)) if names else 0
    side = WIDTH - margin
    # A single outlier must not make everything else pale.
    apart = np.abs(values[~np.eye(len(values), dtype=bool)])
    largest = float(np.quantile(apart, 0.98)) if apart.size else None
    box = {"x": margin, "y": 0, "width": side, "height": side}
    parts = [
        tag("image", href=_data(signed(values, largest)), **box, class_="pixels"),
        tag("rect", **box, class_="frame"),
    ]
    for index, name in enumerate(names):
        middle = side / len(names) * (index + 0.5)
        turn = f"translate({margin + middle + 3:.1f} {side + 5}) rotate(-90)"
        parts.append(tag("text", name, x=margin - 5, y=f"{middle + 3:.1f}", text_anchor="end"))
        parts.append(tag("text", name, transform=turn, text_anchor="end"))
    return _svg(text, side + margin, parts)


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


class Line(NamedTuple):
    """A line of a chart; ``colour`` is a number."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    colour: int = 0


def line_chart(title: str, lines: Sequence[Line], across: str) -> Markup:
    """Draw lines over a common axis, whose name is ``across``."""
    height, left, right, top, bottom = 210, 50, 10, 26, 34
    points = [
        [(x, y) for x, y in zip(line.x, line.y, strict=True) if math.isfinite(x) and math.isfinite(y)]
        for line in lines
    ]
    every = [point for line in points for point in line]
    if not every:
        return Markup("")
    x_axis = _Axis([x for x, _ in every], left, WIDTH - right, pad=0.0)
    y_axis = _Axis([y for _, y in every], height - bottom, top, pad=0.05)
    parts = [tag("text", title, x=left, y=15, class_="heading")]
    for y, text in y_axis.ticks(5):
        parts.append(tag("line", x1=left, x2=WIDTH - right, y1=y, y2=y, class_="grid"))
        parts.append(tag("text", text, x=left - 6, y=round(y + 3.5, 1), text_anchor="end"))
    whole = all(float(x).is_integer() for x, _ in every)  # epochs, which have no fractions
    for x, text in x_axis.ticks(6, whole):
        parts.append(tag("text", text, x=x, y=height - bottom + 15, text_anchor="middle"))
    parts.append(tag("text", across, x=WIDTH - right, y=height - 4, text_anchor="end"))
    for line, finite in zip(lines, points, strict=True):
        places, name = [(x_axis.at(x), y_axis.at(y)) for x, y in finite], tag("title", line.name)
        if len(places) == 1:
            shape = tag("circle", name, cx=places[0][0], cy=places[0][1], r=3, class_="dot")
        else:
            shape = tag("polyline", name, points=" ".join(f"{x},{y}" for x, y in places), class_="line")
        parts.append(tag("g", shape, class_=f"c{line.colour % COLOURS}"))
    return _svg(title, height, parts)


def interval_chart(title: str, rows: Mapping[str, Sequence[float]]) -> Markup:
    """Draw the mean of each row with its confidence interval, and its values as dots."""
    drawn = [(colour, name, values) for colour, (name, values) in enumerate(rows.items()) if values]
    estimates = [estimate(values) for _, _, values in drawn]
    top, step, left, right = 26, 36, 10, 10
    height = top + step * len(drawn) + 20
    ends = [mean + side * (half or 0) for mean, half in estimates for side in (-1, 1)]
    axis = _Axis(
        [*ends, *(value for _, _, values in drawn for value in values)], left, WIDTH - right, pad=0.06
    )
    parts = [tag("text", title, x=left, y=15, class_="heading")]
    for x, text in axis.ticks(6):
        parts.append(tag("line", x1=x, x2=x, y1=top, y2=height - 18, class_="grid"))
        parts.append(tag("text", text, x=x, y=height - 5, text_anchor="middle"))
    for index, ((colour, name, values), (mean, half)) in enumerate(zip(drawn, estimates, strict=True)):
        y = top + step * index + 25
        marks = [tag("circle", cx=axis.at(value), cy=y, r=2.5, class_="seed") for value in values]
        if half is not None:
            low, high = axis.at(mean - half), axis.at(mean + half)
            marks.append(tag("line", x1=low, x2=high, y1=y, y2=y, class_="line"))
        marks.append(tag("circle", cx=axis.at(mean), cy=y, r=4.5, class_="dot"))
        parts.append(tag("g", *marks, class_=f"c{colour % COLOURS}"))
        parts.append(tag("text", _short(name, 52), x=left, y=y - 9))
    return _svg(title, height, parts)


def ticks(low: float, high: float, most: int) -> list[float]:
    """Return about ``most`` round numbers within an interval.

    >>> ticks(0.1, 0.93, 5)
    [0.2, 0.4, 0.6, 0.8]
    """
    rough = (high - low) / most
    if not rough > 0:
        return [low]
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{number * step:.10g}") for number in range(first, last + 1)]


class _Axis:
    """A mapping from values to places along an axis."""

    def __init__(self, values: Sequence[float], start: float, end: float, pad: float) -> None:
        low, high = min(values), max(values)
        if low == high:
            low, high = low - (abs(low) * 0.05 or 0.5), high + (abs(high) * 0.05 or 0.5)
        margin = (high - low) * pad
        self.low, self.high = low - margin, high + margin
        self.start, self.end = start, end

    def at(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return round(self.start + share * (self.end - self.start), 1)

    def ticks(self, most: int, whole: bool = False) -> list[tuple[float, str]]:
        """Return places and texts of round numbers, only whole ones if ``whole``."""
        values = [value for value in ticks(self.low, self.high, most) if not whole or value.is_integer()]
        return [(self.at(value), f"{value:.6g}".replace("-", "−")) for value in values]


def _svg(text: str, height: float, parts: Sequence[Markup]) -> Markup:
    return tag("svg", *parts, viewBox=f"0 0 {WIDTH} {height}", role="img", aria_label=text)


def _short(name: str, length: int) -> str:
    return name if len(name) <= length else f"{name[: length - 1]}…"

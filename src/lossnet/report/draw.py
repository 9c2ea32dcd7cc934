"""Charts as SVG, matrices and images as PNG.

Charts are as wide as a phone and scale with the page; colours are classes, so that the page decides them for
light and dark.  Signed values are painted with opacity, which suits any background.
"""

from __future__ import annotations

import base64
import math
import re
import struct
import unicodedata
import zlib
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lossnet.report.markup import Markup, tag

#: rows and columns of pixels
Places = Sequence[tuple[int, int]]

WIDTH = 360
#: the number of colours, which repeat if there are more lines
COLOURS = 6
#: pixels along a side of a picture whose pixels are columns
_LARGEST = 512
_PIXEL = re.compile(r"pixel_(\d+)_(\d+)")
#: the widest name beside a heat map
_LONGEST_NAME = 100
#: widths of letters that are wider or narrower than most, in DejaVu Sans, which is wide
_WIDTHS = {4.5: " .,:;'|!iljtfrI()[]/-", 9.4: "<>=+~#^w", 11.0: "mMW@%—…"}
#: about as many numbers stand at a vertical axis
_TICKS = 5
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
    margin = 12 + min(max(map(text_width, names)), _LONGEST_NAME) if names else 0
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
        place = {"x": f"{margin - 5:.1f}", "y": f"{middle + 3:.1f}"}
        parts.append(_text(name, _LONGEST_NAME, **place, text_anchor="end"))
        parts.append(_text(name, _LONGEST_NAME, transform=turn, text_anchor="end"))
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
    dashed: bool = False


class Point(NamedTuple):
    """A point of a chart with a shape of its own: one of `SHAPES`."""

    name: str
    x: float
    y: float
    shape: str
    colour: int = 0


#: paths around the origin by name
SHAPES = {
    "circle": "M-5 0a5 5 0 1 0 10 0a5 5 0 1 0 -10 0z",
    "square": "M-4.5 -4.5h9v9h-9z",
    "triangle": "M0 -6l5.5 10h-11z",
    "diamond": "M0 -6.5l6 6.5l-6 6.5l-6 -6.5z",
}


def line_chart(title: str, lines: Sequence[Line], across: str) -> Markup:
    """Draw lines over a common axis, whose name is ``across``."""
    height, right, top, bottom = 210, 10, 26, 34
    every = [point for line in lines for point in _finite(line)]
    if not every:
        return Markup("")
    y_axis = _Axis([y for _, y in every], height - bottom, top, pad=0.05)
    left = max(50.0, *(8 + text_width(text) for _, text in y_axis.ticks(_TICKS)))
    x_axis = _Axis([x for x, _ in every], left, WIDTH - right, pad=0.0)
    whole = all(float(x).is_integer() for x, _ in every)  # epochs, which have no fractions
    parts = [_text(title, WIDTH - left - right, x=left, y=15, class_="heading")]
    parts += _grid(x_axis, y_axis, whole)
    parts.append(tag("text", across, x=WIDTH - right, y=height - 4, text_anchor="end"))
    return _svg(title, height, [*parts, *_shapes(lines, x_axis, y_axis)])


def unit_chart(
    title: str,
    lines: Sequence[Line],
    across: str,
    up: str,
    points: Sequence[Point] = (),
    counts: Sequence[int] = (),
    diagonal: bool = False,
) -> Markup:
    """Draw lines and points whose coordinates are shares from 0 to 1.

    ``counts`` of bins of equal width along the horizontal axis stand at its foot as bars, on a logarithmic
    scale; the ``diagonal`` is where shares agree.
    """
    height, left, right, top, bottom = 330, 50, 10, 44, 34
    x_axis = _Axis([0.0, 1.0], left, WIDTH - right, pad=0.0)
    y_axis = _Axis([0.0, 1.0], height - bottom, top, pad=0.0)
    parts = [_text(title, WIDTH - left - right, x=left, y=15, class_="heading")]
    parts += [tag("text", up, x=left, y=35), *_grid(x_axis, y_axis)]
    parts.append(tag("text", across, x=WIDTH - right, y=height - 4, text_anchor="end"))
    most = math.log1p(max(counts, default=0)) or 1.0
    for index, count in enumerate(counts):
        start, end = (x_axis.at(edge / len(counts)) for edge in (index, index + 1))
        low, high = y_axis.at(0), y_axis.at(0.25 * math.log1p(count) / most)
        box = {"x": start + 1, "y": high, "width": round(end - start - 2, 1), "height": round(low - high, 1)}
        parts.append(tag("rect", tag("title", f"{count:,}"), **box, class_="bar"))
    if diagonal:
        ends = {"x1": x_axis.start, "y1": y_axis.start, "x2": x_axis.end, "y2": y_axis.end}
        parts.append(tag("line", **ends, class_="diagonal"))
    parts += _shapes(lines, x_axis, y_axis)
    for point in points:
        place = f"translate({x_axis.at(point.x)} {y_axis.at(point.y)})"
        shape = tag("path", tag("title", point.name), d=SHAPES[point.shape], transform=place, class_="point")
        parts.append(tag("g", shape, class_=f"c{point.colour % COLOURS}"))
    return _svg(title, height, parts)


def shape_key(shape: str) -> Markup:
    """Draw a shape by itself, to stand before what it means."""
    path = tag("path", d=SHAPES[shape], class_="point")
    return tag("svg", path, viewBox="-8 -8 16 16", class_="shape", aria_label=shape, role="img")


def _finite(line: Line) -> list[tuple[float, float]]:
    points = zip(line.x, line.y, strict=True)
    return [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)]


def _grid(x_axis: _Axis, y_axis: _Axis, whole: bool = False) -> list[Markup]:
    """Return lines at round numbers of the vertical axis, and the numbers of both."""
    parts = []
    for y, text in y_axis.ticks(_TICKS):
        parts.append(tag("line", x1=x_axis.start, x2=x_axis.end, y1=y, y2=y, class_="grid"))
        parts.append(tag("text", text, x=x_axis.start - 6, y=round(y + 3.5, 1), text_anchor="end"))
    for x, text in x_axis.ticks(6, whole):
        parts.append(_under(text, x, y_axis.start + 15))
    return parts


def _shapes(lines: Sequence[Line], x_axis: _Axis, y_axis: _Axis) -> list[Markup]:
    """Return a polyline for each line, or a dot for one of a single point."""
    shapes = []
    for line in lines:
        places = [(x_axis.at(x), y_axis.at(y)) for x, y in _finite(line)]
        name, kind = tag("title", line.name), "line dashed" if line.dashed else "line"
        if len(places) == 1:
            shape = tag("circle", name, cx=places[0][0], cy=places[0][1], r=3, class_="dot")
        else:
            shape = tag("polyline", name, points=" ".join(f"{x},{y}" for x, y in places), class_=kind)
        shapes.append(tag("g", shape, class_=f"c{line.colour % COLOURS}"))
    return shapes


class Interval(NamedTuple):
    """A row of a chart of intervals: a mean, half of its interval's width, if any, and values around it."""

    name: str
    mean: float
    half: float | None
    colour: int = 0
    values: Sequence[float] = ()


def interval_chart(title: str, rows: Sequence[Interval]) -> Markup:
    """Draw the mean of each row with its interval, and its values as dots."""
    top, step, left, right = 26, 36, 10, 10
    height = top + step * len(rows) + 20
    ends = [row.mean + side * (row.half or 0) for row in rows for side in (-1, 1)]
    values = [value for row in rows for value in row.values]
    axis = _Axis([*ends, *values], left, WIDTH - right, pad=0.06)
    parts = [_text(title, WIDTH - left - right, x=left, y=15, class_="heading")]
    for x, text in axis.ticks(6):
        parts.append(tag("line", x1=x, x2=x, y1=top, y2=height - 18, class_="grid"))
        parts.append(_under(text, x, height - 5))
    for index, row in enumerate(rows):
        y = top + step * index + 25
        marks = [tag("circle", cx=axis.at(value), cy=y, r=2.5, class_="seed") for value in row.values]
        if row.half is not None:
            low, high = axis.at(row.mean - row.half), axis.at(row.mean + row.half)
            marks.append(tag("line", x1=low, x2=high, y1=y, y2=y, class_="line"))
        marks.append(tag("circle", cx=axis.at(row.mean), cy=y, r=4.5, class_="dot"))
        parts.append(tag("g", *marks, class_=f"c{row.colour % COLOURS}"))
        parts.append(_text(row.name, WIDTH - left - right, x=left, y=y - 9))
    return _svg(title, height, parts)


def bar_chart(title: str, rows: Mapping[str, Sequence[float]]) -> Markup:
    """Draw the mean of each row as a bar from 0 to its figure, and its values as dots; all are 0 or more.

    Figures have one decimal.
    """
    top, step, left, right = 26, 42, 10, 48
    height = top + step * len(rows)
    largest = max((value for values in rows.values() for value in values), default=0) or 1
    parts = [tag("text", title, x=left, y=15, class_="heading")]
    for index, (name, values) in enumerate(rows.items()):
        y, mean = top + step * index, sum(values) / len(values)
        places = [left + value / largest * (WIDTH - left - right) for value in (mean, *values)]
        bar = tag("rect", x=left, y=y + 16, width=round(places[0] - left, 1), height=16, rx=2, class_="share")
        marks = [tag("circle", cx=round(x, 1), cy=y + 24, r=2.5, class_="mark") for x in places[1:]]
        parts.append(tag("text", shorten(name, 320), x=left, y=y + 11))
        parts.append(tag("g", bar, *marks, class_=f"c{index % COLOURS}"))
        parts.append(tag("text", f"{mean:.1f}", x=round(max(places) + 8, 1), y=y + 28.5, class_="heading"))
    return _svg(title, height, parts)


def standalone(chart: Markup) -> str:
    """Return a chart as an SVG file of its own, with a page's colours for light and dark."""
    style = resources.files("lossnet.report").joinpath("page.css").read_text(encoding="utf-8")
    own = style[: style.index("* {")] + "".join(re.findall(r"^(?:svg .*|\.c\d .*)$\n?", style, re.MULTILINE))
    start, _, rest = chart.partition(">")
    return f'{start} xmlns="http://www.w3.org/2000/svg">{tag("style", Markup(own))}{rest}\n'


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
    return tag("svg", *parts, viewBox=f"0 0 {WIDTH} {height:g}", role="img", aria_label=text)


def _under(text: str, x: float, y: float) -> Markup:
    """Return a number under its place on an axis, or as near to it as the chart's edges let it be."""
    half = text_width(text) / 2
    return tag("text", text, x=round(min(max(x, half), WIDTH - half), 1), y=y, text_anchor="middle")


def _text(text: str, room: float, **attributes: Any) -> Markup:
    """Return a line of text, shortened to a width; the whole of it then shows as one points at it."""
    size = 1.25 if attributes.get("class_") == "heading" else 1.0
    shown = shorten(text, room / size)
    return tag("text", tag("title", text) if shown != text else None, shown, **attributes)


def shorten(text: str, room: float) -> str:
    """Return the beginning of a text that is no wider than ``room``, about, with … if there is more.

    >>> shorten("a name", 100), shorten("a very long name", 50)
    ('a name', 'a very…')
    """
    if text_width(text) <= room:
        return text
    while text and text_width(text) + text_width("…") > room:
        text = text[:-1]
    return f"{text}…"


def text_width(text: str) -> float:
    """Return about how wide a text is in a chart's small letters; rather too wide than too narrow."""
    return sum(map(_letter_width, text))


def _letter_width(letter: str) -> float:
    if unicodedata.east_asian_width(letter) in "WF":
        return 11.5
    for width, letters in _WIDTHS.items():
        if letter in letters:
            return width
    return 8.6 if letter.isupper() else 7.0

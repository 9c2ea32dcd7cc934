"""Charts as SVG, matrices and images as PNG.

Charts are as wide as a phone and scale with the page; colours are classes, so that the page decides them for
light and dark.  Signed values are painted with opacity, which suits any background.
"""

from __future__ import annotations

import base64
import math
import struct
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lossnet.analysis import Estimate
from lossnet.report.markup import Markup, join, tag

__all__ = ["Interval", "Line", "heat_map", "image", "interval_chart", "line_chart", "png", "signed", "ticks"]

WIDTH = 360
#: colours there are; more lines than that repeat them
COLOURS = 6
_BLUE, _ORANGE = (33, 102, 204), (224, 102, 16)


# ---------------------------------------------------------------- pictures


def png(pixels: NDArray[Any]) -> bytes:
    """Bytes ``(height, width)`` of grey, or ``(height, width, 3 or 4)`` of RGB or RGBA, as a PNG file."""
    pixels = np.ascontiguousarray(pixels, dtype=np.uint8)
    height, width = pixels.shape[:2]
    kind = {1: 0, 3: 2, 4: 6}[1 if pixels.ndim == 2 else pixels.shape[2]]
    lines = pixels.reshape(height, -1)
    # Every line starts with the number of its filter; 0 is none.
    raw = np.concatenate([np.zeros((height, 1), np.uint8), lines], axis=1).tobytes()
    header = struct.pack(">IIBBBBB", width, height, 8, kind, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(raw, 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in chunks
    )


def image(pixels: NDArray[Any], text: str) -> Markup:
    """An ``<img>`` that carries its pixels; ``text`` says what they show.

    Values are bytes, or floats from 0 to 1.
    """
    return tag("img", src=_data(pixels), alt=text, class_="pixels")


def _data(pixels: NDArray[Any]) -> str:
    if pixels.dtype.kind == "f":
        pixels = (np.clip(pixels, 0, 1) * 255).round().astype(np.uint8)
    return f"data:image/png;base64,{base64.b64encode(png(pixels)).decode()}"


def signed(values: NDArray[Any], largest: float | None = None) -> NDArray[np.uint8]:
    """RGBA of numbers ``(height, width)``: orange above 0, blue below, the more opaque the larger.

    >>> signed(np.array([[1.0, 0.0, -2.0]])).tolist()
    [[[224, 102, 16, 128], [33, 102, 204, 0], [33, 102, 204, 255]]]
    """
    values = np.nan_to_num(np.asarray(values, dtype=np.float64))
    largest = largest or float(np.abs(values).max()) or 1.0
    colours = np.where((values > 0)[..., None], np.array(_ORANGE), np.array(_BLUE))
    opacity = np.clip(np.abs(values) / largest, 0, 1)[..., None] * 255
    return np.concatenate([colours, opacity.round()], axis=-1).astype(np.uint8)


def heat_map(values: NDArray[Any], text: str, names: Sequence[str] = ()) -> Markup:
    """A signed square matrix, with the names of its rows and columns if they are given."""
    longest = max((len(_short(name, 15)) for name in names), default=0)
    margin = 8 + 6 * longest if names else 0
    side = WIDTH - margin
    step = side / max(len(values), 1)
    # A single outlier must not make everything else pale.
    apart = np.abs(values[~np.eye(len(values), dtype=bool)])
    largest = float(np.quantile(apart, 0.98)) if apart.size else None
    parts = [
        tag(
            "image",
            href=_data(signed(values, largest)),
            x=margin,
            y=0,
            width=side,
            height=side,
            class_="pixels",
        ),
        tag("rect", x=margin, y=0, width=side, height=side, class_="frame"),
    ]
    for index, name in enumerate(names):
        middle = step * (index + 0.5)
        parts.append(tag("text", _short(name, 15), x=margin - 5, y=f"{middle + 3:.1f}", text_anchor="end"))
        turn = f"translate({margin + middle + 3:.1f} {side + 5}) rotate(-90)"
        parts.append(tag("text", _short(name, 15), transform=turn, text_anchor="end"))
    return _svg(text, WIDTH, side + margin, *parts)


# ---------------------------------------------------------------- charts


class Line(NamedTuple):
    """A line of a chart; ``colour`` is a number."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    colour: int = 0


class Interval(NamedTuple):
    """A row of an interval chart: the values of seeds, and what they say together."""

    name: str
    values: Sequence[float]
    estimate: Estimate
    colour: int = 0


def line_chart(title: str, lines: Sequence[Line], across: str) -> Markup:
    """Lines over a common axis, whose name is ``across``."""
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
    for value in ticks(y_axis.low, y_axis.high, 5):
        y = y_axis.at(value)
        parts.append(tag("line", x1=left, x2=WIDTH - right, y1=y, y2=y, class_="grid"))
        parts.append(tag("text", _number(value), x=left - 6, y=round(y + 3.5, 1), text_anchor="end"))
    for value in ticks(x_axis.low, x_axis.high, 6):
        parts.append(
            tag("text", _number(value), x=x_axis.at(value), y=height - bottom + 15, text_anchor="middle")
        )
    parts.append(tag("text", across, x=WIDTH - right, y=height - 4, text_anchor="end"))
    for line, found in zip(lines, points, strict=True):
        where = [(x_axis.at(x), y_axis.at(y)) for x, y in found]
        shape: Markup
        if len(where) == 1:
            shape = tag("circle", tag("title", line.name), cx=where[0][0], cy=where[0][1], r=3, class_="dot")
        else:
            path = " ".join(f"{x},{y}" for x, y in where)
            shape = tag("polyline", tag("title", line.name), points=path, class_="line")
        parts.append(tag("g", shape, class_=f"c{line.colour % COLOURS}"))
    return _svg(title, WIDTH, height, *parts)


def interval_chart(title: str, rows: Sequence[Interval]) -> Markup:
    """Means with their intervals, one row each, and the seeds' values as dots."""
    top, step, left, right = 26, 36, 10, 10
    height = top + step * len(rows) + 20
    ends = [value for row in rows for value in row.values]
    ends += [row.estimate.mean + side * (row.estimate.half or 0) for row in rows for side in (-1, 1)]
    axis = _Axis(ends, left, WIDTH - right, pad=0.06)
    parts = [tag("text", title, x=left, y=15, class_="heading")]
    for value in ticks(axis.low, axis.high, 6):
        x = axis.at(value)
        parts.append(tag("line", x1=x, x2=x, y1=top, y2=height - 18, class_="grid"))
        parts.append(tag("text", _number(value), x=x, y=height - 5, text_anchor="middle"))
    for index, row in enumerate(rows):
        y = top + step * index + 25
        mean, half = row.estimate
        marks = [tag("circle", cx=axis.at(value), cy=y, r=2.5, class_="seed") for value in row.values]
        if half is not None:
            marks.append(
                tag("line", x1=axis.at(mean - half), x2=axis.at(mean + half), y1=y, y2=y, class_="line")
            )
        marks.append(tag("circle", cx=axis.at(mean), cy=y, r=4.5, class_="dot"))
        parts.append(tag("g", *marks, class_=f"c{row.colour % COLOURS}"))
        parts.append(tag("text", _short(row.name, 52), x=left, y=y - 9))
    return _svg(title, WIDTH, height, *parts)


def ticks(low: float, high: float, most: int) -> list[float]:
    """Round numbers within an interval, at most about so many.

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
    """From values to places."""

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


def _svg(text: str, width: float, height: float, *parts: Markup) -> Markup:
    box = f"0 0 {width} {height}"
    return tag("svg", join(*parts), viewBox=box, role="img", aria_label=text)


def _number(value: float) -> str:
    return f"{value:.6g}".replace("-", "−")


def _short(name: str, length: int) -> str:
    return name if len(name) <= length else f"{name[: length - 1]}…"

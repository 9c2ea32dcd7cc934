"""The extreme-classification repository's text format."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from os import PathLike, fspath
from typing import Any

import numpy as np
from scipy import sparse

from lossnet.data.errors import DataError
from lossnet.data.readers.text import (
    Like,
    build,
    chunks,
    number,
    number_complaint,
    read_lines,
)
from lossnet.data.tables import MultiLabelData

__all__ = ["Collector", "check_columns", "read_xc", "stream_xc"]

MOST_COLUMNS = 1 << 23


def read_xc(
    path: str | PathLike[str],
    *,
    encoding: str = "utf-8",
    like: Like | None = None,
    lines: Iterable[str] | None = None,
) -> MultiLabelData:
    """Read ``n d L`` and then a line ``label,label feature:value …`` for each row, all from 0.

    Columns are named ``feature_0`` … and ``label_0`` …; a row may have no labels.  ``lines`` are the file's,
    where they are at hand.

    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder, "tags.txt")
    ...     _ = path.write_text("2 3 2\\n0,1 0:0.5 2:1\\n 1:2\\n")
    ...     data = read_xc(path)
    >>> data.x.toarray().tolist(), data.y.toarray().tolist()
    ([[0.5, 0.0, 1.0], [0.0, 2.0, 0.0]], [[1, 1], [0, 0]])
    """
    path = fspath(path)
    (data,) = _parts(path, iter(read_lines(path, encoding) if lines is None else lines), like, None)
    return data


def stream_xc(
    path: str | PathLike[str], like: Like, rows: int, lines: Iterator[str]
) -> Iterator[MultiLabelData]:
    """What `read_xc` reads of a file's lines, ``rows`` at a time."""
    return _parts(fspath(path), lines, like, rows)


def _parts(path: str, lines: Iterator[str], like: Like | None, size: int | None) -> Iterator[MultiLabelData]:
    rows, inputs, labels = _header(path, next(lines))
    if like is not None and inputs != len(like.feature_names):
        what = f"{inputs} inputs, but the model was trained on {len(like.feature_names)}"
        raise DataError(f"{what}; use a file with the same inputs", path, 1)
    if like is None:
        feature_names = [f"feature_{i}" for i in range(inputs)]
    else:
        feature_names = list(like.feature_names)
    label_names = [f"label_{i}" for i in range(labels)]
    for chunk in chunks(_rows(path, lines, rows), size):
        collector = Collector(path, inputs, lambda token: _label(token, labels))
        for line, text in chunk:
            collector.add(line, text)
        x, y = collector.matrices(inputs, labels)
        yield build(path, x, y, feature_names, label_names, 1)


def _rows(path: str, lines: Iterator[str], rows: int) -> Iterator[tuple[int, str]]:
    """As many rows as the header says, each with its line; nothing but blank lines may follow."""
    last = 0
    for row, text in enumerate(lines, start=1):
        if row <= rows:
            yield row + 1, text
        if row <= rows or text.strip():
            last = row
    if last != rows:
        line = min(last, rows) + 1 + (last > rows)
        what = f"the header says {rows} rows but there are {last}"
        raise DataError(f"{what}; the file is cut short or the header is wrong", path, line)


def is_header(line: str) -> bool:
    """Whether a line could be the header ``n d L``."""
    parts = line.split()
    return len(parts) == 3 and all(p.isascii() and p.isdecimal() and len(p) <= 18 for p in parts)


def _header(path: str, line: str) -> tuple[int, int, int]:
    if not is_header(line):
        what = f"expected three whole numbers (rows, inputs, labels), found {line[:40]!r}"
        raise DataError(f"{what}; is this an extreme-classification file?", path, 1)
    rows, inputs, labels = map(int, line.split())
    if not (rows and inputs and labels):
        raise DataError("the header has a zero; rows, inputs and labels must exist", path, 1)
    check_columns(path, max(inputs, labels), 1)
    return rows, inputs, labels


def check_columns(path: str, columns: int, line: int) -> None:
    """Refuses more columns than any data set has: naming them all would take the memory of the machine."""
    if columns > MOST_COLUMNS:
        raise DataError(f"{columns} columns, more than {MOST_COLUMNS}; correct the number", path, line)


def _label(token: str, labels: int) -> int:
    column = whole(token)
    if column >= labels:
        raise DataError(f"label {column}, but there are only {labels} (from 0); correct the row")
    return column


def whole(token: str) -> int:
    """A whole number from 0 that fits 64 bits; `DataError` if it is none."""
    if not (token.isascii() and token.isdecimal() and len(token) <= 18):
        raise DataError(f"{token!r} is not a whole number from 0; correct the row")
    return int(token)


class Collector:
    """Gathers rows of ``label,label feature:value …``."""

    def __init__(self, path: str, inputs: int | None, label: Callable[[str], int], base: int = 0) -> None:
        self._path = path
        self._inputs = inputs
        self._label = label
        self._base = base
        self._rows = 0
        self._x: tuple[list[int], list[float], list[int]] = ([], [], [])
        self._y: tuple[list[int], list[int]] = ([], [])

    def add(self, line: int, text: str) -> None:
        """Read one row."""
        try:
            self._add(text)
        except DataError as error:
            raise error.at(self._path, line) from None
        self._rows += 1

    def matrices(self, inputs: int, labels: int) -> tuple[Any, Any]:
        """The CSR matrices of all rows."""
        columns, values, counts = self._x
        x = _csr(columns, np.array(values, dtype=np.float32), counts, inputs)
        columns, counts = self._y
        y = _csr(columns, np.ones(len(columns), dtype=np.uint8), counts, labels)
        return x, y

    @property
    def largest_feature(self) -> int:
        """The largest column index seen, −1 if none."""
        return max(self._x[0], default=-1)

    @property
    def smallest_feature(self) -> int:
        """The smallest column index seen, −1 if none."""
        return min(self._x[0], default=-1)

    def _add(self, text: str) -> None:
        cells = text.split()
        tokens: list[str] = []
        if cells and ":" not in cells[0]:
            tokens = cells.pop(0).split(",")
        labels = [self._label(token) for token in tokens]
        if len(set(labels)) != len(labels):
            raise DataError("a label is given twice in one row; remove one")
        columns, values, counts = self._x
        previous = -1
        for cell in cells:
            index, colon, value = cell.partition(":")
            if not colon:
                what = f"{cell!r} is not 'feature:value'; the row is cut short or wrong"
                advice = " (sentences in columns are to be called .conll)" if ":" not in text else ""
                raise DataError(what + advice)
            column = whole(index) - self._base
            if column <= previous:
                raise self._bad_order(column, previous)
            if self._inputs is not None and column >= self._inputs:
                what = f"feature {index}, but there are only {self._inputs} (from {self._base})"
                raise DataError(f"{what}; correct the row")
            previous = column
            columns.append(column)
            try:
                values.append(number(value))
            except ValueError:
                advice = "leave the pair out for zero"
                raise DataError(number_complaint(value, f"feature {index}", advice)) from None
        counts.append(len(cells))
        self._y[0].extend(labels)
        self._y[1].append(len(labels))

    def _bad_order(self, column: int, previous: int) -> DataError:
        column, previous = column + self._base, previous + self._base
        if column < self._base:
            return DataError(f"feature {column}, but features count from {self._base}; pass base=0")
        if column == previous:
            return DataError(f"feature {column} is given twice in one row; remove one")
        return DataError(f"feature {column} follows {previous}; features must increase")


def _csr(columns: list[int], values: Any, counts: list[int], width: int) -> sparse.csr_array:
    starts = np.concatenate([[0], np.cumsum(counts)])
    matrix = sparse.csr_array((values, columns, starts), shape=(len(counts), width))
    matrix.sort_indices()
    return matrix

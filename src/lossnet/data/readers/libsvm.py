"""Sparse text files: LIBSVM's format, and the extreme-classification repository's with its header."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np
from scipy import sparse

from lossnet.data.errors import AnyPath, DataError
from lossnet.data.readers.text import Like, build, chunks, number, number_complaint, open_lines, whole
from lossnet.data.tables import MultiLabelData

MOST_COLUMNS = 1 << 23


@whole
def read_xc(
    path: AnyPath,
    *,
    encoding: str = "utf-8",
    like: Like | None = None,
    lines: Iterator[str] | None = None,
    size: int | None = None,
) -> Iterator[MultiLabelData]:
    """Read ``n d L`` and then a line ``label,label feature:value …`` for each row, all from 0.

    Columns are named ``feature_0`` … and ``label_0`` …; a row may have no labels.

    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder, "tags.txt")
    ...     _ = path.write_text("2 3 2\\n0,1 0:0.5 2:1\\n 1:2\\n")
    ...     data = read_xc(path)
    >>> data.x.toarray().tolist(), data.y.toarray().tolist()
    ([[0.5, 0.0, 1.0], [0.0, 2.0, 0.0]], [[1, 1], [0, 0]])
    """
    lines = open_lines(path, encoding, size) if lines is None else lines
    header = next(lines)
    if not is_xc_header(header):
        what = f"expected three whole numbers (rows, inputs, labels), found {header[:40]!r}"
        raise DataError(f"{what}; is this an extreme-classification file?", path, 1)
    rows, inputs, labels = map(int, header.split())
    if not (rows and inputs and labels):
        raise DataError("the header has a zero; rows, inputs and labels must exist", path, 1)
    _check_width(path, max(inputs, labels), 1)
    if like is not None and inputs != len(like.feature_names):
        what = f"{inputs} inputs, but the model was trained on {len(like.feature_names)}"
        raise DataError(f"{what}; use a file with the same inputs", path, 1)

    def label(token: str) -> int:
        column = _whole_number(token)
        if column >= labels:
            raise DataError(f"label {column}, but there are only {labels} (from 0); correct the row")
        return column

    feature_names = [f"feature_{i}" for i in range(inputs)] if like is None else like.feature_names
    label_names = [f"label_{i}" for i in range(labels)]
    for chunk in chunks(_xc_rows(path, lines, rows), size):
        x, y = _matrices(path, chunk, label, inputs, 0)
        x.resize(len(chunk), inputs)
        y.resize(len(chunk), labels)
        yield build(path, x, y, feature_names, label_names, 1)


@whole
def read_libsvm(
    path: AnyPath,
    labels: Sequence[str] | int | None = None,
    *,
    base: int | None = None,
    features: int | None = None,
    encoding: str = "utf-8",
    like: Like | None = None,
    lines: Iterator[str] | None = None,
    size: int | None = None,
) -> Iterator[MultiLabelData]:
    """Read lines ``label,label feature:value …``, where labels are numbers or names.

    ``base`` is the first feature's number, 0 or 1; by default 0 if any feature 0 occurs, else 1.
    ``features`` is how many there are, by default up to the largest that occurs; columns are named
    ``feature_<number>``.  ``labels`` lists the labels, or says how many there are when they are
    numbered from 0; by default they are those that occur, in order.

    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder, "tags.svm")
    ...     _ = path.write_text("red,blue 1:0.5 3:1\\nblue 2:2\\n")
    ...     data = read_libsvm(path)
    >>> data.feature_names, data.label_names, data.y.toarray().tolist()
    (('feature_1', 'feature_2', 'feature_3'), ('blue', 'red'), [[1, 1], [1, 0]])
    """
    if base not in (None, 0, 1):
        raise ValueError(f"base must be 0 or 1, not {base!r}")
    if like is not None:
        first_name = like.feature_names[0] if like.feature_names else ""
        if first_name not in ("feature_0", "feature_1"):
            what = f"the model's first input is {first_name!r}, not a numbered one"
            raise DataError(f"{what}; use the format it was trained on", path)
        base, features, labels = int(first_name[-1]), len(like.feature_names), like.label_names
    listed = map(str, range(labels) if isinstance(labels, int) else labels or ())
    columns = {name: column for column, name in enumerate(listed)}

    def label(token: str) -> int:
        if not token:
            raise DataError("an empty label; labels are separated by one comma")
        if labels is not None and token not in columns:
            raise DataError(f"unknown label {token!r}; list it or correct the row")
        return columns.setdefault(token, len(columns))

    lines = open_lines(path, encoding, size) if lines is None else lines
    for chunk in chunks(_libsvm_rows(path, lines), size):
        last = chunk[-1][0]
        # Until the base is known, features are kept as numbered and the bound is checked at the end.
        x, y = _matrices(path, chunk, label, None if base is None else features, base or 0)
        first = base if base is not None else int(x.indices.min(initial=1) > 0)
        shift = first if base is None else 0
        width = max(x.shape[1] - shift, 0)
        if features is not None and width > features:
            what = f"feature {width - 1 + first} occurs, but features={features} from {first}"
            raise DataError(f"{what}; correct one of them", path, last)
        width = width if features is None else features
        _check_width(path, width, last)
        x.resize(len(chunk), width + shift)
        y.resize(len(chunk), len(columns))
        names = list(columns) if labels is not None else _in_order(columns)
        feature_names = like.feature_names if like else [f"feature_{i + first}" for i in range(width)]
        yield build(path, x[:, shift:], y[:, [columns[name] for name in names]], feature_names, names, last)


def is_xc_header(line: str) -> bool:
    """Whether a line could be the header ``n d L`` of an extreme-classification file."""
    parts = line.split()
    return len(parts) == 3 and all(map(_is_whole, parts))


def _xc_rows(path: AnyPath, lines: Iterator[str], rows: int) -> Iterator[tuple[int, str]]:
    """Yield as many lines as the header says, numbered; only blank lines may follow."""
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


def _libsvm_rows(path: AnyPath, lines: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Yield rows with their line numbers, without comments."""
    rows = empty = 0
    for line, text in enumerate(lines, start=1):
        if not text.strip():
            empty = empty or line
            continue
        if empty:
            # It might be a row with nothing in it or a slip: guessing would shift all later rows.
            raise DataError("an empty line; remove it, a row needs a label or a value", path, empty)
        content = text.partition("#")[0]
        if content.strip():
            yield line, content
            rows += 1
    if not rows:
        raise DataError("only comments, no rows", path, 1)


def _matrices(
    path: AnyPath,
    rows: Sequence[tuple[int, str]],
    label: Callable[[str], int],
    inputs: int | None,
    base: int,
) -> tuple[Any, Any]:
    """Return CSR matrices of numbered rows ``label,label feature:value …``, as wide as their last columns."""
    labels: list[list[int]] = []
    features: list[list[int]] = []
    values: list[float] = []
    for line, text in rows:
        cells = text.split()
        try:
            tokens = cells.pop(0).split(",") if cells and ":" not in cells[0] else []
            labels.append([label(token) for token in tokens])
            if len(set(labels[-1])) != len(tokens):
                raise DataError("a label is given twice in one row; remove one")
            features.append([])
            for cell in cells:
                column, value = _cell(cell, text, features[-1][-1] if features[-1] else -1, inputs, base)
                features[-1].append(column)
                values.append(value)
        except DataError as error:
            raise error.at(path, line) from None
    x = _csr(features, np.array(values, dtype=np.float32))
    return x, _csr(labels, np.ones(sum(map(len, labels)), dtype=np.uint8))


def _cell(cell: str, text: str, previous: int, inputs: int | None, base: int) -> tuple[int, float]:
    """Return column and value of ``feature:value``; columns must increase."""
    index, colon, value = cell.partition(":")
    if not colon:
        what = f"{cell!r} is not 'feature:value'; the row is cut short or wrong"
        raise DataError(what + ("" if ":" in text else " (sentences in columns are to be called .conll)"))
    feature = _whole_number(index)
    column = feature - base
    if column < 0:
        raise DataError(f"feature {feature}, but features count from {base}; pass base=0")
    if column == previous:
        raise DataError(f"feature {feature} is given twice in one row; remove one")
    if column < previous:
        raise DataError(f"feature {feature} follows {previous + base}; features must increase")
    if inputs is not None and column >= inputs:
        raise DataError(f"feature {index}, but there are only {inputs} (from {base}); correct the row")
    try:
        return column, number(value)
    except ValueError:
        complaint = number_complaint(value, f"feature {index}", "leave the pair out for zero")
        raise DataError(complaint) from None


def _csr(columns: list[list[int]], values: Any) -> sparse.csr_array:
    starts = np.cumsum([0, *map(len, columns)])
    flat = list(chain.from_iterable(columns))
    matrix = sparse.csr_array((values, flat, starts), shape=(len(columns), max(flat, default=-1) + 1))
    matrix.sort_indices()
    return matrix


def _whole_number(token: str) -> int:
    if not _is_whole(token):
        raise DataError(f"{token!r} is not a whole number from 0; correct the row")
    return int(token)


def _is_whole(token: str) -> bool:
    """Whether a token is a whole number from 0 that fits 64 bits."""
    return token.isascii() and token.isdecimal() and len(token) <= 18


def _check_width(path: AnyPath, columns: int, line: int) -> None:
    """Refuse more columns than any data set has: naming them all would exhaust memory."""
    if columns > MOST_COLUMNS:
        raise DataError(f"{columns} columns, more than {MOST_COLUMNS}; correct the number", path, line)


def _in_order(names: Iterable[str]) -> list[str]:
    """Return labels in the order of their names, or of their numbers if all are numbers."""
    if all(re.fullmatch(r"-?[0-9]{1,18}", name) for name in names):
        return sorted(names, key=lambda name: (int(name), name))
    return sorted(names)

"""Multi-label files in LIBSVM's format."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from os import PathLike, fspath

from lossnet.data.errors import DataError
from lossnet.data.readers.text import Like, build, chunks, read_lines
from lossnet.data.readers.xc import Collector, check_columns
from lossnet.data.tables import MultiLabelData

__all__ = ["read_libsvm", "stream_libsvm"]


def read_libsvm(
    path: str | PathLike[str],
    labels: Sequence[str] | int | None = None,
    *,
    base: int | None = None,
    features: int | None = None,
    encoding: str = "utf-8",
    like: Like | None = None,
    lines: Iterable[str] | None = None,
) -> MultiLabelData:
    """Read lines ``label,label feature:value …``, where labels are numbers or names.

    ``base`` is the first feature's number, 0 or 1; by default 0 if any feature 0 occurs, else 1.
    ``features`` is how many there are, by default up to the largest that occurs; columns are named
    ``feature_<number>``.  ``labels`` lists the labels, or says how many there are when they are
    numbered from 0; by default they are those that occur, in order.  ``lines`` are the file's, where they
    are at hand.

    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder, "tags.svm")
    ...     _ = path.write_text("red,blue 1:0.5 3:1\\nblue 2:2\\n")
    ...     data = read_libsvm(path)
    >>> data.feature_names, data.label_names, data.y.toarray().tolist()
    (('feature_1', 'feature_2', 'feature_3'), ('blue', 'red'), [[1, 1], [1, 0]])
    """
    path = fspath(path)
    if base not in (None, 0, 1):
        raise ValueError(f"base must be 0 or 1, not {base!r}")
    if like is not None:
        base, features = _trained_base(path, like), len(like.feature_names)
        labels = like.label_names
    numbering = _Numbering(labels)
    # Until the base is known, features are kept as numbered and the bound is checked at the end.
    collector = Collector(path, None if base is None else features, numbering, base or 0)
    last = 1
    for last, content in _rows(path, read_lines(path, encoding) if lines is None else lines):
        collector.add(last, content)
    if base is None:
        base = 0 if collector.smallest_feature == 0 else 1
        shift = base
    else:
        shift = 0
    width = collector.largest_feature + 1 - shift
    if features is not None and width > features:
        what = f"feature {width - 1 + base} occurs, but features={features} from {base}"
        raise DataError(f"{what}; correct one of them", path, last)
    width = max(width, 0) if features is None else features
    check_columns(path, width, last)
    x, y = collector.matrices(width + shift, len(numbering.names))
    order = numbering.order()
    names = like.feature_names if like else [f"feature_{i + base}" for i in range(width)]
    label_names = [numbering.names[i] for i in order]
    return build(path, x[:, shift:], y[:, order], names, label_names, last)


def stream_libsvm(
    path: str | PathLike[str], like: Like, rows: int, lines: Iterator[str]
) -> Iterator[MultiLabelData]:
    """What `read_libsvm` reads of a file's lines, ``rows`` at a time."""
    path = fspath(path)
    base, inputs, numbering = _trained_base(path, like), len(like.feature_names), _Numbering(like.label_names)
    for chunk in chunks(_rows(path, lines), rows):
        collector = Collector(path, inputs, numbering, base)
        for line, content in chunk:
            collector.add(line, content)
        x, y = collector.matrices(inputs, len(like.label_names))
        yield build(path, x, y, like.feature_names, like.label_names, chunk[-1][0])


class _Numbering:
    """Numbers labels as they come, or only those that were listed."""

    def __init__(self, labels: Sequence[str] | int | None) -> None:
        listed = map(str, range(labels) if isinstance(labels, int) else labels or ())
        self._fixed = labels is not None
        self._columns = {name: column for column, name in enumerate(listed)}

    @property
    def names(self) -> list[str]:
        return list(self._columns)

    def __call__(self, token: str) -> int:
        if not token:
            raise DataError("an empty label; labels are separated by one comma")
        column = self._columns.get(token)
        if column is None:
            if self._fixed:
                raise DataError(f"unknown label {token!r}; list it or correct the row")
            column = self._columns[token] = len(self._columns)
        return column

    def order(self) -> list[int]:
        """Columns in the order of their names, as numbers when all are."""
        names = self.names
        if self._fixed:
            return list(range(len(names)))
        if all(re.fullmatch(r"-?[0-9]{1,18}", name) for name in names):
            return sorted(range(len(names)), key=lambda i: (int(names[i]), names[i]))
        return sorted(range(len(names)), key=names.__getitem__)


def _trained_base(path: str, like: Like) -> int:
    first = like.feature_names[0] if like.feature_names else ""
    if first not in ("feature_0", "feature_1"):
        what = f"the model's first input is {first!r}, not a numbered one"
        raise DataError(f"{what}; use the format it was trained on", path)
    return int(first[-1])


def _rows(path: str, lines: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Each row with its line, without comments."""
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

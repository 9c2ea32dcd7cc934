"""Readers, one file per format; `read` chooses among them.

==================  =======================================  ======================
file                what                                     reader
==================  =======================================  ======================
``.arff``           Mulan or MEKA, dense or sparse           `read_arff`
``.arff``           with a ``hierarchical`` class (CLUS)     `read_clus`
``.csv .tsv``       a table with named columns               `read_csv`
``.parquet``        the same, typed                          `read_parquet`
``.txt``            extreme classification, with a header    `read_xc`
``.svm .libsvm``    the same without (LIBSVM)                `read_libsvm`
``.npz``            arrays ``x`` and ``y``                   `read_npz`
==================  =======================================  ======================

`stream_inputs` reads any of them some rows at a time; only ``.npz`` archives are read whole then too.
Every bad file is one `lossnet.data.DataError` that says which line is wrong.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from lossnet.data.errors import DataError
from lossnet.data.readers.arff import read_arff, stream_arff
from lossnet.data.readers.arff_syntax import parse_header, stream_header
from lossnet.data.readers.arrays import read_npz
from lossnet.data.readers.clus import is_hierarchical, read_clus, stream_clus
from lossnet.data.readers.libsvm import read_libsvm, stream_libsvm
from lossnet.data.readers.table import (
    assemble_like,
    frame_columns,
    read_csv,
    read_frame,
    read_parquet,
    stream_csv,
    stream_parquet,
)
from lossnet.data.readers.text import Like, build, read_lines, stream_lines
from lossnet.data.readers.xc import is_header, read_xc, stream_xc
from lossnet.data.tables import MultiLabelData

__all__ = [
    "frame_columns",
    "named_rows",
    "read",
    "read_arff",
    "read_clus",
    "read_csv",
    "read_frame",
    "read_inputs",
    "read_libsvm",
    "read_npz",
    "read_parquet",
    "read_xc",
    "stream_inputs",
]

#: rows that `stream_inputs` reads at a time unless told: eight of the batches that models predict in
ROWS = 4096

Reader = Callable[..., MultiLabelData]

_BY_SUFFIX: dict[str, Reader] = {
    ".csv": read_csv,
    ".tsv": read_csv,
    ".tab": read_csv,
    ".parquet": read_parquet,
    ".pq": read_parquet,
    ".npz": read_npz,
}


_SPARSE = (".txt", ".svm", ".libsvm")


def read(path: str | PathLike[str], labels: Any = None, **options: Any) -> MultiLabelData:
    """Read a file by the reader for its name and content; ``options`` are that reader's.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder, "tags.txt")
    ...     _ = path.write_text("1 3 2\\n0,1 0:0.5 2:1\\n")
    ...     read(path).y.toarray().tolist()
    [[1, 1]]
    """
    reader, lines = _choose(path, options.get("encoding", "utf-8"))
    accepted = inspect.signature(reader).parameters
    if labels is not None:
        if "labels" not in accepted:
            what = f"{reader.__name__} takes the labels from the file itself; leave labels= out"
            raise DataError(what, path)
        options["labels"] = labels
    for name in options:
        if name not in accepted:
            raise TypeError(f"{reader.__name__} has no option {name!r}")
    return reader(path, **options) if lines is None else reader(path, lines=lines, **options)


def read_inputs(
    path: str | PathLike[str],
    feature_names: Sequence[str],
    label_names: Sequence[str],
    **options: Any,
) -> MultiLabelData:
    """Read a file to predict on: the columns a model was trained on, by name and in that order.

    Label columns may be there, as for an evaluation, or not: then ``y`` is all zeros.  A missing input
    column is an error; columns that training did not use, such as a row's id, are passed over.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder, "new.csv")
    ...     _ = path.write_text("width,length\\n3,90\\n")
    ...     data = read_inputs(path, ["length", "width"], ["is_fun"])
    >>> data.x.tolist(), data.y.toarray().tolist()
    ([[90.0, 3.0]], [[0]])
    """
    like = Like(tuple(feature_names), tuple(label_names))
    return _align(path, read(path, like=like, **options), like)


def named_rows(columns: Mapping[str, Sequence[Any]], feature_names: Sequence[str]) -> MultiLabelData:
    """Rows to predict for, given by the names of their columns, as the inputs a model was trained on.

    They are read as `read_inputs` reads a table; None is a missing value.

    >>> named_rows({"country": ["it", None], "length": [90, 80]}, ["length", "country=fr", "country=it"]).x
    array([[90.,  0.,  1.],
           [80., nan, nan]], dtype=float32)
    """
    like = Like(tuple(feature_names), ())
    try:
        return _align("", assemble_like(columns, like), like)
    except DataError as error:
        raise DataError(error.message) from None


def stream_inputs(
    path: str | PathLike[str],
    feature_names: Sequence[str],
    label_names: Sequence[str],
    rows: int = ROWS,
) -> Iterator[MultiLabelData]:
    """What `read_inputs` reads, ``rows`` at a time, so that a file may be larger than memory.

    What is wrong with a row is found when it is reached.  Text must be UTF-8.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder, "new.csv")
    ...     _ = path.write_text("width,length\\n3,90\\n4,80\\n2,70\\n")
    ...     [len(part) for part in stream_inputs(path, ["length", "width"], ["is_fun"], rows=2)]
    [2, 1]
    """
    like = Like(tuple(feature_names), tuple(label_names))
    for part in _stream(Path(path), like, rows):
        yield _align(path, part, like)


def _stream(path: Path, like: Like, rows: int) -> Iterator[MultiLabelData]:
    reader = _BY_SUFFIX.get(path.suffix.lower())
    if reader is read_csv:
        return stream_csv(path, like, rows)
    if reader is read_parquet:
        return stream_parquet(path, like, rows)
    if path.suffix.lower() == ".arff":
        header = stream_header(path)
        return stream_clus(header, like, rows) if is_hierarchical(header) else stream_arff(header, like, rows)
    if path.suffix.lower() in _SPARSE:
        lines = stream_lines(path)
        first = next(lines)
        return (stream_xc if is_header(first) else stream_libsvm)(path, like, rows, chain([first], lines))
    return iter([read(path, like=like)])


def _choose(path: str | PathLike[str], encoding: str) -> tuple[Reader, list[str] | None]:
    """The reader of a file, and its lines if they had to be looked at: a pipe has them once."""
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix in _BY_SUFFIX:
        return _BY_SUFFIX[suffix], None
    if suffix == ".arff":
        lines = read_lines(path, encoding)
        header = parse_header(path, encoding, number_repeats=True, lines=lines)
        return read_clus if is_hierarchical(header) else read_arff, lines
    if suffix in _SPARSE:
        lines = read_lines(path, encoding)
        return read_xc if is_header(lines[0]) else read_libsvm, lines
    if not path.exists():
        raise DataError("no such file; check the path", fspath(path))
    known = ", ".join([".arff", ".txt", ".svm", ".libsvm", *_BY_SUFFIX])
    what = f"its format is not known by the extension {suffix!r}; use one of {known}"
    raise DataError(what, fspath(path))


def _align(path: str | PathLike[str], data: MultiLabelData, like: Like) -> MultiLabelData:
    if (data.feature_names, data.label_names) == (like.feature_names, like.label_names):
        return data
    columns = {name: column for column, name in enumerate(data.feature_names)}
    lacking = [name for name in like.feature_names if name not in columns]
    if lacking:
        shown = ", ".join(map(repr, lacking[:5])) + (", …" if len(lacking) > 5 else "")
        what = f"lacks {len(lacking)} of the model's input columns ({shown})"
        raise DataError(f"{what}; the columns must be those of training", fspath(path), 1)
    x = data.x[:, [columns[name] for name in like.feature_names]]
    targets = {name: column for column, name in enumerate(like.label_names)}
    cells = data.y.tocoo()
    used = {data.label_names[column] for column in np.unique(cells.col)}
    strange = sorted(used - set(targets))
    if strange:
        raise DataError(f"label {strange[0]!r} did not occur in training; remove it", path)
    place = np.array([targets.get(name, -1) for name in data.label_names], dtype=np.int64)
    y = sparse.csr_array(
        (cells.data, (cells.row, place[cells.col])), shape=(len(data), len(like.label_names))
    )
    return build(path, x, y, like.feature_names, like.label_names)

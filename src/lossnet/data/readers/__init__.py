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
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import tee
from os import fspath
from pathlib import Path
from typing import Any

from lossnet.data.errors import AnyPath, DataError
from lossnet.data.readers.arff import read_arff
from lossnet.data.readers.arff_syntax import parse_header
from lossnet.data.readers.arrays import read_npz
from lossnet.data.readers.clus import is_hierarchical, read_clus
from lossnet.data.readers.libsvm import is_xc_header, read_libsvm, read_xc
from lossnet.data.readers.table import (
    assemble_like,
    facts_of,
    frame_columns,
    read_csv,
    read_facts,
    read_frame,
    read_parquet,
)
from lossnet.data.readers.text import Like, Unknown, align_labels, build, missing_file, open_lines
from lossnet.data.tables import MultiLabelData
from lossnet.data.texts import TextTable
from lossnet.suggest import did_you_mean
from lossnet.warn import warn

__all__ = [
    "facts_of",
    "frame_columns",
    "named_rows",
    "read",
    "read_arff",
    "read_clus",
    "read_csv",
    "read_facts",
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
_BINARY = (".npz", ".parquet", ".pq")
#: extensions of tables whose columns may hold texts
_NAMED = (".csv", ".tsv", ".tab", ".parquet", ".pq")
#: extensions of the files that `read` reads
TABLES = (".arff", *_SPARSE, *_BY_SUFFIX)


def read(path: AnyPath, labels: Any = None, **options: Any) -> MultiLabelData:
    """Read a file by the reader for its name and content; ``options`` are that reader's.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder, "tags.txt")
    ...     _ = path.write_text("1 3 2\\n0,1 0:0.5 2:1\\n")
    ...     read(path).y.toarray().tolist()
    [[1, 1]]
    """
    (data,) = _parts(path, labels, None, options)
    return data


def read_inputs(
    path: AnyPath,
    feature_names: Sequence[str],
    label_names: Sequence[str],
    needed: Collection[str] = (),
    unknown: Unknown = "missing",
    texts: Sequence[str] = (),
    **options: Any,
) -> MultiLabelData:
    """Read a file to predict on: the columns a model was trained on, by name and in that order.

    Label columns may be there, as for an evaluation, or not: then ``y`` is all zeros.  A missing input
    column is an error; columns that training did not use, such as a row's id, are passed over.  So is the
    lack of a label that is ``needed``.  ``texts`` are columns of texts.  Values that a column of
    categories did not have in training, and dates that cannot be read, count as ``"missing"`` and are counted
    in one warning, or are an ``"error"``.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder, "new.csv")
    ...     _ = path.write_text("width,length\\n3,90\\n")
    ...     data = read_inputs(path, ["length", "width"], ["is_fun"])
    >>> data.x.tolist(), data.y.toarray().tolist()
    ([[90.0, 3.0]], [[0]])
    """
    like = Like(tuple(feature_names), tuple(label_names), unknown, texts=tuple(texts))
    data = read(path, like=like, **options)
    if lacking := sorted(set(needed) - set(data.label_names)):
        what = f"lacks the label {lacking[0]!r} of training"
        raise DataError(f"{what}; {did_you_mean(lacking[0], data.label_names, 'it has')}", path)
    data = _align(path, data, like)
    _warn_of(like, f"{fspath(path)}: ")
    return data


def _warn_of(like: Like, where: str = "") -> None:
    if like.unseen:
        warn(f"{where}{like.unseen}")


def named_rows(
    columns: Mapping[str, Sequence[Any]],
    feature_names: Sequence[str],
    unknown: Unknown = "missing",
    texts: Sequence[str] = (),
) -> MultiLabelData:
    """Return rows to predict for, given by the names of their columns, as inputs of a trained model.

    They are read as `read_inputs` reads a table; None is a missing value.

    >>> named_rows({"country": ["it", None], "length": [90, 80]}, ["length", "country=fr", "country=it"]).x
    array([[90.,  0.,  1.],
           [80., nan, nan]], dtype=float32)
    """
    like = Like(tuple(feature_names), (), unknown, texts=tuple(texts))
    try:
        data = _align("", assemble_like(columns, like), like)
    except DataError as error:
        raise DataError(error.message) from None
    _warn_of(like)
    return data


def stream_inputs(
    path: AnyPath,
    feature_names: Sequence[str],
    label_names: Sequence[str],
    rows: int = ROWS,
    encoding: str | None = None,
    unknown: Unknown = "missing",
    texts: Sequence[str] = (),
) -> Iterator[MultiLabelData]:
    """Yield what `read_inputs` reads, ``rows`` at a time, so that a file may be larger than memory.

    Errors in a row are raised when it is reached, and the warning comes at the end.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder, "new.csv")
    ...     _ = path.write_text("width,length\\n3,90\\n4,80\\n2,70\\n")
    ...     [len(part) for part in stream_inputs(path, ["length", "width"], ["is_fun"], rows=2)]
    [2, 1]
    """
    like = Like(tuple(feature_names), tuple(label_names), unknown, texts=tuple(texts))
    for part in _parts(path, None, rows, {"like": like, "encoding": encoding}):
        yield _align(path, part, like)
    _warn_of(like, f"{fspath(path)}: ")


def _parts(path: AnyPath, labels: Any, size: int | None, options: dict[str, Any]) -> Iterator[MultiLabelData]:
    """Return the parts of a file by the reader for its name and content."""
    suffix = Path(path).suffix.lower()
    reader = _BY_SUFFIX.get(suffix)
    if options.get("encoding") is None:
        options = {name: value for name, value in options.items() if name != "encoding"}
    elif suffix in _BINARY:
        raise DataError(f"{suffix} files are no text; leave encoding= (--encoding) out", path)
    if suffix in (".arff", *_SPARSE):
        lines, ahead = tee(open_lines(path, options.get("encoding", "utf-8"), size))  # once: it may be a pipe
        if suffix == ".arff":
            reader = read_clus if is_hierarchical(parse_header(path, ahead)) else read_arff
        else:
            reader = read_xc if is_xc_header(next(ahead)) else read_libsvm
        del ahead  # or it would keep all lines
        options = {**options, "lines": lines}
    if options.get("text") is None:
        options = {name: value for name, value in options.items() if name != "text"}
    elif suffix not in _NAMED:
        raise DataError("text= (--text) names columns of a CSV, TSV or Parquet file", path)
    if reader is None:
        if not Path(path).exists():
            raise missing_file(path)
        what = f"its format is not known by the extension {suffix!r}"
        raise DataError(f"{what}; use one of {', '.join(TABLES)}", path)
    accepted = inspect.signature(reader).parameters
    if labels is not None:
        if "labels" not in accepted:
            what = f"{reader.__name__} takes the labels from the file itself; leave labels= out"
            raise DataError(what, path)
        options = {**options, "labels": labels}
    for name in options:
        if name not in accepted:
            raise TypeError(f"{reader.__name__} has no option {name!r}")
    return inspect.unwrap(reader)(path, size=size, **options)  # type: ignore[no-any-return]


def _align(path: AnyPath, data: MultiLabelData, like: Like) -> MultiLabelData:
    if (data.feature_names, data.label_names) == (like.feature_names, like.label_names):
        return data
    texts = data.source.texts if isinstance(data.source, TextTable) else {}
    if lacking := like.lacks([*data.feature_names, *texts]):
        raise DataError(lacking, fspath(path), 1)
    columns = {name: column for column, name in enumerate(data.feature_names)}
    x = data.x[:, [columns[name] for name in like.feature_names]]
    y = align_labels(path, data.target, like.label_names)
    aligned = build(path, x, y, like.feature_names, like.label_names)
    return aligned.replace(TextTable(texts, aligned.source)) if texts else aligned

"""Tables with named columns: CSV, TSV and Parquet."""

from __future__ import annotations

import csv
import io
import re
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import tee
from os import PathLike, fspath
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from lossnet.data.errors import DataError
from lossnet.data.readers.text import (
    LABEL_WORDS,
    Like,
    build,
    chunks,
    is_unwritable_number,
    number,
    number_complaint,
    read_text,
    select_names,
    stream_lines,
)
from lossnet.data.tables import LabelTable, MultiLabelData

__all__ = [
    "LabelledTexts",
    "assemble_like",
    "frame_columns",
    "read_csv",
    "read_frame",
    "read_frame_texts",
    "read_parquet",
    "read_texts",
    "stream_csv",
    "stream_parquet",
    "stream_texts",
]

#: what people write for a missing number
_MISSING = frozenset({"na", "n/a", "nan", "null", "none", "?", "-"})
_DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+")
#: A column of more different texts, fewer than two rows for each, tells rows apart and nothing else.
_MOST_TEXTS = 50

#: what stands for the path in errors and warnings about a data frame; lines are its rows from 1
_FRAME = "data frame"

Columns = Mapping[str, Sequence[Any]]
Made = TypeVar("Made")
#: makes something of a table's columns, whose rows begin at these lines
Assemble = Callable[[Columns, Sequence[int]], Made]


def read_csv(
    path: str | PathLike[str],
    labels: str | Iterable[str] | None = None,
    *,
    delimiter: str | None = None,
    categories: Collection[str] = (),
    drop: Collection[str] = (),
    encoding: str = "utf-8",
    like: Like | None = None,
) -> MultiLabelData:
    """Read a CSV or TSV table whose first line names the columns.

    ``labels`` names the label columns, or is a pattern such as ``label_*``; all other columns are
    inputs.  A column of numbers is one input; a column of text, or one named in ``categories``, is
    spread over one 0/1 column per value, named ``column=value``.  An empty cell is a missing value, and so
    is ``NA``, ``nan``, ``null`` or ``?`` in a column of numbers.  A column of texts that hardly come twice,
    such as names or titles, or of nothing but row numbers, is left out with a warning.

    Labels are columns of 0 and 1 (or no and yes), or one column with the names of each row's labels,
    separated by semicolons, bars or commas.

    The ``delimiter`` is a tab in TSV, else whichever of comma, semicolon and tab the first line has most of;
    where it is a semicolon, numbers may have a decimal comma.

    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder, "films.csv")
    ...     _ = path.write_text("length,country,is_fun,is_sad\\n90,it,1,0\\n,fr,1,1\\n")
    ...     data = read_csv(path, labels="is_*")
    >>> data.feature_names, data.x.tolist()
    (('length', 'country=fr', 'country=it'), [[90.0, 0.0, 1.0], [nan, 1.0, 0.0]])
    """
    path = fspath(path)
    text = read_text(path, encoding)
    delimiter = delimiter or _delimiter(path, text.split("\n"))
    lines = io.StringIO(text, newline="")
    wanted = _Wanted(labels, categories, drop, like)
    (data,) = _csv_parts(path, lines, delimiter, partial(_assemble, path, wanted), None)
    return data


def stream_csv(path: str | PathLike[str], like: Like, rows: int) -> Iterator[MultiLabelData]:
    """Yield what `read_csv` reads of the columns that a model wants, ``rows`` at a time."""
    return _stream_csv(fspath(path), partial(_assemble, fspath(path), _Wanted(None, (), (), like)), rows)


def _stream_csv(path: str, assemble: Assemble[Made], rows: int | None) -> Iterator[Made]:
    lines, looked_at = tee(stream_lines(path))  # once: it may be a pipe
    delimiter = _delimiter(path, looked_at)
    del looked_at  # or it would keep all lines
    return _csv_parts(path, (f"{line}\n" for line in lines), delimiter, assemble, rows)


def _delimiter(path: str, lines: Iterable[str]) -> str:
    """What separates the columns: spreadsheets write semicolons where commas are decimal points."""
    if path.lower().endswith((".tsv", ".tab")):
        return "\t"
    first = next(line for line in lines if line.strip())
    return max(",;\t", key=first.count)


def _csv_parts(
    path: str, text: Iterable[str], delimiter: str, assemble: Assemble[Made], size: int | None
) -> Iterator[Made]:
    records = _csv_records(path, text, delimiter)
    _, names = next(records)
    for chunk in chunks(records, size):
        lines, rows = zip(*chunk, strict=True)
        yield assemble(dict(zip(names, zip(*rows, strict=True), strict=True)), lines)


def read_parquet(
    path: str | PathLike[str],
    labels: str | Iterable[str] | None = None,
    *,
    categories: Collection[str] = (),
    drop: Collection[str] = (),
    like: Like | None = None,
) -> MultiLabelData:
    """Read a Parquet table; columns as in `read_csv`, nulls are missing values.

    Needs the ``[parquet]`` extra.  Errors give the row, from 1, in place of the line.
    """
    wanted = _Wanted(labels, categories, drop, like)
    (data,) = _parquet_parts(fspath(path), partial(_assemble, fspath(path), wanted), None)
    return data


def stream_parquet(path: str | PathLike[str], like: Like, rows: int) -> Iterator[MultiLabelData]:
    """Yield what `read_parquet` reads, ``rows`` at a time."""
    wanted = _Wanted(None, (), (), like)
    return _parquet_parts(fspath(path), partial(_assemble, fspath(path), wanted), rows)


def frame_columns(frame: Any) -> dict[str, list[Any]]:
    """Return the columns of a data frame by name, as `read_csv` would have read them; None is missing.

    >>> import pandas
    >>> frame_columns(pandas.DataFrame({"length": [90, None], "long": [True, False]}))
    {'length': [90.0, None], 'long': [1.0, 0.0]}
    """
    names = [str(name) for name in frame.columns]
    _check_columns(_FRAME, names, 1)
    columns = {}
    for place, name in enumerate(names):
        column = frame.iloc[:, place]
        cells = zip(column.tolist(), column.isna().tolist(), strict=True)
        columns[name] = [None if lacks else float(c) if isinstance(c, bool) else c for c, lacks in cells]
    return columns


def read_frame(frame: Any, labels: str | Iterable[str] | None) -> MultiLabelData:
    """Return a data frame's inputs and labels, its columns read as those of `read_csv`.

    >>> import pandas
    >>> films = pandas.DataFrame({"length": [90, None], "country": ["it", "fr"], "is_fun": [1, 0]})
    >>> read_frame(films, labels="is_*").feature_names
    ('length', 'country=fr', 'country=it')
    """
    return _assemble(_FRAME, _Wanted(labels, (), (), None), frame_columns(frame), range(1, len(frame) + 1))


def read_frame_texts(frame: Any, column: str, labels: str | Iterable[str] | None) -> LabelledTexts:
    """Return what `read_texts` would read of a data frame."""
    assemble = _text_assembler(_FRAME, column, _Wanted(labels, (), (), None))
    return assemble(frame_columns(frame), range(1, len(frame) + 1))


class LabelledTexts(NamedTuple):
    """A table's column of texts and, where it has label columns, its labels."""

    texts: list[str]
    labels: LabelTable | None


def read_texts(path: str | PathLike[str], column: str, labels: str | Iterable[str] | None) -> LabelledTexts:
    """Read a column of texts and the label columns of a CSV, TSV or Parquet table, and no others.

    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder, "films.csv")
    ...     _ = path.write_text("plot,is_fun,is_sad\\nA dog flies.,1,0\\nA cat leaves.,0,1\\n")
    ...     read_texts(path, "plot", labels="is_*").texts
    ['A dog flies.', 'A cat leaves.']
    """
    (read,) = _text_parts(fspath(path), column, _Wanted(labels, (), (), None), None)
    return read


def stream_texts(
    path: str | PathLike[str], column: str, label_names: Sequence[str], rows: int
) -> Iterator[LabelledTexts]:
    """Yield what `read_texts` reads, ``rows`` at a time, for a model of these labels."""
    like = Like((), tuple(label_names))
    yield from _text_parts(fspath(path), column, _Wanted(None, (), (), like), rows)


def _text_assembler(path: str, column: str, wanted: _Wanted) -> Assemble[LabelledTexts]:
    def assemble(columns: Columns, lines: Sequence[int]) -> LabelledTexts:
        if column not in columns:
            some = ", ".join(map(repr, list(columns)[:8]))
            raise DataError(f"there is no column {column!r} of texts; there are {some}", path, 1)
        empty = next((row for row, cell in enumerate(columns[column]) if not str(cell or "").strip()), None)
        if empty is not None:
            raise DataError(
                f"the text in {column!r} is empty; write one, or drop the row", path, lines[empty]
            )
        others = {name: cells for name, cells in columns.items() if name != column}
        names, y = _label_matrix(path, wanted, others, lines)
        labels = LabelTable(y, names) if names else None
        return LabelledTexts([str(cell) for cell in columns[column]], labels)

    return assemble


def _text_parts(path: str, column: str, wanted: _Wanted, size: int | None) -> Iterator[LabelledTexts]:
    assemble = _text_assembler(path, column, wanted)
    if path.lower().endswith((".parquet", ".pq")):
        return _parquet_parts(path, assemble, size)
    return _stream_csv(path, assemble, size)


def _parquet_parts(path: str, assemble: Assemble[Made], size: int | None) -> Iterator[Made]:
    row = 0
    for table in _arrow_tables(path, size):
        names = table.column_names
        _check_columns(path, names, 1)
        columns = {name: _arrow_column(path, name, table.column(name)) for name in names}
        yield assemble(columns, range(row + 1, row + table.num_rows + 1))
        row += table.num_rows
    if not row:
        raise DataError("the table has no rows", path, 1)


def _arrow_tables(path: str, size: int | None) -> Iterator[Any]:
    """The tables that a file is made of, of ``size`` rows, without empty ones."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        what = "reading Parquet needs pyarrow; install lossnet[parquet]"
        raise ImportError(what) from error
    try:
        with parquet.ParquetFile(path) as file:
            if size is None:
                tables: Iterable[Any] = [file.read()]
            else:
                batches = file.iter_batches(size)
                tables = (pyarrow.Table.from_batches([batch]) for batch in batches)
            for table in tables:
                table.validate(full=True)  # a damaged file may have indices and strings that are none
                if table.num_rows:
                    yield table
    except FileNotFoundError:
        raise DataError("no such file; check the path", path) from None
    except (OSError, UnicodeDecodeError, pyarrow.ArrowException) as error:  # names may be no UTF-8
        reason = str(error).partition("\n")[0]
        raise DataError(f"not a readable Parquet file ({reason})", path) from None


class _Wanted:
    """What the caller said about the columns."""

    def __init__(
        self,
        labels: str | Iterable[str] | None,
        categories: Collection[str],
        drop: Collection[str],
        like: Like | None,
    ) -> None:
        self.labels = labels
        self.categories = categories
        self.drop = drop
        self.like = like


def _csv_records(path: str, text: Iterable[str], delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """The names of the columns, then the cells of each row, with the lines where they begin."""
    reader = csv.reader(text, delimiter=delimiter, strict=True)
    names: list[str] | None = None
    line, rows = 1, 0
    try:
        for cells in reader:
            start, line = line, reader.line_num + 1
            if not cells:  # the csv module gives blank lines as rows without cells
                continue
            cells = [cell.strip() for cell in cells]
            if names is None:
                names = cells
                if len(names) > 1 and not names[0]:
                    names[0] = "Unnamed: 0"  # an index, as pandas writes it, and calls it when it reads it
                _check_columns(path, names, start)
            elif len(cells) != len(names):
                what = f"{len(cells)} cells for {len(names)} columns"
                raise DataError(f"{what}; the row is cut short or too long", path, start)
            else:
                rows += 1
                if delimiter == ";":
                    cells = [
                        cell.replace(",", ".") if _DECIMAL_COMMA.fullmatch(cell) else cell for cell in cells
                    ]
            yield start, cells
    except csv.Error as error:
        raise DataError(f"not readable as CSV ({error}); close its quotes", path, line) from None
    if not rows:
        raise DataError("no rows follow the column names", path, max(line - 1, 1))


def _check_columns(path: str, names: list[str], line: int) -> None:
    seen: set[str] = set()
    for name in names:
        if not name:
            raise DataError("a column without a name; name all columns", path, line)
        if name in seen:
            raise DataError(f"column {name!r} is there twice; rename one", path, line)
        seen.add(name)


def _arrow_column(path: str, name: str, column: Any) -> Sequence[Any]:
    from pyarrow import types

    kind = column.type
    if types.is_dictionary(kind):
        kind = kind.value_type
    if types.is_boolean(kind):
        return [None if value is None else float(value) for value in column.to_pylist()]
    if types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind):
        return [None if v is None or v != v else float(v) for v in column.to_pylist()]
    if types.is_string(kind) or types.is_large_string(kind) or types.is_null(kind):
        return list(column.to_pylist())
    what = f"column {name!r} is of type {kind}; inputs are numbers or text, drop or convert it"
    raise DataError(what, path, 1)


def assemble_like(columns: Mapping[str, Sequence[Any]], like: Like) -> MultiLabelData:
    """Rows that are given by the names of their columns; None is a missing value."""
    rows = len(next(iter(columns.values()), ()))
    try:
        return _assemble("", _Wanted(None, (), (), like), columns, range(1, rows + 1))
    except DataError as error:
        raise DataError(f"row {error.line}: {error.message}") from None


def _assemble(path: str, wanted: _Wanted, columns: Columns, lines: Sequence[int]) -> MultiLabelData:
    names = list(columns)
    chosen = _label_columns(path, columns, wanted)
    for name in (*wanted.drop, *wanted.categories):
        if name not in columns:
            raise DataError(f"there is no column {name!r}; check its name", path, 1)
    apart = {*chosen, *wanted.drop}
    blocks: list[NDArray[np.float32]] = []
    feature_names: list[str] = []
    for name in names:
        if name in apart:
            continue
        like = wanted.like
        seen = None if like is None else like.values(name)
        if like is not None and seen is None and name not in like.features:
            continue  # training did not use it
        column = _Column(path, name, columns[name], lines)
        if seen is not None or name in wanted.categories or column.is_text():
            if like is not None and seen is None:
                raise DataError(f"{name!r} is text; it had numbers in training", path, lines[0])
            if like is None and name not in wanted.categories and column.free_text():
                what = f"{name!r} is left out: {column.free_text()}"
                warnings.warn(f"{path}: {what}", stacklevel=2)
                continue
            values, block = column.one_hot(seen)
            feature_names += [f"{name}={value}" for value in values]
        elif like is None and column.counts_rows():
            warnings.warn(f"{path}: {name!r} is left out: it only counts the rows", stacklevel=2)
            continue
        else:
            block = column.numbers()
            feature_names.append(name)
        blocks.append(block)
    empty = np.empty((len(lines), 0), dtype=np.float32)
    x = np.concatenate([empty, *blocks], axis=1)
    label_names, y = _label_matrix(path, wanted, columns, lines)
    return build(path, x, sparse.csr_array(y), feature_names, label_names, 1)


def _label_matrix(
    path: str, wanted: _Wanted, columns: Columns, lines: Sequence[int]
) -> tuple[list[str], NDArray[np.uint8]]:
    """The labels' names, and who has them, ``(rows, labels)``."""
    chosen = _label_columns(path, columns, wanted)
    names = list(chosen)
    if len(chosen) == 1 and chosen[names[0]]:
        return _listed(columns[names[0]])
    y = np.zeros((len(lines), len(names)), dtype=np.uint8)
    for position, name in enumerate(names):
        y[:, position] = _Column(path, name, columns[name], lines).label()
    return names, y


def _label_columns(path: str, columns: Mapping[str, Sequence[Any]], wanted: _Wanted) -> dict[str, bool]:
    """The columns that are labels, and whether cells hold the names of labels rather than 0 and 1."""
    names = list(columns)
    if wanted.like is not None:
        trained = set(wanted.like.label_names)
        found = [name for name in names if name in trained]
        if found:
            return dict.fromkeys(found, False)
        inputs = wanted.like
        others = [name for name in names if name not in inputs.features and inputs.values(name) is None]
        listed = [
            name for name in others if any(columns[name]) and trained.issuperset(_listed(columns[name])[0])
        ]
        return dict.fromkeys(listed[:1], True)
    if wanted.labels is None:
        shown = ", ".join(map(repr, names[:8])) + (", …" if len(names) > 8 else "")
        what = f"which of the columns {shown} are labels is not known"
        advice = "name them or give a pattern: labels=, --labels 'label_*'"
        raise DataError(f"{what}; {advice}", path, 1)
    try:
        chosen = select_names(wanted.labels, names)
    except ValueError as error:
        shown = ", ".join(map(repr, names[:8])) + (", …" if len(names) > 8 else "")
        what = f"no column {str(error)!r} for labels; check the names given (labels=, --labels)"
        raise DataError(f"{what}; there are {shown}", path, 1) from None
    return dict.fromkeys(chosen, len(chosen) == 1 and _holds_names(columns[chosen[0]]))


def _holds_names(cells: Sequence[Any]) -> bool:
    """Whether a label column has names rather than 0 and 1, one of which may be mistyped."""
    present = [str(cell).lower() for cell in cells if _present(cell)]
    return 2 * sum(cell in LABEL_WORDS for cell in present) < len(present)


def _listed(cells: Sequence[Any]) -> tuple[list[str], NDArray[np.uint8]]:
    """The names in cells such as ``red;sweet``, and who has them, ``(rows, names)``."""
    texts = [str(cell) if _present(cell) else "" for cell in cells]
    separator = next((mark for mark in ";|," if any(mark in text for text in texts)), ";")
    sets = [{name.strip() for name in text.split(separator)} - {""} for text in texts]
    names = sorted(set().union(*sets))
    places = {name: place for place, name in enumerate(names)}
    y = np.zeros((len(sets), len(names)), dtype=np.uint8)
    for row, found in enumerate(sets):
        y[row, [places[name] for name in found]] = 1
    return names, y


class _Column:
    """One column's cells: text as read, or numbers and None from a typed table."""

    def __init__(self, path: str, name: str, cells: Sequence[Any], lines: Sequence[int]) -> None:
        self._path = path
        self._name = name
        self._cells = cells
        self._lines = lines

    def is_text(self) -> bool:
        """Whether it holds categories; a mix of numbers and words is an error, likely a slip."""
        numeric = any(_present(cell) and _is_number(cell) for cell in self._cells)
        words = [i for i, cell in enumerate(self._cells) if _present(cell) and not _is_number(cell)]
        if numeric:
            words = [i for i in words if not _is_missing(self._cells[i])]
        if not words:
            return False
        first = words[0]
        odd = next((i for i in words if is_unwritable_number(str(self._cells[i]))), None)
        if odd is not None:
            advice = "leave the cell empty where a value is missing"
            raise self._error(odd, number_complaint(str(self._cells[odd]), self._name, advice))
        if numeric and not all(isinstance(self._cells[i], str) for i in words):
            raise self._error(first, f"{self._cells[first]!r} in {self._name!r} is not finite")
        if numeric:
            what = f"{self._cells[first]!r} in {self._name!r} is not a number, other cells are"
            advice = f"correct it, leave the cell empty, or pass categories=[{self._name!r}] in Python"
            raise self._error(first, f"{what}; {advice}")
        return True

    def free_text(self) -> str:
        """Say why its texts are no categories: hardly any two rows have the same; empty if they are."""
        texts = [cell for cell in self._cells if _present(cell)]
        different = len(set(texts))
        is_free = different > _MOST_TEXTS and 2 * different > len(texts)
        return f"free text; {different} of {len(texts)} values are unique" if is_free else ""

    def counts_rows(self) -> bool:
        """Whether it goes up by one in each of many rows."""
        if len(self._cells) <= _MOST_TEXTS or not all(map(_present, self._cells)):
            return False
        values = self.numbers()[:, 0]
        return bool((np.diff(values) == 1).all())

    def numbers(self) -> NDArray[np.float32]:
        """One column of numbers, NaN where missing."""
        values = [
            number(str(cell)) if _present(cell) and not _is_missing(cell) else np.nan for cell in self._cells
        ]
        return np.array(values, dtype=np.float32)[:, None]

    def one_hot(self, seen: list[str] | None) -> tuple[list[str], NDArray[np.float32]]:
        """The values and one column for each; a missing cell is NaN in all."""
        cells = [_category(cell) if _present(cell) else None for cell in self._cells]
        values = sorted({cell for cell in cells if cell is not None}) if seen is None else seen
        order = {value: code for code, value in enumerate(values)}
        for row, cell in enumerate(cells):
            if cell is not None and cell not in order:
                if _is_missing(cell):
                    cells[row] = None
                    continue
                what = f"{cell!r} in {self._name!r} did not occur in training"
                raise self._error(row, f"{what}; map it to a known value, or leave the cell empty")
        codes = np.array([-1 if cell is None else order[cell] for cell in cells])
        hot = (codes[:, None] == np.arange(len(values))).astype(np.float32)
        hot[codes < 0] = np.nan
        return values, hot

    def label(self) -> list[int]:
        """Zeros and ones; a missing or other value is an error."""
        column = []
        for row, cell in enumerate(self._cells):
            if not _present(cell):
                raise self._error(row, f"label {self._name!r} is missing; labels must be 0 or 1")
            value = LABEL_WORDS.get(str(cell).lower())
            if value is None:
                what = f"label {self._name!r} is {cell!r}, neither 0 nor 1; correct it"
                raise self._error(row, what)
            column.append(int(value))
        return column

    def _error(self, row: int, message: str) -> DataError:
        return DataError(message, self._path, self._lines[row])


def _present(cell: Any) -> bool:
    return cell is not None and cell != ""


def _is_missing(cell: Any) -> bool:
    return isinstance(cell, str) and cell.lower() in _MISSING


def _is_number(cell: Any) -> bool:
    try:
        number(str(cell))
    except ValueError:
        return False
    return True


def _category(cell: Any) -> str:
    return f"{cell:g}" if isinstance(cell, float) else str(cell)

"""Tables with named columns: CSV, TSV and Parquet."""

from __future__ import annotations

import csv
import re
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import tee
from os import fspath
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from lossnet.data.errors import AnyPath, DataError
from lossnet.data.readers.text import (
    LABEL_WORDS,
    Like,
    build,
    chunks,
    is_unwritable_number,
    number,
    number_complaint,
    open_lines,
    select_names,
    whole,
)
from lossnet.data.tables import LabelTable, MultiLabelData
from lossnet.suggest import did_you_mean

#: what people write for a missing number
_MISSING = frozenset({"na", "n/a", "nan", "null", "none", "?", "-"})
_DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+")
#: A column of more different texts, fewer than two rows for each, tells rows apart and nothing else.
_MOST_TEXTS = 50

#: stands for the path in errors and warnings about a data frame; lines are its rows from 1
_FRAME = "data frame"

Columns = Mapping[str, Sequence[Any]]
#: columns of some rows by name, and the lines where the rows begin
Part = tuple[Columns, Sequence[int]]


class _Wanted(NamedTuple):
    """The caller's choice of columns, by name or as a model was trained on them."""

    labels: str | Iterable[str] | None = None
    categories: Collection[str] = ()
    drop: Collection[str] = ()
    like: Like | None = None


@whole
def read_csv(
    path: AnyPath,
    labels: str | Iterable[str] | None = None,
    *,
    delimiter: str | None = None,
    categories: Collection[str] = (),
    drop: Collection[str] = (),
    encoding: str = "utf-8",
    like: Like | None = None,
    size: int | None = None,
) -> Iterator[MultiLabelData]:
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
    for part in _csv_parts(fspath(path), size, encoding, delimiter):
        yield _assemble(path, _Wanted(labels, categories, drop, like), *part)


@whole
def read_parquet(
    path: AnyPath,
    labels: str | Iterable[str] | None = None,
    *,
    categories: Collection[str] = (),
    drop: Collection[str] = (),
    like: Like | None = None,
    size: int | None = None,
) -> Iterator[MultiLabelData]:
    """Read a Parquet table; columns as in `read_csv`, nulls are missing values.

    Needs the ``[parquet]`` extra.  Errors give the row, from 1, in place of the line.
    """
    for part in _parquet_parts(fspath(path), size):
        yield _assemble(path, _Wanted(labels, categories, drop, like), *part)


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
    return _assemble(_FRAME, _Wanted(labels), frame_columns(frame), range(1, len(frame) + 1))


class LabelledTexts(NamedTuple):
    """A table's column of texts and, where it has label columns, its labels."""

    texts: list[str]
    labels: LabelTable | None


def stream_texts(
    table: Any,
    column: str,
    labels: str | Iterable[str] | None = None,
    like: Like | None = None,
    size: int | None = None,
    encoding: str = "utf-8",
) -> Iterator[LabelledTexts]:
    """Yield a column of texts and the label columns of a table, and no others, ``size`` rows at a time.

    The table is a CSV, TSV or Parquet file, or a data frame, which is always one part.
    """
    if hasattr(table, "columns"):
        path = _FRAME
        parts: Iterable[Part] = [(frame_columns(table), range(1, len(table) + 1))]
    else:
        path = fspath(table)
        parts = _table_parts(path, size, encoding)
    for columns, lines in parts:
        if column not in columns:
            raise DataError(
                f"there is no column {column!r} of texts; {did_you_mean(column, columns)}", path, 1
            )
        for line, cell in zip(lines, columns[column], strict=True):
            if not str(cell or "").strip():
                raise DataError(f"the text in {column!r} is empty; write one, or drop the row", path, line)
        others = {name: cells for name, cells in columns.items() if name != column}
        chosen = _label_columns(path, others, _Wanted(labels, like=like))
        names, y = _label_matrix(path, chosen, others, lines)
        yield LabelledTexts(list(map(str, columns[column])), LabelTable(y, names) if names else None)


#: read the texts and labels of a whole table
read_texts = whole(stream_texts)


def stream_cells(
    path: AnyPath, names: Sequence[str], size: int, encoding: str = "utf-8"
) -> Iterator[tuple[Any, ...]]:
    """Yield the cells of some columns of a CSV, TSV or Parquet file, row by row; ``size`` are read at once.

    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder, "films.csv")
    ...     _ = path.write_text("id,length,year\\n007,90,1962\\n008,,1963\\n")
    ...     list(stream_cells(path, ["id", "length"], size=1))
    [('007', '90'), ('008', '')]
    """
    for columns, _ in _table_parts(fspath(path), size, encoding):
        for name in names:
            if name not in columns:
                raise DataError(f"there is no column {name!r}; {did_you_mean(name, columns)}", path, 1)
        yield from zip(*(columns[name] for name in names), strict=True)


def _table_parts(path: str, size: int | None, encoding: str) -> Iterator[Part]:
    if path.lower().endswith((".parquet", ".pq")):
        return _parquet_parts(path, size)
    return _csv_parts(path, size, encoding)


def _csv_parts(
    path: str, size: int | None, encoding: str = "utf-8", delimiter: str | None = None
) -> Iterator[Part]:
    lines, ahead = tee(open_lines(path, encoding, size))  # once: it may be a pipe
    if delimiter is None and path.lower().endswith((".tsv", ".tab")):
        delimiter = "\t"
    elif delimiter is None:  # spreadsheets write semicolons where commas are decimal points
        delimiter = max(",;\t", key=next(filter(str.strip, ahead)).count)
    del ahead  # or it would keep all lines
    records = _csv_records(path, (f"{line}\n" for line in lines), delimiter)
    _, names = next(records)
    for chunk in chunks(records, size):
        starts, rows = zip(*chunk, strict=True)
        yield dict(zip(names, zip(*rows, strict=True), strict=True)), starts


def _parquet_parts(path: str, size: int | None) -> Iterator[Part]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise ImportError("reading Parquet needs pyarrow; install lossnet[parquet]") from error
    row = 0
    try:
        with parquet.ParquetFile(path) as file:
            if size is None:
                tables: Iterable[Any] = [file.read()]
            else:
                tables = (pyarrow.Table.from_batches([batch]) for batch in file.iter_batches(size))
            for table in tables:
                table.validate(full=True)  # a damaged file may have indices and strings that are none
                if table.num_rows:
                    names = table.column_names
                    _check_columns(path, names, 1)
                    columns = {name: _arrow_column(path, name, table.column(name)) for name in names}
                    yield columns, range(row + 1, row + table.num_rows + 1)
                row += table.num_rows
    except FileNotFoundError:
        raise DataError("no such file; check the path", path) from None
    except (OSError, UnicodeDecodeError, pyarrow.ArrowException) as error:  # names may be no UTF-8
        reason = str(error).partition("\n")[0]
        raise DataError(f"not a readable Parquet file ({reason})", path) from None
    if not row:
        raise DataError("the table has no rows", path, 1)


def _csv_records(path: str, text: Iterable[str], delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the names of the columns, then the cells of each row, with the lines where they begin."""
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
                what = f"{len(cells)} cells for {len(names)} columns; the row is cut short or too long"
                raise DataError(what, path, start)
            else:
                rows += 1
                if delimiter == ";":
                    cells = [c.replace(",", ".") if _DECIMAL_COMMA.fullmatch(c) else c for c in cells]
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

    kind = column.type.value_type if types.is_dictionary(column.type) else column.type
    cells = column.to_pylist()
    if any(of(kind) for of in (types.is_boolean, types.is_integer, types.is_floating, types.is_decimal)):
        return [None if cell is None or cell != cell else float(cell) for cell in cells]
    if any(of(kind) for of in (types.is_string, types.is_large_string, types.is_null)):
        return list(cells)
    what = f"column {name!r} is of type {kind}; inputs are numbers or text, drop or convert it"
    raise DataError(what, path, 1)


def assemble_like(columns: Mapping[str, Sequence[Any]], like: Like) -> MultiLabelData:
    """Return rows that are given by the names of their columns; None is a missing value."""
    rows = len(next(iter(columns.values()), ()))
    try:
        return _assemble("", _Wanted(like=like), columns, range(1, rows + 1))
    except DataError as error:
        raise DataError(f"row {error.line}: {error.message}") from None


def _assemble(path: AnyPath, wanted: _Wanted, columns: Columns, lines: Sequence[int]) -> MultiLabelData:
    chosen = _label_columns(path, columns, wanted)
    for name in (*wanted.drop, *wanted.categories):
        if name not in columns:
            raise DataError(f"there is no column {name!r}; {did_you_mean(name, columns)}", path, 1)
    like = wanted.like
    blocks = [np.empty((len(lines), 0), dtype=np.float32)]
    feature_names: list[str] = []
    for name, cells in columns.items():
        seen = None if like is None else like.values(name)
        unused = like is not None and seen is None and name not in like.features
        if unused or name in chosen or name in wanted.drop:
            continue
        column = _Column(path, name, cells, lines)
        useless = ""
        if seen is not None or name in wanted.categories or column.is_text():
            if like is not None and seen is None:
                raise DataError(f"{name!r} is text; it had numbers in training", path, lines[0])
            if like is None and name not in wanted.categories:
                useless = column.free_text()
            values, block = ([], blocks[0]) if useless else column.one_hot(seen)
            names = [f"{name}={value}" for value in values]
        else:
            if like is None and column.counts_rows():
                useless = "it only counts the rows"
            names, block = [name], column.numbers()
        if useless:
            warnings.warn(f"{fspath(path)}: {name!r} is left out: {useless}", stacklevel=2)
            continue
        feature_names += names
        blocks.append(block)
    label_names, y = _label_matrix(path, chosen, columns, lines)
    return build(
        path, np.concatenate(blocks, axis=1), sparse.csr_array(y), feature_names, label_names, line=1
    )


def _label_matrix(
    path: AnyPath, chosen: Mapping[str, bool], columns: Columns, lines: Sequence[int]
) -> tuple[list[str], NDArray[np.uint8]]:
    """Return the labels' names and a matrix of 0 and 1, ``(rows, labels)``."""
    names = list(chosen)
    if len(chosen) == 1 and chosen[names[0]]:
        return _listed(columns[names[0]])
    y = np.zeros((len(lines), len(names)), dtype=np.uint8)
    for position, name in enumerate(names):
        y[:, position] = _Column(path, name, columns[name], lines).label()
    return names, y


def _label_columns(path: AnyPath, columns: Columns, wanted: _Wanted) -> dict[str, bool]:
    """Return the columns that are labels, and whether cells hold names of labels rather than 0 and 1."""
    names = list(columns)
    if wanted.like is not None:
        like, trained = wanted.like, set(wanted.like.label_names)
        if present := [name for name in names if name in trained]:
            return dict.fromkeys(present, False)
        others = [name for name in names if name not in like.features and like.values(name) is None]
        listed = [n for n in others if any(columns[n]) and trained.issuperset(_listed(columns[n])[0])]
        return dict.fromkeys(listed[:1], True)
    shown = ", ".join(map(repr, names[:8])) + (", …" if len(names) > 8 else "")
    if wanted.labels is None:
        what = f"which of the columns {shown} are labels is not known"
        raise DataError(f"{what}; name them or give a pattern: labels=, --labels 'label_*'", path, 1)
    try:
        chosen = select_names(wanted.labels, names)
    except ValueError as error:
        what = f"no column {str(error)!r} for labels (labels=, --labels)"
        raise DataError(f"{what}; {did_you_mean(str(error), names)}", path, 1) from None
    return dict.fromkeys(chosen, len(chosen) == 1 and _holds_names(columns[chosen[0]]))


def _holds_names(cells: Sequence[Any]) -> bool:
    """Whether a label column has names rather than 0 and 1, one of which may be mistyped."""
    present = [str(cell).lower() for cell in cells if _present(cell)]
    return 2 * sum(cell in LABEL_WORDS for cell in present) < len(present)


def _listed(cells: Sequence[Any]) -> tuple[list[str], NDArray[np.uint8]]:
    """Return the names in cells such as ``red;sweet``, and a matrix of 0 and 1, ``(rows, names)``."""
    texts = [str(cell) if _present(cell) else "" for cell in cells]
    separator = next((mark for mark in ";|," if any(mark in text for text in texts)), ";")
    sets = [{name.strip() for name in text.split(separator)} - {""} for text in texts]
    names = sorted(set().union(*sets))
    places = {name: place for place, name in enumerate(names)}
    y = np.zeros((len(sets), len(names)), dtype=np.uint8)
    for row, members in enumerate(sets):
        y[row, [places[name] for name in members]] = 1
    return names, y


class _Column(NamedTuple):
    """One column's cells: text as read, or numbers and None from a typed table."""

    path: AnyPath
    name: str
    cells: Sequence[Any]
    lines: Sequence[int]

    def is_text(self) -> bool:
        """Whether it holds categories; a mix of numbers and words is an error, likely a slip."""
        present = {row: cell for row, cell in enumerate(self.cells) if _present(cell)}
        words = {row: cell for row, cell in present.items() if not _is_number(cell)}
        numeric = len(words) < len(present)
        if numeric:
            words = {row: cell for row, cell in words.items() if not _is_missing(cell)}
        for row, cell in words.items():
            if is_unwritable_number(str(cell)):
                advice = "leave the cell empty where a value is missing"
                raise self._error(row, number_complaint(str(cell), self.name, advice))
        if numeric and words:
            row, cell = next(iter(words.items()))
            what = f"{cell!r} in {self.name!r} is not a number, other cells are"
            advice = f"correct it, leave the cell empty, or pass categories=[{self.name!r}] in Python"
            raise self._error(row, f"{what}; {advice}")
        return bool(words)

    def free_text(self) -> str:
        """Return why the texts are no categories, hardly any two rows having the same; empty if they are."""
        texts = [cell for cell in self.cells if _present(cell)]
        different = len(set(texts))
        is_free = different > _MOST_TEXTS and 2 * different > len(texts)
        return f"free text; {different} of {len(texts)} values are unique" if is_free else ""

    def counts_rows(self) -> bool:
        """Whether it goes up by one in each of many rows."""
        if len(self.cells) <= _MOST_TEXTS or not all(map(_present, self.cells)):
            return False
        return bool((np.diff(self.numbers()[:, 0]) == 1).all())

    def numbers(self) -> NDArray[np.float32]:
        """Return one column of numbers, NaN where missing."""
        values = [number(str(c)) if _present(c) and not _is_missing(c) else np.nan for c in self.cells]
        return np.array(values, dtype=np.float32)[:, None]

    def one_hot(self, seen: list[str] | None) -> tuple[list[str], NDArray[np.float32]]:
        """Return the values and one column for each; a missing cell is NaN in all."""
        texts = (f"{cell:g}" if isinstance(cell, float) else str(cell) for cell in self.cells)
        cells = [text if _present(cell) else None for text, cell in zip(texts, self.cells, strict=True)]
        values = sorted({cell for cell in cells if cell is not None}) if seen is None else seen
        order = {value: code for code, value in enumerate(values)}
        for row, cell in enumerate(cells):
            if cell is not None and cell not in order:
                if _is_missing(cell):
                    cells[row] = None
                    continue
                what = f"{cell!r} in {self.name!r} did not occur in training"
                raise self._error(row, f"{what}; map it to a known value, or leave the cell empty")
        codes = np.array([-1 if cell is None else order[cell] for cell in cells])
        hot = (codes[:, None] == np.arange(len(values))).astype(np.float32)
        hot[codes < 0] = np.nan
        return values, hot

    def label(self) -> list[int]:
        """Return zeros and ones; a missing or other value is an error."""
        column = []
        for row, cell in enumerate(self.cells):
            if not _present(cell):
                raise self._error(row, f"label {self.name!r} is missing; labels must be 0 or 1")
            value = LABEL_WORDS.get(str(cell).lower())
            if value is None:
                raise self._error(row, f"label {self.name!r} is {cell!r}, neither 0 nor 1; correct it")
            column.append(int(value))
        return column

    def _error(self, row: int, message: str) -> DataError:
        return DataError(message, self.path, self.lines[row])


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

"""Tables with named columns: CSV, TSV and Parquet."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import tee
from os import fspath
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from lossnet.data.errors import AnyPath, DataError
from lossnet.data.examples import Facts
from lossnet.data.readers.dates import date_features, date_names, has_time, is_ambiguous, read_date
from lossnet.data.readers.text import (
    LABEL_WORDS,
    Like,
    Unseen,
    build,
    chunks,
    is_unwritable_number,
    number,
    number_complaint,
    open_lines,
    select_names,
    shortened,
    whole,
)
from lossnet.data.tables import LabelTable, MultiLabelData, Origin
from lossnet.data.texts import TextTable
from lossnet.suggest import did_you_mean
from lossnet.warn import warn

#: what people write for a missing number
_MISSING = frozenset({"na", "n/a", "nan", "null", "none", "?", "-"})
_DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+")
#: A column of more different texts, fewer than two rows for each, tells rows apart and nothing else.
_MOST_TEXTS = 50
#: the share of a column's cells that must be dates
_MOSTLY = 0.9
#: words as they are counted to tell texts from names: signs of scripts without spaces count one by one
_WORD = re.compile(r"[\u2e80-\u9fff]|[^\s\u2e80-\u9fff]+")
#: words that most cells of a column of texts have at least
_SEVERAL = 3
#: cells that hold several names
_SETS = (list, tuple, set, frozenset, np.ndarray)
_IDENTIFIER = re.compile(r"(?i:(.*[_ .-])?(id|uuid|guid|nr|no|index|key))|.*[a-z](Id|ID)")

#: rows of which facts are read at a time
_ROWS = 4096
_PARQUET = (".parquet", ".pq")
#: stands for the path in errors and warnings about a data frame; lines are its rows from 1
_FRAME = "data frame"

# The csv module's own limit of 131,072 characters is less than a long document.
csv.field_size_limit(1 << 24)

Columns = Mapping[str, Sequence[Any]]
#: columns of some rows by name, and the lines where the rows begin
Part = tuple[Columns, Sequence[int]]


class _Wanted(NamedTuple):
    """The caller's choice of columns, by name or as a model was trained on them."""

    labels: str | Iterable[str] | None = None
    categories: Collection[str] = ()
    drop: Collection[str] = ()
    like: Like | None = None
    text: Collection[str] | None = None


@whole
def read_csv(
    path: AnyPath,
    labels: str | Iterable[str] | None = None,
    *,
    delimiter: str | None = None,
    categories: Collection[str] = (),
    drop: Collection[str] = (),
    text: Collection[str] | None = None,
    encoding: str = "utf-8",
    like: Like | None = None,
    size: int | None = None,
) -> Iterator[MultiLabelData]:
    """Read a CSV or TSV table whose first line names the columns.

    ``labels`` names the label columns, or is a pattern such as ``label_*``; all other columns are
    inputs.  A column of numbers is one input; a column of text, or one named in ``categories``, is
    spread over one 0/1 column per value, named ``column=value``; a column of dates (see
    `lossnet.data.readers.dates.read_date`) becomes numbers for year, month, weekday, day and time.  An empty
    cell is a missing value, and so is ``NA``, ``nan``, ``null`` or ``?`` in a column of numbers or dates.

    Columns of texts, whose cells have several words and are mostly different, make the source a
    `lossnet.data.TextTable`; ``text`` names them where that guess is wrong, and then no other column is one.
    A column that is empty, and in more than 50 rows one of names that hardly come twice, of row numbers or
    identifiers, or with the same value everywhere, is left out with a warning.

    Labels are columns of 0 and 1 (or no and yes), empty where it is not known whether a label is true; or
    one column with the names of each row's labels, separated by semicolons, bars or commas.

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
        yield _assemble(path, _Wanted(labels, categories, drop, like, text), *part)


@whole
def read_parquet(
    path: AnyPath,
    labels: str | Iterable[str] | None = None,
    *,
    categories: Collection[str] = (),
    drop: Collection[str] = (),
    text: Collection[str] | None = None,
    like: Like | None = None,
    size: int | None = None,
) -> Iterator[MultiLabelData]:
    """Read a Parquet table; columns as in `read_csv`, nulls are missing values.

    Needs the ``[parquet]`` extra.  Errors give the row, from 1, in place of the line.
    """
    for part in _parquet_parts(fspath(path), size):
        yield _assemble(path, _Wanted(labels, categories, drop, like, text), *part)


def read_facts(path: AnyPath, names: Sequence[str], encoding: str = "utf-8") -> Facts:
    """Read columns of numbers that are known of each row, for rules: facts by the columns' names.

    An empty cell is what is not known.

    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder, "films.csv")
    ...     _ = path.write_text("length,total\\n90,3\\n,\\n")
    ...     read_facts(path, ["total"]).arrays
    {'total': array([ 3., nan], dtype=float32)}
    """
    return facts_of(names, stream_cells(path, names, _ROWS, encoding), fspath(path))


def facts_of(
    names: Sequence[str], rows: Iterable[Sequence[Any]], path: str = _FRAME, first: int = 1
) -> Facts:
    """Return rows of cells in some columns, of which the ``first`` has that number, as facts."""
    known: dict[str, list[float]] = {name: [] for name in names}
    for row, cells in enumerate(rows, start=first):
        for name, cell in zip(names, cells, strict=True):
            lacks = not _present(cell) or _is_missing(cell)
            if not lacks and not _is_number(cell):
                what = f"row {row} has {cell!r} in the column of facts {name!r}"
                raise DataError(f"{what}; write a number, or nothing where it is not known", path)
            known[name].append(np.nan if lacks else number(str(cell)))
    return Facts(known)


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


def read_frame(
    frame: Any, labels: str | Iterable[str] | None, text: Collection[str] | None = None
) -> MultiLabelData:
    """Return a data frame's inputs and labels, its columns read as those of `read_csv`.

    >>> import pandas
    >>> films = pandas.DataFrame({"length": [90, None], "country": ["it", "fr"], "is_fun": [1, 0]})
    >>> read_frame(films, labels="is_*").feature_names
    ('length', 'country=fr', 'country=it')
    """
    return _assemble(_FRAME, _Wanted(labels, text=text), frame_columns(frame), range(1, len(frame) + 1))


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
    if fspath(path).lower().endswith(_PARQUET):  # as they are: whole numbers may be names
        from pyarrow import parquet

        with parquet.ParquetFile(path) as file:
            _check_names(path, names, file.schema_arrow.names)
            for batch in file.iter_batches(size, columns=list(names)):
                yield from zip(*(batch.column(name).to_pylist() for name in names), strict=True)
        return
    for columns, _ in _csv_parts(fspath(path), size, encoding):
        _check_names(path, names, columns)
        yield from zip(*(columns[name] for name in names), strict=True)


def parquet_columns(path: str, names: Sequence[str]) -> Columns:
    """Return whole columns of a Parquet file as they are: texts, numbers, or lists of texts."""
    ((columns, _),) = _parquet_parts(path, None)
    _check_names(path, names, columns)
    return {name: columns[name] for name in names}


def _check_names(path: AnyPath, names: Iterable[str], columns: Iterable[str]) -> None:
    columns = list(columns)
    for name in names:
        if name not in columns:
            raise DataError(f"there is no column {name!r}; {did_you_mean(name, columns)}", path, 1)


def _table_parts(path: str, size: int | None, encoding: str) -> Iterator[Part]:
    if path.lower().endswith(_PARQUET):
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
    import pyarrow as arrow
    from pyarrow import types

    kind = column.type.value_type if types.is_dictionary(column.type) else column.type
    if any(of(kind) for of in (types.is_boolean, types.is_integer, types.is_floating, types.is_decimal)):
        return [None if cell is None or cell != cell else float(cell) for cell in column.to_pylist()]
    texts = (types.is_string, types.is_large_string, types.is_null)
    if any(of(kind) for of in texts):
        return list(column.to_pylist())
    if types.is_list(kind) and any(of(kind.value_type) for of in texts):
        return list(column.to_pylist())
    if types.is_date(kind) or types.is_timestamp(kind):
        try:
            if types.is_timestamp(kind):
                column = column.cast(arrow.timestamp("us", kind.tz), safe=kind.unit != "ns")
            return list(column.to_pylist())
        except (ValueError, OverflowError):
            raise DataError(f"column {name!r} has a date outside of the years 1 to 9999", path, 1) from None
    return [_Other(str(kind))] * len(column)


class _Other(NamedTuple):
    """A cell of a type that is neither read as an input nor as a label."""

    kind: str


def assemble_like(columns: Mapping[str, Sequence[Any]], like: Like) -> MultiLabelData:
    """Return rows that are given by the names of their columns; None is a missing value."""
    rows = len(next(iter(columns.values()), ()))
    try:
        return _assemble("", _Wanted(like=like), columns, range(1, rows + 1))
    except DataError as error:
        raise DataError(f"row {error.line}: {error.message}") from None


def _assemble(path: AnyPath, wanted: _Wanted, columns: Columns, lines: Sequence[int]) -> MultiLabelData:
    chosen = _label_columns(path, columns, wanted)
    _check_names(path, (*wanted.drop, *wanted.categories, *(wanted.text or ())), columns)
    like = wanted.like
    texts: dict[str, list[str]] = {}
    blocks = [np.empty((len(lines), 0), dtype=np.float32)]
    feature_names: list[str] = []
    used, dropped = dict[str, str](), dict.fromkeys(wanted.drop, "dropped on request")
    for name, cells in columns.items():
        if name in chosen or name in wanted.drop:
            continue
        column = _Column(path, name, cells, lines)
        if column.holds_texts(wanted):
            texts[name] = column.texts()
            used[name] = "text"
            continue
        found = column.read(name in wanted.categories) if like is None else column.read_like(like)
        if found is None:
            assert like is not None
            like.ignored.add(name)
            continue
        if isinstance(found, str):
            dropped[name] = found
            warn(f"{fspath(path)}: {name!r} is left out: {found}")
            continue
        used[name] = found.what
        feature_names += found.names
        blocks.append(found.values)
    if like is not None and (lacking := like.lacks([*feature_names, *texts])):
        raise DataError(lacking, path, 1)
    if not feature_names and not texts and like is None:
        what = "no column is left to predict from; all are labels or are left out"
        raise DataError(f"{what}; name columns of texts: text=, --text", path, 1)
    label_names, y = _label_matrix(path, chosen, columns, lines)
    data = build(
        path, np.concatenate(blocks, axis=1), sparse.csr_array(y), feature_names, label_names, line=1
    )
    data.source.origin = Origin(used, dropped)
    if like is not None:  # in the order of training, whatever the file's
        texts = {name: texts[name] for name in like.texts}
    return data.replace(TextTable(texts, data.source)) if texts else data


def _label_matrix(
    path: AnyPath, chosen: Mapping[str, bool], columns: Columns, lines: Sequence[int]
) -> tuple[list[str], NDArray[Any]]:
    """Return the labels' names and a matrix of 0 and 1, NaN where a cell is empty, ``(rows, labels)``."""
    names = list(chosen)
    if len(chosen) == 1 and chosen[names[0]]:
        return _listed(columns[names[0]])
    y = np.zeros((len(lines), len(names)), dtype=np.float32)
    for position, name in enumerate(names):
        y[:, position] = _Column(path, name, columns[name], lines).label()
    return names, y if np.isnan(y).any() else y.astype(np.uint8)


def _label_columns(path: AnyPath, columns: Columns, wanted: _Wanted) -> dict[str, bool]:
    """Return the columns that are labels, and whether cells hold names of labels rather than 0 and 1."""
    names = list(columns)
    if wanted.like is not None:
        like, trained = wanted.like, set(wanted.like.label_names)
        if present := [name for name in names if name in trained]:
            return dict.fromkeys(present, False)
        others = [name for name in names if not like.uses(name)]
        listed = [n for n in others if any(columns[n]) and trained.issuperset(_listed(columns[n])[0])]
        return dict.fromkeys(listed[:1], True)
    shown = ", ".join(map(repr, names[:20])) + (", …" if len(names) > 20 else "")
    if wanted.labels is None:
        what = f"which of the columns {shown} are labels is not known"
        several = [name for name in names if _holds_sets(columns[name])]
        guess = f"{several[0]!r} looks like it: " if len(several) == 1 else ""
        example = repr(several[0]) if guess else "'label_*'"
        raise DataError(f"{what}; {guess}name them or give a pattern: labels=, --labels {example}", path, 1)
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


def _holds_sets(cells: Sequence[Any]) -> bool:
    """Whether cells hold few names each, several in many, such as ``red;sweet``."""
    texts = [cell for cell in cells if isinstance(cell, str)]
    several = [text for text in texts if ";" in text or "|" in text]
    names = {name for text in texts for name in re.split("[;|]", text)}
    return 5 * len(several) > len(texts) > 0 and 2 * len(names) < len(texts)


def _listed(cells: Sequence[Any]) -> tuple[list[str], NDArray[np.uint8]]:
    """Return the names in cells, texts such as ``red;sweet`` or lists, and a matrix of 0 and 1."""
    texts = [str(cell) if _present(cell) else "" for cell in cells]
    separator = next((mark for mark in ";|," if any(mark in text for text in texts)), ";")
    sets = [{name.strip() for name in text.split(separator)} - {""} for text in texts]
    sets = [set(map(str, c)) if isinstance(c, _SETS) else s for c, s in zip(cells, sets, strict=True)]
    names = sorted(set().union(*sets))
    places = {name: place for place, name in enumerate(names)}
    y = np.zeros((len(sets), len(names)), dtype=np.uint8)
    for row, members in enumerate(sets):
        y[row, [places[name] for name in members]] = 1
    return names, y


class _Block(NamedTuple):
    """What a column became: the names of features, and their values ``(rows, names)``."""

    what: str
    names: list[str]
    values: NDArray[np.float32]


class _Column(NamedTuple):
    """One column's cells: text as read, or numbers, dates and None from a typed table."""

    path: AnyPath
    name: str
    cells: Sequence[Any]
    lines: Sequence[int]

    def holds_texts(self, wanted: _Wanted) -> bool:
        """Whether cells are texts: somebody says so, or most have several words and are like no other."""
        if wanted.like is not None:
            return self.name in wanted.like.texts
        if wanted.text is not None or self.name in wanted.categories:
            return self.name in (wanted.text or ())
        cells = [cell for cell in self.cells if _present(cell) and not _is_missing(cell)]
        if not all(isinstance(cell, str) for cell in cells) or 2 * len(set(cells)) <= len(cells):
            return False
        several = sum(len(_WORD.findall(cell)) >= _SEVERAL for cell in cells)
        return 2 * several > len(cells) and 2 * sum(map(_is_date, cells)) < len(cells)

    def texts(self) -> list[str]:
        """Return cells as texts, empty where there is none."""
        texts = []
        for row, cell in enumerate(self.cells):
            if isinstance(cell, (*_SETS, dict, bytes, _Other)):
                kind = cell.kind if isinstance(cell, _Other) else type(cell).__name__
                raise self._error(row, f"{self.name!r} has values of type {kind}; texts are strings")
            texts.append((f"{cell:g}" if isinstance(cell, float) else str(cell)) if _present(cell) else "")
        return texts

    def read(self, as_category: bool) -> _Block | str:
        """Return the features of a column that is trained on, or the reason why it has none."""
        known = [cell for cell in self.cells if _present(cell) and not _is_missing(cell)]
        if odd := next((cell for cell in known if isinstance(cell, (*_SETS, dict, bytes, _Other))), None):
            return f"its values are of type {odd.kind if isinstance(odd, _Other) else type(odd).__name__}"
        if as_category:
            return self._categories(None)
        if not known:
            return "all values are missing"
        if (dates := self._dates(known)) is not None:
            return self._constant(known) or self._on_calendar(dates, has_time(dates))
        if self._is_text():
            return self._free_text() or self._constant(known) or self._categories(None)
        return self._identifier() or self._constant(known) or self._numbers()

    def read_like(self, like: Like) -> _Block | None:
        """Return the features that a model was trained on, or None if it did not use the column."""
        if self.name in like.dates:
            dates = []
            for row, cell in enumerate(self.cells):
                dates.append(read_date(cell))
                if dates[-1] is None and _present(cell) and not _is_missing(cell):
                    self._note(row, like, "is not a date", "correct it")
            return self._on_calendar(dates, like.dates[self.name])
        if like.values(self.name) is not None:
            return self._categories(like)
        if self.name not in like.features:
            return None
        if self._is_text():
            raise DataError(f"{self.name!r} is text; it had numbers in training", self.path, self.lines[0])
        return self._numbers()

    def _dates(self, known: Sequence[Any]) -> list[datetime | None] | None:
        """Return the dates that nearly all cells are, those that are not as None; None for other columns."""
        allowed, strange = (1 - _MOSTLY) * len(known), Unseen()
        dates: list[datetime | None] = []
        count = 0
        for cell in self.cells:
            dates.append(read_date(cell))
            if dates[-1] is None and _present(cell) and not _is_missing(cell):
                count += 1
                strange.add(self.name, cell)
                if count > allowed:
                    return None
        if count:
            what = f"{count} of {len(known)} values of {self.name!r} are no dates"
            examples = strange.examples(self.name)
            warn(f"{fspath(self.path)}: {what} ({examples}) and count as missing")
        return dates

    def _on_calendar(self, dates: Sequence[datetime | None], timed: bool) -> _Block:
        """Return the features of dates, NaN where missing."""
        names = date_names(self.name, timed)
        kind = "date and time" if timed else "date"
        return _Block(f"{kind}, as {len(names)} inputs", names, date_features(dates, timed))

    def _is_text(self) -> bool:
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

    def _free_text(self) -> str:
        """Return why the texts are no categories, hardly any two rows having the same; empty if they are."""
        texts = [str(cell) for cell in self.cells if _present(cell)]
        different = len(set(texts))
        if different <= _MOST_TEXTS or 2 * different <= len(texts):
            return ""
        shares = f"{different} of {len(texts)} values are unique"
        if sum(map(is_ambiguous, texts)) > len(texts) / 2:
            advice = "write dates as 2001-03-04 to have them used"
            return f"dates such as {shortened(texts[0])} may be read in two ways; {advice}"
        is_identifier = different == len(texts) and not any(" " in text for text in texts)
        return f"{'an identifier' if is_identifier else 'free text'}; {shares}"

    def _identifier(self) -> str:
        """Return why numbers only tell rows apart; empty if they may say more."""
        if len(self.cells) <= _MOST_TEXTS or not all(map(_present, self.cells)):
            return ""
        numbers = self._numbers().values[:, 0]
        if (np.diff(numbers) == 1).all():
            return "it only counts the rows"
        different = len(np.unique(numbers)) == len(numbers) and (numbers == np.round(numbers)).all()
        is_identifier = different and _IDENTIFIER.fullmatch(self.name)
        return f"an identifier; all {len(numbers)} values are unique" if is_identifier else ""

    def _constant(self, known: Sequence[Any]) -> str:
        """Return why a value says nothing, being the same in all of many rows; empty if it varies."""
        if len(self.cells) <= _MOST_TEXTS or any(cell != known[0] for cell in known):
            return ""
        return f"constant; all {len(known)} values are {shortened(known[0])}"

    def _numbers(self) -> _Block:
        """Return one column of numbers, NaN where missing."""
        values = [number(str(c)) if _present(c) and not _is_missing(c) else np.nan for c in self.cells]
        return _Block("number", [self.name], np.array(values, dtype=np.float32)[:, None])

    def _categories(self, like: Like | None) -> _Block:
        """Return one column for each value, those of training if a model was trained; NaN where missing."""
        texts = (f"{cell:g}" if isinstance(cell, float) else str(cell) for cell in self.cells)
        cells = [text if _present(cell) else None for text, cell in zip(texts, self.cells, strict=True)]
        seen = None if like is None else like.values(self.name)
        values = sorted({cell for cell in cells if cell is not None}) if seen is None else seen
        order = {value: code for code, value in enumerate(values)}
        for row, cell in enumerate(cells):
            if cell is not None and cell not in order:
                assert like is not None
                cells[row] = None
                if not _is_missing(cell):
                    advice = "map it to a known value, or leave the cell empty"
                    self._note(row, like, "did not occur in training", advice)
        codes = np.array([-1 if cell is None else order[cell] for cell in cells])
        hot = (codes[:, None] == np.arange(len(values))).astype(np.float32)
        hot[codes < 0] = np.nan
        what = f"category of {len(values)} value{'s' * (len(values) != 1)}"
        return _Block(what, [f"{self.name}={value}" for value in values], hot)

    def _note(self, row: int, like: Like, what: str, advice: str) -> None:
        """Note a value that a model cannot use, or refuse it."""
        cell = self.cells[row]
        if like.unknown == "error":
            raise self._error(row, f"{cell!r} in {self.name!r} {what}; {advice}")
        like.unseen.add(self.name, cell)

    def label(self) -> list[float]:
        """Return zeros and ones, and NaN for what is missing; another value is an error."""
        column = []
        for row, cell in enumerate(self.cells):
            if not _present(cell):
                column.append(math.nan)
                continue
            value = LABEL_WORDS.get(str(cell).lower())
            if value is None:
                raise self._error(row, f"label {self.name!r} is {cell!r}, neither 0 nor 1; correct it")
            column.append(float(value))
        return column

    def _error(self, row: int, message: str) -> DataError:
        return DataError(message, self.path, self.lines[row])


def _present(cell: Any) -> bool:
    if cell is None or (isinstance(cell, str) and not cell):
        return False
    return not (isinstance(cell, float | datetime) and cell != cell)  # NaN, NaT


def _is_missing(cell: Any) -> bool:
    return isinstance(cell, str) and cell.lower() in _MISSING


def _is_date(cell: str) -> bool:
    return is_ambiguous(cell) or read_date(cell) is not None


def _is_number(cell: Any) -> bool:
    try:
        number(str(cell))
    except ValueError:
        return False
    return True

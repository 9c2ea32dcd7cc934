"""Shared parts of the readers: lines with line numbers in errors, strict numbers, names by pattern."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property, wraps
from itertools import chain, islice
from os import fspath
from pathlib import Path
from typing import Any, Literal, NamedTuple, ParamSpec, TypeVar, get_args

import numpy as np
from scipy import sparse

from lossnet.data.errors import AnyPath, DataError
from lossnet.data.readers.dates import date_names
from lossnet.data.tables import LabelTable, MultiLabelData
from lossnet.suggest import close_names

#: Spellings of a binary value; other two-valued nominals are ordinary categories.
BINARY_WORDS = {
    "0": 0.0, "1": 1.0, "no": 0.0, "yes": 1.0, "false": 0.0, "true": 1.0, "n": 0.0, "y": 1.0,
}  # fmt: skip
BINARY_PAIRS = ({"0", "1"}, {"no", "yes"}, {"false", "true"}, {"n", "y"})
#: What a label column of numbers may hold.
LABEL_WORDS = BINARY_WORDS | {"0.0": 0.0, "1.0": 1.0}

Item = TypeVar("Item")
P = ParamSpec("P")

_LARGEST = float(np.finfo(np.float32).max)


#: whether a value that training did not have is missing, or an error
Unknown = Literal["missing", "error"]


class Unseen:
    """Values that a model's training did not have, counted by column; each counts as missing.

    >>> unseen = Unseen()
    >>> for value in ("de", "pl", "de"):
    ...     unseen.add("country", value)
    >>> print(unseen)
    3 values that training did not have count as missing: 3 of 'country' ('de', 'pl')
    """

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._examples: dict[str, list[str]] = {}

    def add(self, column: str, value: Any, count: int = 1) -> None:
        """Count a value of a column."""
        self._counts[column] = self._counts.get(column, 0) + count
        examples, shown = self._examples.setdefault(column, []), shortened(value)
        if shown not in examples and len(examples) < 3:
            examples.append(shown)

    def examples(self, column: str) -> str:
        """Return a few values of a column."""
        return ", ".join(self._examples[column])

    def __bool__(self) -> bool:
        return bool(self._counts)

    def __str__(self) -> str:
        total = sum(self._counts.values())
        largest = sorted(self._counts.items(), key=lambda item: -item[1])[:5]
        columns = [f"{count} of {shortened(name)} ({self.examples(name)})" for name, count in largest]
        more = len(self._counts) - len(columns)
        columns += [f"others of {more} more columns"] * bool(more)
        verb = (
            "values that training did not have count"
            if total > 1
            else "value that training did not have counts"
        )
        return f"{total} {verb} as missing: {', '.join(columns)}"


def shortened(value: object) -> str:
    """Return a value as it is quoted in messages, cut if long."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"


class Wanted(NamedTuple):
    """A column that a table must have for a model: its kind, its values, and the features it becomes."""

    kind: Literal["number", "category", "date", "date and time", "text"]
    features: list[str]
    values: list[str]


@dataclass(frozen=True)
class Like:
    """The columns a file must have to be used with a model: those it was trained on.

    ``unknown`` says what values are that training did not have; those that count as missing are noted in
    ``unseen``.  ``ignored`` are columns that training did not use, and ``texts`` those of texts.
    """

    feature_names: tuple[str, ...]
    label_names: tuple[str, ...]
    unknown: Unknown = "missing"
    unseen: Unseen = field(default_factory=Unseen, compare=False)
    ignored: set[str] = field(default_factory=set, compare=False)
    texts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.unknown not in get_args(Unknown):
            raise ValueError(f"unknown must be {' or '.join(get_args(Unknown))}, not {self.unknown!r}")

    @cached_property
    def features(self) -> frozenset[str]:
        """The feature names as a set."""
        return frozenset(self.feature_names)

    @cached_property
    def _values(self) -> dict[str, list[str]]:
        values: dict[str, list[str]] = {}
        for name in self.feature_names:
            # Both sides of ``=`` may hold another one, so every cut is a possible attribute.
            cut = name.find("=")
            while cut >= 0:
                values.setdefault(name[:cut], []).append(name[cut + 1 :])
                cut = name.find("=", cut + 1)
        return values

    def values(self, column: str) -> list[str] | None:
        """Return the values a categorical column had in training, or None if it was no such column."""
        return None if column in self.features else self._values.get(column)

    def uses(self, column: str) -> bool:
        """Whether training used a column of a table."""
        known = column in self.texts or column in self.features or column in self.dates
        return known or self.values(column) is not None

    @cached_property
    def dates(self) -> dict[str, bool]:
        """The columns of dates, and whether they had times."""
        names = (name.removesuffix(":year") for name in self.feature_names if name.endswith(":year"))
        return {
            name: self.features.issuperset(date_names(name, timed=True))
            for name in names
            if self.features.issuperset(date_names(name, timed=False))
        }

    @cached_property
    def columns(self) -> dict[str, Wanted]:
        """The columns of the table that was trained on, as far as names tell.

        >>> like = Like(("minutes", "country=fr", "country=it"), ())
        >>> {name: column.values for name, column in like.columns.items()}
        {'minutes': [], 'country': ['fr', 'it']}
        """
        parts = {part: name for name, timed in self.dates.items() for part in date_names(name, timed)}
        columns = {name: Wanted("text", [name], []) for name in self.texts}
        for feature in self.feature_names:
            name, is_category, value = feature.partition("=")
            if feature in parts:
                name, kind = parts[feature], "date and time" if self.dates[parts[feature]] else "date"
            else:
                kind = "category" if is_category else "number"
            column = columns.setdefault(name, Wanted(kind, [], []))  # type: ignore[arg-type]
            column.features.append(feature)
            if kind == "category":
                column.values.append(value)
        return columns

    def lacks(self, names: Iterable[str]) -> str:
        """Return an error message about features of which there are no columns; empty if there are all."""
        lacking = self.features.union(self.texts).difference(names)
        if not lacking:
            return ""
        columns = [name for name, column in self.columns.items() if not lacking.isdisjoint(column.features)]
        shown = ", ".join(map(shortened, columns[:5])) + (", …" if len(columns) > 5 else "")
        what = f"lacks {len(columns)} of the model's input columns ({shown})"
        known = {name.lower(): name for name in sorted(self.ignored)}
        meant = (difflib.get_close_matches(name.lower(), known, n=1) for name in columns[:5])
        pairs = ((name, known[close[0]]) for name, close in zip(columns, meant) if close)  # noqa: B905
        hints = [f"is {other!r} meant to be {name!r}?" for name, other in pairs]
        return "; ".join([what, *(hints or ["the columns must be those of training"])])


def read_bytes(path: AnyPath) -> bytes:
    """Return a file's bytes; whatever prevents reading it is a `DataError`."""
    with _reading(path), open(path, "rb") as file:
        return file.read()


def missing_file(path: AnyPath) -> DataError:
    """Return the error for a file that is not there, with those beside it that are called similarly."""
    place = Path(path)
    beside = [file.name for file in place.parent.iterdir()] if place.parent.is_dir() else []
    close = [str(place.with_name(name)) for name in close_names(place.name, beside)]
    advice = f"did you mean {' or '.join(close)}?" if close else "check the path"
    return DataError(f"no such file; {advice}", path)


@contextmanager
def _reading(path: AnyPath) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise missing_file(path) from None
    except OSError as error:
        raise DataError(f"cannot be read ({error.strerror})", path) from None


def stream_lines(path: AnyPath, encoding: str = "utf-8") -> Iterator[str]:
    """Yield the lines of a text file, which may be larger than memory.

    Only line feeds and carriage returns end a line, so that line numbers are those of editors.
    """
    lines = _decoded_lines(path, encoding)
    leading = []
    for line in lines:
        leading.append(line)
        if line.strip():
            break
    else:
        raise DataError("the file is empty", path, 1)
    yield from chain(leading, lines)


def _decoded_lines(path: AnyPath, encoding: str) -> Iterator[str]:
    """Yield lines without a byte-order mark; refuse what is not text."""
    line = 0
    try:
        with _reading(path), open(path, encoding=encoding) as file:
            for line, text in enumerate(file, start=1):
                if "\0" in text:
                    what = "a NUL character: not plain text; save it as UTF-8"
                    raise DataError(f"{what}, or give encoding='utf-16' (--encoding utf-16)", path, line)
                yield text.removeprefix("\ufeff" if line == 1 else "").removesuffix("\n")
    except UnicodeError as error:
        if isinstance(error, UnicodeDecodeError):  # somewhere after the lines that could be decoded
            line += error.object.count(b"\n", 0, error.start)
        what = f"not {encoding} text; save it as UTF-8 ('CSV UTF-8' in a spreadsheet, or iconv)"
        advice = "or say what it is, such as encoding='latin-1' (--encoding latin-1)"
        raise DataError(f"{what}, {advice}", path, line + 1) from None
    except LookupError:
        raise DataError(f"there is no encoding {encoding!r}; try 'utf-8' or 'latin-1'", path) from None


def read_lines(path: AnyPath, encoding: str = "utf-8") -> list[str]:
    """Return all lines that `stream_lines` yields."""
    return list(stream_lines(path, encoding))


def open_lines(path: AnyPath, encoding: str, size: int | None) -> Iterator[str]:
    """Return the lines of a file to be read in parts of ``size`` rows, or as a whole if that is None."""
    return iter(read_lines(path, encoding)) if size is None else stream_lines(path, encoding)


def whole(stream: Callable[P, Iterator[Item]]) -> Callable[P, Item]:
    """Make a reader of whole files from one that yields parts; `inspect.unwrap` gives that one back."""

    @wraps(stream)
    def read(*args: P.args, **options: P.kwargs) -> Item:
        (everything,) = stream(*args, **options)
        return everything

    return read


def chunks(items: Iterable[Item], size: int | None) -> Iterator[list[Item]]:
    """Yield the items in lists of ``size``, the last one shorter; all in one list if that is None."""
    remaining = iter(items)
    while chunk := list(islice(remaining, size)):
        yield chunk


def number(token: str) -> float:
    """Return a finite number that fits float32, else raise ValueError; ``float`` lets ``nan`` through."""
    value = float(token)
    if not -_LARGEST <= value <= _LARGEST or "_" in token:
        raise ValueError(token)
    return value


def is_unwritable_number(token: str) -> bool:
    """Whether a cell says ``nan``, ``inf`` or a number beyond float32."""
    try:
        return not abs(float(token)) <= _LARGEST
    except ValueError:
        return False


def number_complaint(token: str, column: str, missing: str) -> str:
    """Return an error message about a cell that is no number; ``missing`` tells how to leave it out."""
    if is_unwritable_number(token):
        what = "too large for float32" if math.isfinite(float(token)) else "not finite"
        return f"{token!r} in {column!r} is {what}; {missing}"
    return f"{token!r} in {column!r} is not a number; correct it or {missing}"


def select_names(wanted: str | Iterable[str], names: Sequence[str]) -> list[str]:
    """Return the names asked for, in full, by patterns such as ``label_*`` or in lists such as ``a,b``.

    A ValueError holds one that fits no name.
    """
    known = set(names)
    listed = [wanted] if isinstance(wanted, str) else wanted
    parts = ([one] if one in known else [part.strip() for part in one.split(",")] for one in listed)
    chosen: dict[str, None] = {}
    for pattern in chain.from_iterable(parts):
        matches = [pattern] if pattern in known else [n for n in names if fnmatchcase(n, pattern)]
        if not matches:
            raise ValueError(pattern)
        chosen.update(dict.fromkeys(matches))
    return list(chosen)


def build(
    path: AnyPath,
    x: Any,
    y: Any,
    feature_names: Sequence[str],
    label_names: Sequence[str],
    line: int | None = None,
) -> MultiLabelData:
    """Return the data set; errors about its content name the file."""
    try:
        return MultiLabelData(x, y, tuple(feature_names), tuple(label_names))
    except DataError as error:
        raise error.at(fspath(path), line) from None


def align_labels(path: AnyPath, labels: LabelTable, names: Sequence[str]) -> Any:
    """Return label sets as a CSR matrix of a model's labels, NaN where they are unknown.

    Labels that the model does not know must not occur.
    """
    columns = {name: column for column, name in enumerate(names)}
    cells = labels.matrix.tocoo()
    strange = sorted({labels.names[column] for column in np.unique(cells.col)} - set(names))
    if strange:
        raise DataError(f"label {strange[0]!r} did not occur in training; remove it", path)
    place = np.array([columns.get(name, -1) for name in labels.names], dtype=np.int64)
    values, rows, at = cells.data, cells.row, place[cells.col]
    if labels.unknown is not None:
        gaps = labels.unknown.tocoo()
        own = place[gaps.col] >= 0
        values = np.concatenate([values, np.full(own.sum(), np.nan)])
        rows, at = np.concatenate([rows, gaps.row[own]]), np.concatenate([at, place[gaps.col][own]])
    return sparse.csr_array((values, (rows, at)), shape=(len(labels), len(names)))

"""What every text format needs: lines with honest errors, strict numbers, names to match."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from itertools import islice
from os import PathLike, fspath
from typing import Any, TypeVar

import numpy as np

from lossnet.data.errors import DataError
from lossnet.data.tables import MultiLabelData

__all__ = [
    "Like",
    "build",
    "chunks",
    "number",
    "read_bytes",
    "read_lines",
    "read_text",
    "select_names",
    "stream_lines",
]

#: Spellings of a binary value; other two-valued nominals are ordinary categories.
BINARY_WORDS = {
    "0": 0.0, "1": 1.0, "no": 0.0, "yes": 1.0, "false": 0.0, "true": 1.0, "n": 0.0, "y": 1.0,
}  # fmt: skip
BINARY_PAIRS = ({"0", "1"}, {"no", "yes"}, {"false", "true"}, {"n", "y"})
#: What a label column of numbers may hold.
LABEL_WORDS = BINARY_WORDS | {"0.0": 0.0, "1.0": 1.0}

Item = TypeVar("Item")

_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class Like:
    """The columns a file must have to be used with a model: those it was trained on."""

    feature_names: tuple[str, ...]
    label_names: tuple[str, ...]

    @cached_property
    def features(self) -> frozenset[str]:
        """The feature names, to look names up in."""
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
        """The values a categorical column had in training, or None if it was no such column."""
        return None if column in self.features else self._values.get(column)


def read_bytes(path: str | PathLike[str]) -> bytes:
    """A file's bytes; whatever prevents reading it is a `DataError`."""
    with _reading(path), open(path, "rb") as file:
        return file.read()


@contextmanager
def _reading(path: str | PathLike[str]) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise DataError("no such file; check the path", path) from None
    except OSError as error:
        raise DataError(f"cannot be read ({error.strerror})", path) from None


def read_text(path: str | PathLike[str], encoding: str) -> str:
    """A file's text with ``\\n`` line ends and without a byte-order mark."""
    raw = read_bytes(path)
    try:
        text = raw.decode(encoding)
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        advice = f"not {encoding} text; save it as UTF-8 ('CSV UTF-8' in a spreadsheet, or iconv), or pass "
        advice += "encoding='latin-1' (or what it is) in Python"
        raise DataError(advice, path, line) from None
    except LookupError:
        raise DataError(f"there is no encoding {encoding!r}; try 'utf-8'", path) from None
    text = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        advice = "a NUL character: not plain text; save it as UTF-8 or pass encoding='utf-16'"
        raise DataError(advice, path, line)
    if not text.strip():
        raise DataError("the file is empty", path, 1)
    return text


def read_lines(path: str | PathLike[str], encoding: str) -> list[str]:
    """A file's lines; only line feeds end one, so that line numbers are what editors show."""
    lines = read_text(path, encoding).split("\n")
    return lines[:-1] if lines[-1] == "" else lines


def stream_lines(path: str | PathLike[str]) -> Iterator[str]:
    """The lines that `read_lines` has for a UTF-8 file, one at a time: a file may be larger than memory."""
    blank, position = True, 0
    with _reading(path), open(path, "rb") as file:
        for raw in file:
            position += 1
            try:
                text = raw.decode("utf-8")
            except UnicodeDecodeError:
                raise DataError("not utf-8 text; save it as UTF-8", path, position) from None
            if position == 1:
                text = text.removeprefix("\ufeff")
            if "\0" in text:
                raise DataError("a NUL character: not plain text; save it as UTF-8", path, position)
            text = text.replace("\r\n", "\n").replace("\r", "\n")
            blank = blank and not text.strip()
            yield from text.removesuffix("\n").split("\n")
    if blank:
        raise DataError("the file is empty", path, 1)


def chunks(items: Iterable[Item], size: int | None) -> Iterator[list[Item]]:
    """The items in lists of ``size``, the last one shorter; all in one list if that is None.

    >>> list(chunks("abc", 2)), list(chunks("abc", None))
    ([['a', 'b'], ['c']], [['a', 'b', 'c']])
    """
    remaining = iter(items)
    while chunk := list(islice(remaining, size)):
        yield chunk


def number(token: str) -> float:
    """A finite number that fits float32, else ValueError; ``float`` alone lets ``nan`` through."""
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
    """What to say about a cell that is no number; ``missing`` tells how to leave a value out."""
    if is_unwritable_number(token):
        value = float(token)
        what = "not finite" if math.isnan(value) or math.isinf(value) else "too large for float32"
        return f"{token!r} in {column!r} is {what}; {missing}"
    return f"{token!r} in {column!r} is not a number; correct it or {missing}"


def select_names(wanted: str | Iterable[str], names: Sequence[str]) -> list[str]:
    """The names asked for, in full or by a pattern such as ``label_*``; ValueError if none.

    >>> select_names("tag_*", ["size", "tag_a", "tag_b"])
    ['tag_a', 'tag_b']
    """
    known = set(names)
    if isinstance(wanted, str):
        wanted = [wanted] if wanted in known else [part.strip() for part in wanted.split(",")]
    chosen: dict[str, None] = {}
    for pattern in wanted:
        found = [pattern] if pattern in known else [n for n in names if fnmatchcase(n, pattern)]
        if not found:
            raise ValueError(pattern)
        chosen.update(dict.fromkeys(found))
    return list(chosen)


def build(
    path: str | PathLike[str],
    x: Any,
    y: Any,
    feature_names: Sequence[str],
    label_names: Sequence[str],
    line: int | None = None,
) -> MultiLabelData:
    """The data set, with the file named in whatever is still wrong with it."""
    try:
        return MultiLabelData(x, y, tuple(feature_names), tuple(label_names))
    except DataError as error:
        raise error.at(fspath(path), line) from None

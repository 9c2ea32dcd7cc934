"""The ARFF language, shared by the Mulan/MEKA and CLUS readers: header, quoting, rows."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike, fspath

import numpy as np
from numpy.typing import NDArray

from lossnet.data.errors import DataError
from lossnet.data.readers.text import chunks, number, number_complaint, read_lines, stream_lines

__all__ = [
    "Attribute",
    "Codes",
    "Header",
    "Rows",
    "missing_or_number",
    "parse_header",
    "parse_rows",
    "stream_header",
]

# Nothing is given back (*+): looking again for another way to match takes cubic time in long runs of blanks.
_QUOTED = r"""'(?:[^'\\]|\\.)*+'|"(?:[^"\\]|\\.)*+\""""
_NAME = re.compile(rf"({_QUOTED}|(?!['\"])[^ \t]++)[ \t]*+")
_NOMINAL_VALUE = re.compile(rf"[ \t]*+({_QUOTED}|(?!['\"])[^,}}]*+)[ \t]*+([,}}])")
_CELL = re.compile(rf"[ \t]*+({_QUOTED}|(?!['\"])[^,]*+)[ \t]*+(?:,|$)")
_SPARSE_CELL = re.compile(rf"[ \t]*+([^ \t,]++)[ \t]++({_QUOTED}|(?!['\"])[^,]*+)[ \t]*+(?:,|$)")
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)")
_NUMERIC = {"numeric", "real", "integer"}
_BLANK = " \t"

Converter = Callable[[str], float]


@dataclass(frozen=True)
class Attribute:
    """A declared column: ``numeric``, ``nominal``, ``hierarchical``, or a kind we cannot read."""

    name: str
    kind: str
    line: int
    values: tuple[str, ...] = ()


@dataclass(frozen=True)
class Header:
    """What stands before ``@data``, and the lines after it, which can be gone through once."""

    path: str
    relation: str
    attributes: tuple[Attribute, ...]
    data_line: int
    lines: Iterator[str] = field(repr=False)

    @property
    def names(self) -> list[str]:
        """The attributes' names, in order."""
        return [attribute.name for attribute in self.attributes]


@dataclass(frozen=True)
class Rows:
    """The numbers of all rows: a dense ``(n, attributes)`` array, or what sparse rows mention."""

    count: int
    dense: NDArray[np.float64] | None
    rows: NDArray[np.int64]
    columns: NDArray[np.int64]
    values: NDArray[np.float64]


class Codes(dict[str, float]):
    """What each word of a nominal attribute stands for; looks quoted words up without quotes.

    ``?`` unquoted is a missing value, NaN; quoted it is a word like any other.
    """

    def __init__(
        self,
        words: dict[str, float],
        missing: bool = True,
        complain: Callable[[str], str] | None = None,
    ) -> None:
        super().__init__(words)
        self.words = words
        self.complain = complain
        self.pop("?", None)
        if missing:
            self["?"] = float("nan")

    def __missing__(self, token: str) -> float:
        word = unquote(token)
        if word != token and word in self.words:
            return self.words[word]
        raise KeyError(token) if self.complain is None else DataError(self.complain(word))


def missing_or_number(token: str) -> float:
    """A numeric cell."""
    return float("nan") if token == "?" else number(token)


def unquote(token: str) -> str:
    """A token without its quotes and escapes; an unquoted token stands for itself."""
    if token[:1] not in ("'", '"') or len(token) < 2:
        return token
    return _ESCAPE.sub(_unescape, token[1:-1])


def _unescape(match: re.Match[str]) -> str:
    code = match[1]
    if code[0] == "u" and len(code) == 5:
        return chr(int(code[1:], 16))
    return {"n": "\n", "r": "\r", "t": "\t"}.get(code, code)


def parse_header(
    path: str | PathLike[str],
    encoding: str = "utf-8",
    number_repeats: bool = False,
    lines: Iterable[str] | None = None,
) -> Header:
    """Read a file and everything up to ``@data``, or take it from its ``lines``, where they are at hand.

    A name that is declared again is an error, or with ``number_repeats`` becomes ``name (2)``.
    """
    found = read_lines(path, encoding) if lines is None else lines
    return _parse_header(fspath(path), iter(found), number_repeats)


def stream_header(path: str | PathLike[str]) -> Header:
    """What `parse_header` reads, repeats numbered, without reading the lines that follow."""
    return _parse_header(fspath(path), stream_lines(path), number_repeats=True)


def _parse_header(path: str, lines: Iterator[str], number_repeats: bool) -> Header:
    position = 0
    relation = ""
    attributes: dict[str, Attribute] = {}
    counts: dict[str, int] = {}
    for position, raw in enumerate(lines, start=1):
        text = raw.strip(_BLANK)
        if not text or text.startswith("%"):
            continue
        keyword, rest = _first_word(text)
        if keyword == "@relation":
            relation = unquote(rest)
        elif keyword == "@attribute":
            attribute = _attribute(path, position, rest)
            if number_repeats:
                attribute = replace(attribute, name=_unused(attribute.name, attributes, counts))
            if attribute.name in attributes:
                first = attributes[attribute.name].line
                what = f"attribute {attribute.name!r} is declared twice (first in line {first})"
                raise DataError(f"{what}; rename one", path, position)
            attributes[attribute.name] = attribute
        elif keyword == "@data":
            if not attributes:
                raise DataError("@data without any @attribute before it", path, position)
            return Header(path, relation, tuple(attributes.values()), position, lines)
        else:
            what = f"expected @relation, @attribute or @data, found {text[:40]!r}"
            raise DataError(f"{what}; is this an ARFF file?", path, position)
    what = "the header ends without @data; the file is cut short or is no ARFF file"
    raise DataError(what, path, position)


def _unused(name: str, taken: Collection[str], counts: dict[str, int]) -> str:
    """The name itself or the next of ``name (2)``, ``name (3)``, …, of which ``counts`` has the last."""
    unused = name
    while unused in taken:
        counts[name] = counts.get(name, 1) + 1
        unused = f"{name} ({counts[name]})"
    return unused


def _first_word(text: str) -> tuple[str, str]:
    word, *rest = re.split(r"[ \t]+", text, maxsplit=1)
    return word.lower(), rest[0] if rest else ""


def _attribute(path: str, line: int, text: str) -> Attribute:
    match = _NAME.match(text)
    if match is None:
        what = f"no attribute name in {text[:40]!r}"
        raise DataError(f"{what}; close its quote or write @attribute name type", path, line)
    name = unquote(match[1])
    declared = text[match.end() :]
    if declared.startswith("{"):
        return Attribute(name, "nominal", line, _nominal_values(path, line, name, declared))
    kind, rest = _first_word(declared)
    if kind == "hierarchical":
        nodes = tuple(node.strip(_BLANK) for node in rest.split(","))
        return Attribute(name, kind, line, nodes)
    if kind in _NUMERIC and (not rest or rest.startswith("%")):
        return Attribute(name, "numeric", line)
    if kind in {"string", "date", "relational"}:
        return Attribute(name, kind, line)
    what = f"attribute {name!r} has no type we know ({declared[:40]!r})"
    raise DataError(f"{what}; use numeric, real, integer or {{a,b}}", path, line)


def _nominal_values(path: str, line: int, name: str, text: str) -> tuple[str, ...]:
    values: list[str] = []
    position, end = 1, ","
    while end == ",":
        match = _NOMINAL_VALUE.match(text, position)
        if match is None:
            what = f"the values of attribute {name!r} do not end"
            raise DataError(f"{what}; close the quote or the brace", path, line)
        raw = match[1].strip(_BLANK)
        if not raw:
            raise DataError(f"attribute {name!r} has an empty value; write '' for it", path, line)
        values.append(unquote(raw))
        position, end = match.end(), match[2]
    rest = text[position:].strip(_BLANK)
    if rest and not rest.startswith("%"):
        raise DataError(f"{rest[:40]!r} follows the values of {name!r}; remove it", path, line)
    if len(set(values)) != len(values):
        raise DataError(f"attribute {name!r} declares a value twice; remove one", path, line)
    return tuple(values)


def parse_rows(header: Header, converters: Sequence[Converter], size: int | None = None) -> Iterator[Rows]:
    """Rows as numbers, ``size`` of them at a time or all, by one converter per attribute.

    A converter raises KeyError or ValueError where it cannot read a cell.
    """
    parse = None
    for numbered in chunks(_numbered(header), size):
        if parse is None:
            parse = _sparse_rows if numbered[0][1].startswith("{") else _dense_rows
        yield parse(header, converters, numbered)


def _numbered(header: Header) -> Iterator[tuple[int, str]]:
    """The rows with their lines."""
    line, rows = header.data_line, 0
    for line, raw in enumerate(header.lines, start=header.data_line + 1):
        if (text := raw.strip(_BLANK)) and not text.startswith("%"):
            yield line, text
            rows += 1
    if not rows:
        what = "no rows follow @data; the file is cut short or has no data"
        raise DataError(what, header.path, line)


def _dense_rows(header: Header, converters: Sequence[Converter], numbered: list[tuple[int, str]]) -> Rows:
    dense = np.empty((len(numbered), len(converters)))
    for row, (line, text) in enumerate(numbered):
        if text.startswith("{"):
            raise DataError("a sparse row among dense ones; use one kind", header.path, line)
        cells = _cells(header, line, text)
        if len(cells) != len(converters):
            what = f"{len(cells)} values for {len(converters)} attributes"
            raise DataError(f"{what}; the row is cut short or too long", header.path, line)
        try:
            dense[row] = [convert(cell) for convert, cell in zip(converters, cells, strict=True)]
        except (KeyError, ValueError):
            pairs = list(enumerate(cells))
            raise _bad_cell(header, converters, line, pairs) from None
    nothing = np.empty(0, dtype=np.int64)
    return Rows(len(numbered), dense, nothing, nothing, np.empty(0))


def _cells(header: Header, line: int, text: str) -> list[str]:
    if "'" not in text and '"' not in text:
        return [cell.strip(_BLANK) for cell in text.split(",")]
    cells, position = [], 0
    while True:
        match = _CELL.match(text, position)
        if match is None:
            what = f"a quote in {text[position : position + 40]!r} does not close"
            raise DataError(f"{what}; close it, or write \\' inside quotes", header.path, line)
        cells.append(match[1].strip(_BLANK))
        position = match.end()
        if position == len(text) and not match[0].endswith(","):
            return cells
        if position == len(text):
            return [*cells, ""]


def _sparse_rows(header: Header, converters: Sequence[Converter], numbered: list[tuple[int, str]]) -> Rows:
    columns: list[int] = []
    values: list[float] = []
    counts = np.empty(len(numbered), dtype=np.int64)
    for row, (line, text) in enumerate(numbered):
        before = len(columns)
        pairs = _sparse_cells(header, line, text)
        previous = -1
        for index, cell in pairs:
            if index <= previous or index >= len(converters):
                raise _bad_index(header, line, index, previous)
            previous = index
            try:
                values.append(converters[index](cell))
            except (KeyError, ValueError):
                raise _bad_cell(header, converters, line, [(index, cell)]) from None
            columns.append(index)
        counts[row] = len(columns) - before
    rows = np.repeat(np.arange(len(numbered)), counts)
    return Rows(len(numbered), None, rows, np.array(columns, dtype=np.int64), np.array(values))


def _sparse_cells(header: Header, line: int, text: str) -> list[tuple[int, str]]:
    if not text.startswith("{"):
        raise DataError("a dense row among sparse ones; use one kind", header.path, line)
    if not text.endswith("}"):
        raise DataError("a sparse row without its '}'; the row is cut short", header.path, line)
    body = text[1:-1].strip(_BLANK)
    if not body:
        return []
    try:
        if "'" not in body and '"' not in body:
            pairs = [(_index(index), cell) for index, cell in map(str.split, body.split(","))]
        else:
            pairs = _quoted_sparse_cells(body)
    except ValueError:
        what = f"{text[:40]!r} is not a list of 'index value' pairs"
        raise DataError(f"{what}; indices are whole numbers from 0", header.path, line) from None
    return pairs


def _quoted_sparse_cells(body: str) -> list[tuple[int, str]]:
    pairs, position = [], 0
    while position < len(body):
        match = _SPARSE_CELL.match(body, position)
        if match is None:
            raise ValueError(body)
        pairs.append((_index(match[1]), match[2].strip(_BLANK)))
        position = match.end()
    if body.endswith(","):
        raise ValueError(body)
    return pairs


def _index(token: str) -> int:
    if not (token.isascii() and token.isdecimal()):
        raise ValueError(token)
    return int(token)


def _bad_index(header: Header, line: int, index: int, previous: int) -> DataError:
    if index >= len(header.attributes):
        what = f"index {index}, but there are only {len(header.attributes)} attributes (from 0)"
    elif index == previous:
        what = f"index {index} is given twice in one row"
    else:
        what = f"index {index} follows {previous}; indices must increase"
    return DataError(f"{what}; correct the row", header.path, line)


def _bad_cell(
    header: Header, converters: Sequence[Converter], line: int, cells: list[tuple[int, str]]
) -> DataError:
    """Say which of a row's cells could not be read."""
    for index, cell in cells:
        try:
            converters[index](cell)
        except (KeyError, ValueError) as error:
            if isinstance(error, DataError):
                return error.at(header.path, line)
            attribute = header.attributes[index]
            if attribute.kind != "nominal":
                what = number_complaint(cell, attribute.name, "write ? where a value is missing")
                return DataError(what, header.path, line)
            declared = ", ".join(attribute.values[:5]) + (", …" if len(attribute.values) > 5 else "")
            what = f"{cell!r} is not a declared value of {attribute.name!r} ({declared})"
            return DataError(f"{what}; declare it or correct the row", header.path, line)
    raise AssertionError("every cell of the row could be read")  # pragma: no cover

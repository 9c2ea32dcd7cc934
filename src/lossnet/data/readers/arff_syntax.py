"""The ARFF language, shared by the Mulan/MEKA and CLUS readers: header, quoting, rows."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from os import fspath
from typing import Any

import numpy as np
from scipy import sparse

from lossnet.data.errors import AnyPath, DataError
from lossnet.data.readers.text import chunks, number, number_complaint

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
    """Everything before ``@data``, and the lines after it, which can be iterated once.

    A name that is declared again becomes ``name (2)``; ``repeated`` says which, as an error to raise.
    """

    path: str
    relation: str
    attributes: tuple[Attribute, ...]
    data_line: int
    repeated: DataError | None
    lines: Iterator[str] = field(repr=False)

    @property
    def names(self) -> list[str]:
        """The attributes' names, in order."""
        return [attribute.name for attribute in self.attributes]


class Codes(dict[str, float]):
    """Maps the words of a nominal attribute to numbers; looks quoted words up without quotes.

    ``?`` unquoted is a missing value, NaN, unless ``missing`` is false; quoted it is a word like any other.
    ``complain`` makes the error message about an unknown word.
    """

    def __init__(self, words: dict[str, float], complain: Callable[[str], str], missing: bool = True) -> None:
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
        raise DataError(self.complain(word))


def number_converter(attribute: str) -> Converter:
    """Return a converter of numeric cells, ``?`` to NaN."""

    def convert(token: str) -> float:
        try:
            return float("nan") if token == "?" else number(token)
        except ValueError:
            raise DataError(number_complaint(token, attribute, "write ? where a value is missing")) from None

    return convert


def unquote(token: str) -> str:
    """Return a token without its quotes and escapes; an unquoted token stands for itself."""
    if token[:1] not in ("'", '"') or len(token) < 2:
        return token
    return _ESCAPE.sub(_unescape, token[1:-1])


def _unescape(match: re.Match[str]) -> str:
    code = match[1]
    if code[0] == "u" and len(code) == 5:
        return chr(int(code[1:], 16))
    return {"n": "\n", "r": "\r", "t": "\t"}.get(code, code)


def parse_header(path: AnyPath, lines: Iterator[str]) -> Header:
    """Parse the lines of a file up to ``@data``."""
    path, position, relation, repeated = fspath(path), 0, "", None
    attributes: dict[str, Attribute] = {}
    counts: defaultdict[str, int] = defaultdict(lambda: 1)
    for position, raw in enumerate(lines, start=1):
        text = raw.strip(_BLANK)
        if not text or text.startswith("%"):
            continue
        keyword, rest = _first_word(text)
        if keyword == "@relation":
            relation = unquote(rest)
        elif keyword == "@attribute":
            try:
                attribute = _attribute(position, rest)
            except DataError as error:
                raise error.at(path, position) from None
            if attribute.name in attributes:
                first = attributes[attribute.name].line
                what = f"attribute {attribute.name!r} is declared twice (first in line {first}); rename one"
                repeated = repeated or DataError(what, path, position)
                name = attribute.name
                while attribute.name in attributes:
                    counts[name] += 1
                    attribute = replace(attribute, name=f"{name} ({counts[name]})")
            attributes[attribute.name] = attribute
        elif keyword == "@data":
            if not attributes:
                raise DataError("@data without any @attribute before it", path, position)
            return Header(path, relation, tuple(attributes.values()), position, repeated, lines)
        else:
            what = f"expected @relation, @attribute or @data, found {text[:40]!r}"
            raise DataError(f"{what}; is this an ARFF file?", path, position)
    raise DataError("the header ends without @data; the file is cut short or is no ARFF file", path, position)


def _first_word(text: str) -> tuple[str, str]:
    word, *rest = re.split(r"[ \t]+", text, maxsplit=1)
    return word.lower(), rest[0] if rest else ""


def _attribute(line: int, text: str) -> Attribute:
    match = _NAME.match(text)
    if match is None:
        raise DataError(f"no attribute name in {text[:40]!r}; close its quote or write @attribute name type")
    name, declared = unquote(match[1]), text[match.end() :]
    if declared.startswith("{"):
        return Attribute(name, "nominal", line, _nominal_values(name, declared))
    kind, rest = _first_word(declared)
    if kind == "hierarchical":
        return Attribute(name, kind, line, tuple(node.strip(_BLANK) for node in rest.split(",")))
    if kind in _NUMERIC and (not rest or rest.startswith("%")):
        return Attribute(name, "numeric", line)
    if kind in {"string", "date", "relational"}:
        return Attribute(name, kind, line)
    what = f"attribute {name!r} has no type we know ({declared[:40]!r})"
    raise DataError(f"{what}; use numeric, real, integer or {{a,b}}")


def _nominal_values(name: str, text: str) -> tuple[str, ...]:
    values: list[str] = []
    position, end = 1, ","
    while end == ",":
        match = _NOMINAL_VALUE.match(text, position)
        if match is None:
            raise DataError(f"the values of attribute {name!r} do not end; close the quote or the brace")
        raw = match[1].strip(_BLANK)
        if not raw:
            raise DataError(f"attribute {name!r} has an empty value; write '' for it")
        values.append(unquote(raw))
        position, end = match.end(), match[2]
    rest = text[position:].strip(_BLANK)
    if rest and not rest.startswith("%"):
        raise DataError(f"{rest[:40]!r} follows the values of {name!r}; remove it")
    if len(set(values)) != len(values):
        raise DataError(f"attribute {name!r} declares a value twice; remove one")
    return tuple(values)


def parse_rows(header: Header, converters: Sequence[Converter], size: int | None = None) -> Iterator[Any]:
    """Yield rows as numbers, ``size`` of them at a time or all, by one converter per attribute.

    Dense rows are an array ``(rows, attributes)``; sparse ones are a CSR matrix that stores whatever they
    mention, zeros too.  A converter raises `DataError` where it cannot read a cell.
    """
    is_sparse = None
    for chunk in chunks(_numbered_rows(header), size):
        if is_sparse is None:
            is_sparse = chunk[0][1].startswith("{")
        rows: list[list[float]] = []
        columns: list[int] = []
        for line, text in chunk:
            try:
                if text.startswith("{") != is_sparse:
                    mixed = "a dense row among sparse ones" if is_sparse else "a sparse row among dense ones"
                    raise DataError(f"{mixed}; use one kind")
                if is_sparse:
                    pairs = _sparse_cells(text, len(converters))
                    columns += [column for column, _ in pairs]
                    rows.append([converters[column](cell) for column, cell in pairs])
                else:
                    cells = _cells(text, len(converters))
                    rows.append([convert(cell) for convert, cell in zip(converters, cells, strict=True)])
            except DataError as error:
                raise error.at(header.path, line) from None
        if is_sparse:
            starts = np.cumsum([0, *map(len, rows)])
            values = np.array(list(chain.from_iterable(rows)), dtype=np.float64)
            yield sparse.csr_array((values, columns, starts), shape=(len(rows), len(converters)))
        else:
            yield np.array(rows)


def _numbered_rows(header: Header) -> Iterator[tuple[int, str]]:
    line, rows = header.data_line, 0
    for line, raw in enumerate(header.lines, start=header.data_line + 1):
        if (text := raw.strip(_BLANK)) and not text.startswith("%"):
            yield line, text
            rows += 1
    if not rows:
        raise DataError("no rows follow @data; the file is cut short or has no data", header.path, line)


def _cells(text: str, attributes: int) -> list[str]:
    if "'" not in text and '"' not in text:
        cells = [cell.strip(_BLANK) for cell in text.split(",")]
    else:
        cells = [match[1].strip(_BLANK) for match in _matches(_CELL, text)]
        cells += [""] * text.endswith(",")
    if len(cells) != attributes:
        raise DataError(f"{len(cells)} values for {attributes} attributes; the row is cut short or too long")
    return cells


def _sparse_cells(text: str, attributes: int) -> list[tuple[int, str]]:
    if not text.endswith("}"):
        raise DataError("a sparse row without its '}'; the row is cut short")
    body = text[1:-1].strip(_BLANK)
    try:
        if "'" in body or '"' in body:
            pairs = [(_index(match[1]), match[2].strip(_BLANK)) for match in _matches(_SPARSE_CELL, body)]
            if body.endswith(","):
                raise ValueError(body)
        else:
            pairs = [(_index(index), cell) for index, cell in map(str.split, body.split(","))] if body else []
    except ValueError:
        what = f"{text[:40]!r} is not a list of 'index value' pairs"
        raise DataError(f"{what}; indices are whole numbers from 0") from None
    previous = -1
    for index, _ in pairs:
        if index >= attributes:
            raise DataError(f"index {index}, but there are only {attributes} attributes; correct the row")
        if index == previous:
            raise DataError(f"index {index} is given twice in one row; correct the row")
        if index < previous:
            raise DataError(f"index {index} follows {previous}; indices must increase; correct the row")
        previous = index
    return pairs


def _matches(pattern: re.Pattern[str], text: str) -> Iterator[re.Match[str]]:
    """Yield the cells of a row that has quotes."""
    position = 0
    while position < len(text):
        match = pattern.match(text, position)
        if match is None:
            what = f"a quote in {text[position : position + 40]!r} does not close"
            raise DataError(f"{what}; close it, or write \\' inside quotes")
        yield match
        position = match.end()


def _index(token: str) -> int:
    if not (token.isascii() and token.isdecimal()):
        raise ValueError(token)
    return int(token)

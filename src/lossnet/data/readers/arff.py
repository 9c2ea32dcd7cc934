"""Mulan and MEKA files: ARFF in which some attributes are labels."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path
from typing import Any
from xml.parsers import expat

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from lossnet.data.errors import DataError
from lossnet.data.readers.arff_syntax import (
    Attribute,
    Codes,
    Converter,
    Header,
    Rows,
    missing_or_number,
    parse_header,
    parse_rows,
)
from lossnet.data.readers.text import (
    BINARY_PAIRS,
    BINARY_WORDS,
    LABEL_WORDS,
    Like,
    build,
    read_bytes,
    select_names,
)
from lossnet.data.tables import MultiLabelData

__all__ = ["read_arff", "read_label_list", "stream_arff"]

LabelSpec = str | PathLike[str] | Iterable[str] | int | None


def read_arff(
    path: str | PathLike[str],
    labels: LabelSpec = None,
    *,
    drop: Collection[str] = (),
    encoding: str = "utf-8",
    like: Like | None = None,
    lines: Iterable[str] | None = None,
) -> MultiLabelData:
    """Read a Mulan or MEKA ARFF file, dense or sparse.

    ``labels`` says which attributes are labels: the path of a Mulan XML list, their names, or a
    count as MEKA's ``-C`` has it (the first ``n`` attributes, the last ``-n`` when negative).
    Without it, the XML file of the same name is used, else the ``-C`` in the relation's name.

    Numbers and two-valued nominals (0/1, NO/YES, false/true, n/y) give one input column each; other
    nominals give one 0/1 column per value, named ``attribute=value``.  ``drop`` leaves out what it
    names.  ``lines`` are the file's, where they are at hand.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder, "music.arff")
    ...     _ = path.write_text('''@relation 'music: -C -1'
    ... @attribute tempo numeric
    ... @attribute mode {major, minor, none}
    ... @attribute calm {0,1}
    ... @data
    ... 0.5, minor, 1
    ... ''')
    ...     data = read_arff(path)
    >>> data.feature_names, data.x.tolist(), data.y.toarray().tolist()
    (('tempo', 'mode=major', 'mode=minor', 'mode=none'), [[0.5, 0.0, 1.0, 0.0]], [[1]])
    """
    # A CLUS file without its class comes here at prediction time, with its repeated names.
    header = parse_header(path, encoding, number_repeats=like is not None, lines=lines)
    if like is None:
        (data,) = _parts(header, _find_labels(header, labels), drop, None, None)
    else:
        (data,) = _parts(header, _trained_labels(header, like), drop, like, None)
    return data


def stream_arff(header: Header, like: Like, rows: int) -> Iterator[MultiLabelData]:
    """What `read_arff` reads, ``rows`` at a time."""
    return _parts(header, _trained_labels(header, like), (), like, rows)


def _parts(
    header: Header, label_names: list[str], drop: Collection[str], like: Like | None, size: int | None
) -> Iterator[MultiLabelData]:
    layout = Layout(header, label_names, drop, like)
    for rows in parse_rows(header, layout.converters, size):
        x, y = layout.matrices(rows)
        yield build(header.path, x, y, layout.feature_names, label_names, header.data_line)


def _trained_labels(header: Header, like: Like) -> list[str]:
    trained = set(like.label_names)
    return [name for name in header.names if name in trained]


@dataclass(frozen=True)
class _Place:
    """Where an attribute's numbers go."""

    target: str  # "x", "y", "one-hot" or "nowhere"
    column: int = 0
    width: int = 1
    default: float = 0.0  # what a sparse row means by leaving it out


class Layout:
    """How attributes become columns: one converter and one place for each attribute."""

    def __init__(
        self,
        header: Header,
        label_names: Sequence[str],
        drop: Collection[str] = (),
        like: Like | None = None,
        one_hot_always: bool = False,
    ) -> None:
        unknown = sorted(set(drop) - set(header.names))
        if unknown:
            what = f"no attribute {unknown[0]!r} to drop; check its name"
            raise DataError(what, header.path, header.data_line)
        self.header = header
        self.feature_names: list[str] = []
        self.converters: list[Converter] = []
        self.places: list[_Place] = []
        self.labels = len(label_names)
        self._like = like
        self._one_hot_always = one_hot_always
        label_columns = {name: column for column, name in enumerate(label_names)}
        for attribute in header.attributes:
            if attribute.name in drop:
                self._add(lambda _: 0.0, _Place("nowhere"))
            elif attribute.name in label_columns:
                self._add_label(attribute, label_columns[attribute.name])
            elif attribute.kind == "numeric":
                self._add_single(attribute.name, missing_or_number, 0.0)
            elif attribute.kind == "nominal":
                self._add_nominal(attribute)
            else:
                what = f"attribute {attribute.name!r} is of type {attribute.kind}"
                advice = f"which is no input; leave it out with drop=[{attribute.name!r}]"
                raise DataError(f"{what}, {advice}", header.path, attribute.line)

    def matrices(self, rows: Rows) -> tuple[Any, Any]:
        """The inputs (CSR when the file is sparse) and the labels."""
        if rows.dense is None:
            return self._sparse_matrices(rows)
        x = np.empty((rows.count, len(self.feature_names)), dtype=np.float32)
        y = np.zeros((rows.count, self.labels), dtype=np.uint8)
        for place, values in zip(self.places, rows.dense.T, strict=True):
            if place.target == "x":
                x[:, place.column] = values
            elif place.target == "y":
                y[:, place.column] = values
            elif place.target == "one-hot":
                x[:, place.column : place.column + place.width] = _one_hot(values, place.width)
        return x, sparse.csr_array(y)

    def _add(self, converter: Converter, place: _Place) -> None:
        self.converters.append(converter)
        self.places.append(place)

    def _add_single(self, name: str, converter: Converter, default: float) -> None:
        self._add(converter, _Place("x", len(self.feature_names), default=default))
        self.feature_names.append(name)

    def _add_label(self, attribute: Attribute, column: int) -> None:
        words = LABEL_WORDS
        if attribute.kind == "nominal":
            words = {value: LABEL_WORDS.get(value.lower(), np.nan) for value in attribute.values}
        if attribute.kind not in ("numeric", "nominal") or np.isnan(list(words.values())).any():
            what = f"label {attribute.name!r} is declared as something other than 0 or 1"
            advice = "declare it {0,1} or take it off the label list"
            raise DataError(f"{what}; {advice}", self.header.path, attribute.line)
        codes = Codes(words, missing=False, complain=_label_complaint(attribute.name))
        default = codes[attribute.values[0]] if attribute.values else 0.0
        self._add(codes.__getitem__, _Place("y", column, default=default))

    def _add_nominal(self, attribute: Attribute) -> None:
        seen = None if self._like is None else self._like.values(attribute.name)
        lowered = {value.lower() for value in attribute.values}
        binary = lowered in BINARY_PAIRS and len(attribute.values) == 2
        if seen is None and binary and not self._one_hot_always:
            words = {value: BINARY_WORDS[value.lower()] for value in attribute.values}
            codes = Codes(words)
            self._add_single(attribute.name, codes.__getitem__, words[attribute.values[0]])
            return
        values = list(attribute.values) if seen is None else seen
        order = {value: float(code) for code, value in enumerate(values)}
        words = {value: order[value] for value in attribute.values if value in order}
        complain = None if seen is None else _unseen_complaint(attribute)
        place = _Place("one-hot", len(self.feature_names), len(values), order.get(attribute.values[0], -1.0))
        self._add(Codes(words, complain=complain).__getitem__, place)
        self.feature_names += [f"{attribute.name}={value}" for value in values]

    def _sparse_matrices(self, rows: Rows) -> tuple[Any, Any]:
        at, columns, values = self._with_defaults(rows)
        target = np.array([place.target for place in self.places])[columns]
        offset = np.array([place.column for place in self.places])[columns]
        width = np.array([place.width for place in self.places])[columns]
        single = target == "x"
        hot = (target == "one-hot") & ~np.isnan(values)
        # A missing nominal is NaN in each of its columns, so that each is imputed.
        lost = (target == "one-hot") & np.isnan(values)
        within = _counting(width[lost])
        x_rows = [at[single], at[hot], np.repeat(at[lost], width[lost])]
        x_columns = [
            offset[single],
            offset[hot] + values[hot].astype(np.int64),
            np.repeat(offset[lost], width[lost]) + within,
        ]
        x_values = [values[single], np.ones(hot.sum()), np.full(len(within), np.nan)]
        label = target == "y"
        return (
            _csr(x_rows, x_columns, x_values, (rows.count, len(self.feature_names)), np.float32),
            _csr([at[label]], [offset[label]], [values[label]], (rows.count, self.labels), np.uint8),
        )

    def _with_defaults(self, rows: Rows) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
        """Sparse cells, with those that rows left out where that does not mean zero.

        Leaving a nominal out means its first declared value, which need not be the zero one.
        """
        at, columns, values = [rows.rows], [rows.columns], [rows.values]
        for index, place in enumerate(self.places):
            if place.target == "nowhere" or (place.target != "one-hot" and place.default == 0):
                continue
            absent = np.ones(rows.count, dtype=bool)
            absent[rows.rows[rows.columns == index]] = False
            where = np.flatnonzero(absent)
            if len(where) and place.default < 0:
                attribute = self.header.attributes[index]
                what = _unseen_complaint(attribute)(attribute.values[0])
                raise DataError(what, self.header.path, attribute.line)
            at.append(where)
            columns.append(np.full(len(where), index))
            values.append(np.full(len(where), place.default))
        return np.concatenate(at), np.concatenate(columns), np.concatenate(values)


def _label_complaint(name: str) -> Any:
    def complain(word: str) -> str:
        if word == "?":
            return f"label {name!r} is missing; labels must be 0 or 1, drop the row"
        return f"label {name!r} is {word!r}, neither 0 nor 1; correct it"

    return complain


def _unseen_complaint(attribute: Attribute) -> Any:
    def complain(word: str) -> str:
        if word not in attribute.values:
            return f"{word!r} is not a declared value of {attribute.name!r}; declare or correct it"
        return f"{word!r} of {attribute.name!r} did not occur in training; map it to a known value"

    return complain


def _one_hot(codes: NDArray[np.float64], width: int) -> NDArray[np.float32]:
    hot: NDArray[np.float32] = (codes[:, None] == np.arange(width)).astype(np.float32)
    hot[np.isnan(codes)] = np.nan
    return hot


def _counting(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """0 … length−1 for each length, end to end."""
    ends = np.cumsum(lengths)
    return np.arange(int(lengths.sum())) - np.repeat(ends - lengths, lengths)


def _csr(rows: Any, columns: Any, values: Any, shape: tuple[int, int], dtype: Any) -> Any:
    cells = (np.concatenate(values), (np.concatenate(rows), np.concatenate(columns)))
    return sparse.csr_array(sparse.coo_array(cells, shape=shape), dtype=dtype)


# -- which attributes are labels


def _find_labels(header: Header, labels: LabelSpec) -> list[str]:
    declared = _meka_count(header)
    beside = Path(header.path).with_suffix(".xml")
    if labels is None and beside.is_file():
        labels = beside
    if labels is None:
        if declared is None:
            what = f"no labels named: no {beside.name} beside it and no -C in its relation"
            raise DataError(
                f"{what}; give a list, an XML file or a count (labels=, --labels)", header.path, 1
            )
        return _counted(header, declared)
    if isinstance(labels, int):
        names = _counted(header, labels)
    elif isinstance(labels, PathLike) or (isinstance(labels, str) and labels.endswith(".xml")):
        names = _from_xml(header, labels)
    else:
        try:
            names = select_names(labels, header.names)
        except ValueError as error:
            what = f"label {str(error)!r} is no attribute; check the names given (labels=, --labels)"
            raise DataError(what, header.path, header.data_line) from None
    if declared is not None and abs(declared) != len(names):
        what = f"the relation declares {abs(declared)} labels (-C {declared})"
        advice = f"but {len(names)} are given; make them agree"
        raise DataError(f"{what} {advice}", header.path, 1)
    if not names:
        raise DataError("the list of labels is empty; name at least one", header.path, 1)
    return names


def _meka_count(header: Header) -> int | None:
    match = re.search(r"(?:^|[\s:])-[cC]\s+(-?[0-9]{1,9})(?![0-9])", header.relation)
    return None if match is None else int(match[1])


def _counted(header: Header, count: int) -> list[str]:
    if not 0 < abs(count) <= len(header.attributes):
        what = f"{count} labels of {len(header.attributes)} attributes; the count must be in range"
        raise DataError(what, header.path, 1)
    return header.names[:count] if count > 0 else header.names[count:]


def _from_xml(header: Header, path: str | PathLike[str]) -> list[str]:
    known = set(header.names)
    found = read_label_list(path)
    for name, line in found.items():
        if name not in known:
            what = f"label {name!r} is no attribute of {header.path}"
            raise DataError(f"{what}; remove it or use the right file", path, line)
    return list(found)


def read_label_list(path: str | PathLike[str]) -> dict[str, int]:
    """The names in a Mulan XML label list, in order, with the line of each."""
    found: dict[str, int] = {}
    parser = expat.ParserCreate()

    def start(tag: str, values: dict[str, str]) -> None:
        line = parser.CurrentLineNumber
        if tag.rpartition(":")[2] != "label":
            return
        if "name" not in values:
            raise DataError('a <label> without name="…"; give it one', path, line)
        name = values["name"]
        if name in found:
            raise DataError(f"label {name!r} is listed twice; remove one", path, line)
        found[name] = line

    parser.StartElementHandler = start
    try:
        parser.Parse(read_bytes(path), True)
    except expat.ExpatError as error:
        what = f"not a readable XML label list ({expat.ErrorString(error.code)})"
        raise DataError(f"{what}; correct or replace it", fspath(path), error.lineno) from None
    except (ValueError, LookupError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"its XML is of no encoding we know ({error}); save it as UTF-8", path, 1) from None
    if not found:
        raise DataError("no <label> in it; it must list the labels", path, 1)
    return found

"""Mulan and MEKA files: ARFF in which some attributes are labels."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import partial
from os import PathLike, fspath
from pathlib import Path
from typing import Any, NamedTuple
from xml.parsers import expat

import numpy as np
from scipy import sparse

from lossnet.data.errors import AnyPath, DataError
from lossnet.data.readers.arff_syntax import (
    Attribute,
    Codes,
    Converter,
    Header,
    number_converter,
    parse_header,
    parse_rows,
    unquote,
)
from lossnet.data.readers.text import (
    BINARY_PAIRS,
    BINARY_WORDS,
    LABEL_WORDS,
    Like,
    build,
    open_lines,
    read_bytes,
    select_names,
    whole,
)
from lossnet.data.tables import MultiLabelData
from lossnet.suggest import did_you_mean

LabelSpec = AnyPath | Iterable[str] | int | None


@whole
def read_arff(
    path: AnyPath,
    labels: LabelSpec = None,
    *,
    drop: Collection[str] = (),
    encoding: str = "utf-8",
    like: Like | None = None,
    lines: Iterator[str] | None = None,
    size: int | None = None,
) -> Iterator[MultiLabelData]:
    """Read a Mulan or MEKA ARFF file, dense or sparse.

    ``labels`` says which attributes are labels: the path of a Mulan XML list, their names, or a
    count as MEKA's ``-C`` has it (the first ``n`` attributes, the last ``-n`` when negative).
    Without it, the XML file of the same name is used, else the ``-C`` in the relation's name.

    Numbers and two-valued nominals (0/1, NO/YES, false/true, n/y) give one input column each; other
    nominals give one 0/1 column per value, named ``attribute=value``.  ``drop`` leaves out what it
    names.

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
    header = parse_header(path, open_lines(path, encoding, size) if lines is None else lines)
    if like is not None:
        # A CLUS file without its class comes here at prediction time, with its repeated names.
        label_names = [name for name in header.names if name in set(like.label_names)]
    elif header.repeated is not None:
        raise header.repeated
    else:
        label_names = _find_labels(header, labels)
    layout = Layout(header, label_names, drop, like)
    for rows in parse_rows(header, layout.converters, size):
        x, y = layout.matrices(rows)
        yield build(header.path, x, y, layout.feature_names, label_names, header.data_line)


class _Place(NamedTuple):
    """The column of an attribute, labels before inputs; ``width`` is 0 unless it is one-hot encoded."""

    column: int
    width: int = 0
    default: float = 0.0  # what a sparse row means by leaving it out; −1 if that did not occur in training


class Layout:
    """Mapping of attributes to columns: a converter for each, and its place unless it is dropped."""

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
        self._like = like
        self.feature_names: list[str] = []
        self.converters: list[Converter] = []
        self._places: list[_Place | None] = []
        self._label_columns = {name: column for column, name in enumerate(label_names)}
        for attribute in header.attributes:
            if attribute.name in drop:
                self._add(lambda _: 0.0, None)
            elif attribute.name in self._label_columns:
                self._add_label(attribute)
            elif attribute.kind == "numeric":
                self._add(number_converter(attribute.name), _Place(self._next_column), [attribute.name])
            elif attribute.kind == "nominal":
                self._add_nominal(attribute, like, one_hot_always)
            else:
                what = f"attribute {attribute.name!r} is of type {attribute.kind}"
                advice = f"which is no input; leave it out with drop=[{attribute.name!r}]"
                raise DataError(f"{what}, {advice}", header.path, attribute.line)

    def matrices(self, rows: Any) -> tuple[Any, Any]:
        """Return the inputs (CSR if the rows are) and the labels of `parse_rows`."""
        labels = len(self._label_columns)
        shape = (rows.shape[0], labels + len(self.feature_names))
        if sparse.issparse(rows):
            cells = zip(*self._sparse_cells(rows), strict=True)
            at, columns, values = (np.concatenate(arrays) for arrays in cells)
            both = sparse.csr_array((values, (at, columns)), shape=shape, dtype=np.float32)
            return both[:, labels:], both[:, :labels].astype(np.uint8)
        dense = np.empty(shape, dtype=np.float32)
        for place, codes in zip(self._places, rows.T, strict=True):
            if place is not None and place.width:
                hot = dense[:, place.column : place.column + place.width]
                hot[:] = codes[:, None] == np.arange(place.width)
                hot[np.isnan(codes)] = np.nan
            elif place is not None:
                dense[:, place.column] = codes
        return dense[:, labels:], sparse.csr_array(dense[:, :labels].astype(np.uint8))

    def _sparse_cells(self, rows: Any) -> Iterator[tuple[Any, Any, Any]]:
        """Yield row numbers, columns and values of each attribute."""
        by_attribute, every = rows.tocsc(), np.arange(rows.shape[0])
        yield every[:0], every[:0], np.empty(0)  # for files whose attributes are all dropped
        for index, place in enumerate(self._places):
            if place is None:
                continue
            attribute = self.header.attributes[index]
            own = slice(*by_attribute.indptr[index : index + 2])
            at, values = by_attribute.indices[own], by_attribute.data[own]
            if place.width or place.default:
                # Leaving a nominal out means its first declared value, which need not be the zero one.
                absent = np.setdiff1d(every, at)
                if len(absent) and place.default < 0:
                    what = _unknown_value(attribute, attribute.values[0])
                    raise DataError(what, self.header.path, attribute.line)
                if len(absent) and np.isnan(place.default) and self._like is not None:
                    self._like.unseen.add(attribute.name, attribute.values[0], len(absent))
                at = np.concatenate([at, absent])
                values = np.concatenate([values, np.full(len(absent), place.default)])
            columns = np.full(len(at), place.column)
            if place.width:
                # A missing nominal is NaN in each of its columns, so that each is imputed.
                known = ~np.isnan(values)
                lost, spread = at[~known], np.arange(place.width)
                columns = place.column + np.append(values[known].astype(int), np.tile(spread, len(lost)))
                at = np.append(at[known], np.repeat(lost, place.width))
                values = np.append(np.ones(known.sum()), np.full(place.width * len(lost), np.nan))
            yield at, columns, values

    @property
    def _next_column(self) -> int:
        return len(self._label_columns) + len(self.feature_names)

    def _add(self, converter: Converter, place: _Place | None, features: Sequence[str] = ()) -> None:
        self.converters.append(converter)
        self._places.append(place)
        self.feature_names += features

    def _add_label(self, attribute: Attribute) -> None:
        name, words = attribute.name, LABEL_WORDS
        if attribute.kind == "nominal":
            words = {value: LABEL_WORDS.get(value.lower(), np.nan) for value in attribute.values}
        if attribute.kind not in ("numeric", "nominal") or np.isnan(list(words.values())).any():
            what = f"label {name!r} is declared as something other than 0 or 1"
            advice = "declare it {0,1} or take it off the label list"
            raise DataError(f"{what}; {advice}", self.header.path, attribute.line)

        def complain(word: str) -> str:
            if word == "?":
                return f"label {name!r} is missing; labels must be 0 or 1, drop the row"
            return f"label {name!r} is {word!r}, neither 0 nor 1; correct it"

        codes = Codes(words, complain, missing=False)
        default = codes[attribute.values[0]] if attribute.values else 0.0
        self._add(codes.__getitem__, _Place(self._label_columns[name], default=default))

    def _add_nominal(self, attribute: Attribute, like: Like | None, one_hot_always: bool) -> None:
        seen = None if like is None else like.values(attribute.name)
        binary = {value.lower() for value in attribute.values} in BINARY_PAIRS and len(attribute.values) == 2
        if seen is None and binary and not one_hot_always:
            names, width = [attribute.name], 0
            words = {value: BINARY_WORDS[value.lower()] for value in attribute.values}
        else:
            declared, values = set(attribute.values), attribute.values if seen is None else seen
            names, width = [f"{attribute.name}={value}" for value in values], len(values)
            words = {value: float(code) for code, value in enumerate(values) if value in declared}
        unseen = [value for value in attribute.values if value not in words]
        passes = like is not None and like.unknown == "missing"
        words |= dict.fromkeys(unseen if passes else (), np.nan)
        place = _Place(self._next_column, width, words.get(attribute.values[0], -1.0))
        codes = Codes(words, partial(_unknown_value, attribute))
        convert = _noting(codes, attribute.name, like) if like is not None and unseen else codes.__getitem__
        self._add(convert, place, names)


def _noting(codes: Codes, name: str, like: Like) -> Converter:
    """Return a converter that notes values which training did not have."""

    def convert(token: str) -> float:
        code = codes[token]
        if token != "?" and np.isnan(code):
            like.unseen.add(name, unquote(token))
        return code

    return convert


def _unknown_value(attribute: Attribute, word: str) -> str:
    if word in attribute.values:
        return f"{word!r} of {attribute.name!r} did not occur in training; map it to a known value"
    declared = ", ".join(attribute.values[:5]) + (", …" if len(attribute.values) > 5 else "")
    return f"{word!r} is not a declared value of {attribute.name!r} ({declared}); declare or correct it"


def _find_labels(header: Header, labels: LabelSpec) -> list[str]:
    """Return the names of the labels, in order."""
    match = re.search(r"(?:^|[\s:])-[cC]\s+(-?[0-9]{1,9})(?![0-9])", header.relation)
    declared = None if match is None else int(match[1])
    beside = Path(header.path).with_suffix(".xml")
    if labels is None:
        labels = beside if beside.is_file() else declared
    if labels is None:
        what = f"no labels named: no {beside.name} beside it and no -C in its relation"
        raise DataError(f"{what}; give a list, an XML file or a count (labels=, --labels)", header.path, 1)
    if isinstance(labels, int):
        if not 0 < abs(labels) <= len(header.names):
            what = f"{labels} labels of {len(header.names)} attributes; the count must be in range"
            raise DataError(what, header.path, 1)
        names = header.names[:labels] if labels > 0 else header.names[labels:]
    elif isinstance(labels, PathLike) or (isinstance(labels, str) and labels.endswith(".xml")):
        names = _read_label_list(labels, header)
    else:
        try:
            names = select_names(labels, header.names)
        except ValueError as error:
            what = f"label {str(error)!r} is no attribute (labels=, --labels)"
            advice = did_you_mean(str(error), header.names)
            raise DataError(f"{what}; {advice}", header.path, header.data_line) from None
    if declared is not None and abs(declared) != len(names):
        what = f"the relation declares {abs(declared)} labels (-C {declared})"
        raise DataError(f"{what} but {len(names)} are given; make them agree", header.path, 1)
    if not names:
        raise DataError("the list of labels is empty; name at least one", header.path, 1)
    return names


def _read_label_list(path: AnyPath, header: Header) -> list[str]:
    """Return the names in a Mulan XML label list, in order; all must be attributes."""
    names: dict[str, int] = {}
    parser = expat.ParserCreate()

    def start(tag: str, values: dict[str, str]) -> None:
        line = parser.CurrentLineNumber
        if tag.rpartition(":")[2] != "label":
            return
        if "name" not in values:
            raise DataError('a <label> without name="…"; give it one', path, line)
        name = values["name"]
        if name in names:
            raise DataError(f"label {name!r} is listed twice; remove one", path, line)
        names[name] = line

    parser.StartElementHandler = start
    try:
        parser.Parse(read_bytes(path), True)
    except expat.ExpatError as error:
        what = f"not a readable XML label list ({expat.ErrorString(error.code)})"
        raise DataError(f"{what}; correct or replace it", fspath(path), error.lineno) from None
    except DataError:
        raise
    except (ValueError, LookupError) as error:
        raise DataError(f"its XML is of no encoding we know ({error}); save it as UTF-8", path, 1) from None
    if not names:
        raise DataError("no <label> in it; it must list the labels", path, 1)
    known = set(header.names)
    for name, line in names.items():
        if name not in known:
            what = f"label {name!r} is no attribute of {header.path}"
            raise DataError(f"{what}; remove it or use the right file", path, line)
    return list(names)

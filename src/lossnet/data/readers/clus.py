"""CLUS files: ARFF with one hierarchical class attribute."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from lossnet.data.errors import AnyPath, DataError
from lossnet.data.readers.arff import Layout
from lossnet.data.readers.arff_syntax import Attribute, Header, parse_header, parse_rows
from lossnet.data.readers.text import Like, build, open_lines, whole
from lossnet.data.tables import MultiLabelData

ROOT = "root"


@whole
def read_clus(
    path: AnyPath,
    *,
    root: bool = True,
    drop: Collection[str] = (),
    encoding: str = "utf-8",
    like: Like | None = None,
    lines: Iterator[str] | None = None,
    size: int | None = None,
) -> Iterator[MultiLabelData]:
    """Read a CLUS file, whose rows name nodes of a tree of labels joined by ``@``.

    A row has the nodes it names and all their ancestors.  ``root`` adds the label ``root``, which
    every row has, as the published counts of labels do.  Every nominal attribute is spread over one
    column for each value, and a missing one is NaN in all of them.  Published files declare some
    inputs twice under one name (repeated measurements); the second is called ``name (2)``.

    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder, "genes.arff")
    ...     _ = path.write_text('''@relation genes
    ... @attribute level numeric
    ... @attribute class hierarchical 01,01/02,03
    ... @data
    ... 0.5,01/02
    ... ?,01@03
    ... ''')
    ...     data = read_clus(path)
    >>> data.label_names, data.y.toarray().tolist()
    (('root', '01', '01/02', '03'), [[1, 1, 1, 0], [1, 1, 0, 1]])
    """
    header = parse_header(path, open_lines(path, encoding, size) if lines is None else lines)
    declared = [a for a in header.attributes if a.kind == "hierarchical"]
    if len(declared) != 1:
        what = f"{len(declared)} hierarchical attributes; a CLUS file has exactly one"
        raise DataError(what, header.path, declared[1].line if declared else header.data_line)
    (attribute,) = declared
    layout = Layout(header, (), {*drop, attribute.name}, like, one_hot_always=True)
    paths = _Paths(_nodes(header, attribute), None if like is None else set(like.label_names))
    place = header.attributes.index(attribute)
    layout.converters[place] = paths.__getitem__
    if root and ROOT in paths.nodes:
        raise DataError("a label is itself called 'root'; pass root=False", header.path, attribute.line)
    names = [*([ROOT] if root else ()), *paths.nodes]
    for rows in parse_rows(header, layout.converters, size):
        if sparse.issparse(rows):
            what = "sparse rows in a hierarchical file; write all values of each row"
            raise DataError(what, header.path, header.data_line + 1)
        x, _ = layout.matrices(rows)
        y = sparse.csr_array(np.stack(paths.indicators))[rows[:, place].astype(np.int64)]
        if root:
            y = sparse.hstack([np.ones((len(rows), 1), dtype=np.uint8), y], format="csr")
        yield build(header.path, x, y, layout.feature_names, names, header.data_line)


def is_hierarchical(header: Header) -> bool:
    """Whether a header declares a hierarchical class, so that the file is for `read_clus`."""
    return any(attribute.kind == "hierarchical" for attribute in header.attributes)


def _nodes(header: Header, attribute: Attribute) -> dict[str, int]:
    """Return the column of each node, as declared; an undeclared ancestor comes before its descendants."""
    nodes: dict[str, int] = {}
    if len(set(attribute.values)) != len(attribute.values):
        raise DataError(f"{attribute.name!r} declares a node twice; remove one", header.path, attribute.line)
    for name in attribute.values:
        if not all(name.split("/")):
            what = f"{attribute.name!r} declares a node without a name ({name!r}); correct it"
            raise DataError(what, header.path, attribute.line)
        for node in _with_ancestors(name):
            nodes.setdefault(node, len(nodes))
    return nodes


def _with_ancestors(node: str) -> list[str]:
    return list(accumulate(node.split("/"), "{}/{}".format))


class _Paths(dict[str, float]):
    """Converter of class cells: numbers each distinct cell and keeps its nodes as zeros and ones."""

    def __init__(self, nodes: dict[str, int], trained: set[str] | None) -> None:
        super().__init__()
        self.nodes = nodes
        self._trained = trained
        self.indicators: list[NDArray[np.uint8]] = []

    def __missing__(self, cell: str) -> float:
        if cell == "?":
            raise DataError("the class is missing; labels must be known, drop the row")
        closed: set[str] = set()
        for name in cell.strip("'\"").split("@"):
            if name not in self.nodes:
                raise DataError(f"unknown label {name!r}; declare it or correct the row")
            closed.update(_with_ancestors(name))
        unseen = sorted(closed - self._trained) if self._trained is not None else []
        if unseen:
            raise DataError(f"label {unseen[0]!r} did not occur in training; remove it")
        self.indicators.append(np.zeros(len(self.nodes), dtype=np.uint8))
        self.indicators[-1][[self.nodes[name] for name in closed]] = 1
        self[cell] = len(self.indicators) - 1
        return self[cell]

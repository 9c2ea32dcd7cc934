"""Texts with sets of topics, as readers of published collections assemble them; and those kept as Parquet."""

from __future__ import annotations

from collections.abc import Sequence
from os import fspath
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from lossnet.data.errors import AnyPath, DataError
from lossnet.data.examples import Examples
from lossnet.data.readers.table import parquet_columns
from lossnet.data.readers.text import shortened
from lossnet.data.splits import Split, hold_out
from lossnet.data.tables import LabelTable
from lossnet.data.texts import TextTable

#: the share of the training documents that validates where a collection has no part for that
HELD_OUT = 0.2


class Documents(NamedTuple):
    """Some documents: their texts, by the names of columns, and the topics of each."""

    texts: dict[str, list[str]]
    topics: list[Sequence[str]]

    @classmethod
    def empty(cls, *columns: str) -> Documents:
        """Return no documents, to add some."""
        return cls({name: [] for name in columns}, [])

    def add(self, topics: Sequence[str], *texts: str) -> None:
        """Add a document."""
        for column, text in zip(self.texts.values(), texts, strict=True):
            column.append(text)
        self.topics.append(topics)


def assembled(parts: Sequence[Documents], path: AnyPath) -> tuple[Examples, Split]:
    """Return documents for training, validation and test as one data set, and the split.

    Documents without topics are left out, as the papers do; topics are sorted by name.  Where there are two
    parts, which train and test, a stratified fifth of the first validates.

    >>> parts = [Documents({"text": ["rates rose", "?"]}, [["money"], []])] * 2
    >>> parts += [Documents({"text": ["corn fell"]}, [["corn", "grain"]])]
    >>> data, split = assembled(parts, "news")
    >>> data.target.names, split.valid, len(data)
    (('corn', 'grain', 'money'), array([1]), 3)
    """
    kept = [[row for row, topics in enumerate(part.topics) if topics] for part in parts]
    if not all(kept):
        raise DataError("a part has no document with a topic; give all files, and those of one release", path)
    topics = [part.topics[row] for part, rows in zip(parts, kept, strict=True) for row in rows]
    names = sorted({name for own in topics for name in own})
    places = {name: place for place, name in enumerate(names)}
    cells = [(row, places[name]) for row, own in enumerate(topics) for name in set(own)]
    at = tuple(np.array(cells, dtype=np.int64).T)
    y = sparse.csr_array((np.ones(len(cells), dtype=np.uint8), at), shape=(len(topics), len(names)))
    texts = {
        name: [part.texts[name][row] for part, rows in zip(parts, kept, strict=True) for row in rows]
        for name in parts[0].texts
    }
    split = Split.consecutive([len(rows) for rows in kept]) if len(parts) > 2 else _held_out(y, len(kept[0]))
    return Examples(TextTable(texts), LabelTable(y, names)), split


def _held_out(y: Any, count: int) -> Split:
    """Return the split of rows of which the first ``count`` train and validate, and the others test."""
    train, valid = hold_out(y[:count], HELD_OUT)
    return Split(train, valid, np.arange(count, y.shape[0], dtype=np.int64))


def read_reuters(paths: Sequence[AnyPath]) -> tuple[Examples, Split]:
    """Read Reuters-21578 from a Parquet file, split as ModApte (Apté et al. 1994).

    Columns are ``title``, ``text``, ``topics`` (lists) and ``part``: train, test, or unused, which are left
    out.
    """
    return _read(paths, ("title", "text"), "topics", "part", ("train", "test"), others=("unused",))


def read_arxiv(paths: Sequence[AnyPath]) -> tuple[Examples, Split]:
    """Read papers of arXiv from a Parquet file.

    Columns are ``title``, ``abstract``, ``categories`` (lists) and ``split``: train, valid or test.
    """
    return _read(paths, ("title", "abstract"), "categories", "split", ("train", "valid", "test"))


def _read(
    paths: Sequence[AnyPath],
    texts: tuple[str, ...],
    topics: str,
    part: str,
    parts: tuple[str, ...],
    others: tuple[str, ...] = (),
) -> tuple[Examples, Split]:
    (path,) = (fspath(one) for one in paths)
    columns = parquet_columns(path, (*texts, topics, part))
    documents = {name: Documents.empty(*texts) for name in (*parts, *others)}
    rows = zip(*(columns[name] for name in (*texts, topics, part)), strict=True)
    for row, (*own, labels, where) in enumerate(rows, start=1):
        if where not in documents:
            what = f"the {part} {shortened(where)} of row {row} is none of {', '.join(documents)}"
            raise DataError(f"{what}; correct it", path, row)
        if odd := [text for text in own if text is not None and not isinstance(text, str)]:
            what = f"row {row} has {shortened(odd[0])} for a {' or '.join(texts)}"
            raise DataError(f"{what}; write texts", path, row)
        named = isinstance(labels, list) and all(isinstance(name, str) and name for name in labels)
        if not named and labels is not None:
            raise DataError(f"the {topics} of row {row} are no list of names; correct them", path, row)
        if labels and not any(own):
            raise DataError(f"row {row} has a topic and no text; remove it", path, row)
        documents[where].add(labels or (), *(text or "" for text in own))
    return assembled([documents[name] for name in parts], Path(path))

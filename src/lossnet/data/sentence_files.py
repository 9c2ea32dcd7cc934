"""Sentences from column files, one file or three: for training, validation and test."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from pathlib import Path

import numpy as np

from lossnet.data.readers.columns import Row, read_columns, stream_columns
from lossnet.data.readers.text import read_lines
from lossnet.data.sentences import Sentences
from lossnet.data.splits import Split

__all__ = ["find_parts", "read_sentences"]

#: how the files of a folder may be called, before the first dot
_PARTS = (("train",), ("valid", "val", "dev"), ("test",))
_SUFFIXES = (".conll", ".iob", ".bio")


def find_parts(path: str | PathLike[str]) -> list[Path]:
    """The column files that a path stands for, none if it stands for something else.

    A folder has files ``train``, ``valid`` (or ``val``, ``dev``) and ``test``, with any extension; a single
    file is called ``.conll``, ``.iob`` or ``.bio``.

    >>> find_parts("news.conll"), find_parts("music.arff")
    ([PosixPath('news.conll')], [])
    """
    path = Path(path)
    if not path.is_dir():
        return [path] if path.suffix.lower() in _SUFFIXES else []
    files = {file.name.split(".")[0].lower(): file for file in sorted(path.iterdir()) if file.is_file()}
    found = [next((files[name] for name in names if name in files), None) for names in _PARTS]
    return [file for file in found if file is not None] if None not in found else []


def read_sentences(
    paths: Sequence[str | PathLike[str]], columns: Sequence[str] | None = None
) -> tuple[Sentences, Split | None]:
    """Read column files as one set of sentences; three files also say which train, validate and test.

    ``columns`` are the columns' names, ``word`` and ``tag`` among them.  By default, the first column is the
    word, the last one the tag, and those between are called ``column2`` and so on.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder, "news.conll")
    ...     _ = path.write_text("EU NNP I-ORG\\nrejects VBZ O\\n")
    ...     data, split = read_sentences([path])
    >>> data.tokens, data.tags, data.columns
    ((('EU', 'rejects'),), (('I-ORG', 'O'),), {'column2': (('NNP', 'VBZ'),)})
    """
    lines = read_lines(paths[0], "utf-8")  # once: it may be a pipe
    if columns is None:
        row, *_ = next(stream_columns(paths[0], lines=iter(lines)))
        columns = ["word", *(f"column{place}" for place in range(2, len(row))), "tag"]
    first = list(stream_columns(paths[0], len(columns), iter(lines)))  # the same columns in all sentences
    parts = [first, *(read_columns(path, len(columns)) for path in paths[1:])]
    named = {name: _column([row for part in parts for row in part], at) for at, name in enumerate(columns)}
    data = Sentences(named.pop("word"), named.pop("tag"), named)
    if len(parts) == 1:
        return data, None
    ends = np.cumsum([len(part) for part in parts])
    return data, Split(*np.split(np.arange(ends[-1], dtype=np.int64), ends[:-1]))


def _column(sentences: list[list[Row]], at: int) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(row[at] for row in rows) for rows in sentences)

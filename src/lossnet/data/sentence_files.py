"""Sentences from files: column files with tags, one or three, and tables with a column of texts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from scipy import sparse

from lossnet.data.errors import AnyPath, DataError
from lossnet.data.examples import Examples
from lossnet.data.readers import ROWS
from lossnet.data.readers.columns import read_columns, stream_columns
from lossnet.data.readers.table import LabelledTexts, read_texts, stream_texts
from lossnet.data.readers.text import Like, align_labels, read_lines
from lossnet.data.sentences import Sentences, TaggedSentences
from lossnet.data.splits import Split
from lossnet.data.tables import LabelTable

#: how the files of a folder may be called, before the first dot
_PARTS = (("train",), ("valid", "val", "dev"), ("test",))
_SUFFIXES = (".conll", ".iob", ".bio")
_TABLES = (".csv", ".tsv", ".tab", ".parquet", ".pq")
#: addresses, names and topics as tweets have them; words with what joins their parts; runs of one other sign
_TOKEN = re.compile(r"https?://\S+|www\.\S+|[@#]\w+|\w+(?:[-'’.]\w+)*|(\S)\1*")


def find_parts(path: AnyPath) -> list[Path]:
    """Return the column files that a path stands for, none if it stands for something else.

    A folder has files ``train``, ``valid`` (or ``val``, ``dev``) and ``test``, with any extension; a single
    file is called ``.conll``, ``.iob`` or ``.bio``.

    >>> find_parts("news.conll"), find_parts("music.arff")
    ([PosixPath('news.conll')], [])
    """
    path = Path(path)
    if not path.is_dir():
        return [path] if path.suffix.lower() in _SUFFIXES else []
    files = {file.name.split(".")[0].lower(): file for file in sorted(path.iterdir()) if file.is_file()}
    parts = [next((files[name] for name in names if name in files), None) for names in _PARTS]
    return [file for file in parts if file is not None] if None not in parts else []


def read_sentences(
    paths: Sequence[AnyPath], columns: Sequence[str] | None = None, encoding: str = "utf-8"
) -> tuple[TaggedSentences, Split | None]:
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
    lines = read_lines(paths[0], encoding)  # once: it may be a pipe
    if columns is None:
        row, *_ = next(stream_columns(paths[0], lines=iter(lines)))
        columns = ["word", *(f"column{place}" for place in range(2, len(row))), "tag"]
    first = list(stream_columns(paths[0], len(columns), iter(lines)))  # the same columns in all sentences
    parts = [first, *(read_columns(path, len(columns), encoding=encoding) for path in paths[1:])]
    sentences = [rows for part in parts for rows in part]
    named = {
        name: tuple(tuple(row[at] for row in rows) for rows in sentences) for at, name in enumerate(columns)
    }
    data = TaggedSentences(named.pop("word"), named.pop("tag"), named)
    if len(parts) == 1:
        return data, None
    return data, Split.consecutive([len(part) for part in parts])


def tokenise(text: str) -> tuple[str, ...]:
    """Return the tokens of a text: words, numbers, runs of one sign; names and addresses as tweets have them.

    >>> tokenise("@jo: it's 9.30 in Paris... #late")
    ('@jo', ':', "it's", '9.30', 'in', 'Paris', '...', '#late')
    """
    return tuple(match.group() for match in _TOKEN.finditer(text))


def is_table(path: AnyPath) -> bool:
    """Whether a file is a table that may have a column of texts."""
    return Path(path).suffix.lower() in _TABLES


def read_labelled_texts(
    table: Any, column: str, labels: str | Sequence[str] | None, encoding: str = "utf-8"
) -> Examples:
    """Read the texts in a column, cut into tokens, and the label columns of a file or a data frame."""
    return _examples(read_texts(table, column, labels, encoding=encoding), column)


def stream_labelled_texts(
    path: AnyPath, column: str | None, label_names: Sequence[str], encoding: str = "utf-8"
) -> Iterator[Examples]:
    """Yield the texts and labels of a table, some rows at a time, for a model of these labels."""
    if column is None:
        raise DataError("a table, but the model was not trained on a table's column of texts", path)
    for part in stream_texts(path, column, None, Like((), tuple(label_names)), ROWS, encoding):
        labels = part.labels or LabelTable(sparse.csr_array((len(part.texts), 0)), ())
        y = align_labels(path, labels, label_names)
        yield _examples(LabelledTexts(part.texts, LabelTable(y, label_names)), column)


def _examples(read: LabelledTexts, column: str) -> Examples:
    return Examples(Sentences(tuple(map(tokenise, read.texts)), column=column), read.labels)

"""Blurbs of books and their genres, as the Blurb Genre Collection is published (Aly et al. 2019)."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence

from lossnet.data.errors import AnyPath, DataError
from lossnet.data.examples import Examples
from lossnet.data.readers.documents import Documents, assembled
from lossnet.data.readers.text import read_lines
from lossnet.data.splits import Split

_BOOK, _END = "<book", "</book>"
_GENRE = re.compile(r"<(d\d)>([^<]*)</\1>")


def read_blurbs(paths: Sequence[AnyPath]) -> tuple[Examples, Split]:
    """Read files of books, which train, validate and test.

    They look like XML and are none: ``&`` stands for itself.  Genres of all levels are labels.

    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder, "books.txt")
    ...     book = "<book><title>Sand</title><body>A & B</body><topics><d0>Fiction</d0></topics></book>"
    ...     _ = path.write_text(book)
    ...     data, _ = read_blurbs([path] * 3)
    >>> data.source.joined()[0], data.target.names
    ('Sand\\nA & B', ('Fiction',))
    """
    return assembled([_books(path) for path in paths], paths[0])


def _books(path: AnyPath) -> Documents:
    documents = Documents.empty("title", "body")
    line = 1
    *books, rest = "\n".join(read_lines(path)).split(_END)
    for book in books:
        before, begin, content = book.partition(_BOOK)
        line += _blank_lines(before)
        if before.strip() or not begin:
            raise DataError(f"text outside of a book; put it between {_BOOK} …> and {_END}", path, line)
        title, body, topics = (_between(content, name) for name in ("title", "body", "topics"))
        if body is None or not body.strip() or topics is None:
            what = "a book without a <body>" if topics is not None else "a book without <topics>"
            raise DataError(f"{what}; complete it or remove it", path, line)
        if odd := _GENRE.sub("", topics).strip():
            raise DataError(f"{odd[:40]!r} is no genre; write <d0> … </d0>", path, line)
        genres = [html.unescape(match[2]).strip() for match in _GENRE.finditer(topics)]
        documents.add(
            [one for one in genres if one], *(html.unescape(text or "").strip() for text in (title, body))
        )
        line += begin.count("\n") + content.count("\n")
    if rest.strip():
        what = f"a book is not closed; the file ends before {_END}"
        raise DataError(what, path, line + _blank_lines(rest))
    return documents


def _blank_lines(text: str) -> int:
    """Return how many lines end before the first word of a text."""
    return text[: len(text) - len(text.lstrip())].count("\n")


def _between(text: str, name: str) -> str | None:
    """Return what is between ``<name>`` and ``</name>``, None where it is not there."""
    _, begin, rest = text.partition(f"<{name}>")
    content, end, _ = rest.partition(f"</{name}>")
    return content if begin and end else None

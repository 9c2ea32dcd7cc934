"""Column files: one token per line, a blank line between sentences (CoNLL, tweets, PropBank)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain

from lossnet.data.errors import AnyPath, DataError
from lossnet.data.readers.text import read_lines, stream_lines

#: the cells of a token's line
Row = tuple[str, ...]


class Block(list[Row]):
    """The rows of a sentence, which begin at a ``line`` of their file."""

    line = 0


_DOCUMENT = "-DOCSTART-"
_GAP = re.compile("[ \t]+")  # not every kind of white space: tweets have tokens of no-break spaces


def read_columns(path: AnyPath, columns: int | None = None, *, encoding: str = "utf-8") -> list[Block]:
    """Return the sentences of a column file, as rows of cells.

    Cells are separated by tabs if the first row has one, else by spaces.  Every row of the file has
    ``columns`` cells; where that is not given, every row of a sentence has as many as its first.
    ``-DOCSTART-`` lines only end a sentence.  In files with tabs, a line ``# …`` without one that stands
    before a sentence is a comment; ``#`` may also begin a token.

    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder, "tweets.txt")
    ...     _ = path.write_text("# sent_id = 1\\nhi\\t!\\n#fun\\t#\\n\\nyou\\tO\\n")
    ...     read_columns(path)
    [[('hi', '!'), ('#fun', '#')], [('you', 'O')]]
    """
    return list(stream_columns(path, columns, iter(read_lines(path, encoding))))


def stream_columns(
    path: AnyPath,
    columns: int | None = None,
    lines: Iterator[str] | None = None,
    encoding: str = "utf-8",
) -> Iterator[Block]:
    """Yield the sentences of `read_columns` one at a time; ``lines`` are the file's if already opened."""
    lines = stream_lines(path, encoding) if lines is None else lines
    before: list[str] = []
    for line in lines:
        before.append(line)
        if line.strip(" \t") and not _is_comment(line):
            break
    tabs = "\t" in before[-1] and not _is_comment(before[-1])
    sentences, number = 0, 0
    sentence = Block()
    for number, line in enumerate(chain(before, lines), start=1):
        if not line.strip(" \t") or line.startswith(_DOCUMENT):
            if sentence:
                yield sentence
                sentences += 1
            sentence = Block()
            continue
        if tabs and not sentence and _is_comment(line):
            continue
        row = tuple(line.split("\t") if tabs else _GAP.split(line.strip(" \t")))
        if not all(row):
            what = f"column {row.index('') + 1} is empty"
            raise DataError(f"{what}; write a placeholder such as _ or remove the line", path, number)
        expected = columns or len(sentence[0] if sentence else row)
        if len(row) != expected:
            separator = "tabs" if tabs else "spaces"
            what = f"{len(row)} column(s) where {expected} are expected, separated by {separator}"
            raise DataError(f"{what}; complete the row, or put a blank line between sentences", path, number)
        sentence.line = sentence.line or number
        sentence.append(row)
    if sentence:
        yield sentence
    elif not sentences:
        raise DataError("no sentence; a column file has one token per line", path, number)


def _is_comment(line: str) -> bool:
    return line.startswith("# ") and "\t" not in line

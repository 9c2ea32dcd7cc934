"""References as Seymore et al. (1999) tagged them: fields between ``<title>`` and ``</title>``."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from lossnet.data.errors import AnyPath, DataError
from lossnet.data.readers.text import read_lines
from lossnet.data.sentences import TaggedSentences
from lossnet.data.splits import Split

#: words and single signs; with these, the longest reference of Cora has 118 tokens, as the papers say
_TOKEN = re.compile(r"\w+|[^\w\s]")
_FIELD = re.compile(r"<(\w+)>(.*?)</\1>", re.DOTALL)
_REFERENCE = "<NEWREFERENCE>"


def read_citations(paths: Sequence[AnyPath]) -> tuple[TaggedSentences, Split]:
    """Read references whose fields are marked, each after a line ``<NEWREFERENCE>``; split them by number.

    Of fifty references in turn, fifteen test, two validate and the others train.

    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder, "references.txt")
    ...     _ = path.write_text("<NEWREFERENCE>\\n<author> A. Cau. </author> <date> 1992. </date>\\n" * 2)
    ...     data, split = read_citations([path])
    >>> data.tokens[0], data.tags[0]
    (('A', '.', 'Cau', '.', '1992', '.'), ('author', 'author', 'author', 'author', 'date', 'date'))
    """
    (path,) = paths
    references = "\n".join(read_lines(path)).split(_REFERENCE)
    line = 1 + references[0].count("\n")
    if references[0].strip():
        raise DataError(f"text before the first {_REFERENCE}; put that before each reference", path, 1)
    tokens: list[tuple[str, ...]] = []
    tags: list[tuple[str, ...]] = []
    for reference in references[1:]:
        fields = [(match[1], tokens_of(match[2])) for match in _FIELD.finditer(reference)]
        rest = _FIELD.sub("", reference).strip()
        if rest or not any(words for _, words in fields):
            what = f"{rest[:40]!r} is in no field" if rest else "the reference has no field with words"
            raise DataError(f"{what}; write <title> … </title>", path, line)
        tokens.append(tuple(word for _, words in fields for word in words))
        tags.append(tuple(name for name, words in fields for _ in words))
        line += reference.count("\n")
    return TaggedSentences(tuple(tokens), tuple(tags), segments=True), _split(len(tokens))


def tokens_of(text: str) -> tuple[str, ...]:
    """Return the words and signs of a reference.

    >>> tokens_of("vol. 12(3), 1992")
    ('vol', '.', '12', '(', '3', ')', ',', '1992')
    """
    return tuple(_TOKEN.findall(text))


def _split(count: int) -> Split:
    """Return 30 % of rows to test, 4 % to validate and the others, by their numbers alone."""
    rows = np.arange(count)
    test, valid = np.isin(rows % 10, (0, 3, 6)), np.isin(rows % 50, (1, 2))
    return Split(rows[~test & ~valid], rows[valid], rows[test])

"""Texts and labels line by line in files of their own, as AAPD is published (Yang et al. 2018)."""

from __future__ import annotations

from collections.abc import Sequence

from lossnet.data.errors import AnyPath, DataError
from lossnet.data.examples import Examples
from lossnet.data.readers.documents import Documents, assembled
from lossnet.data.readers.text import read_lines
from lossnet.data.splits import Split


def read_parallel(paths: Sequence[AnyPath]) -> tuple[Examples, Split]:
    """Read three files of texts, and then three of labels separated by spaces, each for the text of its line.

    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     paths = [Path(folder, f"{kind}_{part}") for kind in ("text", "label") for part in "abc"]
    ...     for path in paths:
    ...         _ = path.write_text("we prove it\\n" if path.name[0] == "t" else "math.co cs.lg\\n")
    ...     data, split = read_parallel(paths)
    >>> data.source.joined()[0], data.target.names, split.test
    ('we prove it', ('cs.lg', 'math.co'), array([2]))
    """
    half = len(paths) // 2
    return assembled([_part(*pair) for pair in zip(paths[:half], paths[half:], strict=True)], paths[0])


def _part(texts: AnyPath, labels: AnyPath) -> Documents:
    lines, sets = read_lines(texts), read_lines(labels)
    if len(lines) != len(sets):
        what = f"{len(sets)} line(s) of labels for {len(lines)} line(s) of texts"
        raise DataError(f"{what}; use files of one release", labels, min(len(lines), len(sets)) + 1)
    documents = Documents.empty("text")
    for number, (line, names) in enumerate(zip(lines, sets, strict=True), start=1):
        for path, cell, what in ((texts, line, "text"), (labels, names, "label")):
            if not cell.strip():
                raise DataError(f"the line has no {what}; remove it from both files", path, number)
        documents.add(names.split(), line.strip())
    return documents

"""Comments and the emotions in them, as GoEmotions is published (Demszky et al. 2020)."""

from __future__ import annotations

from collections.abc import Sequence

from lossnet.data.errors import AnyPath, DataError
from lossnet.data.examples import Examples
from lossnet.data.readers.documents import Documents, assembled
from lossnet.data.readers.text import read_lines, shortened
from lossnet.data.splits import Split


def read_goemotions(paths: Sequence[AnyPath]) -> tuple[Examples, Split]:
    """Read files of comments, which train, validate and test, and last the names of emotions, one a line.

    A comment is its text, the numbers of emotions from 0, with commas between, and a name of its own,
    separated by tabs.

    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     comments, names = Path(folder, "train.tsv"), Path(folder, "labels.txt")
    ...     _ = comments.write_text("So good!\\t0,1\\ted1\\n")
    ...     _ = names.write_text("joy\\nlove\\nneutral\\n")
    ...     data, _ = read_goemotions([comments, comments, comments, names])
    >>> data.source.joined()[0], data.target.names
    ('So good!', ('joy', 'love'))
    """
    *files, names = paths
    emotions = [line.strip() for line in read_lines(names)]
    for number, emotion in enumerate(emotions, start=1):
        if not emotion or emotion in emotions[: number - 1]:
            what = f"{emotion!r} is listed twice" if emotion else "an emotion without a name"
            raise DataError(f"{what}; give each a line of its own", names, number)
    return assembled([_comments(path, emotions) for path in files], files[0])


def _comments(path: AnyPath, emotions: Sequence[str]) -> Documents:
    documents = Documents.empty("text")
    for line, text in enumerate(read_lines(path), start=1):
        cells = text.split("\t")
        if len(cells) != 3 or not cells[0].strip():
            what = f"{len(cells)} cell(s)" if len(cells) != 3 else "no text"
            raise DataError(f"{what}; a line is a text, numbers of emotions and a name", path, line)
        numbers = cells[1].split(",")
        for number in numbers:
            if not (
                number.isascii() and number.isdigit() and len(number) < 6 and int(number) < len(emotions)
            ):
                what = f"{shortened(number)} is no emotion; they have numbers from 0 to {len(emotions) - 1}"
                raise DataError(what, path, line)
        documents.add([emotions[int(number)] for number in numbers], cells[0])
    return documents

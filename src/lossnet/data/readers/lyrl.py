"""RCV1-v2 as it is published: stemmed tokens and relevance judgements (Lewis et al. 2004)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lossnet.data.errors import AnyPath, DataError
from lossnet.data.examples import Examples
from lossnet.data.readers.documents import Documents, assembled
from lossnet.data.readers.text import shortened, stream_lines
from lossnet.data.splits import Split


def read_lyrl(paths: Sequence[AnyPath]) -> tuple[Examples, Split]:
    """Read a file of tokens to train, others to test, and last the topics of documents.

    A document is ``.I NUMBER``, ``.W`` and lines of tokens; a judgement is ``TOPIC NUMBER 1``.

    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     train, test, topics = (Path(folder, name) for name in ("train.dat", "test.dat", "qrels"))
    ...     _ = train.write_text(".I 1\\n.W\\nrecov recov\\n\\n.I 2\\n.W\\nspend\\n")
    ...     _ = test.write_text(".I 7\\n.W\\noil\\n")
    ...     _ = topics.write_text("E11 1 1\\nECAT 1 1\\nE12 2 1\\nM14 7 1\\n")
    ...     data, split = read_lyrl([train, test, topics])
    >>> data.source.joined(), data.target.names, split.test
    (['recov recov', 'spend', 'oil'], ('E11', 'E12', 'ECAT', 'M14'), array([2]))
    """
    train, *tests, judgements = paths
    topics = _topics(judgements)
    seen: dict[int, AnyPath] = {}
    parts = []
    for files in ([train], tests):
        documents = Documents.empty("text")
        for path in files:
            for number, text, line in _documents(path):
                if number in seen:
                    what = f"document {number} is in {seen[number]} already"
                    raise DataError(f"{what}; use files of one release", path, line)
                seen[number] = path
                documents.add(topics.get(number, ()), text)
        parts.append(documents)
    return assembled(parts, judgements)


def _topics(path: AnyPath) -> dict[int, list[str]]:
    """Return the topics of each document."""
    topics: dict[int, list[str]] = {}
    for line, text in enumerate(stream_lines(path), start=1):
        topic, *rest = text.split() or [""]
        if len(rest) != 2 or not _is_number(rest[0]) or rest[1] != "1":
            raise DataError(f"{shortened(text)} is no judgement; write TOPIC DOCUMENT 1", path, line)
        topics.setdefault(int(rest[0]), []).append(topic)
    return topics


def _documents(path: AnyPath) -> Iterator[tuple[int, str, int]]:
    """Yield the number of each document, its tokens and the line where it begins."""
    begun: tuple[int, int] | None = None
    tokens: list[str] | None = None
    for line, text in enumerate(stream_lines(path), start=1):
        if text.startswith(".I"):
            if begun is not None:
                yield _whole(path, *begun, tokens)
            number = text[2:].strip()
            if not _is_number(number):
                raise DataError(f"{shortened(text)} has no number; write .I and one", path, line)
            begun, tokens = (int(number), line), None
        elif begun is None or (tokens is None) != (text.strip() == ".W"):
            if begun is None or text.strip():
                raise DataError("not where it belongs; a document is .I NUMBER, .W and tokens", path, line)
        elif tokens is None:
            tokens = []
        else:
            tokens += text.split()
    assert begun is not None  # a file has a line that is not blank
    yield _whole(path, *begun, tokens)


def _whole(path: AnyPath, number: int, line: int, tokens: list[str] | None) -> tuple[int, str, int]:
    if not tokens:
        raise DataError(f"document {number} has no tokens; the file is cut short", path, line)
    return number, " ".join(tokens), line


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10

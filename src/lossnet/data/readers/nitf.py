"""Articles of The New York Times Annotated Corpus, one NITF file each (Sandhaus 2008, LDC2008T19)."""

from __future__ import annotations

import os.path
from collections.abc import Sequence
from os import fspath
from pathlib import Path, PurePosixPath
from xml.parsers import expat

from lossnet.data.errors import AnyPath, DataError
from lossnet.data.examples import Examples
from lossnet.data.readers.documents import Documents, assembled
from lossnet.data.readers.text import read_bytes, read_lines, shortened
from lossnet.data.splits import Split

_TAXONOMY = "taxonomic_classifier"
_ROOT = "Top"


def read_nitf(paths: Sequence[AnyPath]) -> tuple[Examples, Split]:
    """Read the articles that three lists name, which train, validate and test.

    A list has the place of an article on each line, such as ``Nytimes/2001/1354702.xml``, from the folder of
    the list.  Labels are the taxonomic classifiers and all that they are below: ``News`` and ``News/World``
    of ``Top/News/World``.  Articles without text, or without a label, are left out.
    """
    return assembled([_listed(path) for path in paths], paths[0])


def _listed(path: AnyPath) -> Documents:
    documents = Documents.empty("title", "text")
    for line, place in enumerate(map(str.strip, read_lines(path)), start=1):
        if not place:
            continue
        parts = PurePosixPath(place).parts
        if place.startswith("/") or ".." in parts or "\\" in place or ":" in place:
            raise DataError(f"{shortened(place)} is no place below the list; correct it", path, line)
        article = os.path.join(Path(path).parent, *parts)
        if not os.path.isfile(article):  # unlike `Path.is_file`, of a name that is too long as well
            what = f"there is no article {shortened(place)}"
            raise DataError(f"{what}; unpack the corpus beside the list", path, line)
        title, text, topics = read_article(article)
        if text:
            documents.add(topics, title, text)
    return documents


def read_article(path: AnyPath) -> tuple[str, str, list[str]]:
    """Return the headline, the text and the labels of an article.

    >>> from tempfile import TemporaryDirectory
    >>> article = '''<nitf><head><docdata><identified-content>
    ... <classifier class="online_producer" type="taxonomic_classifier">Top/News/World</classifier>
    ... </identified-content></docdata></head><body><body.head><hedline><hl1>Rain</hl1></hedline></body.head>
    ... <body.content><block class="full_text"><p>It rained.</p><p>It stopped.</p></block></body.content>
    ... </body></nitf>'''
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder, "1.xml")
    ...     _ = path.write_text(article)
    ...     read_article(path)
    ('Rain', 'It rained.\\nIt stopped.', ['News', 'News/World'])
    """
    reader = _Article(path)
    try:
        reader.parser.Parse(read_bytes(path), True)
    except expat.ExpatError as error:
        what = f"not readable XML ({expat.ErrorString(error.code)})"
        raise DataError(f"{what}; unpack the corpus again", fspath(path), error.lineno) from None
    except (LookupError, ValueError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"not readable XML ({error}); unpack the corpus again", path, 1) from None
    labels = dict.fromkeys(label for place in reader.places for label in _below(place))
    return " ".join(reader.title.split()), "\n".join(reader.paragraphs), [*labels]


def _below(place: str) -> list[str]:
    """Return a place of the taxonomy and all above it, but for the root."""
    parts = [part.strip() for part in place.split("/") if part.strip()]
    parts = parts[1:] if parts[:1] == [_ROOT] else parts
    return ["/".join(parts[:count]) for count in range(1, len(parts) + 1)]


class _Article:
    """What the parser has met of an article: its headline, paragraphs and places in the taxonomy."""

    def __init__(self, path: AnyPath) -> None:
        self.path = path
        self.title, self.paragraphs, self.places = "", list[str](), list[str]()
        self._open: str | None = None  # what the characters belong to
        self._full = 0  # how many elements are open in the full text
        self._characters: list[str] = []
        self.parser = expat.ParserCreate()
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.CharacterDataHandler = self._characters.append
        self.parser.EntityDeclHandler = self._entity

    def _entity(self, name: str, *about: object) -> None:
        what = f"it declares an entity, {shortened(name)}, which articles do not"
        raise DataError(f"{what}; unpack the corpus again", self.path, self.parser.CurrentLineNumber)

    def _start(self, tag: str, values: dict[str, str]) -> None:
        full = tag == "block" and values.get("class") == "full_text"
        self._full += bool(self._full or full)
        wanted = tag == "hl1" or (tag == "p" and self._full)
        if wanted or (tag == "classifier" and values.get("type") == _TAXONOMY):
            self._open = tag
            self._characters.clear()

    def _end(self, tag: str) -> None:
        self._full -= bool(self._full)
        if tag != self._open:
            return
        text = " ".join("".join(self._characters).split())
        self._open = None
        if tag == "hl1":
            self.title = self.title or text
        elif tag == "classifier":
            self.places.append(text)
        elif text:
            self.paragraphs.append(text)

"""Pretrained word vectors: from text or arrays, looked up with back-off, and how much of a text they cover.

A word is looked up by its `spellings`, in this order:

===============  =======================================================  ======================
rule             spelling                                                 example
===============  =======================================================  ======================
``as is``        the word itself
``lower case``   in lower case                                            ``EU`` → ``eu``
``capitalised``  the first letter upper, the others lower case            ``PARIS`` → ``Paris``
``number``       ``0`` where it has digits and no letters                 ``1996-08-22`` → ``0``
``kind``         what GloVe's tweets write for it: ``<user>``, ``<url>``,  ``@jo`` → ``<user>``
                 ``<hashtag>``, ``<number>``
``repeats``      in lower case, without repeated characters               ``Sooo`` → ``so``
===============  =======================================================  ======================
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from os import fspath
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lossnet.data.errors import AnyPath, DataError
from lossnet.data.readers.arrays import read_arrays
from lossnet.data.readers.text import read_lines
from lossnet.warn import warn

#: the rules of `spellings`, in their order
RULES = ("as is", "lower case", "capitalised", "number", "kind", "repeats")

_KINDS = (
    (re.compile(r"@\w+$"), "<user>"),
    (re.compile(r"(https?://|www\.)\S+$", re.IGNORECASE), "<url>"),
    (re.compile(r"#\w+$"), "<hashtag>"),
    (re.compile(r"[-+]?\.*+\d[:,.\d]*+$"), "<number>"),
)
_DIGIT = re.compile(r"\d")
_LETTER = re.compile(r"[^\W\d_]")
_REPEAT = re.compile(r"(.)\1+")


def spellings(word: str) -> Iterator[tuple[str, str]]:
    """Yield pairs of rule and spelling by which a word may be in a table of words, best first.

    >>> list(spellings("PARIS"))
    [('as is', 'PARIS'), ('lower case', 'paris'), ('capitalised', 'Paris'), ('repeats', 'paris')]
    """
    yield "as is", word
    yield "lower case", word.lower()
    yield "capitalised", word.capitalize()
    if _DIGIT.search(word) and not _LETTER.search(word):
        yield "number", "0"
    for pattern, name in _KINDS:
        if pattern.match(word):
            yield "kind", name
    yield "repeats", _REPEAT.sub(r"\1", word.lower())


def find_spelling(word: str, known: Container[str]) -> tuple[str, str] | None:
    """Return the first of a word's `spellings` that is known, with its rule.

    >>> find_spelling("EU", {"eu"})
    ('lower case', 'eu')
    """
    return next((pair for pair in spellings(word) if pair[1] in known), None)


@dataclass(frozen=True)
class Coverage:
    """The share of a text that has vectors: of its tokens and of its types (different words), by rule.

    >>> print(Coverage("glove.txt", {"as is": 0.75, "lower case": 0.125}, {"as is": 0.5}))
    glove.txt: 87.5 % of tokens (as is 75.0, lower case 12.5), 50.0 % of types (as is 50.0)
    """

    name: str
    tokens: dict[str, float]
    types: dict[str, float]

    def __str__(self) -> str:
        parts = []
        for what, by_rule in (("tokens", self.tokens), ("types", self.types)):
            rules = ", ".join(f"{rule} {100 * share:.1f}" for rule, share in by_rule.items())
            total = f"{100 * sum(by_rule.values()):.1f} % of {what}"
            parts.append(f"{total} ({rules})" if rules else total)
        return f"{self.name}: {', '.join(parts)}"


@dataclass(frozen=True, eq=False)
class Embeddings:
    """Different ``words`` and their ``vectors``, ``(words, dimensions)`` of float32.

    >>> table = Embeddings("mine", ("eu", "0"), np.array([[1.0, 2.0], [3.0, 4.0]]))
    >>> table.matrix(["EU", "1996-08-22", "Peter"])
    array([[1., 2.],
           [3., 4.],
           [0., 0.]], dtype=float32)
    >>> print(table.coverage(["EU", "eu", "rejects", "Peter"]))
    mine: 50.0 % of tokens (as is 25.0, lower case 25.0), 50.0 % of types (as is 25.0, lower case 25.0)
    """

    name: str
    words: tuple[str, ...]
    vectors: NDArray[np.float32]

    def __post_init__(self) -> None:
        with np.errstate(over="ignore"):  # what does not fit float32 becomes infinite: reported below
            vectors = np.asarray(self.vectors, dtype=np.float32)
        object.__setattr__(self, "vectors", vectors)
        if vectors.ndim != 2 or len(vectors) != len(self.words):
            what = f"{len(self.words)} words but vectors of the shape {vectors.shape}"
            raise DataError(f"{what}; give one row per word")
        if not np.isfinite(vectors).all():
            word = self.words[int(np.argmin(np.isfinite(vectors).all(1)))]
            raise DataError(f"the vector of {word!r} has a value that is not finite")

    @property
    def dimensions(self) -> int:
        """The length of a vector."""
        return int(self.vectors.shape[1])

    def __contains__(self, word: object) -> bool:
        return word in self._rows

    def matrix(self, words: Sequence[str]) -> NDArray[np.float32]:
        """Return the vectors of words, ``(words, dimensions)``; zeros where no spelling is known."""
        matrix = np.zeros((len(words), self.dimensions), dtype=np.float32)
        for place, word in enumerate(words):
            if known := find_spelling(word, self._rows):
                matrix[place] = self.vectors[self._rows[known[1]]]
        return matrix

    def coverage(self, tokens: Iterable[str]) -> Coverage:
        """Return how much of a text has vectors."""
        counts = Counter(tokens)
        by_rule: dict[str, list[int]] = {rule: [] for rule in RULES}
        for word, count in counts.items():
            if known := find_spelling(word, self._rows):
                by_rule[known[0]].append(count)
        used = {rule: covered for rule, covered in by_rule.items() if covered}
        in_tokens = {rule: sum(covered) / counts.total() for rule, covered in used.items()}
        return Coverage(self.name, in_tokens, {rule: len(used[rule]) / len(counts) for rule in used})

    @cached_property
    def _rows(self) -> dict[str, int]:
        return {word: row for row, word in enumerate(self.words)}


def read_embeddings(path: AnyPath) -> Embeddings:
    """Read ``.npz`` with ``words`` and ``vectors``, or text with a line ``word number number …`` for each.

    Text may begin with word2vec's header of two whole numbers.  A last line that is cut short is left
    out, with a warning; of a word that comes twice, the first vector counts.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder, "glove.txt")
    ...     _ = path.write_text("the 0.5 1\\nof 0.25 -1\\n")
    ...     read_embeddings(path).matrix(["of"])
    array([[ 0.25, -1.  ]], dtype=float32)
    """
    words, vectors = _read_archive(path) if Path(path).suffix.lower() == ".npz" else _read_text(path)
    first: dict[str, int] = {}
    for row, word in enumerate(words):
        first.setdefault(word, row)
    try:
        return Embeddings(Path(path).name, tuple(first), vectors[list(first.values())])
    except DataError as error:
        raise error.at(path) from None


def _read_archive(path: AnyPath) -> tuple[list[str], NDArray[Any]]:
    arrays = read_arrays(path)
    if not {"words", "vectors"} <= set(arrays):
        raise DataError(f"has arrays {sorted(arrays)}; it must have words and vectors", path)
    words, vectors = arrays["words"], arrays["vectors"]
    if words.dtype.kind != "U" or words.ndim != 1 or vectors.dtype.kind != "f" or vectors.ndim != 2:
        what = f"words of {words.dtype} {words.shape} and vectors of {vectors.dtype} {vectors.shape}"
        raise DataError(f"{what}; they must be strings (n,) and floats (n, dimensions)", path)
    if len(words) != len(vectors):
        raise DataError(f"{len(words)} words but {len(vectors)} vectors; give one for each", path)
    return words.tolist(), vectors


def _read_text(path: AnyPath) -> tuple[list[str], NDArray[np.float32]]:
    lines = read_lines(path)
    first = 1 if re.fullmatch(r"\d+ \d+", lines[0].strip()) else 0
    if first == len(lines):
        raise DataError("no vectors; a line is a word and its numbers", path, 1)
    dimensions = len(lines[first].rstrip(" ").split(" ")) - 1
    words: list[str] = []
    vectors = np.empty((len(lines) - first, dimensions), dtype=np.float32)
    for place, line in enumerate(lines[first:]):
        # From the right: some of GloVe's words have spaces.
        word, *numbers = line.rstrip(" ").rsplit(" ", dimensions)
        try:
            if len(numbers) != dimensions or not dimensions:
                raise ValueError
            with np.errstate(over="ignore"):  # what does not fit float32 becomes infinite, and reported
                vectors[place] = np.array(numbers, dtype=np.float32)
        except ValueError:
            number = first + place + 1
            what = f"not a word and {dimensions} numbers"
            if number == len(lines) and words:
                where = f"{fspath(path)}:{number}"
                warn(f"{where}: {what}; the file is cut short, the line is left out")
                return words, vectors[:place]
            raise DataError(f"{what}, as the first line has; correct the line", path, number) from None
        words.append(word)
    return words, vectors

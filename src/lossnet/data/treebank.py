"""Constituency trees from column files, in which each word has its bit of the tree (CoNLL, PropBank)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lossnet.brackets import PUNCTUATION, ROOT, Tree, read_tree, spell
from lossnet.data.errors import AnyPath, DataError
from lossnet.data.examples import Examples
from lossnet.data.readers.columns import Block, read_columns
from lossnet.data.sentences import Sentences, TagColumn
from lossnet.data.splits import Split
from lossnet.spans import Span

#: a word's number, the word, its part of speech and its bit of the tree
_COLUMNS = 4
_BIT = re.compile(r"((?:\([^\s()*>]+)*)\*(\)*)")


@dataclass(frozen=True, eq=False)
class TreeColumn(TagColumn):
    """The constituency trees of sentences, as the ``tags`` that spell them; see `lossnet.brackets`.

    >>> column = TreeColumn.of([[Span(0, 2, "S"), Span(0, 1, "NP")]], [2])
    >>> column.tags, column.trees
    ((('l:NP L:S', 'r'),), ((Span(start=0, end=2, kind='S'), Span(start=0, end=1, kind='NP')),))
    """

    @classmethod
    def of(
        cls,
        trees: Iterable[Iterable[Span]],
        lengths: Iterable[int],
        punctuation: Iterable[Sequence[int]] | None = None,
    ) -> TreeColumn:
        """Return trees of sentences of some lengths, and which of their words are punctuation."""
        lengths = list(lengths)
        left_out = [()] * len(lengths) if punctuation is None else punctuation
        rows = zip(trees, lengths, left_out, strict=True)
        return cls(tuple(spell(*row) for row in rows))

    @property
    def trees(self) -> tuple[Tree, ...]:
        """The constituents of each sentence."""
        return tuple(map(read_tree, self.tags))


def read_treebank(paths: Sequence[AnyPath]) -> tuple[Examples, Split | None]:
    """Read sentences and their trees; three files also say which train, validate and test.

    A line has a word's number, the word, its part of speech, its bit of the tree and any further columns:
    ``(S(NP*)`` for ``(S(NP I)``.  A sentence's bits together are one tree, which may have a root ``TOP``.

    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder, "a.conll")
    ...     _ = path.write_text("0\\tI\\tPRP\\t(TOP(S(NP*)\\n1\\tbet\\tVBP\\t(VP*)\\n2\\t.\\t.\\t*))\\n")
    ...     data, split = read_treebank([path])
    >>> data.source.tokens, data.source.columns, data.target.tags
    ((('I', 'bet', '.'),), {'pos': (('PRP', 'VBP', '.'),)}, (('l:NP L:S', 'l:VP R', 'r.'),))
    """
    parts = [read_columns(path) for path in paths]
    tokens, parts_of_speech, trees, punctuation = [], [], [], []
    for path, part in zip(paths, parts, strict=True):
        for block in part:
            trees.append(_tree(block, path))
            tokens.append(tuple(row[1] for row in block))
            parts_of_speech.append(tuple(row[2] for row in block))
            punctuation.append([word for word, row in enumerate(block) if row[2] in PUNCTUATION])
    source = Sentences(tuple(tokens), {"pos": tuple(parts_of_speech)})
    data = Examples(source, TreeColumn.of(trees, map(len, tokens), punctuation))
    return data, Split.consecutive([len(part) for part in parts]) if len(parts) > 1 else None


def _tree(block: Block, path: AnyPath) -> Tree:
    """Return the constituents that the bits of a sentence make, without the root."""
    found: list[Span] = []
    waiting: list[tuple[int, int, str]] = []  # those that are open: place in the tree, first word, label
    for word, row in enumerate(block):
        line = block.line + word
        if len(row) < _COLUMNS:
            what = f"{len(row)} columns where {_COLUMNS} are needed"
            raise DataError(f"{what}: number, word, part of speech, bit of the tree", path, line)
        bit = row[_COLUMNS - 1]
        match = _BIT.fullmatch(bit)
        if match is None:
            advice = "write opening brackets with labels, *, closing brackets: (S(NP*)"
            raise DataError(f"{bit[:40]!r} is no bit of a tree; {advice}", path, line)
        if word and not waiting:
            raise DataError(f"the tree has ended before {row[1][:40]!r}; put all words in one", path, line)
        for label in match[1].split("(")[1:]:
            waiting.append((len(found), word, label))
            found.append(Span(word, word, label))
        if len(match[2]) > len(waiting):
            what = f"{bit[:40]!r} closes {len(match[2])} brackets, and {len(waiting)} are open"
            raise DataError(f"{what}; remove some", path, line)
        for _ in match[2]:
            place, start, label = waiting.pop()
            found[place] = Span(start, word + 1, label)
    if waiting:
        labels = ", ".join(label for _, _, label in waiting[:5])
        raise DataError(
            f"brackets that are not closed at the end of the sentence: {labels}; close them", path, line
        )
    return tuple(found[1:] if found and found[0] == Span(0, len(block), ROOT) else found)

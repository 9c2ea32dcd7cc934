"""Constituency trees: labelled spans that nest, the tags that spell them word by word, and their brackets.

A tree is the `Span` of each constituent, outer ones before inner ones and left ones before right ones.  The
root over all words is not among them.

Tags are those of tetra-tagging (Kitaev & Klein 2020).  Where a constituent has more than two children, all
but the first are put together under a branching without a label, and so on, so that every tree is binary.
One of its branchings is then between any two neighbouring words, and a tag says of a word and of the
branching behind it:

======  ==================================================================
``l``   the word is the left child of the branching above it
``r``   it is the right child
``L``   the branching behind the word is itself a left child, or the root
``R``   it is a right child
======  ==================================================================

Labels follow a colon, those of constituents with the same words joined by ``>``, and a dot marks punctuation:
``l:NP L:S>VP``, ``r.``.  The last word has no branching behind it.

Of all tags that may follow each other, those spell a tree by which the number of branchings whose right child
is still to come (`Kind`) is 1 or more between words, and 0 at the end.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from enum import IntEnum
from functools import lru_cache
from typing import NamedTuple

from lossnet.spans import Span

__all__ = [
    "PLAIN",
    "PUNCTUATION",
    "Kind",
    "Step",
    "Tree",
    "bracketed",
    "brackets",
    "count_brackets",
    "drawn",
    "linearise",
    "read_linear",
    "read_step",
    "read_tree",
    "spell",
]

#: the constituents of a sentence, in the order that the module describes
Tree = tuple[Span, ...]
#: parts of speech that EVALB takes out of sentences before it compares brackets
PUNCTUATION = frozenset({",", ":", "``", "''", "."})
#: what the root is called where a tree is written
ROOT = "TOP"
#: tags without labels, one at least of each kind; with these, some tree can be spelled over any words
PLAIN = ("l", "l L", "l R", "r", "r L", "r R")

#: symbols of linearised trees beside opening brackets
WORD, CLOSE = "*", ")"

_TAG = re.compile(r"([lr])(\.?)(?::(\S+))?(?: ([LR])(?::(\S+))?)?")
#: labels that count as another one (EVALB's COLLINS.prm)
_SAME = {"PRT": "ADVP"}


class Kind(IntEnum):
    """What a tag does to the number of branchings whose right child is still to come."""

    UP = 0
    LEVEL = 1
    DOWN = 2
    LAST = 3
    ONLY = 4

    @property
    def change(self) -> int:
        """The difference that it makes."""
        return (1, 0, -1, -1, 0)[self]


_KINDS = {
    "lL": Kind.UP, "lR": Kind.LEVEL, "rL": Kind.LEVEL, "rR": Kind.DOWN, "r": Kind.LAST, "l": Kind.ONLY,
}  # fmt: skip


class Step(NamedTuple):
    """The meaning of a tag; sides are those of the word and of the branching behind it, if there is one."""

    side: str
    labels: tuple[str, ...]
    branch: str
    branch_labels: tuple[str, ...]
    punctuation: bool

    @property
    def kind(self) -> Kind:
        """The kind of step that it is."""
        return _KINDS[self.side + self.branch]


@lru_cache(maxsize=1 << 14)
def read_step(tag: str) -> Step:
    """Return the meaning of a tag; a ValueError if it has none.

    >>> read_step("r:NP L:S>VP")
    Step(side='r', labels=('NP',), branch='L', branch_labels=('S', 'VP'), punctuation=False)
    """
    match = _TAG.fullmatch(tag)
    if match is None:
        raise ValueError(f"the tag {tag[:40]!r} spells no part of a tree; tags look like 'r:NP L:S'")
    side, dot, own, branch, labels = match.groups()
    return Step(side, _separate(own), branch or "", _separate(labels), bool(dot))


def spell(tree: Iterable[Span], length: int, punctuation: Collection[int] = ()) -> tuple[str, ...]:
    """Return the tags of a sentence with this tree; ``punctuation`` has the numbers of such words.

    Nothing is lost: `read_tree` gives the same tree.

    >>> tree = Span(0, 3, "S"), Span(0, 1, "NP"), Span(1, 3, "VP"), Span(2, 3, "NP")
    >>> spell(tree, 4, punctuation=[3])
    ('l:NP L:S', 'l R:VP', 'r:NP L', 'r.')
    """
    chains: dict[tuple[int, int], list[str]] = {}
    for start, end, label in tree:
        if not 0 <= start < end <= length:
            raise ValueError(f"the constituent {label} of words {start} to {end} is not among {length} words")
        if not label or re.search(r"[\s>()]", label):
            raise ValueError(f"a label may have no spaces, parentheses or '>'; got {label!r}")
        chains.setdefault((start, end), []).append(label)
    whole = 0, length
    #: the smallest constituent of several words around each word, and the one that branches behind it
    mothers, branchings, right = [whole] * length, [whole] * length, {whole: False}
    for start, end in sorted(chains, key=lambda words: (words[0], -words[1])):  # outer ones first
        if end > mothers[start][1]:
            crossed = " and ".join(str(words) for words in (mothers[start], (start, end)))
            raise ValueError(f"the constituents {crossed} cross; a tree's nest")
        if 1 < end - start < length:
            right[start, end] = mothers[start][1] == end
            mothers[start:end] = [(start, end)] * (end - start)
            branchings[start : end - 1] = [(start, end)] * (end - start - 1)
    tags, begun = [], set[tuple[int, int]]()
    for word in range(length):
        side = "r" if length > 1 and mothers[word][1] == word + 1 else "l"
        tag = f"{side}{'.' * (word in punctuation)}{_together(chains.get((word, word + 1), ()))}"
        if word < length - 1:
            above = branchings[word]
            labels = () if above in begun else chains.get(above, ())
            tag += f" {'R' if above in begun or right[above] else 'L'}{_together(labels)}"
            begun.add(above)
        tags.append(tag)
    return tuple(tags)


def read_tree(tags: Sequence[str]) -> Tree:
    """Return the tree that tags spell; a ValueError says where they spell none.

    >>> read_tree(("l:NP L:S", "l R:VP", "r"))
    (Span(start=0, end=3, kind='S'), Span(start=0, end=1, kind='NP'), Span(start=1, end=3, kind='VP'))
    """
    found: list[Span] = []
    # Each item has branchings that end together, at the word that is the right child of the last of them.
    waiting: list[list[tuple[int, tuple[str, ...]]]] = []
    for word, tag in enumerate(tags):
        side, labels, branch, branch_labels, _ = read_step(tag)
        start, where = word, f"the tag {tag!r} of word {word + 1} of {len(tags)}"
        found += [Span(word, word + 1, label) for label in labels]
        if bool(branch) == (word == len(tags) - 1):
            raise ValueError(f"{where} is {'not ' if branch else ''}for the last word")
        if side == "r":
            if not waiting:
                raise ValueError(f"{where} is a right child of nothing")
            ended = waiting.pop()
            start = ended[0][0]
            found += [Span(begin, word + 1, label) for begin, above in ended for label in above]
        if branch == "L":
            waiting.append([(start, branch_labels)])
        elif branch == "R":
            if not waiting:
                raise ValueError(f"{where} has a branching that is a right child of nothing")
            waiting[-1].append((start, branch_labels))
    if waiting:
        raise ValueError(f"{len(waiting)} branchings have no right child at the end of {len(tags)} words")
    return tuple(sorted(found, key=lambda span: (span.start, -span.end)))


def linearise(tree: Iterable[Span], length: int) -> tuple[str, ...]:
    """Return a tree as a sequence of brackets, in which `WORD` stands for each word (Vinyals et al. 2015).

    >>> linearise([Span(0, 2, "S"), Span(0, 1, "NP")], 3)
    ('(S', '(NP', '*', ')', '*', ')', '*')
    """
    begins: list[list[str]] = [[] for _ in range(length)]
    ends = [0] * length
    for start, end, label in tree:
        begins[start].append(f"({label}")
        ends[end - 1] += 1
    return tuple(symbol for word in range(length) for symbol in (*begins[word], WORD, *(CLOSE,) * ends[word]))


def read_linear(symbols: Iterable[str], length: int) -> Tree:
    """Return the tree that brackets make over the words of a sentence.

    A tree comes of any symbols: brackets that nothing opened or that hold no word are left out, words too
    many as well, and what is open in the end has the rest of the words.

    >>> bracketed(read_linear(["(S", "(NP", "*", ")", ")", ")", "(VP"], 2), ["Ann", "left"])
    '(TOP (S (NP Ann)) (VP left))'
    """
    found: list[Span] = []
    waiting: list[int] = []
    word = 0
    for symbol in symbols:
        if symbol == WORD:
            word = min(word + 1, length)
        elif symbol != CLOSE:
            waiting.append(len(found))
            found.append(Span(word, length, symbol.removeprefix("(")))
        elif waiting:
            place = waiting.pop()
            found[place] = found[place]._replace(end=word)
    return tuple(span for span in found if span.start < span.end)


def brackets(tree: Iterable[Span], punctuation: Collection[int] = ()) -> Counter[Span]:
    """Return the brackets that EVALB compares (its parameters ``COLLINS.prm``), with how often each occurs.

    Punctuation is taken out, and what is left of a constituent counts; the root and parts of speech are none.
    ``PRT`` counts as ``ADVP``.

    >>> dict(brackets([Span(0, 3, "S"), Span(1, 2, "PRT"), Span(2, 3, "X")], punctuation=[2]))
    {Span(start=0, end=2, kind='S'): 1, Span(start=1, end=2, kind='ADVP'): 1}
    """

    def left(place: int) -> int:
        return place - sum(word < place for word in punctuation)

    kept = (Span(left(start), left(end), _SAME.get(label, label)) for start, end, label in tree)
    return Counter(span for span in kept if span.start < span.end)


def count_brackets(
    predicted: Iterable[Span], truth: Iterable[Span], punctuation: Collection[int] = ()
) -> Counter[str]:
    """Return how many brackets of a sentence are right, guessed and real; counts of sentences add up.

    >>> truth = [Span(0, 2, "S"), Span(0, 1, "NP"), Span(1, 2, "VP")]
    >>> sorted(count_brackets([Span(0, 2, "S"), Span(0, 1, "VP")], truth).items())
    [('guessed', 2), ('real', 3), ('right', 1)]
    """
    guessed, real = brackets(predicted, punctuation), brackets(truth, punctuation)
    return Counter(right=(guessed & real).total(), guessed=guessed.total(), real=real.total())


def bracketed(tree: Sequence[Span], tokens: Sequence[str], root: str = ROOT) -> str:
    """Return a tree in one line, as treebanks write it, but for parts of speech.

    >>> bracketed([Span(0, 2, "S"), Span(0, 1, "NP")], ["Ann", "left"])
    '(TOP (S (NP Ann) left))'
    """
    begins = Counter(span.start for span in tree)
    ends = Counter(span.end for span in tree)
    labels = iter(tree)
    text = f"({root}"
    for word, token in enumerate(tokens):
        text += "".join(f" ({next(labels).kind}" for _ in range(begins[word]))
        text += f" {_escaped(token)}{')' * ends[word + 1]}"
    return f"{text})"


def drawn(tree: Sequence[Span], tokens: Sequence[str], width: int = 60) -> str:
    """Return a tree in indented lines; what is short enough has one line.

    >>> tree = Span(0, 3, "S"), Span(0, 1, "NP"), Span(1, 3, "VP"), Span(2, 3, "NP")
    >>> print(drawn(tree, ["She", "reads", "books"], width=20))
    (TOP
      (S
        (NP She)
        (VP reads
          (NP books))))
    """
    spans = [Span(0, len(tokens), ROOT), *tree]
    lines: list[str] = []
    ends: list[int] = []  # of the constituents that are open
    place = word = 0
    while word < len(tokens):
        indent = "  " * len(ends)
        if place < len(spans) and spans[place].start == word:
            span = spans[place]
            later = spans[place + 1 :]
            inner = later[: sum(one.start < span.end for one in later)]
            moved = [Span(start - word, end - word, label) for start, end, label in inner]
            line = bracketed(moved, tokens[word : span.end], span.kind)
            if len(indent) + len(line) > width:
                lines.append(f"{indent}({span.kind}")
                ends.append(span.end)
                place += 1
                continue
            lines.append(indent + line)
            place, word = place + 1 + len(inner), span.end
        else:
            token = _escaped(tokens[word])
            if lines[-1].endswith(")") or len(lines[-1]) + 1 + len(token) > width:
                lines.append(indent + token)
            else:
                lines[-1] += f" {token}"
            word += 1
        while ends and ends[-1] == word:
            lines[-1] += ")"
            ends.pop()
    return "\n".join(lines)


def _separate(labels: str | None) -> tuple[str, ...]:
    return tuple(labels.split(">")) if labels else ()


def _together(labels: Sequence[str]) -> str:
    return f":{'>'.join(labels)}" if labels else ""


def _escaped(token: str) -> str:
    return token.replace("(", "-LRB-").replace(")", "-RRB-")

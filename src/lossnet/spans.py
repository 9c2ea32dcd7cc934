"""Spans that tags mark, such as names of people, and how many of them are found.

Tags are ``O`` outside of spans, else a prefix and a kind: ``B-PER`` begins a person, ``I-PER`` is inside,
``E-PER`` ends it and ``S-PER`` is a person of one token.  Schemes differ in which prefixes they use
(`lossnet.data.schemes`); what is read here is any mixture of them, as the script ``conlleval`` does: a span
goes on unless a tag begins another one, and no sequence is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

__all__ = ["Span", "SpanCounts", "find_spans", "span_scores"]

_TAG = re.compile(r"O|([BIES])-(.+)")


class Span(NamedTuple):
    """The tokens from ``start`` up to, and without, ``end``, and what they are."""

    start: int
    end: int
    kind: str


def find_spans(tags: Sequence[str]) -> list[Span]:
    """The spans of one sentence, in order.

    A span begins at ``B`` or ``S``, at any other tag after ``O``, ``E`` or ``S``, and where the kind changes.

    >>> find_spans(["B-PER", "I-PER", "O", "I-LOC", "I-ORG"])
    [Span(start=0, end=2, kind='PER'), Span(start=3, end=4, kind='LOC'), Span(start=4, end=5, kind='ORG')]
    """
    spans: list[Span] = []
    before, kind_before = "O", ""
    for place, tag in enumerate(tags):
        found = _TAG.fullmatch(tag)
        if found is None:
            raise ValueError(f"the tag {tag!r} marks no span; tags are O, or B-, I-, E- or S- and a kind")
        prefix, kind = found[1] or "O", found[2] or ""
        if prefix != "O":
            if prefix in "BS" or before in "OES" or kind != kind_before:
                spans.append(Span(place, place + 1, kind))
            else:
                spans[-1] = spans[-1]._replace(end=place + 1)
        before, kind_before = prefix, kind
    return spans


def span_scores(predicted: Iterable[Sequence[str]], truth: Iterable[Sequence[str]]) -> dict[str, float]:
    """Precision, recall and F1 of spans over all sentences, as fractions of 1; 0 where undefined.

    A span is right if its first token, its last token and its kind are.

    >>> span_scores([["B-PER", "O", "B-LOC"]], [["B-PER", "O", "O"]])
    {'precision': 0.5, 'recall': 1.0, 'span_f1': 0.6666666666666666}
    """
    return SpanCounts.of(predicted, truth).scores()


class SpanCounts(NamedTuple):
    """Spans that are ``right``, ``guessed`` and ``real``; counts of parts add up to those of the whole.

    >>> SpanCounts.of([["B-PER", "O", "B-LOC"]], [["B-PER", "O", "O"]])
    SpanCounts(right=1, guessed=2, real=1)
    """

    right: int = 0
    guessed: int = 0
    real: int = 0

    @classmethod
    def of(cls, predicted: Iterable[Sequence[str]], truth: Iterable[Sequence[str]]) -> SpanCounts:
        """The counts over some sentences."""
        right = guessed = real = 0
        for mine, true in zip(predicted, truth, strict=True):
            if len(mine) != len(true):
                raise ValueError(f"{len(mine)} predicted tags for a sentence of {len(true)} tokens")
            found, wanted = set(find_spans(mine)), set(find_spans(true))
            right += len(found & wanted)
            guessed += len(found)
            real += len(wanted)
        return cls(right, guessed, real)

    def plus(self, other: SpanCounts) -> SpanCounts:
        """The counts of both."""
        return SpanCounts(*(mine + others for mine, others in zip(self, other, strict=True)))

    def scores(self) -> dict[str, float]:
        """Precision, recall and F1, 0 where undefined."""
        return {
            "precision": self.right / max(self.guessed, 1),
            "recall": self.right / max(self.real, 1),
            "span_f1": 2 * self.right / max(self.guessed + self.real, 1),
        }

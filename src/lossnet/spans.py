"""Spans that tags mark, such as names of people, and scores of them.

Tags are ``O`` outside of spans, else a prefix and a kind: ``B-PER`` begins a person, ``I-PER`` is inside,
``E-PER`` ends it and ``S-PER`` is a person of one token.  Schemes differ in which prefixes they use
(`lossnet.data.schemes`); any mixture of them can be read here, as by the script ``conlleval``: a span goes on
unless a tag begins another one, and no sequence is wrong.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

__all__ = ["Span", "count_spans", "find_spans", "scores_of_counts", "span_scores"]

_TAG = re.compile(r"O|([BIES])-(.+)")


class Span(NamedTuple):
    """The tokens from ``start`` up to, but without, ``end``, and their kind."""

    start: int
    end: int
    kind: str


def find_spans(tags: Sequence[str]) -> list[Span]:
    """Return the spans of one sentence, in order.

    A span begins at ``B`` or ``S``, at any other tag after ``O``, ``E`` or ``S``, and where the kind changes.

    >>> find_spans(["B-PER", "I-PER", "O", "I-LOC", "I-ORG"])
    [Span(start=0, end=2, kind='PER'), Span(start=3, end=4, kind='LOC'), Span(start=4, end=5, kind='ORG')]
    """
    spans: list[Span] = []
    before, kind_before = "O", ""
    for place, tag in enumerate(tags):
        match = _TAG.fullmatch(tag)
        if match is None:
            raise ValueError(f"the tag {tag!r} marks no span; tags are O, or B-, I-, E- or S- and a kind")
        prefix, kind = match[1] or "O", match[2] or ""
        if prefix != "O":
            if prefix in "BS" or before in "OES" or kind != kind_before:
                spans.append(Span(place, place + 1, kind))
            else:
                spans[-1] = spans[-1]._replace(end=place + 1)
        before, kind_before = prefix, kind
    return spans


def count_spans(predicted: Iterable[Sequence[str]], truth: Iterable[Sequence[str]]) -> Counter[str]:
    """Return how many spans are right, guessed and real; counts of parts of a data set add up.

    A span is right if its first token, its last token and its kind are.

    >>> sorted(count_spans([["B-PER", "O", "B-LOC"]], [["B-PER", "O", "O"]]).items())
    [('guessed', 2), ('real', 1), ('right', 1)]
    """
    counts = Counter[str]()
    for tags, true_tags in zip(predicted, truth, strict=True):
        if len(tags) != len(true_tags):
            raise ValueError(f"{len(tags)} predicted tags for a sentence of {len(true_tags)} tokens")
        guessed, real = set(find_spans(tags)), set(find_spans(true_tags))
        counts.update(right=len(guessed & real), guessed=len(guessed), real=len(real))
    return counts


def scores_of_counts(counts: Counter[str]) -> dict[str, float]:
    """Return precision, recall and F1 of counted spans, as fractions of 1; 0 where undefined."""
    right, guessed, real = counts["right"], counts["guessed"], counts["real"]
    return {
        "precision": right / max(guessed, 1),
        "recall": right / max(real, 1),
        "span_f1": 2 * right / max(guessed + real, 1),
    }


def span_scores(predicted: Iterable[Sequence[str]], truth: Iterable[Sequence[str]]) -> dict[str, float]:
    """Return precision, recall and F1 of spans over all sentences; see `count_spans`.

    >>> span_scores([["B-PER", "O", "B-LOC"]], [["B-PER", "O", "O"]])
    {'precision': 0.5, 'recall': 1.0, 'span_f1': 0.6666666666666666}
    """
    return scores_of_counts(count_spans(predicted, truth))

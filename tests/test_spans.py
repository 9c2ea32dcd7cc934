from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from seqeval.metrics import f1_score, precision_score, recall_score
from seqeval.metrics.sequence_labeling import get_entities

from lossnet.spans import Span, find_spans, span_scores

TAGS = st.sampled_from(["O", *(f"{prefix}-{kind}" for prefix in "BIES" for kind in ("PER", "LOC", "A-B"))])
SENTENCE = st.lists(TAGS, min_size=1, max_size=12)
PAIRS = st.lists(
    st.integers(1, 8).flatmap(lambda n: st.tuples(*[st.lists(TAGS, min_size=n, max_size=n)] * 2)),
    min_size=1,
    max_size=5,
)


@given(SENTENCE)
def test_spans_are_those_of_seqeval(tags):
    theirs = [Span(start, last + 1, kind) for kind, start, last in get_entities(tags)]
    assert find_spans(tags) == theirs


@given(PAIRS)
def test_scores_are_those_of_seqeval(pairs):
    predicted, truth = [list(side) for side in zip(*pairs, strict=True)]
    scores = span_scores(predicted, truth)
    for name, theirs in (("precision", precision_score), ("recall", recall_score), ("span_f1", f1_score)):
        assert scores[name] == pytest.approx(theirs(truth, predicted, zero_division=0))


@pytest.mark.parametrize(
    ("tags", "spans"),
    [
        ("O O", []),
        ("I-X I-X B-X", [(0, 2), (2, 3)]),
        ("B-X B-X I-X", [(0, 1), (1, 3)]),
        ("S-X E-X", [(0, 1), (1, 2)]),
        ("B-X E-X I-X E-X", [(0, 2), (2, 4)]),
        ("E-X O I-X", [(0, 1), (2, 3)]),
    ],
)
def test_how_ill_formed_tags_are_read(tags, spans):
    assert [span[:2] for span in find_spans(tags.split())] == spans


def test_nothing_to_find():
    assert span_scores([["O"]], [["O"]]) == {"precision": 0.0, "recall": 0.0, "span_f1": 0.0}
    assert span_scores([], [])["span_f1"] == 0.0


def test_what_cannot_be_scored():
    for tag in ("NN", "B-", "-PER", "X-PER", "B", ""):
        with pytest.raises(ValueError, match="marks no span"):
            find_spans([tag])
    with pytest.raises(ValueError, match="1 predicted tags for a sentence of 2"):
        span_scores([["O"]], [["O", "O"]])
    with pytest.raises(ValueError, match="argument 2"):
        span_scores([["O"]], [["O"], ["O"]])

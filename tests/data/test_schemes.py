from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from seqeval.metrics.sequence_labeling import get_entities
from seqeval.scheme import IOB1, IOB2, IOBES, Entities

from lossnet.data import DataError, read_sentences
from lossnet.data.schemes import SCHEMES, convert, detect, mark, read_spans
from lossnet.spans import Span

THEIRS = {"IOB1": IOB1, "IOB2": IOB2, "BIOES": IOBES}


@st.composite
def spanned(draw):
    """Spans that do not overlap, many of them adjacent, and the length of their sentence."""
    spans, place = [], 0
    for gap, length in draw(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 3)), max_size=5)):
        start = place + gap
        place = start + length
        spans.append(Span(start, place, draw(st.sampled_from(["PER", "A-B"]))))
    return spans, place + draw(st.integers(0, 2))


@given(spanned(), st.sampled_from(SCHEMES), st.sampled_from(SCHEMES))
def test_round_trips(sentence, source, target):
    spans, length = sentence
    tags = mark(spans, length, source)
    assert len(tags) == length
    assert read_spans(tags, source) == spans
    there = convert(tags, source, target)
    assert there == mark(spans, length, target)
    assert convert(there, target, source) == tags


@given(spanned(), st.sampled_from(SCHEMES))
def test_spans_are_those_of_seqeval(sentence, scheme):
    spans, length = sentence
    tags = list(mark(spans, length, scheme))
    found = [
        (entity.start, entity.end, entity.tag) for entity in Entities([tags], THEIRS[scheme]).entities[0]
    ]
    assert found == spans
    assert [(start, end + 1, kind) for kind, start, end in get_entities(tags)] == spans


@given(st.lists(spanned(), min_size=1, max_size=4), st.sampled_from(SCHEMES))
def test_the_scheme_is_detected(sentences, scheme):
    tags = [mark(spans, length, scheme) for spans, length in sentences]
    assert detect(tags) == (scheme if any(spans for spans, _ in sentences) else None)


@given(st.lists(st.sampled_from(["O", "B-X", "I-X", "B-Y", "I-Y"])))
def test_any_b_and_i_can_be_read(tags):
    scheme = detect([tags])
    if scheme is None:
        assert set(tags) <= {"O"}
    else:
        theirs = [(start, end + 1, kind) for kind, start, end in get_entities(tags)] if tags else []
        assert read_spans(tags, scheme) == theirs
        proper = convert(tags, scheme, "IOB2")
        assert read_spans(proper, "IOB2") == theirs


@pytest.mark.parametrize(
    ("scheme", "tags", "message"),
    [
        ("IOB2", "O I-X", r"'I-X' of token 2 is wrong in IOB2 \(… O I-X …\); .* would have 'B-X'"),
        ("IOB2", "B-X I-Y", "'I-Y' of token 2"),
        ("IOB2", "S-X", "would have 'B-X'"),
        ("IOB1", "O S-X", "'S-X' of token 2 is wrong in IOB1"),
        ("BIOES", "B-X O", "'B-X' of token 1 is wrong in BIOES .* would have 'S-X'"),
        ("BIOES", "B-X I-X", "token 2 .* would have 'E-X'"),
        ("BIOES", "I-X E-X", "token 1 .* would have 'B-X'"),
        ("BIOES", "B-X E-Y", "token 1"),
        ("BIOES", "S-X E-X", "token 2 .* would have 'S-X'"),
    ],
)
def test_ill_formed_tags(scheme, tags, message):
    with pytest.raises(DataError, match=message):
        read_spans(tags.split(), scheme)
    with pytest.raises(DataError, match=message):
        convert(tags.split(), scheme, "IOB2")


def test_which_sentence_is_wrong():
    with pytest.raises(DataError, match="sentence 2: 'B-X' of token 3"):
        detect([["S-X"], ["O", "O", "B-X"]])


def test_other_tags_are_no_spans():
    assert detect([["D", "N", "O"], ["B-X"]]) is None
    assert detect([]) is None
    with pytest.raises(ValueError, match="marks no span"):
        read_spans(["N"], "IOB2")
    with pytest.raises(ValueError, match=r"'BILOU'; did you mean BIOES\? known are IOB1, IOB2, BIOES"):
        mark([], 1, "BILOU")


def test_the_files_of_conll_2003(real_data):
    data, _ = read_sentences([real_data / "conll2003" / "eng.train"], ("word", "pos", "chunk", "tag"))
    assert detect(data.tags) == "IOB1"
    chunks = data.columns["chunk"]
    assert detect(chunks) == "IOB1"
    for tags in (*data.tags[:2000], *chunks[:2000]):
        assert convert(convert(tags, "IOB1", "BIOES"), "BIOES", "IOB1") == tags

from __future__ import annotations

import json
from itertools import chain

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lossnet.data import (
    DataError,
    Examples,
    Lexicon,
    Sentences,
    TagColumn,
    TaggedSentences,
    TagSet,
    Vocabulary,
)
from lossnet.data.sentences import _ResidentTokens

TOKENS = (("EU", "rejects", "EU", "lamb"), ("Peter",), ("the", "lamb", "EU"))
TAGS = (("N", "V", "N", "N"), ("N",), ("D", "N", "N"))
POS = (("NNP", "VBZ", "NNP", "NN"), ("NNP",), ("DT", "NN", "NNP"))
CLUSTERS = {"eu": "0101", "lamb": "0111", "<user>": "1"}


def encoded(data: TaggedSentences, lexicon: Lexicon) -> TaggedSentences:
    return data.replace(
        data.source.encoded(lexicon), data.target.encoded(TagSet.fit([data.tags])), masked=True
    )


def small(*features: str, word_length: int = 4) -> TaggedSentences:
    data = TaggedSentences(TOKENS, TAGS, {"pos": POS})
    lexicon = Lexicon.fit(data.source, features, words=("peter",), clusters=CLUSTERS, word_length=word_length)
    return encoded(data, lexicon)


def resident(data: TaggedSentences) -> Examples:
    """Tensors for a device, on this one."""
    everything = torch.arange(len(data))
    return Examples(
        *(
            _ResidentTokens(
                column._numbers[column._padded(everything, column._longest)], column.lengths, column._one_hot
            )
            for column in (data.source, data.target)
        )
    )


def test_vocabularies():
    vocabulary = Vocabulary.of(["b", "a", "b", "c", "c", "c"])
    assert vocabulary.strings == ("c", "b")
    assert [vocabulary.number(string) for string in "cba"] == [2, 3, 1]
    assert "c" in vocabulary
    assert "a" not in vocabulary
    assert len(vocabulary) == 4
    assert len(Vocabulary()) == 2


def test_batches():
    data = small("pos")
    batch = data.batch(np.array([1, 2]))
    assert batch.x.dtype == torch.int64
    assert batch.y.dtype == batch.mask.dtype == torch.float32
    # words: peter is given, EU and lamb occur twice or more, the once; NNP and NN occur twice or more
    assert data.source.lexicon.words.strings == ("peter", "EU", "lamb")
    assert batch.x.tolist() == [[[2, 2], [0, 0], [0, 0]], [[1, 1], [4, 3], [3, 2]]]
    assert batch.mask.tolist() == [[1, 0, 0], [1, 1, 1]]
    assert batch.y.tolist() == [[[0, 1, 0], [0, 0, 0], [0, 0, 0]], [[1, 0, 0], [0, 1, 0], [0, 1, 0]]]
    assert data.batch(torch.tensor([1])).x.shape == (1, 1, 2)  # its own longest sentence
    assert data.batch(np.array([], dtype=int)).x.shape == (0, 0, 2)


def test_features_made_from_tokens():
    data = Sentences((("EU", "eu", "15th", "#EU-15", "@jo", "Lamb"),) * 2)
    lexicon = Lexicon.fit(data, ("case", "shape", "brown2", "brown4"), clusters=CLUSTERS)
    names = {name: ["padding", "unknown", *v.strings] for name, v in lexicon.features.items()}
    rows = lexicon.rows(data)[:6, 1:]
    values = [[names[name][number] for name, number in zip(names, row, strict=True)] for row in rows]
    assert values == [
        ["upper", "X", "01", "0101"],
        ["lower", "x", "01", "0101"],
        ["digit", "dx", "", ""],
        ["other", "#X-d", "", ""],
        ["other", "@x", "1", "1"],
        ["upper", "Xx", "01", "0111"],
    ]
    assert lexicon.columns == ()


def test_characters():
    data = small("characters", word_length=4)
    assert data.source.lexicon.width == 5
    number = data.source.lexicon.characters.number
    spelled = data.batch(np.array([0])).x[0, :, 1:].tolist()
    assert spelled[0] == [number("E"), number("U"), 0, 0]
    assert spelled[1] == [number(c) for c in "rets"]  # re[jec]ts
    assert small("characters", word_length=3).batch(np.array([0])).x[0, 1, 1:].tolist() == [
        number(c) for c in "res"
    ]
    assert number("j") == 1
    assert small().source.lexicon.word_length == 0


TEXTS = st.lists(
    st.lists(st.sampled_from(["EU", "eu", "a", "12", "@jo", "x" * 30, "\xa0"]), min_size=1), min_size=1
)


@settings(deadline=None)  # torch's first call takes a while
@given(TEXTS, st.randoms())
def test_batches_hold_the_tokens_whatever_the_padding(texts, random):
    tokens = tuple(map(tuple, texts))
    tags = tuple(tuple(random.choice("AB") for _ in sentence) for sentence in tokens)
    data = TaggedSentences(tokens, tags)
    data = encoded(data, Lexicon.fit(data.source, ("case", "characters"), word_length=5))
    rows = [random.randrange(len(tokens)) for _ in range(4)]
    for batch in (data.batch(np.array(rows)), resident(data).batch(torch.tensor(rows))):
        for place, row in enumerate(rows):
            alone = data.batch(np.array([row]))
            length = len(tokens[row])
            for part, single in zip(batch[:3], alone[:3], strict=True):
                assert part.dtype == single.dtype
                torch.testing.assert_close(part[place, :length], single[0])
                assert not part[place, length:].any()
            assert [data.target.tag_set.names[tag] for tag in batch.y[place, :length].argmax(-1)] == list(
                tags[row]
            )
            assert (batch.x[place, :length, :2] > 0).all()


def test_resident_sentences():
    data = small("pos", "characters")
    there = data.on("meta")
    assert isinstance(there.source, _ResidentTokens)
    assert isinstance(there.target, _ResidentTokens)
    assert len(there) == 3
    assert there.batch(torch.tensor([1])).x.shape == (1, 8, 6)  # few lengths: graphs are made for each
    assert data.on("meta", limit_bytes=10) is data
    assert data.on("cpu").source is data.source
    taken = resident(data).take([2, 0])
    assert taken.source.lengths.tolist() == [3, 4]
    batches = taken.batch(torch.tensor([1])), resident(data).batch(torch.tensor([0]))
    for mine, whole in zip(*(batch._replace(rows=None) for batch in batches), strict=True):
        assert mine is whole is None or mine.equal(whole)


def test_taken_sentences():
    data = small("pos")
    taken = data.take([2, 0])
    assert taken.tokens == (TOKENS[2], TOKENS[0])
    assert taken.tags == (TAGS[2], TAGS[0])
    assert taken.columns == {"pos": (POS[2], POS[0])}
    for mine, whole in zip(taken.batch(np.array([0, 1]))[:3], data.batch(np.array([2, 0]))[:3], strict=True):
        torch.testing.assert_close(mine, whole)
    assert len(data.take([])) == 0
    with pytest.raises(IndexError, match="0 to 2"):
        data.take([3])
    with pytest.raises(IndexError, match="0 to 2"):
        data.batch(np.array([-1]))


def test_sentences_without_tags():
    data = small("pos")
    read = Sentences((("Nobody", "EU"),), {"pos": (("NNP", "XX"),)})
    batch = Examples(read.encoded(data.source.lexicon)).batch(np.array([0]))
    assert batch.x.tolist() == [[[1, 2], [3, 1]]]
    assert batch.y is None
    assert batch.mask.tolist() == [[1, 1]]
    assert len(data.take([]).on("meta")) == 0


def test_sentences_are_joined():
    data = small("pos")
    both = Examples(data.source.join([data.source]), data.target.join([data.target]))
    assert both.source.columns["pos"] == (*POS, *POS)
    for mine, whole in zip(both.batch(np.array([4, 2]))[:3], data.batch(np.array([1, 2]))[:3], strict=True):
        torch.testing.assert_close(mine, whole)


def test_tags_have_numbers_and_are_kept_as_json():
    spans = TagSet.fit([(("I-PER", "I-PER", "O"),), (("I-LOC",),)])
    assert spans.names[:5] == ("O", "B-LOC", "I-LOC", "E-LOC", "S-LOC")
    assert spans.scheme == "IOB1"
    assert TagSet.from_state(json.loads(json.dumps(spans.state()))) == spans
    column = TagColumn((("I-PER", "I-PER", "O"),)).in_scheme("IOB1")
    assert column.tags == (("B-PER", "E-PER", "O"),)
    assert column.in_scheme(None) is column
    with pytest.raises(DataError, match="no scheme is called 'BOO'"):
        TagSet.from_state({"tags": ["O"], "scheme": "BOO"})


def test_words_back_off():
    data = small()
    rows = data.source.lexicon.rows(Sentences((("PETER", "eu", "Lamb", "EU"),)))
    assert rows[:, 0].tolist() == [2, 1, 4, 3]


def test_a_lexicon_is_kept_as_json():
    lexicon = small("case", "pos", "brown4", "characters").source.lexicon
    again = Lexicon.from_state(json.loads(json.dumps(lexicon.state())))
    assert again == lexicon
    assert again.columns == ("pos",)
    np.testing.assert_array_equal(again.rows(small().source), lexicon.rows(small().source))


def test_numbers_fit_their_vocabularies():
    data = small("case", "pos", "characters")
    lexicon = data.source.lexicon
    rows = lexicon.rows(data.source)
    assert len(rows) == len(list(chain.from_iterable(TOKENS)))
    sizes = [len(lexicon.words), *map(len, lexicon.features.values()), *[len(lexicon.characters)] * 4]
    assert rows.shape[1] == lexicon.width == len(sizes)
    assert (rows.max(0) < sizes).all()


def test_what_is_no_data():
    with pytest.raises(DataError, match="sentence 2 has no tokens"):
        Sentences((("a",), ()))
    with pytest.raises(DataError, match="'tags' has 1 sentences with 2 tokens, for 1 sentences with 1"):
        TaggedSentences((("a",),), (("N", "N"),))
    with pytest.raises(DataError, match="'tags' has 0 sentences"):
        TaggedSentences((("a",),), ())
    with pytest.raises(DataError, match="'pos' has 2 sentences"):
        Sentences((("a",),), {"pos": (("N",), ("N",))})
    with pytest.raises(DataError, match="need a lexicon"):
        Sentences((("a",),)).batch(np.array([0]))
    with pytest.raises(DataError, match="no column pos; it is needed"):
        Sentences((("a",),), {}, small("pos").source.lexicon).batch(np.array([0]))
    with pytest.raises(DataError, match="tag 'X' is none of those known: D, N, V"):
        TagColumn((("X",),), small().target.tag_set).batch(np.array([0]))
    with pytest.raises(DataError, match="tags need their numbers"):
        TagColumn((("X",),)).batch(np.array([0]))

"""What may be given to a model that reads sentences."""

import dataclasses
import json

import numpy as np
import pytest
import torch

from lossnet.build import build
from lossnet.data import DataError, FeatureTable, Lexicon, Sentences, TagSet
from lossnet.data.sentence_files import tokenise
from lossnet.inputs import Words
from lossnet.loading import load
from lossnet.model import Model
from lossnet.outputs import Labels, Tags
from lossnet.settings import Settings
from lossnet.task import Task

QUICK = Settings(task_hidden=6, energy_hidden=6)
NEWS = "Ann NNP I-PER\nsaw VBD O\nRome NNP I-LOC\n\nBo NNP I-PER\nleft VBD O\n\n"


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    made = tmp_path_factory.mktemp("news") / "news.conll"
    made.write_text(NEWS * 4)
    return made


@pytest.fixture(scope="module")
def tagger(path):
    torch.manual_seed(0)
    task = load(path, features="case").task
    return Model(build("cross-entropy", "none", QUICK, task), ("cross-entropy", "none"), QUICK, task)


def test_given_vectors_are_frozen_unless_tuned(path, tmp_path):
    vectors = tmp_path / "vectors.txt"
    vectors.write_text("ann 1 0.5\nrome 0.25 2\n")
    task = load(path, embeddings=[vectors]).task
    frozen, tuned = (
        task.task_net(dataclasses.replace(QUICK, tune_embeddings=flag)).encoder.words
        for flag in (False, True)
    )
    assert "vectors" in dict(frozen.named_buffers())
    assert "vectors" in dict(tuned.named_parameters())
    assert torch.equal(frozen.vectors, torch.from_numpy(task.input.vectors))
    without = load(path).task.task_net(dataclasses.replace(QUICK, tune_embeddings=False)).encoder.words
    assert "vectors" in dict(without.named_parameters())


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("Ann Lee went.", ["Ann", "Lee", "went", "."]),
        ("http://a.b/c?d=e #fun @jo_1 :-) !!!", ["http://a.b/c?d=e", "#fun", "@jo_1", ":", "-", ")", "!!!"]),
        ("don't state-of-the-art U.S. 3.5%", ["don't", "state-of-the-art", "U.S", ".", "3.5", "%"]),
        ("", []),
    ],
)  # fmt: skip
def test_texts_are_cut_into_tokens(text, tokens):
    assert list(tokenise(text)) == tokens


def test_sentences_come_in_many_forms(tagger):
    expected = tagger.predict_proba([["Ann", "saw", "Rome"], ["Bo"]])
    for given in (
        ["Ann saw Rome", "Bo"],
        (("Ann", "saw", "Rome"), "Bo"),
        [np.array(["Ann", "saw", "Rome"]), ["Bo"]],
    ):
        np.testing.assert_array_equal(tagger.predict_proba(given), expected)
        assert tagger.predict(given).shape == expected.shape


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("Ann saw Rome", r"give \[text\]"),
        ([["Ann", 3]], "sentence 1 is"),
        (["Ann", 3], "sentence 2 is 3"),
        ([["Ann"], []], "sentence 2 has no tokens"),
    ],
)
def test_what_is_no_sentence_is_said(tagger, given, message):
    with pytest.raises(DataError, match=message):
        tagger.predict(given)


@pytest.mark.parametrize(
    ("content", "tokens"),
    [
        ("Ann NNP I-PER\nsaw VBD O\n\nBo NNP I-PER\n", (("Ann", "saw"), ("Bo",))),  # our tags
        ("Ann\tx\nsaw\ty\n", (("Ann", "saw"),)),  # tabs
        ("Ann\nsaw\n\nBo\nleft\n", (("Ann", "saw"), ("Bo", "left"))),  # groups of lines
        ("Ann saw\nBo left\n", (("Ann", "saw"), ("Bo", "left"))),  # texts of two words each
        ("Ann\nBo\n", (("Ann",), ("Bo",))),  # texts of one word each
        ("Ann saw Rome.\n\nBo left\n", (("Ann", "saw", "Rome", "."), ("Bo", "left"))),
    ],
)
def test_a_file_that_looks_like_columns_is_read_so(tagger, tmp_path, content, tokens):
    path = tmp_path / "some.txt"
    path.write_text(content)
    (part,) = tagger.task.input.stream(path, tagger.task.output.names)
    assert part.examples.source.tokens == tokens


def test_labels_need_no_mask_and_tags_do():
    words = Words(Lexicon.fit(Sentences((("a", "b", "a", "b"),))))
    read = words.read(["a b", "a"])
    assert words.prepare(read).mask(np.array([1, 0])).tolist() == [[1, 0], [1, 1]]
    for level, output in (("instance", Labels(("x",))), ("position", Tags(TagSet(("x",))))):
        data = Task(words, output).read(["a b", "a"])
        for part in (data, data.take([0, 1]), data.on("meta")):
            assert (part.batch(torch.tensor([1, 0])).mask is None) == (level == "instance")


def test_padding_changes_no_features_of_a_sentence():
    torch.manual_seed(0)
    words = Words(Lexicon.fit(Sentences((("a", "b", "c") * 2,))))
    net = words.network(QUICK, "instance", outputs=3).eval()
    x = words.prepare(words.read(["a b", "a b c a b c"]))
    torch.testing.assert_close(net(x.batch(np.array([0, 1])))[:1], net(x.batch(np.array([0]))))


def test_a_column_of_texts_is_remembered_and_asked_for(tmp_path):
    path = tmp_path / "texts.csv"
    path.write_text("said,x\na b,1\n")
    words = Words(Lexicon.fit(Sentences((("a", "a"),))), column="said")
    content, arrays = words.state()
    again = Words.from_state(json.loads(json.dumps(content)), arrays)
    assert again.column == "said"
    assert again.streams(path)
    (part,) = again.stream(path, ["x"])
    assert part.examples.source.tokens == (("a", "b"),)
    with pytest.raises(DataError, match="not trained on a table's column of texts"):
        list(dataclasses.replace(words, column=None).stream(path, ["x"]))
    path.write_text("text,x\na b,1\n")
    with pytest.raises(DataError, match="said"):
        list(again.stream(path, ["x"]))
    for wrong in ({"column": 3}, {"vector_width": 0}, {"vector_width": "wide"}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            Words.from_state({**content, **wrong}, {})


@pytest.mark.parametrize(
    ("given", "accepted"),
    [
        (["a text"], True),
        ([["some", "tokens"], ["more"]], True),
        (Sentences((("a",),)), True),
        ("a text", False),
        ([[1.0, 2.0]], False),
        ([[]], False),
        ([], False),
    ],
)
def test_sentences_are_told_from_other_inputs(given, accepted):
    assert Words.accepts(given) is accepted
    assert not Words(Lexicon.fit(Sentences((("a",),)))).matches(FeatureTable([[1.0]]))

import pickle

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score

from lossnet import SequenceTagger
from lossnet.data.errors import DataError
from lossnet.spans import span_scores

SMALL = {"task_hidden": 12, "energy_hidden": 8, "samples": 2}
SENTENCES = [
    ["Ann", "Lee", "saw", "Rome"],
    ["Bo", "left", "Oslo", "."],
    ["Eve", "likes", "Paris"],
    ["Ann", "left", "Rome", "."],
    ["Bo", "Lee", "likes", "Oslo"],
    ["Eve", "saw", "Paris", "."],
] * 2
KINDS = {"Ann": "PER", "Lee": "PER", "Bo": "PER", "Eve": "PER", "Rome": "LOC", "Oslo": "LOC", "Paris": "LOC"}


def spans(sentence):
    """Tags in IOB2."""
    found, before = [], None
    for token in sentence:
        kind = KINDS.get(token)
        found.append("O" if kind is None else f"{'I' if kind == before else 'B'}-{kind}")
        before = kind
    return found


PARTS = [[{"PER": "N", "LOC": "N", None: "V"}[KINDS.get(token)] for token in s] for s in SENTENCES]
SPANS = [spans(sentence) for sentence in SENTENCES]


def quick(**changes):
    usual = {"method": "cross-entropy", "epochs": 12, "learning_rate": 0.03, "validation_fraction": 0.2}
    return SequenceTagger(**{**usual, **SMALL, "random_state": 0, "device": "cpu", **changes})


@pytest.mark.parametrize("method", ["cross-entropy", "crf", "seal"])
def test_spans_come_back_in_their_own_scheme(method):
    tagger = quick(method=method).fit(SENTENCES, SPANS)
    predicted = tagger.predict(SENTENCES)
    assert [len(tags) for tags in predicted] == [len(tags) for tags in SENTENCES]
    assert {tag for tags in predicted for tag in tags} <= {"O", "B-PER", "I-PER", "B-LOC", "I-LOC"}
    assert tagger.score(SENTENCES, SPANS) == span_scores(predicted, SPANS)["span_f1"] > 0.6
    assert "E-PER" in tagger.classes_
    probabilities = tagger.predict_proba(SENTENCES)
    assert [found.shape for found in probabilities] == [(len(s), len(tagger.classes_)) for s in SENTENCES]
    np.testing.assert_allclose(np.concatenate(probabilities).sum(1), 1, rtol=1e-5)
    again = pickle.loads(pickle.dumps(tagger))
    assert again.predict(SENTENCES) == predicted
    assert again.predict(["Ann saw Rome."]) == tagger.predict([["Ann", "saw", "Rome", "."]])


def test_tags_without_spans_are_scored_one_by_one():
    tagger = quick().fit(SENTENCES, PARTS)
    predicted = tagger.predict(SENTENCES)
    assert tagger.classes_.tolist() == ["N", "V"]
    right = [
        a == b for mine, true in zip(predicted, PARTS, strict=True) for a, b in zip(mine, true, strict=True)
    ]
    assert tagger.score(SENTENCES, PARTS) == np.mean(right)
    assert np.mean(right) > 0.8


def test_cross_validation_and_a_grid():
    scores = cross_val_score(quick(epochs=2), SENTENCES, PARTS, cv=2)
    assert scores.shape == (2,)
    assert not np.isnan(scores).any()
    search = GridSearchCV(quick(epochs=3), {"learning_rate": [1e-6, 0.05]}, cv=2).fit(SENTENCES, PARTS)
    assert search.best_params_ == {"learning_rate": 0.05}
    assert not hasattr(clone(search.best_estimator_), "model_")


def test_weights_and_validation_sentences():
    given = {"X_val": SENTENCES[:2], "y_val": PARTS[:2]}
    plain = quick(epochs=2).fit(SENTENCES, PARTS, **given)
    weighted = quick(epochs=2).fit(SENTENCES, PARTS, np.arange(12.0), **given)
    a, b = (np.concatenate(tagger.predict_proba(SENTENCES)) for tagger in (plain, weighted))
    assert (a != b).any()


def test_validation_sentences_and_their_tags_are_given_together():
    with pytest.raises(ValueError, match="X_val and y_val together"):
        quick().fit(SENTENCES, PARTS, y_val=PARTS)


def test_features_are_a_choice():
    tagger = quick(epochs=1, features="shape").fit(SENTENCES, PARTS)
    assert list(tagger.model_.task.input.lexicon.features) == ["shape"]
    with pytest.raises(ValueError, match="no feature 'colour'"):
        quick(features="colour").fit(SENTENCES, PARTS)


@pytest.mark.parametrize(
    ("X", "y", "message"),
    [
        (["Ann saw Rome"], [["N", "V", "N"]], "give its tokens"),
        ([["Ann", "saw"]], [["N"]], "give one of 'tags' per token"),
        ([["Ann"], []], [["N"], []], "has no tokens"),
        (SENTENCES, None, "y is None; give the tags of each sentence's tokens"),
        (SENTENCES, [None] * 12, "no row of y has a label, all are None or NaN; give some of them labels"),
        (None, PARTS, "X is None; give the tokens of each sentence"),
        ([3], [["N"]], "X has 3 for a sentence; give the tokens of each sentence"),
    ],
)
def test_what_is_no_sentence_is_refused(X, y, message):
    with pytest.raises(DataError, match=message):
        quick().fit(X, y)


def test_there_is_no_fitting_bit_by_bit():
    assert not hasattr(quick(), "partial_fit")
    with pytest.raises(NotFittedError):
        quick().predict(SENTENCES)


MEANINGS = {
    "ann lee bo eve": [2.0, 0.0, 0.0],
    "rome oslo paris lima": [0.0, 2.0, 0.0],
    "saw left likes": [0.0, 0.0, 2.0],
}
VECTORS = {word: vector for words, vector in MEANINGS.items() for word in words.split()}


def vectors_of(tagger):
    return tagger.model_.method.state_dict()["task_net.encoder.words.vectors"].numpy()


@pytest.fixture
def files(tmp_path):
    """The vectors as two files, which are to be joined: the first two columns as text, the last as npz."""
    text, archive = tmp_path / "vectors.txt", tmp_path / "vectors.npz"
    text.write_text("".join(f"{word} {row[0]} {row[1]}\n" for word, row in VECTORS.items()))
    last = np.array([row[2:] for row in VECTORS.values()], np.float32)
    np.savez(archive, words=np.array(list(VECTORS)), vectors=last)
    return [text, str(archive)]


def test_word_vectors_from_a_mapping_or_from_files(files):
    tagger = quick(embeddings=VECTORS).fit(SENTENCES, SPANS)
    words, vectors = tagger.model_.task.input.lexicon.words, vectors_of(tagger)
    for word, row in VECTORS.items():
        np.testing.assert_array_equal(vectors[words.number(word)], row)
    assert tagger.predict([["Bo", "saw", "Lima"]]) == [["B-PER", "O", "B-LOC"]]  # it never saw Lima
    read = quick(embeddings=files).fit(SENTENCES, SPANS)
    for one, other in zip(tagger.predict_proba(SENTENCES), read.predict_proba(SENTENCES), strict=True):
        np.testing.assert_array_equal(one, other)
    again = pickle.loads(pickle.dumps(tagger))
    np.testing.assert_array_equal(vectors_of(again), vectors)
    assert again.predict(SENTENCES) == tagger.predict(SENTENCES)
    copied = clone(tagger)
    assert copied.get_params()["embeddings"] == VECTORS
    assert not hasattr(copied, "model_")
    tuned = quick(epochs=1, embeddings=VECTORS, tune_embeddings=True)
    assert (vectors_of(tuned.fit(SENTENCES, SPANS)) != vectors).any()


def test_word_vectors_are_a_choice_of_a_grid(files):
    search = GridSearchCV(quick(epochs=2), {"embeddings": [None, str(files[0])]}, cv=2)
    assert search.fit(SENTENCES, PARTS).best_params_["embeddings"] in (None, str(files[0]))


@pytest.mark.parametrize(
    ("embeddings", "message"),
    [
        ({"a": [1.0], "b": [1.0, 2.0]}, "'b' has 2 numbers, that of 'a' 1"),
        ({"a": [float("nan")]}, "not finite"),
        ({}, "empty"),
        ("missing.txt", "missing.txt"),
    ],
)
def test_bad_word_vectors_are_refused(embeddings, message):
    with pytest.raises(DataError, match=message):
        quick(embeddings=embeddings).fit(SENTENCES, PARTS)

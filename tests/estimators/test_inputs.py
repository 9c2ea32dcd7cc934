"""Label sets of sentences and of images."""

import pickle

import numpy as np
import pandas as pd
import pytest
from sklearn.model_selection import cross_val_score

from lossnet import MultiLabelClassifier, load
from lossnet.data import DataError

SMALL = {"task_hidden": 12, "energy_hidden": 8, "global_hidden": 4, "samples": 4, "image_width": 4}
TEXTS = ["a good film", "bad music .", "good music", "a very bad film"] * 8
LABELS = np.array([[1, 1], [0, 0], [1, 0], [0, 1]] * 8)


def quick(**changes):
    usual = {"method": "seal", "epochs": 15, "learning_rate": 0.03, "batch_size": 8, **SMALL}
    return MultiLabelClassifier(**{**usual, "random_state": 0, "device": "cpu", **changes})


@pytest.mark.parametrize("method", ["cross-entropy", "seal"])
@pytest.mark.parametrize(
    "texts",
    [TEXTS, [text.split() for text in TEXTS], np.array(TEXTS), pd.Series(TEXTS)],
    ids=lambda t: type(t),
)
def test_labels_of_sentences(texts, method):
    classifier = quick(method=method).fit(texts, LABELS)
    assert classifier.inputs_ == ("words" if isinstance(texts[0], list) else "text")
    assert classifier.score(texts, LABELS) > 0.9
    assert not hasattr(classifier, "n_features_in_")
    again = pickle.loads(pickle.dumps(classifier))
    np.testing.assert_array_equal(again.predict_proba(texts), classifier.predict_proba(texts))


def test_a_sentence_is_the_same_beside_longer_ones():
    classifier = quick(epochs=3).fit(TEXTS, LABELS)
    together = classifier.predict_proba(TEXTS)
    alone = np.concatenate([classifier.predict_proba([text]) for text in TEXTS])
    np.testing.assert_allclose(alone, together, rtol=1e-12)


def test_classes_and_named_labels_of_sentences(tmp_path):
    classes = np.where(LABELS[:, 0], "good", "bad")
    classifier = quick(method="cross-entropy").fit(TEXTS, classes)
    assert classifier.predict(["good film"]).tolist() == ["good"]
    frame = pd.DataFrame(LABELS, columns=["good", "film"])
    named = quick(method="cross-entropy").fit(TEXTS, frame)
    assert list(named.predict(TEXTS[:2]).columns) == ["good", "film"]
    named.model_.save(tmp_path / "model")
    assert load(tmp_path / "model").named(["a good film"]) == [["good", "film"]]


def test_word_vectors_of_labelled_sentences():
    vectors = {
        "good": [2.0, 0.0],
        "fine": [2.0, 0.0],
        "bad": [-2.0, 0.0],
        "film": [0.0, 2.0],
        "music": [0.0, -2.0],
    }
    classifier = quick(method="cross-entropy", embeddings=vectors, features="case").fit(TEXTS, LABELS)
    assert classifier.predict(["fine music"]).tolist() == [[1, 0]]  # training never saw "fine"
    with pytest.raises(ValueError, match="embeddings are for sentences, and X has feature vectors"):
        quick(embeddings=vectors).fit(np.eye(32), LABELS)


def test_sentences_in_cross_validation_weights_and_bit_by_bit():
    assert (cross_val_score(quick(epochs=2), TEXTS, LABELS, cv=2) >= 0).all()
    plain, weighted = quick(epochs=1).fit(TEXTS, LABELS), quick(epochs=1).fit(TEXTS, LABELS, np.arange(32.0))
    assert (plain.predict_proba(TEXTS) != weighted.predict_proba(TEXTS)).any()
    online = quick().partial_fit(TEXTS[:16], LABELS[:16]).partial_fit(["unseen words"], LABELS[:1])
    assert online.predict(TEXTS).shape == LABELS.shape


@pytest.mark.parametrize("method", ["cross-entropy", "seal"])
def test_labels_of_images(method):
    random = np.random.default_rng(0)
    labels = random.integers(0, 2, (60, 2))
    images = random.random((60, 8, 8)) * 0.2
    images[:, :4] += 0.6 * labels[:, :1, None]
    images[:, :, 4:] += 0.2 * labels[:, 1:, None]
    classifier = quick(method=method, epochs=10).fit(images, labels)
    assert classifier.inputs_ == "images"
    assert classifier.score(images, labels) > 0.6
    assert classifier.predict(images[..., None]).shape == (60, 2)
    again = pickle.loads(pickle.dumps(classifier))
    np.testing.assert_array_equal(again.predict_proba(images), classifier.predict_proba(images))


def test_the_kind_of_inputs_may_be_said():
    grey = np.random.default_rng(0).integers(0, 255, (32, 6)).astype(np.uint8)
    assert quick(epochs=1).fit(grey, LABELS).inputs_ == "features"
    listed = [row.tolist() for row in grey.reshape(32, 2, 3)]  # nested lists look like nothing
    assert quick(epochs=1, inputs="images").fit(listed, LABELS).inputs_ == "images"
    with pytest.raises(DataError, match="give a text, or a list of its tokens"):
        quick(inputs="words").fit(grey, LABELS)


def test_as_many_labels_as_sentences():
    with pytest.raises(DataError, match="32 inputs but 5 outputs"):
        quick().fit(TEXTS, LABELS[:5])
    with pytest.raises(ValueError, match="NaN"):
        quick().fit(TEXTS, LABELS * np.nan)
